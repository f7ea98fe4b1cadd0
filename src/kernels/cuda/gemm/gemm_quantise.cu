#include "kernels/cuda/gemm/gemm_quantise.h"

#include "base/maths.h"
#include "base/narrow_float.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_tile.h"

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
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = first + i < p.inputs;
    values[i] = there ? ToFloat(Bf16{p.x[row * p.x_stride + first + i]}) : 0.0f;
    largest = fmaxf(largest, fabsf(values[i]));  // passes NaN over: its code is NaN
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const float scale = largest / kFp8E4m3Max;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // A scale that underflowed to 0 belongs to values below 2^-141, which become 0 as well.
    const float scaled = scale == 0.0f && !isnan(values[i]) ? 0.0f : values[i] / scale;
    word |= static_cast<uint32_t>(ToFp8E4m3(scaled).bits) << (8 * i);
  }
  *reinterpret_cast<uint32_t*>(p.codes + row * p.code_stride + first) = word;
  if (lane == 0) p.scales[row * p.scale_stride + block] = scale;
}

}  // namespace

void LaunchQuantise(const QuantiseParams& p, const Stream& stream) {
  const int64_t ctas = CeilDiv(p.rows * p.blocks, static_cast<int64_t>(kThreads / 32));
  LaunchAhead("quantise_rows", QuantiseKernel, {static_cast<unsigned>(ctas), kThreads}, stream, p);
}

}  // namespace quire::cuda
