#include "text/jinja_value.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "text/jinja_operators.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace quire::jinja {
namespace {

// Containers in one another. JSON from requests has at most 64; bounded because printing, comparing
// and freeing a value recurse.
constexpr int kMaxContainerDepth = 100;
constexpr int64_t kMaxWeight = int64_t{1} << 48;
constexpr int64_t kValueWork = 32;   // sizeof(Value), about
constexpr int64_t kStringWork = 64;  // a string and its control block

}  // namespace

// Not in the header: inlined, gcc 12 takes the other members of the variant for uninitialised ones.
Value Value::None() { return Value(Kind::kNone, std::monostate()); }
Value Value::Bool(bool value) { return Value(Kind::kBool, value); }
Value Value::Integer(Int value) { return Value(Kind::kInt, value); }
Value Value::Float(double value) { return Value(Kind::kFloat, value); }
Value Value::Of(Object* object) { return Value(Kind::kObject, object); }

Value Value::Literal(std::string text) {
  return Value(Kind::kString, std::make_shared<const std::string>(std::move(text)));
}

Value Value::Undefined(std::string why) {
  return Value(Kind::kUndefined, std::make_shared<const std::string>(std::move(why)));
}

double Value::AsFloat() const {
  return Is(Kind::kFloat) ? std::get<double>(payload_) : static_cast<double>(AsWhole());
}

Int Value::AsWhole() const { return Is(Kind::kBool) ? Int{AsBool()} : std::get<Int>(payload_); }

const std::string& Value::WhyUndefined() const {
  static const std::string kUnknown = "the value is undefined";
  const auto* why = std::get_if<Text>(&payload_);
  return why == nullptr ? kUnknown : **why;
}

const std::vector<Value>& Value::Items() const { return std::get<SequenceRef>(payload_)->items; }

const std::string& Value::Label() const { return std::get<SequenceRef>(payload_)->label; }

Value Value::AsMarkup() const {
  Value markup = *this;
  markup.is_markup_ = true;
  return markup;
}

const void* Value::Identity() const {
  if (HasItems()) return std::get<SequenceRef>(payload_).get();
  if (Is(Kind::kDict)) return &AsDict();
  if (Is(Kind::kIterator)) return &AsIterator();
  return Is(Kind::kObject) ? AsObject() : nullptr;
}

int Value::depth() const {
  if (HasItems()) return std::get<SequenceRef>(payload_)->extent.depth;
  if (Is(Kind::kDict)) return AsDict().extent.depth;
  if (Is(Kind::kMethod)) return 1 + AsMethod().self.depth();
  return Is(Kind::kIterator) ? AsIterator().extent.depth : 0;
}

int64_t Value::weight() const {
  if (HasItems()) return std::get<SequenceRef>(payload_)->extent.weight;
  if (Is(Kind::kDict)) return AsDict().extent.weight;
  if (Is(Kind::kString)) return static_cast<int64_t>(AsString().size()) + 1;
  return 1;
}

bool Value::IsHashable() const {
  if (Is(Kind::kTuple)) return std::get<SequenceRef>(payload_)->extent.is_hashable;
  return !Is(Kind::kList) && !Is(Kind::kDict) && !Is(Kind::kView);
}

void Extent::Add(const Value& value) {
  depth = std::max(depth, value.depth() + 1);
  weight = std::min(kMaxWeight, weight + 1 + value.weight());
  is_hashable = is_hashable && value.IsHashable();
  Require(depth <= kMaxContainerDepth, "containers nested deeper than {}", kMaxContainerDepth);
}

Value Object::Attribute(const std::string& name) const {
  return Value::Undefined(fmt::format("'{}' has no attribute '{}'", TypeName(), name));
}

Value Object::Call(const Args&) { Fail("'{}' cannot be called", TypeName()); }

Value Heap::String(std::string text) {
  Spend(kStringWork + static_cast<int64_t>(text.size()));
  return Value::Literal(std::move(text));
}

Value Heap::Make(Kind kind, std::vector<Value> items, std::string label) {
  Spend(kStringWork + kValueWork * std::ssize(items));
  Extent extent;
  for (const Value& item : items) extent.Add(item);
  return Value(
      kind, std::make_shared<const Sequence>(Sequence{std::move(items), extent, std::move(label)}));
}

