// Printing of unit types: in error messages (fmt) and in tests (std::ostream).
#ifndef QUIRE_BASE_FORMAT_H_
#define QUIRE_BASE_FORMAT_H_

#include <fmt/format.h>

#include <ostream>

#include "base/units.h"

template <class Tag>
struct fmt::formatter<quire::internal::Unit<Tag>> : fmt::formatter<typename Tag::Rep> {
  template <class FormatContext>
  auto format(const quire::internal::Unit<Tag>& unit, FormatContext& context) const {
    return fmt::formatter<typename Tag::Rep>::format(unit.raw(), context);
  }
};

template <class Tag>
struct fmt::formatter<quire::Count<Tag>> : fmt::formatter<quire::internal::Unit<Tag>> {};

template <>
struct fmt::formatter<quire::PageSize> : fmt::formatter<int> {
  template <class FormatContext>
  auto format(const quire::PageSize& size, FormatContext& context) const {
    return fmt::formatter<int>::format(size.raw(), context);
  }
};

namespace quire {
namespace internal {
template <class Tag>
std::ostream& operator<<(std::ostream& out, const Unit<Tag>& unit) {
  return out << unit.raw();
}
}  // namespace internal

inline std::ostream& operator<<(std::ostream& out, const PageSize& size) {
  return out << size.raw();
}
}  // namespace quire

#endif  // QUIRE_BASE_FORMAT_H_
