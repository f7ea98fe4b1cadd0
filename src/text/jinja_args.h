// Arguments of a call, matched to the names of its parameters as Python does.
#ifndef QUIRE_TEXT_JINJA_ARGS_H_
#define QUIRE_TEXT_JINJA_ARGS_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace quire::jinja {

// The arguments of one call in the order of its parameters. Getters throw Error, with the name of
// what is called, where an argument has another type.
class BoundArgs {
 public:
  // Throws Error if there are too many arguments, one that no parameter has the name of, or fewer
  // than `required`.
  BoundArgs(std::string_view callee, const Args& args,
            std::initializer_list<std::string_view> parameters, size_t required = 0);

  bool Has(size_t index) const { return values_[index].has_value(); }
  bool HasValue(size_t index) const { return Has(index) && !values_[index]->Is(Kind::kNone); }
  const Value& At(size_t index) const { return *values_[index]; }
  Value ValueOr(size_t index, Value otherwise) const;
  bool BoolOr(size_t index, bool otherwise) const;  // any value, by its truth
  Int IntOr(size_t index, Int otherwise) const;
  const std::string& String(size_t index) const;

 private:
  [[noreturn]] void Refuse(size_t index, std::string_view expected) const;

  std::string callee_;
  std::vector<std::string_view> parameters_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_ARGS_H_
