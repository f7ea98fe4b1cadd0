// The kernel of quire_cuda_export_bench.
#ifndef QUIRE_BENCH_CUDA_EXPORT_BENCH_H_
#define QUIRE_BENCH_CUDA_EXPORT_BENCH_H_

#include <cstdint>

#include "device/cuda/cuda.h"

namespace quire::bench {

// CTAs of 256 threads that do nothing: what is left of a launch.
void LaunchNothing(int32_t ctas, const cuda::Stream& stream);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_EXPORT_BENCH_H_
