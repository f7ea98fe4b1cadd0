#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "text/jinja_print.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

constexpr Int kIntBound = Int{1} << 64;

Value Checked(Int value) {
  Require(value > -kIntBound && value < kIntBound, "an integer has more than 64 bits");
  return Value::Integer(value);
}

Value MultiplyInts(Int left, Int right) {
  const auto magnitude = [](Int value) {
    return static_cast<UnsignedInt>(value < 0 ? -value : value);
  };
  const UnsignedInt product = magnitude(left) * magnitude(right);  // of 64 by 64 bits
  Require(product < static_cast<UnsignedInt>(kIntBound), "an integer has more than 64 bits");
  return Checked((left < 0) != (right < 0) ? -static_cast<Int>(product)
                                           : static_cast<Int>(product));
}

Int FloorDivideInts(Int left, Int right) {
  const Int quotient = left / right;
  return quotient - (left % right != 0 && (left < 0) != (right < 0) ? 1 : 0);
}

Int ModuloInts(Int left, Int right) {
  const Int rest = left % right;
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

double ModuloFloats(double left, double right) {
  const double rest = std::fmod(left, right);
  if (rest == 0) return std::copysign(0.0, right);
  return (rest < 0) != (right < 0) ? rest + right : rest;
}

// As CPython computes it: exact where left / right itself would round up.
double FloorDivideFloats(double left, double right) {
  double quotient = (left - ModuloFloats(left, right)) / right;
  if (quotient == 0) return std::copysign(0.0, left / right);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value PowerInts(Int base, Int exponent) {
  Value result = Value::Integer(1);
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = MultiplyInts(result.AsWhole(), base);
    if (exponent > 1) base = MultiplyInts(base, base).AsWhole();
  }
  return result;
}

Value PowerFloats(double base, double exponent) {
  Require(!(base == 0 && exponent < 0), "zero to a negative power");
  Require(!(base < 0 && std::isfinite(base) && std::isfinite(exponent) &&
            exponent != std::floor(exponent)),
          "complex numbers are not supported");
  const double power = std::pow(base, exponent);
  Require(!std::isinf(power) || std::isinf(base) || std::isinf(exponent),
          "the result of ** is too large");
  return Value::Float(power);
}

Value ApplyToInts(BinaryOp op, Int left, Int right) {
  const bool divides =
      op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  Require(!divides || right != 0, "division by zero");
  switch (op) {
    case BinaryOp::kAdd:
      return Checked(left + right);
    case BinaryOp::kSubtract:
      return Checked(left - right);
    case BinaryOp::kMultiply:
      return MultiplyInts(left, right);
    case BinaryOp::kDivide:
      return Value::Float(static_cast<double>(left) / static_cast<double>(right));
    case BinaryOp::kFloorDivide:
      return Checked(FloorDivideInts(left, right));
    case BinaryOp::kModulo:
      return Checked(ModuloInts(left, right));
    case BinaryOp::kPower:
      if (right >= 0) return PowerInts(left, right);
      return PowerFloats(static_cast<double>(left), static_cast<double>(right));
  }
  return {};
}

Value ApplyToFloats(BinaryOp op, double left, double right) {
  const bool divides =
      op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  Require(!divides || right != 0, "division by zero");
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(left + right);
    case BinaryOp::kSubtract:
      return Value::Float(left - right);
    case BinaryOp::kMultiply:
      return Value::Float(left * right);
    case BinaryOp::kDivide:
      return Value::Float(left / right);
    case BinaryOp::kFloorDivide:
      return Value::Float(FloorDivideFloats(left, right));
    case BinaryOp::kModulo:
      return Value::Float(ModuloFloats(left, right));
    case BinaryOp::kPower:
      return PowerFloats(left, right);
  }
  return {};
}

Value AddStrings(Heap& heap, const Value& left, const Value& right) {
  if (!left.is_markup() && !right.is_markup()) {
    heap.Spend(std::ssize(left.AsString()) + std::ssize(right.AsString()));
    return heap.String(left.AsString() + right.AsString());
  }
  const auto escaped = [&](const Value& value) {
    return value.is_markup() ? value.AsString() : EscapeHtml(heap, value.AsString());
  };
  return heap.String(escaped(left) + escaped(right)).AsMarkup();
}

Value MakeLike(Heap& heap, const Value& model, std::vector<Value> items) {
  return model.Is(Kind::kTuple) ? heap.Tuple(std::move(items)) : heap.List(std::move(items));
}

Value AddSequences(Heap& heap, const Value& left, const Value& right) {
  std::vector<Value> items = Iterate(heap, left);
  const std::vector<Value> more = Iterate(heap, right);
  items.insert(items.end(), more.begin(), more.end());
  return MakeLike(heap, left, std::move(items));
}

