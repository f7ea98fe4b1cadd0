// The filters that make text.
#ifndef QUIRE_TEXT_JINJA_TEXT_FILTERS_H_
#define QUIRE_TEXT_JINJA_TEXT_FILTERS_H_

#include <span>

#include "text/jinja_filters.h"

namespace quire::jinja {

std::span<const Filter> TextFilters();

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_TEXT_FILTERS_H_
