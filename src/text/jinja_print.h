// Values as text.
#ifndef QUIRE_TEXT_JINJA_PRINT_H_
#define QUIRE_TEXT_JINJA_PRINT_H_

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

// As str() and repr() in Python. An undefined value prints as nothing; what has no text that is the
// same in every run (a macro, an iterator) is refused.
std::string Print(Heap& heap, const Value& value);
std::string Repr(Heap& heap, const Value& value);

// As json.dumps() in Python.
struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent = {};  // of one level; absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string PrintJson(Heap& heap, const Value& value, const JsonStyle& style);

// With & < > ' and " as character references.
std::string EscapeHtml(Heap& heap, std::string_view text);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_PRINT_H_
