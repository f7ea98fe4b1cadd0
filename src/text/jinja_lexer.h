// The tokens of a template.
#ifndef QUIRE_TEXT_JINJA_LEXER_H_
#define QUIRE_TEXT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace quire::jinja {

enum class TokenKind {
  kData,        // text outside of tags
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,
  kLiteral,   // a string or a number
  kOperator,  // its characters are the text
  kEnd,       // of the template
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of data, a name or an operator; of a literal, as it stands
  Value literal;
  int line = 1;  // from 1
};

// Throws Error with `name` and the line. Whitespace around tags goes as with Jinja's trim_blocks
// and lstrip_blocks; comments are gone, raw blocks are data. The last token is kEnd.
std::vector<Token> Tokenize(std::string_view source, std::string_view name);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_LEXER_H_