// A string, list or tuple, `times` times over.
Value Repeat(Heap& heap, const Value& value, Int times) {
  constexpr Int kMaxTimes = Int{1} << 40;  // beyond any limit on work, and products stay in range
  const auto count = static_cast<int64_t>(std::clamp<Int>(times, 0, kMaxTimes));
  const int64_t size =
      value.Is(Kind::kString) ? std::ssize(value.AsString()) : 32 * std::ssize(value.Items());
  if (size > 0)
    heap.Spend(count > kMaxTimes / size ? static_cast<int64_t>(kMaxTimes) : count * size);
  const int64_t rounds = size == 0 ? 0 : count;
  if (value.Is(Kind::kString)) {
    std::string text;
    for (int64_t i = 0; i < rounds; ++i) text += value.AsString();
    const Value repeated = heap.String(std::move(text));
    return value.is_markup() ? repeated.AsMarkup() : repeated;
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < rounds; ++i) {
    items.insert(items.end(), value.Items().begin(), value.Items().end());
  }
  return MakeLike(heap, value, std::move(items));
}

bool CanRepeat(const Value& value) {
  return value.Is(Kind::kString) || value.Is(Kind::kList) || value.Is(Kind::kTuple);
}

const char* Symbol(BinaryOp op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<int>(op)];
}

const char* Symbol(CompareOp op) {
  constexpr const char* kSymbols[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<int>(op)];
}

bool EqualStrings(Heap& heap, const std::string& left, const std::string& right) {
  if (left.size() != right.size()) return false;
  heap.Spend(std::ssize(left));
  return left == right;
}

bool EqualItems(Heap& heap, const std::vector<Value>& left, const std::vector<Value>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](const Value& a, const Value& b) { return Equal(heap, a, b); });
}

bool EqualDicts(Heap& heap, const Dict& left, const Dict& right) {
  if (left.members.size() != right.members.size()) return false;
  return std::all_of(left.members.begin(), left.members.end(), [&](const auto& member) {
    const Value* other = FindKey(heap, right, member.first);
    return other != nullptr && Equal(heap, member.second, *other);
  });
}

// left < right for values that Python can order, with left <= right if `or_equal`.
bool Precedes(Heap& heap, CompareOp op, const Value& left, const Value& right, bool or_equal) {
  heap.Spend(std::min(left.weight(), right.weight()));
  if (left.IsWhole() && right.IsWhole()) {
    return or_equal ? left.AsWhole() <= right.AsWhole() : left.AsWhole() < right.AsWhole();
  }
  if (left.IsNumber() && right.IsNumber()) {
    return or_equal ? left.AsFloat() <= right.AsFloat() : left.AsFloat() < right.AsFloat();
  }
  if (left.Is(Kind::kString) && right.Is(Kind::kString)) {
    const int order = left.AsString().compare(right.AsString());  // UTF-8 sorts as code points do
    return order < 0 || (or_equal && order == 0);
  }
  if (left.kind() == right.kind() && (left.Is(Kind::kList) || left.Is(Kind::kTuple))) {
    const auto [a, b] = std::mismatch(
        left.Items().begin(), left.Items().end(), right.Items().begin(), right.Items().end(),
        [&](const Value& x, const Value& y) { return Equal(heap, x, y); });
    if (a != left.Items().end() && b != right.Items().end()) {
      return Precedes(heap, op, *a, *b, or_equal);
    }
    return b != right.Items().end() || (or_equal && a == left.Items().end());
  }
  RequireDefined(left);
  RequireDefined(right);
  Fail("'{}' and '{}' have no order for {}", TypeName(left), TypeName(right), Symbol(op));
}

bool Contains(Heap& heap, const Value& container, const Value& value) {
  if (container.Is(Kind::kString)) {
    RequireDefined(value);
    Require(value.Is(Kind::kString), "'in' a str needs a str on its left, not '{}'",
            TypeName(value));
    heap.Spend(std::ssize(container.AsString()));
    return container.AsString().find(value.AsString()) != std::string::npos;
  }
  if (container.Is(Kind::kDict)) {
    Require(value.IsHashable(), "'{}' cannot be a key", TypeName(value));
    return FindKey(heap, container.AsDict(), value) != nullptr;
  }
  const std::vector<Value> items = Iterate(heap, container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return Equal(heap, item, value); });
}

// The bounds of a slice over `length` elements, with Python's rules for negative and wild ones.
struct Walk {
  int64_t begin;
  int64_t end;
  int64_t step;
};

