// Sums of a warp's products as lines of memory.
#ifndef QUIRE_KERNELS_CUDA_PTX_LINES_CUH_
#define QUIRE_KERNELS_CUDA_PTX_LINES_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {

// A warp's 16 rows of 64 values on their way: shared memory of its own.
inline constexpr int kSlabRows = 16, kSlabColumns = 64;
inline constexpr uint32_t kSlabBytes = kSlabRows * kSlabColumns * 2;

// Writes a warp's 16 rows of kColumns values as bf16, 128 bytes of a row at a time: a thread has
// pairs of values that lie 16 bytes from its next ones, and written as they are they would fill no sector
// of memory.
//   pair_of(j, half)      the thread's two values of columns [8 j, + 8), as MultiplyPanels leaves them
//   chunk_at(row, column) where the 8 values from `column` on of a row go; null: nowhere
template <int kColumns, class PairOf, class ChunkAt>
__device__ __forceinline__ void StoreLines(uint32_t slab, const PairOf& pair_of,
                                           const ChunkAt& chunk_at) {
  static_assert(kColumns % 16 == 0);
  constexpr int kGroups = (kColumns + kSlabColumns - 1) / kSlabColumns;
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t chunks = min(8, kColumns / 8 - group * 8);
    __syncwarp();  // the group before is read
#pragma unroll
    for (uint32_t chunk = 0; chunk < chunks; chunk += 2) {
      uint32_t m[4];  // rows [0, 8) and [8, 16) of a chunk, then of the next
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float2 pair =
            pair_of(static_cast<int>(group * 8 + chunk + i / 2), static_cast<int>(i % 2));
        m[i] = PackBf16(pair.x, pair.y);
      }
      StoreMatrices(slab + PanelChunk(lane % 16, chunk + lane / 16), m);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kSlabRows; i += 4) {
      const uint32_t row = i + lane / 8, chunk = lane % 8;
      if (chunk >= chunks) continue;
      const uint4 values = LoadShared16(slab + PanelChunk(row, chunk));
      uint4* to =
          chunk_at(static_cast<int>(row), group * kSlabColumns + static_cast<int>(chunk) * 8);
      if (to != nullptr) *to = values;
    }
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_LINES_CUH_
