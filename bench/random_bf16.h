// Inputs of benchmarks on a device: numbers of up to `size`, the same in every run, made without a search
// for normal ones, since there are many.
#ifndef QUIRE_BENCH_RANDOM_BF16_H_
#define QUIRE_BENCH_RANDOM_BF16_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/narrow_float.h"
#include "testing/splitmix64.h"

namespace quire::bench {

inline std::vector<Bf16> RandomBf16(int64_t n, float size = 1.0f) {
  std::vector<Bf16> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = testing::SplitMix64(i + 1);
    values[i] = ToBf16((static_cast<float>(bits & 0xffff) / 0x1p15f - 1.0f) * size);
  }
  return values;
}

}  // namespace quire::bench

#endif  // QUIRE_BENCH_RANDOM_BF16_H_
