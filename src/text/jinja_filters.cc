#include "text/jinja_filters.h"

#include <algorithm>

#include "text/jinja_list_filters.h"
#include "text/jinja_number_filters.h"
#include "text/jinja_text_filters.h"

namespace quire::jinja {
namespace {

const Filter* FindFilter(std::string_view name) {
  for (const std::span<const Filter> filters : {TextFilters(), NumberFilters(), ListFilters()}) {
    const auto filter = std::find_if(filters.begin(), filters.end(),
                                     [name](const Filter& f) { return f.name == name; });
    if (filter != filters.end()) return &*filter;
  }
  return nullptr;
}

}  // namespace

bool IsFilter(std::string_view name) { return FindFilter(name) != nullptr; }

Value ApplyFilter(Heap& heap, std::string_view name, const Value& value, const Args& args) {
  const Filter* filter = FindFilter(name);
  Require(filter != nullptr, "the filter '{}' is not supported", name);
  heap.Spend(16);
  return filter->function(heap, value, args);
}

}  // namespace quire::jinja
