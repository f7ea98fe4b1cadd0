#include "kernels/cuda/gemm/gemm_quantise.h"

#include "base/maths.h"
#include "base/narrow_float.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_codes.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

// A warp per 128 inputs of a row, four in a row for each lane.
__global__ void __launch_bounds__(kThreads) QuantiseKernel(const QuantiseParams p) {
  TakeTurn();
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t row = warp / p.blocks;
  if (row >= p.rows) return;  // the whole warp
  const int block = static_cast<int>(warp % p.blocks);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = block * kScaleBlock + 4 * lane;
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = first + i < p.inputs;
    values[i] = there ? ToFloat(Bf16{p.x[row * p.x_stride + first + i]}) : 0.0f;
  }
  WriteCodes(values, row, first, p.inputs, p.to);
}

}  // namespace

void LaunchQuantise(const QuantiseParams& p, const Stream& stream) {
  const int64_t ctas = CeilDiv(p.rows * p.blocks, static_cast<int64_t>(kThreads / 32));
  LaunchAhead("quantise_rows", QuantiseKernel, {static_cast<unsigned>(ctas), kThreads}, stream, p);
}

}  // namespace quire::cuda
