#include "text/jinja_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "text/jinja_methods.h"
#include "text/jinja_print.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

Value NoAttribute(const Value& value, const std::string& name) {
  return Value::Undefined(fmt::format("'{}' has no attribute '{}'", TypeName(value), name));
}

Value NoElement(Heap& heap, const Value& value, const Value& key) {
  if (key.Is(Kind::kString)) return NoAttribute(value, key.AsString());
  if (!key.IsNumber())
    return Value::Undefined(fmt::format("'{}' has no such element", TypeName(value)));
  return Value::Undefined(fmt::format("'{}' has no element {}", TypeName(value), Repr(heap, key)));
}

// The attribute that Python's type has.
std::optional<Value> FindOwn(Heap& heap, const Value& value, const std::string& name) {
  if (value.Is(Kind::kObject)) return value.AsObject()->Attribute(name);
  if (IsForbiddenMethod(value.kind(), name)) {
    return Value::Undefined(
        fmt::format("a template must not call '{}' of '{}'", name, TypeName(value)));
  }
  if (IsMethod(value.kind(), name)) return heap.BoundMethod(value, name);
  return std::nullopt;
}

std::optional<Value> FindAt(Heap& heap, const Value& value, Int index) {
  const Int length = Length(value);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  if (!value.Is(Kind::kString)) return value.Items()[static_cast<size_t>(index)];
  const std::string& text = value.AsString();
  heap.Spend(value.weight());
  size_t at = 0;
  for (; index > 0; --index) (void)NextCodePoint(text, &at);
  const size_t begin = at;
  (void)NextCodePoint(text, &at);
  const Value character = heap.String(text.substr(begin, at - begin));
  return value.is_markup() ? character.AsMarkup() : character;
}

// The element that value[key] is in Python.
std::optional<Value> FindElement(Heap& heap, const Value& value, const Value& key) {
  if (value.Is(Kind::kDict)) {
    if (!key.IsHashable()) return std::nullopt;
    const Value* found = key.Is(Kind::kString) ? FindKey(heap, value.AsDict(), key.AsString())
                                               : FindKey(heap, value.AsDict(), key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const bool has_places = value.Is(Kind::kList) || value.Is(Kind::kTuple) ||
                          value.Is(Kind::kRange) || value.Is(Kind::kString);
  if (!has_places || !key.IsWhole()) return std::nullopt;
  return FindAt(heap, value, key.AsWhole());
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Value GetAttribute(Heap& heap, const Value& value, const std::string& name) {
  RequireDefined(value);
  if (std::optional<Value> own = FindOwn(heap, value, name)) return *own;
  if (value.Is(Kind::kDict)) {
    if (const Value* found = FindKey(heap, value.AsDict(), name)) return *found;
  }
  return NoAttribute(value, name);
}

Value GetItem(Heap& heap, const Value& value, const Value& key) {
  RequireDefined(value);
  if (std::optional<Value> element = FindElement(heap, value, key)) return *element;
  if (key.Is(Kind::kString)) {
    if (std::optional<Value> own = FindOwn(heap, value, key.AsString())) return *own;
  }
  return NoElement(heap, value, key);
}

Value GetPath(Heap& heap, const Value& value, const Value& path) {
  if (path.Is(Kind::kNone)) return value;
  if (!path.Is(Kind::kString)) return GetItem(heap, value, path);
  Value part = value;
  std::string_view rest = path.AsString();
  while (true) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    heap.Spend(16);
    part = GetItem(heap, part,
                   IsDigits(name) ? Value::Integer(std::stoi(std::string(name)))
                                  : heap.String(std::string(name)));
    if (name.size() == rest.size()) return part;
    rest.remove_prefix(name.size() + 1);
  }
}

}  // namespace quire::jinja
