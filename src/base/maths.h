// Small integer maths on plain numbers; units have their own in base/units.h.
#ifndef QUIRE_BASE_MATHS_H_
#define QUIRE_BASE_MATHS_H_

#include <concepts>

#include "base/host_device.h"

namespace quire {

// ceil(a / b) for a >= 0, b > 0.
template <std::integral T>
QUIRE_HD constexpr T CeilDiv(T a, T b) {
  return static_cast<T>(a / b + (a % b != 0 ? 1 : 0));
}

// The least multiple of b that is >= a, for a >= 0, b > 0.
template <std::integral T>
QUIRE_HD constexpr T RoundUp(T a, T b) {
  return static_cast<T>(CeilDiv(a, b) * b);
}

}  // namespace quire

#endif  // QUIRE_BASE_MATHS_H_
