// The objects that a template meets: namespaces, loops and functions.
#ifndef QUIRE_TEXT_JINJA_OBJECTS_H_
#define QUIRE_TEXT_JINJA_OBJECTS_H_

#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_scope.h"
#include "text/jinja_value.h"

namespace quire::jinja {

// namespace(a=1): the one thing a template can change.
class Namespace final : public Object {
 public:
  std::string_view TypeName() const override { return "Namespace"; }
  Value Attribute(const std::string& name) const override;
  // Throws Error for a name that begins with an underscore, as transformers does.
  void Set(const std::string& name, const Value& value);

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

// `loop` inside of a loop.
class Loop final : public Object {
 public:
  explicit Loop(std::vector<Value> items) : items_(std::move(items)) {}

  const std::vector<Value>& items() const { return items_; }
  void MoveTo(size_t index) { index_ = index; }
  void End() { items_.clear(); }  // to free them: a heap keeps its objects

  std::string_view TypeName() const override { return "LoopContext"; }
  Value Attribute(const std::string& name) const override;

 private:
  std::vector<Value> items_;
  size_t index_ = 0;
};

// Defines raise_exception, strftime_now, namespace, range and dict. The heap keeps them.
void DefineFunctions(Heap& heap, const std::optional<std::tm>& now, Scope* scope);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_OBJECTS_H_