Value Heap::DictOf(std::vector<std::pair<Value, Value>> members) {
  Spend(kStringWork + 2 * kValueWork * std::ssize(members));
  Extent extent;
  for (const auto& [key, value] : members) {
    extent.Add(key);
    extent.Add(value);
  }
  return Value(Kind::kDict, std::make_shared<const Dict>(Dict{std::move(members), extent}));
}

Value Heap::IteratorOver(std::vector<Value> items) {
  Spend(kStringWork + kValueWork * std::ssize(items));
  Extent extent;
  for (const Value& item : items) extent.Add(item);
  return Value(Kind::kIterator, std::make_shared<Iterator>(Iterator{std::move(items), extent}));
}

Value Heap::BoundMethod(const Value& self, const std::string& name) {
  Spend(kStringWork);
  return Value(Kind::kMethod, std::make_shared<const Method>(Method{self, name}));
}

Value Heap::FromJson(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::Integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      return Value::Integer(json.get<uint64_t>());
    case OrderedJson::value_t::number_float:
      return Value::Float(json.get<double>());
    case OrderedJson::value_t::string:
      Require(IsUtf8(json.get_ref<const std::string&>()), "a string is not UTF-8");
      return String(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const OrderedJson& item : json) items.push_back(FromJson(item));
      return List(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> members;
      for (const auto& [key, value] : json.items()) {
        Require(IsUtf8(key), "a key is not UTF-8");
        members.emplace_back(String(key), FromJson(value));
      }
      return DictOf(std::move(members));
    }
    default:
      return Value::None();
  }
}

void Heap::FailSpent() const {
  throw Error(ErrorCode::kCapacityExceeded, "more than {} units of work", max_work_);
}

void RequireDefined(const Value& value) {
  if (value.Is(Kind::kUndefined)) Fail("{}", value.WhyUndefined());
}

std::string TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return "view of a dict";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "iterator";
    case Kind::kMethod:
      return "method";
    case Kind::kObject:
      return std::string(value.AsObject()->TypeName());
  }
  return "?";
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.AsBool();
    case Kind::kInt:
      return value.AsWhole() != 0;
    case Kind::kFloat:
      return value.AsFloat() != 0;
    case Kind::kString:
      return !value.AsString().empty();
    case Kind::kDict:
      return !value.AsDict().members.empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      return !value.Items().empty();
    case Kind::kIterator:
    case Kind::kMethod:
    case Kind::kObject:
      return true;
  }
  return false;
}

const Value* FindKey(Heap& heap, const Dict& dict, const Value& key) {
  for (const auto& [name, value] : dict.members) {
    if (Equal(heap, name, key)) return &value;
  }
  return nullptr;
}

const Value* FindKey(Heap& heap, const Dict& dict, std::string_view key) {
  heap.Spend(std::ssize(dict.members));
  for (const auto& [name, value] : dict.members) {
    if (name.Is(Kind::kString) && name.AsString() == key) return &value;
  }
  return nullptr;
}

std::vector<Value> Iterate(Heap& heap, const Value& value) {
  std::vector<Value> items;
  if (value.HasItems()) {
    heap.Spend(kValueWork * std::ssize(value.Items()));
    return value.Items();
  }
  if (value.Is(Kind::kIterator)) {
    Iterator& iterator = value.AsIterator();
    items.assign(iterator.items.begin() + static_cast<std::ptrdiff_t>(iterator.next),
                 iterator.items.end());
    iterator.next = iterator.items.size();
  } else if (value.Is(Kind::kDict)) {
    heap.Spend(kValueWork * std::ssize(value.AsDict().members));
    for (const auto& [key, member] : value.AsDict().members) items.push_back(key);
  } else if (value.Is(Kind::kString)) {
    const std::string& text = value.AsString();
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      (void)NextCodePoint(text, &at);
      items.push_back(heap.String(text.substr(begin, at - begin)));
    }
  } else if (!value.Is(Kind::kUndefined)) {
    Fail("'{}' cannot be iterated over", TypeName(value));
  }
  return items;
}

int64_t Length(const Value& value) {
  if (value.HasItems()) return std::ssize(value.Items());
  if (value.Is(Kind::kDict)) return std::ssize(value.AsDict().members);
  if (value.Is(Kind::kString)) return CountCodePoints(value.AsString());
  if (value.Is(Kind::kUndefined)) return 0;
  Fail("'{}' has no length", TypeName(value));
}

}  // namespace quire::jinja
