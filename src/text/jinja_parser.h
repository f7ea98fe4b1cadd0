// Parses templates.
#ifndef QUIRE_TEXT_JINJA_PARSER_H_
#define QUIRE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "text/jinja_ast.h"

namespace quire::jinja {

// Throws Error with name, line and construct for what is not Jinja, and for what Jinja has and this
// does not.
Template ParseTemplate(std::string_view source, std::string_view name);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_PARSER_H_
