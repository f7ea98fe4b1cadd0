// How fast the device is at best, measured: what benchmarks compare with.
#ifndef QUIRE_RUNNER_CUDA_ROOF_H_
#define QUIRE_RUNNER_CUDA_ROOF_H_

namespace quire::cuda {

struct Roofs {
  double read_bytes_per_s = 0;  // what a copy within the device reads and writes together
  double flops_per_s = 0;       // of a product of two large bf16 matrices, by cuBLASLt
};

// The best of `repeats`. Takes 2.4 GiB of the device meanwhile.
Roofs MeasureRoofs(int repeats);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_ROOF_H_
