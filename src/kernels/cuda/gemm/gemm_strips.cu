// The kernel of strips: gemm_strips.h says what is computed.
#include <algorithm>

#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_strips.cuh"
#include "kernels/cuda/gemm/row_rotation.cuh"

namespace quire::cuda {
namespace {

constexpr int kMostThreads = kWarp * std::max<int>(kMostStripWarps, kMaxSplits);

// sums = those of all ranges, ascending, in the warp that has the first. A range's are stored over its ring, which nobody
// reads any more.
__device__ __forceinline__ void AddRanges(std::byte* memory, int warp_bytes, int range, int ranges,
                                          int lane, float (&sums)[4]) {
  const auto part_of = [&](int which) {
    return reinterpret_cast<float4*>(memory + (which - range) * warp_bytes) + lane;
  };
  if (range > 0) *part_of(range) = {sums[0], sums[1], sums[2], sums[3]};
  __syncthreads();  // all ranges' sums are there before one of them is read
  if (range > 0) return;
#pragma unroll 1
  for (int which = 1; which < ranges; ++which) {
    const float4 part = *part_of(which);
    sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
  }
}

// kRows >= rows.
template <int64_t kRows>
__global__ void __launch_bounds__(kMostThreads)
    StripKernel(const __grid_constant__ TileParams p, const __grid_constant__ StripLayout layout,
                const __grid_constant__ RowRotation rotation) {
  const int thread = HeldThread(), warp = Uniform(thread / kWarp), lane = thread % kWarp;
  const int ranges = p.num_splits, range = warp % ranges;
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int strip = cta * layout.strips_of_cta + warp / ranges;
  const bool is_there = strip < p.num_batches * layout.strips;
  const int begin = (is_there ? range : ranges) * p.split_inputs;
  const StripPlace at{.matrix = is_there ? strip / layout.strips : 0,
                      .first_output = strip % layout.strips * layout.outputs,
                      .begin = begin,
                      .end = min(p.inputs, begin + p.split_inputs)};
  std::byte* const memory = LaunchedShared<128>() + warp * layout.warp_bytes;
  const uint32_t ring = SharedAddress(memory), x = ring + static_cast<uint32_t>(layout.ring_bytes);
  const auto x_stride = static_cast<uint32_t>(layout.x_stride);
  StripWeights weights(p, at, ring, lane);
  TakeTurn();  // nobody writes weights
  RotateHeads(rotation, cta * layout.warps + warp, ctas * layout.warps, lane);
  BringX<kRows>(p.x + at.matrix * p.x_batch_bytes, p.x_row_bytes, p.rows, at, x, x_stride, lane);
  float sums[4] = {};
  MultiplyStrip(at, weights, x, x_stride, p.rows, lane, sums);
  if (ranges > 1) AddRanges(memory, layout.warp_bytes, range, ranges, lane, sums);
  if (is_there && range == 0) StoreStrip(p, at.matrix, at.first_output, lane, sums);
}

template <int64_t kRows>
void LaunchRows(const TileParams& p, const RowRotation& rotation, const Stream& stream) {
  const StripLayout layout = StripLayoutOf(p);
  const int32_t strips = layout.strips * p.num_batches;
  const auto kernel = StripKernel<kRows>;
  // The most of any product: ranks that share a device launch others meanwhile.
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxStripBytes),
        "gemm: shared memory of strips");
  // Heads are rotated by CTAs behind those that have strips.
  const int32_t ctas =
      CeilDiv(strips, layout.strips_of_cta) + CeilDiv(rotation.num_heads, layout.warps);
  LaunchAhead("gemm: strips", kernel,
              {.grid = static_cast<unsigned>(ctas),
               .block = static_cast<unsigned>(layout.warps * kWarp),
               .shared_bytes = static_cast<size_t>(layout.SharedBytes())},
              stream, p, layout, rotation);
}

}  // namespace

void LaunchStrips(const TileParams& p, const RopeArgs* rope, const Stream& stream) {
  const RowRotation rotation = rope != nullptr ? RowRotationOf(*rope) : RowRotation{};
  if (p.rows == 1) return LaunchRows<1>(p, rotation, stream);
  LaunchRows<kMaxStripRows>(p, rotation, stream);
}

}  // namespace quire::cuda
