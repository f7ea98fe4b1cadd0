// Tables of the Unicode character database, written by tools/make_python_tables.py.
#ifndef QUIRE_TEXT_PYTHON_TABLES_H_
#define QUIRE_TEXT_PYTHON_TABLES_H_

#include <cstdint>
#include <span>

namespace quire::jinja {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// The characters first, first + stride, ..., last have their other case `delta` further.
struct CaseRange {
  char32_t first;
  char32_t last;
  uint32_t stride;
  int32_t delta;
};

// All sorted by `first`, disjoint.
std::span<const CodeRange> NonPrintableRanges();
std::span<const CaseRange> UpperRanges();
std::span<const CaseRange> LowerRanges();
std::span<const CodeRange> IrregularCaseRanges();  // upper, lower or title case is not one to one

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_PYTHON_TABLES_H_
