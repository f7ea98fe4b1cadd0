// The variables of a template while it is rendered.
#ifndef QUIRE_TEXT_JINJA_SCOPE_H_
#define QUIRE_TEXT_JINJA_SCOPE_H_

#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace quire::jinja {

// What is set in a scope is seen there and in the scopes inside of it: the body of a loop, a macro
// or a block has one of its own, an if has not. Names are borrowed, from the template.
class Scope {
 public:
  explicit Scope(const Scope* outer) : outer_(outer) {}

  void Set(std::string_view name, Value value) {
    for (auto& [key, old] : variables_) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables_.emplace_back(name, std::move(value));
  }

  // Null if no scope has it.
  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
      for (const auto& [key, value] : scope->variables_) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }

 private:
  const Scope* outer_;
  std::vector<std::pair<std::string_view, Value>> variables_;
};

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_SCOPE_H_
