#include "text/jinja_number_filters.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_args.h"
#include "text/jinja_operators.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

// As int(text) in Python; absent where it raises ValueError.
std::optional<Int> ParseInt(std::string_view text) {
  text = Strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  constexpr UnsignedInt kLimit = UnsignedInt{1} << 64;
  UnsignedInt number = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<UnsignedInt>(c - '0');
    Require(number < kLimit, "an integer has more than 64 bits");
    after_digit = true;
  }
  if (!after_digit) return std::nullopt;
  return negative ? -static_cast<Int>(number) : static_cast<Int>(number);
}

std::optional<double> ToFloat(const Value& value) {
  if (value.IsNumber()) return value.AsFloat();
  if (value.Is(Kind::kString)) return ParseFloat(value.AsString());
  if (value.Is(Kind::kUndefined)) Fail("{}", value.WhyUndefined());
  return std::nullopt;
}

// Towards zero; absent for nan.
std::optional<Value> Truncate(double number) {
  if (std::isnan(number)) return std::nullopt;
  Require(std::fabs(number) < 0x1p64, "a float has more than 64 bits as an integer");
  return Value::Integer(static_cast<Int>(number));
}

Value ToInt(Heap&, const Value& value, const Args& args) {
  const BoundArgs bound("int", args, {"default", "base"});
  Require(bound.IntOr(1, 10) == 10, "int: only base 10 is supported");
  if (value.IsWhole()) return Value::Integer(value.AsWhole());
  if (value.Is(Kind::kString)) {
    if (const std::optional<Int> number = ParseInt(value.AsString()))
      return Value::Integer(*number);
  }
  const std::optional<double> number = ToFloat(value);
  const bool is_infinite_text = value.Is(Kind::kString) && number && std::isinf(*number);
  if (number && !is_infinite_text) {
    if (const std::optional<Value> whole = Truncate(*number)) return *whole;
  }
  return bound.ValueOr(0, Value::Integer(0));
}

Value ToFloatFilter(Heap&, const Value& value, const Args& args) {
  const BoundArgs bound("float", args, {"default"});
  if (const std::optional<double> number = ToFloat(value)) return Value::Float(*number);
  return bound.ValueOr(0, Value::Float(0));
}

constexpr Filter kNumberFilters[] = {{"int", ToInt}, {"float", ToFloatFilter}};

}  // namespace

std::span<const Filter> NumberFilters() { return kNumberFilters; }

}  // namespace quire::jinja
