#include "text/jinja_list_filters.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_access.h"
#include "text/jinja_args.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_tests.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

Value LengthFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("length", args, {});
  heap.Spend(value.Is(Kind::kString) ? value.weight() : 1);
  return Value::Integer(Length(value));
}

Value Default(Heap&, const Value& value, const Args& args) {
  const BoundArgs bound("default", args, {"default_value", "boolean"});
  const bool use_default = value.Is(Kind::kUndefined) || (bound.BoolOr(1, false) && !IsTrue(value));
  return use_default ? bound.ValueOr(0, Value::Literal("")) : value;
}

Value First(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("first", args, {});
  if (value.Is(Kind::kIterator)) {
    Iterator& iterator = value.AsIterator();
    if (iterator.next < iterator.items.size()) return iterator.items[iterator.next++];
  } else if (const std::vector<Value> items = Iterate(heap, value); !items.empty()) {
    return items.front();
  }
  return Value::Undefined("first: there is no element");
}

Value Last(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("last", args, {});
  Require(!value.Is(Kind::kIterator), "last: an iterator cannot be walked backwards");
  const std::vector<Value> items = Iterate(heap, value);
  return items.empty() ? Value::Undefined("last: there is no element") : items.back();
}

Value ListFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("list", args, {});
  return heap.List(Iterate(heap, value));
}

Value Reverse(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("reverse", args, {});
  if (value.Is(Kind::kString)) return Slice(heap, value, {.step = -1});
  std::vector<Value> items = Iterate(heap, value);
  std::reverse(items.begin(), items.end());
  return value.Is(Kind::kIterator) ? heap.List(std::move(items))
                                   : heap.IteratorOver(std::move(items));
}

Value ItemsFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("items", args, {});
  std::vector<Value> items;
  if (value.Is(Kind::kUndefined)) return heap.IteratorOver({});
  Require(value.Is(Kind::kDict), "items: expected a dict, got '{}'", TypeName(value));
  for (const auto& [key, member] : value.AsDict().members) {
    items.push_back(heap.Tuple({key, member}));
  }
  return heap.IteratorOver(std::move(items));
}

Value JoinFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("join", args, {"d", "attribute"});
  const std::string separator = bound.Has(0) ? Print(heap, bound.At(0)) : "";
  std::string joined;
  bool is_first = true;
  for (const Value& item : Iterate(heap, value)) {
    if (!is_first) joined += separator;
    is_first = false;
    const std::string text =
        Print(heap, bound.HasValue(1) ? GetPath(heap, item, bound.At(1)) : item);
    heap.Spend(std::ssize(separator) + std::ssize(text));
    joined += text;
  }
  return heap.String(std::move(joined));
}

Value IgnoreCase(Heap& heap, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.Is(Kind::kString)) return value;
  heap.Spend(4 * value.weight());
  return heap.String(Lower(value.AsString()));
}

// Elements with what they are ordered by.
struct Keyed {
  Value key;
  Value item;
};

// As sorted() with reverse: the order of equal elements stays.
std::vector<Value> SortByKey(Heap& heap, std::vector<Keyed> items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? Less(heap, b.key, a.key) : Less(heap, a.key, b.key);
  });
  std::vector<Value> sorted;
  for (Keyed& keyed : items) sorted.push_back(std::move(keyed.item));
  return sorted;
}

// The attributes "a,b.c" of an element as a list, which orders by the first that differs.
Value SortKey(Heap& heap, const Value& item, const Value& attribute, bool case_sensitive) {
  std::vector<Value> keys;
  std::string_view rest;
  if (attribute.Is(Kind::kString)) rest = attribute.AsString();
  while (true) {
    const std::string_view name = rest.substr(0, rest.find(','));
    const Value path = attribute.Is(Kind::kString) ? heap.String(std::string(name)) : attribute;
    keys.push_back(IgnoreCase(heap, GetPath(heap, item, path), case_sensitive));
    if (name.size() == rest.size()) return heap.List(std::move(keys));
    rest.remove_prefix(name.size() + 1);
  }
}

Value Sort(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> keyed;
  for (const Value& item : Iterate(heap, value)) {
    keyed.push_back(
        {SortKey(heap, item, bound.ValueOr(2, Value::None()), bound.BoolOr(1, false)), item});
  }
  return heap.List(SortByKey(heap, std::move(keyed), bound.BoolOr(0, false)));
}

