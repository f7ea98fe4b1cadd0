#include "bench/cuda_attention_bench.h"
#include "device/cuda/launch.h"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 8;  // independent sums per warp: more than the latency of a product
constexpr int kProducts = 4096;

// Operands of zeros would draw less power than those of a model, and run faster.
__global__ void __launch_bounds__(kThreads) MmaRoof(float* sink) {
  uint32_t a[4], b[2];
  for (uint32_t i = 0; i < 4; ++i) a[i] = 0x3f803f80u + (threadIdx.x * 2654435761u + i) % 0x7f007fu;
  for (uint32_t i = 0; i < 2; ++i) b[i] = 0xbf803f80u + (threadIdx.x * 40503u + i) % 0x7f007fu;
  float sums[kChains][4] = {};
  for (int i = 0; i < kProducts; ++i) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) cuda::MultiplyBf16(sums[c], a, b[0], b[1]);
  }
  float total = 0;
  for (int c = 0; c < kChains; ++c) total += sums[c][0] + sums[c][1] + sums[c][2] + sums[c][3];
  if (total == 12345.678f) *sink = total;  // so that the products are not left out
}

}  // namespace

double LaunchMmaRoof(int num_sms, float* sink, const cuda::Stream& stream) {
  const int ctas = 2 * num_sms;
  const cuda::LaunchShape shape = {.grid = dim3(static_cast<unsigned>(ctas)),
                                   .block = dim3(kThreads)};
  cuda::LaunchInTurn("MmaRoof", MmaRoof, shape, stream, sink);
  return 2.0 * 16 * 8 * 16 * kChains * kProducts * (kThreads / 32) * ctas;
}

}  // namespace quire::bench
