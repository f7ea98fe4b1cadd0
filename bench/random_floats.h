// Inputs of benchmarks: numbers of unit size, the same in every run.
#ifndef QUIRE_BENCH_RANDOM_FLOATS_H_
#define QUIRE_BENCH_RANDOM_FLOATS_H_

#include <cstdint>
#include <random>
#include <vector>

namespace quire::bench {

inline std::vector<float> RandomFloats(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace quire::bench

#endif  // QUIRE_BENCH_RANDOM_FLOATS_H_
