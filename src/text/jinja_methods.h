// Methods of Python's str, list, tuple and dict that templates may call.
#ifndef QUIRE_TEXT_JINJA_METHODS_H_
#define QUIRE_TEXT_JINJA_METHODS_H_

#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

bool IsMethod(Kind kind, std::string_view name);
// A method of any kind, or one that changes its object: a template that calls another is refused
// when it is parsed.
bool IsKnownMethod(std::string_view name);
// Methods that change their object: a template sees them as undefined.
bool IsForbiddenMethod(Kind kind, std::string_view name);

Value CallMethod(Heap& heap, const Method& method, const Args& args);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_METHODS_H_
