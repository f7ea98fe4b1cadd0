// Products whose 64 rows are outputs, with rows of x as their columns: where a thread of the warpgroup has its sums, how
// a panel's products are added to them, and how they become y. And how kernels of such tiles are launched.
//
// sums[block][4 j + 2 half + i] is of output 16 warp + 8 half + lane / 4 of the block's 64, and of row
// 8 j + lane % 4 * 2 + i of x. Of gate and up, the first block is gate's and the second is up's.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_COLUMNS_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_COLUMNS_CUH_

#include <algorithm>
#include <cstdint>

#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_boxes.cuh"
#include "kernels/cuda/gemm/gemm_store.cuh"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {

inline constexpr int kColumnOutputs = 64;  // of a block

// Those of the first kColumns rows.
template <int kColumns, int kSums>
__device__ __forceinline__ auto FirstSums(float (&sums)[kSums]) -> float (&)[kColumns / 2] {
  static_assert(kColumns <= 2 * kSums);
  return reinterpret_cast<float(&)[kColumns / 2]>(sums);
}

// Sums that products are adding to: the compiler moves nothing of them over this.
template <int kColumns, int kBlocks, int kSums>
__device__ __forceinline__ void HoldColumns(float (&sums)[kBlocks][kSums]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) HoldSums(FirstSums<kColumns>(sums[block]));
}

// sums += the products of a panel's 128 bytes a row, or = where `adds` is false, of the first kColumns rows of x.
template <TileMath kMath, int kColumns, int kBlocks, int kSums>
__device__ __forceinline__ void MultiplyColumns(uint32_t x, uint32_t w, bool adds,
                                                float (&sums)[kBlocks][kSums]) {
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint64_t a = PanelOperand(w + block * kColumnOutputs * kRowBytes, i * 32);
      const uint64_t b = PanelOperand(x, i * 32);
      if constexpr (kMath == TileMath::kFp8) {
        MultiplyCodes(FirstSums<kColumns>(sums[block]), a, b, adds || i > 0);
      } else {
        MultiplyPanels(FirstSums<kColumns>(sums[block]), a, b, adds || i > 0);
      }
    }
  }
}

// Stores the rows [8 j, + 8) that are there, whose sums are sums[block][2 half + i]: 8 x 8 at a time, transposed on their
// way.
template <int kBlocks>
__device__ __forceinline__ void StoreGroup(const TileParams& p, const TilePlace& at, int j,
                                           const float (&sums)[kBlocks][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t batch = p.offsets == nullptr ? at.batch : 0;
  const int row = at.row + 8 * j + lane / 4;
  const auto store = [&](int block, int half, float a, float b) {
    TransposeFloats(a, b);
    const int output = block * kColumnOutputs + 16 * warp + 8 * half + lane % 4 * 2;
    if (row < at.row_end) StorePair(p, batch, row, at.first_output + output, a, b);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int e = 2 * half;
    if (kBlocks == 2 && p.gated) {
      const float *gate = sums[0] + e, *up = sums[kBlocks - 1] + e;
      store(0, half, SiluByReciprocal(gate[0]) * up[0], SiluByReciprocal(gate[1]) * up[1]);
      continue;
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      store(block, half, sums[block][e], sums[block][e + 1]);
    }
  }
}

// Of all rows that are there.
template <int kBlocks, int kSums>
__device__ __forceinline__ void StoreColumns(const TileParams& p, const TilePlace& at,
                                             const float (&sums)[kBlocks][kSums]) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    if (at.row + 8 * j >= at.row_end) break;  // all lanes of the warp
    float group[kBlocks][4];
#pragma unroll
    for (int e = 0; e < 4 * kBlocks; ++e) group[e / 4][e % 4] = sums[e / 4][4 * j + e % 4];
    StoreGroup(p, at, j, group);
  }
}

// Launches a kernel of such tiles: a cluster for each that is cut, or as many CTAs as fit the device.
template <class T, class Kernel, class... Args>
void LaunchColumns(const char* name, Kernel kernel, size_t shared_bytes, const TileParams& p,
                   const Stream& stream, const Args&... args) {
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        name);
  const int64_t tiles = MostTiles<T>(p);
  const int64_t ctas = p.num_splits > 1 ? tiles * p.num_splits
                                        : std::min<int64_t>(T::kCtas * kMultiprocessors, tiles);
  LaunchAhead(name, kernel,
              {.grid = dim3(static_cast<unsigned>(ctas)),
               .block = dim3(T::kThreads),
               .shared_bytes = shared_bytes,
               .cluster = static_cast<unsigned>(p.num_splits)},
              stream, p, args...);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_COLUMNS_CUH_
