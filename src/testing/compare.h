// Comparison of results with a double-precision reference.
#ifndef QUIRE_TESTING_COMPARE_H_
#define QUIRE_TESTING_COMPARE_H_

#include <span>
#include <string>

namespace quire::testing {

// "" if every value is as near as its own bound, NaNs and infinities stand where the reference has
// them, and the angle between the two vectors is small; otherwise what differs most, and by how
// much. bounds[i] is the absolute error allowed at i; a single entry holds for all.
std::string Mismatch(std::span<const float> actual, std::span<const double> expected,
                     std::span<const double> bounds);

// "" if the bits are equal, otherwise the first place where they differ.
std::string BitMismatch(std::span<const float> actual, std::span<const float> expected);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_COMPARE_H_
