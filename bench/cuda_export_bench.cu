#include "bench/cuda_export_bench.h"

namespace quire::bench {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) Nothing() {}

}  // namespace

void LaunchNothing(int32_t ctas, const cuda::Stream& stream) {
  Nothing<<<static_cast<unsigned>(ctas), kThreads, 0, stream.get()>>>();
  cuda::CheckLaunch("nothing");
}

}  // namespace quire::bench
