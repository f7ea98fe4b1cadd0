// How much of a test that is long, rather than wide, runs under a sanitizer.
#ifndef QUIRE_TESTING_SANITIZED_SHARE_H_
#define QUIRE_TESTING_SANITIZED_SHARE_H_

namespace quire::testing {

// One in so many random cases runs where each takes many times as long; other builds run every one.
#ifdef QUIRE_SANITIZED
inline constexpr int kSanitizedParts = 4;
#else
inline constexpr int kSanitizedParts = 1;
#endif

// `count` cases, or bytes of a long one; under a sanitizer its share of them.
template <typename Int>
constexpr Int SanitizedShare(Int count) {
  return count / Int{kSanitizedParts};
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SANITIZED_SHARE_H_
