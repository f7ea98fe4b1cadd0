// A Grammar is a context-free grammar over bytes while it is being written: rules, and expressions
// that may call them. JSON Schemas, regular expressions, choices and EBNF all become one, and
// CompileGrammar (text/grammar/automaton.h) makes an automaton of it.
#ifndef QUIRE_TEXT_GRAMMAR_GRAMMAR_H_
#define QUIRE_TEXT_GRAMMAR_GRAMMAR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/code_points.h"

namespace quire {

// What a grammar may have of expressions, and its automaton of states: some hundred kilobytes of
// memory to one of text, at most.
inline constexpr int64_t kMaxGrammarExpressions = 1 << 17;
inline constexpr int64_t kMaxGrammarStates = 1 << 17;
// How deep expressions may stand in one another.
inline constexpr int kMaxGrammarDepth = 200;

class Grammar {
 public:
  enum class Expr : int32_t {};
  enum class Rule : int32_t {};

  Expr Empty();
  Expr Literal(std::string_view bytes);
  Expr Characters(CodePoints set);  // one of them, in UTF-8; an empty set matches nothing
  Expr Sequence(std::vector<Expr> parts);
  Expr Choice(std::vector<Expr> parts);  // of none: matches nothing
  // `max` absent: any number.
  Expr Repeat(Expr part, int64_t min, std::optional<int64_t> max);
  Expr Optional(Expr part) { return Repeat(part, 0, 1); }
  Expr Call(Rule rule);
  // What another grammar's root is, with all of its rules.
  Expr AddGrammar(const Grammar& other);
  // All of these throw Error(kInvalidArgument) if the grammar becomes too large.

  Rule AddRule(std::string name);  // to be defined once
  void Define(Rule rule, Expr expr);
  void SetRoot(Rule rule) { root_ = rule; }

  // Looked into by what compiles it:
  enum class Kind : uint8_t { kEmpty, kLiteral, kCharacters, kSequence, kChoice, kRepeat, kCall };
  struct Node {
    Kind kind = Kind::kEmpty;
    std::string literal = {};
    CodePoints set = {};
    std::vector<Expr> parts = {};
    int64_t min = 0;
    std::optional<int64_t> max = {};
    Rule rule = {};
  };
  struct RuleText {
    std::string name;
    std::optional<Expr> expr;
  };
  const Node& node(Expr expr) const { return nodes_[static_cast<size_t>(expr)]; }
  std::span<const RuleText> rules() const { return rules_; }
  Rule root() const { return root_; }

 private:
  Expr Add(Node node);

  std::vector<Node> nodes_;
  std::vector<RuleText> rules_;
  Rule root_ = {};
};

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_GRAMMAR_H_
