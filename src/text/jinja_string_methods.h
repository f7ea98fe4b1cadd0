// Methods of Python's str.
#ifndef QUIRE_TEXT_JINJA_STRING_METHODS_H_
#define QUIRE_TEXT_JINJA_STRING_METHODS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

bool IsStringMethod(std::string_view name);
Value CallStringMethod(Heap& heap, const Value& self, const std::string& name, const Args& args);

// As str.replace(): the first `count` occurrences, all if it is negative. An empty `from` stands
// before every character and at the end.
std::string Replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to,
                    int64_t count);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_STRING_METHODS_H_
