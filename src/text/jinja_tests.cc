#include "text/jinja_tests.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "text/jinja_args.h"
#include "text/jinja_operators.h"

namespace quire::jinja {
namespace {

struct NamedTest {
  std::string_view name;
  bool (*function)(Heap&, const Value&, const Args&);
};

template <bool (*holds)(const Value&)>
bool Plain(Heap&, const Value& value, const Args& args) {
  const BoundArgs bound("the test", args, {});
  return holds(value);
}

template <CompareOp op>
bool Compared(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("the test", args, {"other"}, 1);
  return Compare(heap, op, value, bound.At(0));
}

bool IsDefined(const Value& value) { return !value.Is(Kind::kUndefined); }
bool IsUndefined(const Value& value) { return value.Is(Kind::kUndefined); }
bool IsNone(const Value& value) { return value.Is(Kind::kNone); }
bool IsString(const Value& value) { return value.Is(Kind::kString); }
bool IsAnyNumber(const Value& value) { return value.IsNumber(); }
bool IsInteger(const Value& value) { return value.Is(Kind::kInt); }
bool IsFloat(const Value& value) { return value.Is(Kind::kFloat); }
bool IsBoolean(const Value& value) { return value.Is(Kind::kBool); }
bool IsTheTrue(const Value& value) { return value.Is(Kind::kBool) && value.AsBool(); }
bool IsTheFalse(const Value& value) { return value.Is(Kind::kBool) && !value.AsBool(); }
bool IsMapping(const Value& value) { return value.Is(Kind::kDict); }

// Has a length and elements. Undefined has both, in Jinja.
bool IsSequence(const Value& value) {
  return value.Is(Kind::kString) || value.Is(Kind::kList) || value.Is(Kind::kTuple) ||
         value.Is(Kind::kDict) || value.Is(Kind::kRange) || value.Is(Kind::kUndefined);
}

bool IsIterable(const Value& value) {
  return IsSequence(value) || value.Is(Kind::kView) || value.Is(Kind::kIterator);
}

bool IsCallable(const Value& value) {
  if (value.Is(Kind::kObject)) return value.AsObject()->IsCallable();
  return value.Is(Kind::kMethod) || value.Is(Kind::kUndefined);
}

constexpr NamedTest kTests[] = {
    {"defined", Plain<IsDefined>},
    {"undefined", Plain<IsUndefined>},
    {"none", Plain<IsNone>},
    {"string", Plain<IsString>},
    {"number", Plain<IsAnyNumber>},
    {"integer", Plain<IsInteger>},
    {"float", Plain<IsFloat>},
    {"boolean", Plain<IsBoolean>},
    {"true", Plain<IsTheTrue>},
    {"false", Plain<IsTheFalse>},
    {"mapping", Plain<IsMapping>},
    {"sequence", Plain<IsSequence>},
    {"iterable", Plain<IsIterable>},
    {"callable", Plain<IsCallable>},
    {"eq", Compared<CompareOp::kEqual>},
    {"equalto", Compared<CompareOp::kEqual>},
    {"==", Compared<CompareOp::kEqual>},
    {"ne", Compared<CompareOp::kNotEqual>},
    {"!=", Compared<CompareOp::kNotEqual>},
    {"lt", Compared<CompareOp::kLess>},
    {"lessthan", Compared<CompareOp::kLess>},
    {"<", Compared<CompareOp::kLess>},
    {"le", Compared<CompareOp::kLessEqual>},
    {"<=", Compared<CompareOp::kLessEqual>},
    {"gt", Compared<CompareOp::kGreater>},
    {"greaterthan", Compared<CompareOp::kGreater>},
    {">", Compared<CompareOp::kGreater>},
    {"ge", Compared<CompareOp::kGreaterEqual>},
    {">=", Compared<CompareOp::kGreaterEqual>},
    {"in", Compared<CompareOp::kIn>},
};

const NamedTest* FindTest(std::string_view name) {
  const auto* entry = std::find_if(std::begin(kTests), std::end(kTests),
                                   [name](const NamedTest& e) { return e.name == name; });
  return entry == std::end(kTests) ? nullptr : entry;
}

}  // namespace

bool IsTest(std::string_view name) { return FindTest(name) != nullptr; }

bool ApplyTest(Heap& heap, std::string_view name, const Value& value, const Args& args) {
  const NamedTest* entry = FindTest(name);
  Require(entry != nullptr, "the test '{}' is not supported", name);
  heap.Spend(16);
  return entry->function(heap, value, args);
}

}  // namespace quire::jinja