Value DictSort(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (value.Is(Kind::kUndefined)) Fail("{}", value.WhyUndefined());
  Require(value.Is(Kind::kDict), "dictsort: expected a dict, got '{}'", TypeName(value));
  const std::string by = bound.Has(1) ? bound.String(1) : "key";
  Require(by == "key" || by == "value", "dictsort: expected key or value, got '{}'", by);
  std::vector<Keyed> keyed;
  for (const auto& [key, member] : value.AsDict().members) {
    keyed.push_back({IgnoreCase(heap, by == "key" ? key : member, bound.BoolOr(0, false)),
                     heap.Tuple({key, member})});
  }
  return heap.List(SortByKey(heap, std::move(keyed), bound.BoolOr(2, false)));
}

const Value* FindNamed(const Args& args, std::string_view name) {
  for (const auto& [key, value] : args.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

// `args` without the first `count` positional ones.
Args Behind(const Args& args, size_t count) {
  return {.positional = {args.positional.begin() + static_cast<std::ptrdiff_t>(count),
                         args.positional.end()},
          .named = args.named};
}

const std::string& NameAt(const Args& args, size_t index, std::string_view what) {
  Require(args.positional.size() > index && args.positional[index].Is(Kind::kString),
          "expected the name of a {}", what);
  return args.positional[index].AsString();
}

// What map, select and reject go through: in Jinja nothing false, even None, is an error to them.
std::vector<Value> IterateIfTrue(Heap& heap, const Value& value) {
  return IsTrue(value) ? Iterate(heap, value) : std::vector<Value>();
}

// map(attribute="a") and map("filter", ...).
Value Map(Heap& heap, const Value& value, const Args& args) {
  const Value* attribute = FindNamed(args, "attribute");
  std::vector<Value> items;
  if (attribute != nullptr && args.positional.empty()) {
    const BoundArgs bound("map", args, {"attribute", "default"});
    for (const Value& item : IterateIfTrue(heap, value)) {
      const Value found = GetPath(heap, item, *attribute);
      const bool is_absent = found.Is(Kind::kUndefined) && bound.HasValue(1);
      items.push_back(is_absent ? bound.At(1) : found);
    }
    return heap.IteratorOver(std::move(items));
  }
  const std::string& filter = NameAt(args, 0, "filter");
  const Args rest = Behind(args, 1);
  for (const Value& item : IterateIfTrue(heap, value)) {
    items.push_back(ApplyFilter(heap, filter, item, rest));
  }
  return heap.IteratorOver(std::move(items));
}

// Whether an element passes the test that the arguments from `index` on name; without one, whether
// it is true.
bool Passes(Heap& heap, const Value& value, const Args& args, size_t index) {
  if (args.positional.size() <= index) return IsTrue(value);
  return ApplyTest(heap, NameAt(args, index, "test"), value, Behind(args, index + 1));
}

enum class Keep { kPassing, kFailing };

template <Keep keep>
Value SelectElements(Heap& heap, const Value& value, const Args& args) {
  std::vector<Value> items;
  for (const Value& item : IterateIfTrue(heap, value)) {
    if (Passes(heap, item, args, 0) == (keep == Keep::kPassing)) items.push_back(item);
  }
  return heap.IteratorOver(std::move(items));
}

template <Keep keep>
Value SelectByAttribute(Heap& heap, const Value& value, const Args& args) {
  Require(!args.positional.empty(), "expected the name of an attribute");
  std::vector<Value> items;
  for (const Value& item : IterateIfTrue(heap, value)) {
    const Value attribute = GetPath(heap, item, args.positional[0]);
    if (Passes(heap, attribute, args, 1) == (keep == Keep::kPassing)) items.push_back(item);
  }
  return heap.IteratorOver(std::move(items));
}

constexpr Filter kListFilters[] = {
    {"length", LengthFilter},
    {"count", LengthFilter},
    {"default", Default},
    {"d", Default},
    {"first", First},
    {"last", Last},
    {"list", ListFilter},
    {"reverse", Reverse},
    {"items", ItemsFilter},
    {"join", JoinFilter},
    {"sort", Sort},
    {"dictsort", DictSort},
    {"map", Map},
    {"select", SelectElements<Keep::kPassing>},
    {"reject", SelectElements<Keep::kFailing>},
    {"selectattr", SelectByAttribute<Keep::kPassing>},
    {"rejectattr", SelectByAttribute<Keep::kFailing>},
};

}  // namespace

std::span<const Filter> ListFilters() { return kListFilters; }

}  // namespace quire::jinja
