// What operators do to values, as Python does it. Everything throws Error where Python raises.
#ifndef QUIRE_TEXT_JINJA_OPERATORS_H_
#define QUIRE_TEXT_JINJA_OPERATORS_H_

#include <optional>

#include "text/jinja_value.h"

namespace quire::jinja {

enum class BinaryOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

Value Apply(Heap& heap, BinaryOp op, const Value& left, const Value& right);
Value Negate(const Value& value);
Value Positive(const Value& value);

bool Compare(Heap& heap, CompareOp op, const Value& left, const Value& right);
bool Equal(Heap& heap, const Value& left, const Value& right);
bool Less(Heap& heap, const Value& left, const Value& right);

// value[first:last:step]; an absent bound is Python's None.
struct SliceBounds {
  std::optional<Int> first = {};
  std::optional<Int> last = {};
  std::optional<Int> step = {};
};
Value Slice(Heap& heap, const Value& value, const SliceBounds& bounds);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_OPERATORS_H_
