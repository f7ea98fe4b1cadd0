// Filters: what stands behind `|`.
#ifndef QUIRE_TEXT_JINJA_FILTERS_H_
#define QUIRE_TEXT_JINJA_FILTERS_H_

#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

struct Filter {
  std::string_view name;
  Value (*function)(Heap& heap, const Value& value, const Args& args);
};

bool IsFilter(std::string_view name);

// Throws Error if there is no such filter, or where Jinja raises.
Value ApplyFilter(Heap& heap, std::string_view name, const Value& value, const Args& args);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_FILTERS_H_