Walk ResolveSlice(const SliceBounds& bounds, int64_t length) {
  Require(!bounds.step || *bounds.step != 0, "the step of a slice is zero");
  const Int step = std::clamp<Int>(bounds.step.value_or(1), -length - 1, length + 1);
  const Int low = step > 0 ? 0 : -1;
  const Int high = step > 0 ? length : length - 1;
  const auto place = [&](const std::optional<Int>& bound, Int otherwise) {
    if (!bound) return otherwise;
    return std::clamp<Int>(*bound < 0 ? *bound + length : *bound, low, high);
  };
  return {.begin = static_cast<int64_t>(place(bounds.first, step > 0 ? low : high)),
          .end = static_cast<int64_t>(place(bounds.last, step > 0 ? high : low)),
          .step = static_cast<int64_t>(step)};
}

template <class T>
T Pick(const T& elements, const Walk& walk) {
  T picked;
  const auto before_end = [&](int64_t i) { return walk.step > 0 ? i < walk.end : i > walk.end; };
  for (int64_t i = walk.begin; before_end(i); i += walk.step) {
    picked.push_back(elements[static_cast<size_t>(i)]);
  }
  return picked;
}

}  // namespace

Value Apply(Heap& heap, BinaryOp op, const Value& left, const Value& right) {
  if (left.IsWhole() && right.IsWhole()) return ApplyToInts(op, left.AsWhole(), right.AsWhole());
  if (left.IsNumber() && right.IsNumber())
    return ApplyToFloats(op, left.AsFloat(), right.AsFloat());
  if (op == BinaryOp::kAdd && left.kind() == right.kind()) {
    if (left.Is(Kind::kString)) return AddStrings(heap, left, right);
    if (left.Is(Kind::kList) || left.Is(Kind::kTuple)) return AddSequences(heap, left, right);
  }
  if (op == BinaryOp::kMultiply) {
    if (CanRepeat(left) && right.IsWhole()) return Repeat(heap, left, right.AsWhole());
    if (left.IsWhole() && CanRepeat(right)) return Repeat(heap, right, left.AsWhole());
  }
  RequireDefined(left);
  RequireDefined(right);
  Require(op != BinaryOp::kModulo || !left.Is(Kind::kString),
          "formatting a str with % is not supported");
  Fail("'{}' and '{}' cannot be combined by {}", TypeName(left), TypeName(right), Symbol(op));
}

Value Negate(const Value& value) {
  if (value.IsWhole()) return Value::Integer(-value.AsWhole());
  if (value.IsNumber()) return Value::Float(-value.AsFloat());
  RequireDefined(value);
  Fail("'{}' has no negative", TypeName(value));
}

Value Positive(const Value& value) {
  if (value.IsWhole()) return Value::Integer(value.AsWhole());
  if (value.IsNumber()) return value;
  RequireDefined(value);
  Fail("'{}' is not a number", TypeName(value));
}

bool Compare(Heap& heap, CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::kEqual:
      return Equal(heap, left, right);
    case CompareOp::kNotEqual:
      return !Equal(heap, left, right);
    case CompareOp::kLess:
      return Precedes(heap, op, left, right, false);
    case CompareOp::kLessEqual:
      return Precedes(heap, op, left, right, true);
    case CompareOp::kGreater:
      return Precedes(heap, op, right, left, false);
    case CompareOp::kGreaterEqual:
      return Precedes(heap, op, right, left, true);
    case CompareOp::kIn:
      return Contains(heap, right, left);
    case CompareOp::kNotIn:
      return !Contains(heap, right, left);
  }
  return false;
}

bool Equal(Heap& heap, const Value& left, const Value& right) {
  heap.Spend(1);
  if (left.IsWhole() && right.IsWhole()) return left.AsWhole() == right.AsWhole();
  if (left.IsNumber() && right.IsNumber()) return left.AsFloat() == right.AsFloat();
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return EqualStrings(heap, left.AsString(), right.AsString());
    case Kind::kDict:
      return EqualDicts(heap, left.AsDict(), right.AsDict());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      return EqualItems(heap, left.Items(), right.Items());
    default:
      return left.Identity() != nullptr && left.Identity() == right.Identity();
  }
}

bool Less(Heap& heap, const Value& left, const Value& right) {
  return Compare(heap, CompareOp::kLess, left, right);
}

Value Slice(Heap& heap, const Value& value, const SliceBounds& bounds) {
  RequireDefined(value);
  if (value.Is(Kind::kString)) {
    heap.Spend(value.weight());
    const std::u32string codes = Decode(value.AsString());
    const Value part = heap.String(Encode(Pick(codes, ResolveSlice(bounds, std::ssize(codes)))));
    return value.is_markup() ? part.AsMarkup() : part;
  }
  Require(value.Is(Kind::kList) || value.Is(Kind::kTuple), "'{}' cannot be sliced",
          TypeName(value));
  const Walk walk = ResolveSlice(bounds, std::ssize(value.Items()));
  heap.Spend(std::ssize(value.Items()));
  return MakeLike(heap, value, Pick(value.Items(), walk));
}

}  // namespace quire::jinja
