// Literals of a template: numbers, and the escapes of strings.
#ifndef QUIRE_TEXT_JINJA_LITERALS_H_
#define QUIRE_TEXT_JINJA_LITERALS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

struct NumberLiteral {
  size_t bytes = 0;  // 0 if it has more than 64 bits
  Value value;
};

// The number at the beginning of `text`, which begins with a digit. A float only if
// `integers_only` is false.
NumberLiteral ReadNumber(std::string_view text, bool integers_only);

struct StringLiteral {
  std::string text;
  std::string error;  // empty if there is none
};

// What stands between the quotes, with escapes as in Python.
StringLiteral ReadEscapes(std::string_view text);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_LITERALS_H_
