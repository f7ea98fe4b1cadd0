// Reproducible pseudo-random numbers: the same on every platform, unlike the distributions of
// <random>.
#ifndef QUIRE_TESTING_SPLITMIX64_H_
#define QUIRE_TESTING_SPLITMIX64_H_

#include <cstdint>

namespace quire::testing {

// What a generator's state grows by from one number to the next.
inline constexpr uint64_t kSplitMix64Step = 0x9e3779b97f4a7c15u;

// The number that splitmix64 (Steele, Lea, Flood 2014) draws in this state; a bijection, so also a
// well-mixed hash of 64 bits.
constexpr uint64_t SplitMix64(uint64_t state) {
  uint64_t x = state + kSplitMix64Step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SPLITMIX64_H_
