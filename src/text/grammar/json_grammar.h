// JSON as rules of a grammar: what a schema, and any JSON value, is made of.
//
// What is written is JSON of a narrow kind, so that every reader takes it and no answer is all white
// space: between parts there is nothing, a space, or one or two line feeds and up to 20 spaces or
// tabs; numbers have up to 18 digits before and 16 behind the point, exponents two; \u escapes stand
// for no surrogates.
#ifndef QUIRE_TEXT_GRAMMAR_JSON_GRAMMAR_H_
#define QUIRE_TEXT_GRAMMAR_JSON_GRAMMAR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "text/grammar/grammar.h"

namespace quire {

class JsonRules {
 public:
  // `grammar` outlives this.
  explicit JsonRules(Grammar& grammar);

  Grammar::Expr Space() { return grammar_.Call(space_); }
  Grammar::Expr String() { return grammar_.Call(string_); }
  Grammar::Expr Character() { return grammar_.Call(character_); }  // of a string
  Grammar::Expr Number() { return grammar_.Call(number_); }
  Grammar::Expr Integer() { return grammar_.Call(integer_); }
  Grammar::Expr AnyValue() { return grammar_.Call(value_); }
  Grammar::Expr AnyObject() { return grammar_.Call(object_); }
  Grammar::Expr AnyArray() { return grammar_.Call(array_); }

  // One character of a set, in a string.
  Grammar::Expr CharacterOf(const CodePoints& set);
  // A string that is none of these: the name of a property that is not declared.
  Grammar::Expr StringExcept(std::span<const std::string> names);

  // Numbers from `low` to `high`. Integers: both included, at most 18 digits.
  Grammar::Expr IntegerBetween(int64_t low, int64_t high);
  // Numbers with a fraction strictly between two integers.
  Grammar::Expr FractionBetween(int64_t low, int64_t high);

 private:
  Grammar::Expr Digits(int64_t min, int64_t max);
  Grammar::Expr DigitBetween(char first, char last);
  Grammar::Expr SameLength(const std::string& low, const std::string& high);
  Grammar::Expr Positive(int64_t low, int64_t high);
  Grammar::Expr NonNegative(int64_t low, int64_t high);
  void DefineScalars();
  void DefineContainers();

  Grammar& grammar_;
  Grammar::Rule space_, string_, character_, number_, integer_, value_, object_, array_;
};

inline constexpr int64_t kMaxJsonInteger = 999'999'999'999'999'999;  // 18 digits

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_JSON_GRAMMAR_H_
