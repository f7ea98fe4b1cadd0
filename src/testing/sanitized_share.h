// How much of a test that is long, rather than wide, runs under a sanitizer.
#ifndef QUIRE_TESTING_SANITIZED_SHARE_H_
#define QUIRE_TESTING_SANITIZED_SHARE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quire::testing {

// A sanitizer looks at memory and threads, not at results: where a test repeats one way through the code
// with other numbers, a sampled build (QUIRE_SAMPLE, as in .ci/run) takes one in so many.
#ifdef QUIRE_SAMPLED
inline constexpr int kSampledParts = 3;
#else
inline constexpr int kSampledParts = 1;
#endif

// One in so many random cases runs where each takes many times as long; other builds run every one.
#ifdef QUIRE_SANITIZED
inline constexpr int kSanitizedParts = 4 * kSampledParts;
#else
inline constexpr int kSanitizedParts = 1;
#endif

// `count` cases, or bytes of a long one; under a sanitizer its share of them, and never none.
template <typename Int>
constexpr Int SanitizedShare(Int count) {
  return std::max(count / Int{kSanitizedParts}, Int{1});
}

// `count`, whole under a sanitizer too; in a sampled build the share that SanitizedShare gives there.
template <typename Int>
constexpr Int SampledShare(Int count) {
  return kSampledParts == 1 ? count : SanitizedShare(count);
}

// `values`; in a sampled build one in kSampledParts of them, of which each call in a loop begins at another,
// so that the outer loop meets all.
template <typename T>
std::vector<T> SampledOf(const std::vector<T>& values) {
  if (kSampledParts == 1) return values;
  static size_t next = 0;
  std::vector<T> some;
  for (size_t i = 0; i < values.size(); i += kSampledParts) {
    some.push_back(values[next++ % values.size()]);
  }
  return some;
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SANITIZED_SHARE_H_
