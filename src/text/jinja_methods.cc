#include "text/jinja_methods.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "text/jinja_args.h"
#include "text/jinja_operators.h"
#include "text/jinja_string_methods.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

struct ContainerMethod {
  std::string_view name;
  Value (*function)(Heap&, const Value& self, const Args&);
};

const ContainerMethod* Find(std::span<const ContainerMethod> entries, std::string_view name) {
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [name](const ContainerMethod& e) { return e.name == name; });
  return entry == entries.end() ? nullptr : &*entry;
}

Value Count(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("count", args, {"value"}, 1);
  return Value::Integer(std::count_if(self.Items().begin(), self.Items().end(),
                                      [&](const Value& v) { return Equal(heap, v, bound.At(0)); }));
}

Value Index(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("index", args, {"value"}, 1);
  for (size_t i = 0; i < self.Items().size(); ++i) {
    if (Equal(heap, self.Items()[i], bound.At(0))) return Value::Integer(static_cast<Int>(i));
  }
  Fail("index: the value is not in the {}", TypeName(self));
}

Value Copy(Heap&, const Value& self, const Args& args) {
  const BoundArgs bound("copy", args, {});
  return self;  // nothing can change either
}

Value Get(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("get", args, {"key", "default"}, 1);
  Require(bound.At(0).IsHashable(), "get: '{}' cannot be a key", TypeName(bound.At(0)));
  const Value* found = FindKey(heap, self.AsDict(), bound.At(0));
  return found != nullptr ? *found : bound.ValueOr(1, Value::None());
}

Value Items(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("items", args, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.AsDict().members) items.push_back(heap.Tuple({key, value}));
  return heap.View("dict_items", std::move(items));
}

Value Keys(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("keys", args, {});
  return heap.View("dict_keys", Iterate(heap, self));
}

Value Values(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("values", args, {});
  std::vector<Value> values;
  for (const auto& [key, value] : self.AsDict().members) values.push_back(value);
  return heap.View("dict_values", std::move(values));
}

constexpr ContainerMethod kTupleMethods[] = {{"count", Count}, {"index", Index}};
constexpr ContainerMethod kListMethods[] = {{"count", Count}, {"index", Index}, {"copy", Copy}};
constexpr ContainerMethod kDictMethods[] = {
    {"get", Get}, {"items", Items}, {"keys", Keys}, {"values", Values}, {"copy", Copy}};

constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};

template <class Names>
bool IsIn(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::span<const ContainerMethod> MethodsOf(Kind kind) {
  if (kind == Kind::kDict) return kDictMethods;
  if (kind == Kind::kList) return kListMethods;
  if (kind == Kind::kTuple) return kTupleMethods;
  return {};
}

}  // namespace

bool IsMethod(Kind kind, std::string_view name) {
  return kind == Kind::kString ? IsStringMethod(name) : Find(MethodsOf(kind), name) != nullptr;
}

bool IsForbiddenMethod(Kind kind, std::string_view name) {
  if (kind == Kind::kList) return IsIn(kListChanges, name);
  return kind == Kind::kDict && IsIn(kDictChanges, name);
}

bool IsKnownMethod(std::string_view name) {
  return IsStringMethod(name) || Find(kListMethods, name) != nullptr ||
         Find(kDictMethods, name) != nullptr || IsIn(kListChanges, name) ||
         IsIn(kDictChanges, name);
}

Value CallMethod(Heap& heap, const Method& method, const Args& args) {
  heap.Spend(method.self.weight());
  if (method.self.Is(Kind::kString)) {
    return CallStringMethod(heap, method.self, method.name, args);
  }
  const ContainerMethod* entry = Find(MethodsOf(method.self.kind()), method.name);
  QUIRE_CHECK(entry != nullptr, "{}", method.name);
  return entry->function(heap, method.self, args);
}

}  // namespace quire::jinja
