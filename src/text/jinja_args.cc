#include "text/jinja_args.h"

#include <algorithm>
#include <iterator>

namespace quire::jinja {

BoundArgs::BoundArgs(std::string_view callee, const Args& args,
                     std::initializer_list<std::string_view> parameters, size_t required)
    : callee_(callee), parameters_(parameters), values_(parameters.size()) {
  Require(args.positional.size() <= parameters_.size(), "{} takes at most {} arguments, got {}",
          callee_, parameters_.size(), args.positional.size());
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    const auto parameter = std::find(parameters_.begin(), parameters_.end(), name);
    Require(parameter != parameters_.end(), "{} has no argument '{}'", callee_, name);
    std::optional<Value>& slot = values_[static_cast<size_t>(parameter - parameters_.begin())];
    Require(!slot.has_value(), "{} got '{}' twice", callee_, name);
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    Require(Has(i), "{} needs the argument '{}'", callee_, parameters_[i]);
  }
}

Value BoundArgs::ValueOr(size_t index, Value otherwise) const {
  return Has(index) ? At(index) : otherwise;
}

bool BoundArgs::BoolOr(size_t index, bool otherwise) const {
  return Has(index) ? IsTrue(At(index)) : otherwise;
}

Int BoundArgs::IntOr(size_t index, Int otherwise) const {
  if (!Has(index)) return otherwise;
  if (!At(index).IsWhole()) Refuse(index, "an int");
  return At(index).AsWhole();
}

const std::string& BoundArgs::String(size_t index) const {
  if (!At(index).Is(Kind::kString)) Refuse(index, "a str");
  return At(index).AsString();
}

void BoundArgs::Refuse(size_t index, std::string_view expected) const {
  if (At(index).Is(Kind::kUndefined)) Fail("{}", At(index).WhyUndefined());
  Fail("{}: expected {} as '{}', got '{}'", callee_, expected, parameters_[index],
       TypeName(At(index)));
}

}  // namespace quire::jinja
