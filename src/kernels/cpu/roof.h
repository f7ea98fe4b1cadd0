// What this machine can do at most, measured in the run that is compared with it.
#ifndef QUIRE_KERNELS_CPU_ROOF_H_
#define QUIRE_KERNELS_CPU_ROOF_H_

#include <string>
#include <vector>

#include "base/executor.h"
#include "device/buffer.h"

namespace quire::cpu {

struct Roofs {
  double read_bytes_per_s = 0;  // every thread reading its share of 1 GiB
  double flops_per_s = 0;       // every thread doing multiply-adds in registers
};

// The better of both.
Roofs Best(const Roofs& a, const Roofs& b);

class RoofMeter {
 public:
  // Takes and touches 1 GiB.
  explicit RoofMeter(Executor& executor);

  // The best of `repeats` passes over the memory and of as many loops with each number of
  // accumulators. A peak is the best of many short tries, not a median: what disturbs one only ever
  // makes it slower.
  Roofs Measure(int repeats) const;

 private:
  double ReadSeconds() const;
  double FlopsPerSecond(int variant) const;

  Executor& executor_;
  Buffer memory_;
};

// The SIMD target that this machine's kernels run on.
const char* SimdTarget();
// All that this machine could run them on, best first.
std::vector<std::string> SimdTargets();

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_ROOF_H_
