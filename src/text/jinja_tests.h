// Tests: what stands behind `is`.
#ifndef QUIRE_TEXT_JINJA_TESTS_H_
#define QUIRE_TEXT_JINJA_TESTS_H_

#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

bool IsTest(std::string_view name);

// Throws Error if there is no such test, or where Python raises.
bool ApplyTest(Heap& heap, std::string_view name, const Value& value, const Args& args);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_TESTS_H_
