// The values of a template: what Python's are, as far as a template can tell.
//
// Values are immutable but for objects (a namespace) and iterators, so that copies share. Whatever
// is made while a template is rendered is made by a Heap, which counts the work and ends it beyond
// a limit.
#ifndef QUIRE_TEXT_JINJA_VALUE_H_
#define QUIRE_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "io/json.h"

namespace quire::jinja {

class Object;
class Value;
struct Dict;
struct Iterator;
struct Method;
struct Sequence;

// Every int64 and uint64, as JSON has them, so of a magnitude below 2^64. Python's ints have no
// bound: what leaves this range is refused.
using Int = __int128;
// For products: clang checks those of an Int by a function that gcc's runtime does not have.
using UnsignedInt = unsigned __int128;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,      // d.items(), d.keys(), d.values()
  kRange,     // range(n)
  kIterator,  // what map, select, reverse and others give: can be walked once
  kMethod,    // x.upper, not called yet
  kObject,    // a namespace, a loop, a macro, a function
};

class Value {
 public:
  Value() = default;  // undefined
  static Value None();
  static Value Bool(bool value);
  static Value Integer(Int value);
  static Value Float(double value);
  static Value Of(Object* object);
  // Not counted by any heap: for literals.
  static Value Literal(std::string text);
  // `why` is the message of the error that most uses of the value are.
  static Value Undefined(std::string why);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool IsNumber() const { return Is(Kind::kBool) || Is(Kind::kInt) || Is(Kind::kFloat); }
  bool IsWhole() const { return Is(Kind::kBool) || Is(Kind::kInt); }
  bool HasItems() const {
    return Is(Kind::kList) || Is(Kind::kTuple) || Is(Kind::kView) || Is(Kind::kRange);
  }

  // Each for its kind only.
  bool AsBool() const { return std::get<bool>(payload_); }
  double AsFloat() const;  // of any number
  Int AsWhole() const;     // of an int or a bool
  const std::string& AsString() const { return *std::get<Text>(payload_); }
  const std::string& WhyUndefined() const;
  const std::vector<Value>& Items() const;  // of a list, tuple, view or range
  const std::string& Label() const;         // of a view or range
  const Dict& AsDict() const { return *std::get<DictRef>(payload_); }
  Iterator& AsIterator() const { return *std::get<IteratorRef>(payload_); }
  const Method& AsMethod() const { return *std::get<MethodRef>(payload_); }
  Object* AsObject() const { return std::get<Object*>(payload_); }

  // A string that |safe or |escape has made: adding another to it escapes the other.
  bool is_markup() const { return is_markup_; }
  Value AsMarkup() const;

  // The shared contents of two containers: the same object, as Python's `is` sees it.
  const void* Identity() const;

  // How deep containers stand in one another, and how much work it is to look at all of the value.
  int depth() const;
  int64_t weight() const;
  bool IsHashable() const;  // whether a dict can have the value as a key

 private:
  friend class Heap;
  using Text = std::shared_ptr<const std::string>;
  using SequenceRef = std::shared_ptr<const Sequence>;
  using DictRef = std::shared_ptr<const Dict>;
  using IteratorRef = std::shared_ptr<Iterator>;
  using MethodRef = std::shared_ptr<const Method>;
  using Payload = std::variant<std::monostate, bool, Int, double, Text, SequenceRef, DictRef,
                               IteratorRef, MethodRef, Object*>;

  template <class T>
  Value(Kind kind, T payload) : kind_(kind), payload_(std::in_place_type<T>, std::move(payload)) {}

  Kind kind_ = Kind::kUndefined;
  bool is_markup_ = false;
  Payload payload_;
};

// The size of a container, taken together once: a value may hold another many times over.
struct Extent {
  int depth = 1;
  int64_t weight = 0;
  bool is_hashable = true;  // all that is inside

  void Add(const Value& value);  // throws Error beyond the depth that is allowed
};

struct Sequence {
  std::vector<Value> items;
  Extent extent;
  std::string label;  // of a view: "dict_items"; of a range: "range(0, 3)"
};

// Keys in the order in which they came, as Python keeps them.
struct Dict {
  std::vector<std::pair<Value, Value>> members;
  Extent extent;
};

struct Iterator {
  std::vector<Value> items;
  Extent extent;
  size_t next = 0;
};

struct Method {
  Value self;
  std::string name;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Something with attributes, or that can be called. Owned by the heap of its rendering.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view TypeName() const = 0;
  virtual Value Attribute(const std::string& name) const;
  virtual bool IsCallable() const { return false; }
  virtual Value Call(const Args& args);
};

// Makes values and counts what they cost.
class Heap {
 public:
  explicit Heap(int64_t max_work) : max_work_(max_work), left_(max_work) {}

  // Throws Error(kCapacityExceeded) once more has been spent than there was.
  void Spend(int64_t units) {
    left_ -= units;
    if (left_ < 0) [[unlikely]]
      FailSpent();
  }

  Value String(std::string text);
  Value List(std::vector<Value> items) { return Make(Kind::kList, std::move(items), {}); }
  Value Tuple(std::vector<Value> items) { return Make(Kind::kTuple, std::move(items), {}); }
  Value View(std::string label, std::vector<Value> items) {
    return Make(Kind::kView, std::move(items), std::move(label));
  }
  Value Range(std::string label, std::vector<Value> items) {
    return Make(Kind::kRange, std::move(items), std::move(label));
  }
  Value DictOf(std::vector<std::pair<Value, Value>> members);
  Value IteratorOver(std::vector<Value> items);
  Value BoundMethod(const Value& self, const std::string& name);
  Value FromJson(const OrderedJson& json);

  template <class T>
  T* Own(std::unique_ptr<T> object) {
    Spend(kObjectWork);
    T* const plain = object.get();
    objects_.push_back(std::move(object));
    return plain;
  }

 private:
  static constexpr int64_t kObjectWork = 128;

  Value Make(Kind kind, std::vector<Value> items, std::string label);
  [[noreturn]] void FailSpent() const;

  int64_t max_work_;
  int64_t left_;
  std::vector<std::unique_ptr<Object>> objects_;
};

template <class... T>
[[noreturn]] void Fail(fmt::format_string<T...> message, T&&... args) {
  throw Error(ErrorCode::kInvalidArgument, message, std::forward<T>(args)...);
}

// Throws Error(kInvalidArgument) that says why the value is undefined, if it is.
void RequireDefined(const Value& value);

// As Python names the type: "int", "dict".
std::string TypeName(const Value& value);

bool IsTrue(const Value& value);

// The value of a key, or null.
const Value* FindKey(Heap& heap, const Dict& dict, const Value& key);
const Value* FindKey(Heap& heap, const Dict& dict, std::string_view key);

// What a loop over the value goes through: elements, keys, characters. Empties an iterator.
std::vector<Value> Iterate(Heap& heap, const Value& value);

// The length that |length gives.
int64_t Length(const Value& value);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_VALUE_H_
