// The filters that go through the elements of a value.
#ifndef QUIRE_TEXT_JINJA_LIST_FILTERS_H_
#define QUIRE_TEXT_JINJA_LIST_FILTERS_H_

#include <span>

#include "text/jinja_filters.h"

namespace quire::jinja {

std::span<const Filter> ListFilters();

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_LIST_FILTERS_H_
