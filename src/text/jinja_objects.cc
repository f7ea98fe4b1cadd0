#include "text/jinja_objects.h"

#include <fmt/format.h>

#include <array>
#include <memory>

#include "text/chat_template.h"
#include "text/jinja_args.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace quire::jinja {
namespace {

constexpr Int kMaxRange = 100000;  // as Jinja's sandbox

// A function of the template's world, such as range.
class Builtin final : public Object {
 public:
  using Function = Value (*)(Heap&, const std::optional<std::tm>& now, const Args&);

  Builtin(Heap& heap, const std::optional<std::tm>& now, Function function)
      : heap_(heap), now_(now), function_(function) {}

  std::string_view TypeName() const override { return "function"; }
  bool IsCallable() const override { return true; }
  Value Call(const Args& args) override { return function_(heap_, now_, args); }

 private:
  Heap& heap_;
  const std::optional<std::tm>& now_;
  Function function_;
};

Value RaiseException(Heap& heap, const std::optional<std::tm>&, const Args& args) {
  const BoundArgs bound("raise_exception", args, {"message"}, 1);
  throw TemplateRaised(Print(heap, bound.At(0)));
}

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

Value StrftimeNow(Heap& heap, const std::optional<std::tm>& now, const Args& args) {
  const BoundArgs bound("strftime_now", args, {"format"}, 1);
  const std::string& format = bound.String(0);
  Require(format.size() <= 100 && format.find('\0') == std::string::npos,
          "strftime_now: expected a format of at most 100 bytes");
  Require(format.find("%f") == std::string::npos, "strftime_now: %f is not supported");
  if (format.empty()) return heap.String("");
  const std::tm time = now ? *now : LocalTime();
  std::array<char, 8192> text;  // 100 bytes of format make at most 50 names or dates
  const size_t bytes = std::strftime(text.data(), text.size(), format.c_str(), &time);
  return heap.String(std::string(text.data(), bytes));
}

// The members that namespace() and dict() are given: of a dict or pairs, and by name.
std::vector<std::pair<Value, Value>> MembersOf(Heap& heap, const Args& args) {
  Require(args.positional.size() <= 1, "expected at most one argument without a name");
  std::vector<std::pair<Value, Value>> members;
  const auto put = [&](const Value& key, const Value& value) {
    Require(key.IsHashable(), "'{}' cannot be a key", TypeName(key));
    for (auto& [old_key, old_value] : members) {
      if (!Equal(heap, old_key, key)) continue;
      old_value = value;
      return;
    }
    members.emplace_back(key, value);
  };
  for (const Value& source : args.positional) {
    if (source.Is(Kind::kDict)) {
      for (const auto& [key, value] : source.AsDict().members) put(key, value);
      continue;
    }
    for (const Value& item : Iterate(heap, source)) {
      const std::vector<Value> pair = Iterate(heap, item);
      Require(pair.size() == 2, "expected pairs of a key and a value");
      put(pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : args.named) put(heap.String(name), value);
  return members;
}

Value MakeDict(Heap& heap, const std::optional<std::tm>&, const Args& args) {
  return heap.DictOf(MembersOf(heap, args));
}

Value MakeNamespace(Heap& heap, const std::optional<std::tm>&, const Args& args) {
  auto* const space = heap.Own(std::make_unique<Namespace>());
  for (const auto& [key, value] : MembersOf(heap, args)) {
    Require(key.Is(Kind::kString), "namespace: '{}' cannot be a name", TypeName(key));
    space->Set(key.AsString(), value);
  }
  return Value::Of(space);
}

Value Range(Heap& heap, const std::optional<std::tm>&, const Args& args) {
  Require(args.named.empty(), "range takes no named arguments");
  const BoundArgs bound("range", args, {"start", "stop", "step"}, 1);
  const Int first = bound.Has(1) ? bound.IntOr(0, 0) : 0;
  const Int last = bound.Has(1) ? bound.IntOr(1, 0) : bound.IntOr(0, 0);
  const Int step = bound.IntOr(2, 1);
  Require(step != 0, "range: the step is zero");
  const Int gap = step > 0 ? last - first : first - last;
  const Int stride = step > 0 ? step : -step;
  const Int count = gap > 0 ? (gap + stride - 1) / stride : 0;
  Require(count <= kMaxRange, "range: more than {} elements", kMaxRange);
  std::vector<Value> items;
  for (Int i = 0, at = first; i < count; ++i, at += step) items.push_back(Value::Integer(at));
  return heap.Range(step == 1 ? fmt::format("range({}, {})", first, last)
                              : fmt::format("range({}, {}, {})", first, last, step),
                    std::move(items));
}

}  // namespace

Value Namespace::Attribute(const std::string& name) const {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return Object::Attribute(name);
}

void Namespace::Set(const std::string& name, const Value& value) {
  Require(!name.starts_with('_'), "a namespace cannot have the attribute '{}'", name);
  for (auto& [key, old] : attributes_) {
    if (key != name) continue;
    old = value;
    return;
  }
  attributes_.emplace_back(name, value);
}

Value Loop::Attribute(const std::string& name) const {
  Require(!items_.empty(), "'loop' is used after its loop");
  const auto index = static_cast<Int>(index_);
  const auto length = static_cast<Int>(items_.size());
  if (name == "index") return Value::Integer(index + 1);
  if (name == "index0") return Value::Integer(index);
  if (name == "revindex") return Value::Integer(length - index);
  if (name == "revindex0") return Value::Integer(length - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index == length - 1);
  if (name == "length") return Value::Integer(length);
  if (name == "depth") return Value::Integer(1);  // loops are not recursive
  if (name == "depth0") return Value::Integer(0);
  if (name == "previtem" && index > 0) return items_[index_ - 1];
  if (name == "nextitem" && index + 1 < length) return items_[index_ + 1];
  return Object::Attribute(name);
}

void DefineFunctions(Heap& heap, const std::optional<std::tm>& now, Scope* scope) {
  constexpr std::pair<std::string_view, Builtin::Function> kFunctions[] = {
      {"raise_exception", RaiseException},
      {"strftime_now", StrftimeNow},
      {"namespace", MakeNamespace},
      {"range", Range},
      {"dict", MakeDict},
  };
  for (const auto& [name, function] : kFunctions) {
    scope->Set(name, Value::Of(heap.Own(std::make_unique<Builtin>(heap, now, function))));
  }
}

}  // namespace quire::jinja
