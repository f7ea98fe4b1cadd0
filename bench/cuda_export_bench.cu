#include "bench/cuda_export_bench.h"

#include "device/cuda/launch.h"

namespace quire::bench {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) Nothing() {}

}  // namespace

void LaunchNothing(int32_t ctas, const cuda::Stream& stream) {
  const cuda::LaunchShape shape = {.grid = dim3(static_cast<unsigned>(ctas)),
                                   .block = dim3(kThreads)};
  cuda::LaunchInTurn("nothing", Nothing, shape, stream);
}

}  // namespace quire::bench
