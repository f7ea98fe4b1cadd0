// value.name and value[key], as Jinja looks them up in Python's types.
#ifndef QUIRE_TEXT_JINJA_ACCESS_H_
#define QUIRE_TEXT_JINJA_ACCESS_H_

#include <string>

#include "text/jinja_value.h"

namespace quire::jinja {

// A method or attribute first, then an element of that name; undefined if there is neither. Throws
// Error if the value itself is undefined.
Value GetAttribute(Heap& heap, const Value& value, const std::string& name);

// The other way round.
Value GetItem(Heap& heap, const Value& value, const Value& key);

// The attribute that filters such as map(attribute="a.b.0") name: a path of items, numbers as
// indices; any other value is one key.
Value GetPath(Heap& heap, const Value& value, const Value& path);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_ACCESS_H_
