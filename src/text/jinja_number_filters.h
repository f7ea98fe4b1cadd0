// The filters that are about numbers.
#ifndef QUIRE_TEXT_JINJA_NUMBER_FILTERS_H_
#define QUIRE_TEXT_JINJA_NUMBER_FILTERS_H_

#include <span>

#include "text/jinja_filters.h"

namespace quire::jinja {

std::span<const Filter> NumberFilters();

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_NUMBER_FILTERS_H_
