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

// Of kColumns columns: groups of 64, and chunks of 8 in a group.
template <int kColumns>
inline constexpr int kGroupsOf = (kColumns + kSlabColumns - 1) / kSlabColumns;
template <int kColumns>
__host__ __device__ constexpr uint32_t ChunksOfGroup(int group) {
  return static_cast<uint32_t>(kColumns / 8 - group * 8 < 8 ? kColumns / 8 - group * 8 : 8);
}

// Sums of group `group` of 64 columns to a slab, as bf16.
//   pair_of(j, half)      the thread's two values of columns [8 j, + 8), as MultiplyPanels leaves them
template <int kColumns, class PairOf>
__device__ __forceinline__ void FillSlab(uint32_t slab, int group, const PairOf& pair_of) {
  static_assert(kColumns % 16 == 0);
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t chunk = 0; chunk < ChunksOfGroup<kColumns>(group); chunk += 2) {
    uint32_t m[4];  // rows [0, 8) and [8, 16) of a chunk, then of the next
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float2 pair =
          pair_of(static_cast<int>(group * 8 + chunk + i / 2), static_cast<int>(i % 2));
      m[i] = PackBf16(pair.x, pair.y);
    }
    StoreMatrices(slab + PanelChunk(lane % 16, chunk + lane / 16), m);
  }
}

// Writes a warp's 16 rows of kColumns values as bf16, 128 bytes of a row at a time: a thread has
// pairs of values that lie 16 bytes from its next ones, and written as they are they would fill no sector
// of memory.
//   pair_of               as FillSlab's
//   chunk_at(row, column) where the 8 values from `column` on of a row go; null: nowhere
template <int kColumns, class PairOf, class ChunkAt>
__device__ __forceinline__ void StoreLines(uint32_t slab, const PairOf& pair_of,
                                           const ChunkAt& chunk_at) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < kGroupsOf<kColumns>; ++group) {
    __syncwarp();  // the group before is read
    FillSlab<kColumns>(slab, group, pair_of);
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kSlabRows; i += 4) {
      const uint32_t row = i + lane / 8, chunk = lane % 8;
      if (chunk >= ChunksOfGroup<kColumns>(group)) continue;
      const uint4 values = LoadShared16(slab + PanelChunk(row, chunk));
      uint4* to =
          chunk_at(static_cast<int>(row), group * kSlabColumns + static_cast<int>(chunk) * 8);
      if (to != nullptr) *to = values;
    }
  }
}

// Writes them by the copy engine, from as many slabs as there are groups. The warp's first lane asks for the stores, when
// those that it asked for before have read the slabs, and does not wait for these: it has to (WaitForStores) before the
// slabs are used otherwise, and before it ends.
//   store(slab, column)   stores 16 rows of 64 columns, from `column` on; by one lane
template <int kColumns, class PairOf, class Store>
__device__ __forceinline__ void StoreSlabs(uint32_t slabs, const PairOf& pair_of,
                                           const Store& store) {
  if (threadIdx.x % 32 == 0) WaitForStores();
  __syncwarp();  // slabs are read
#pragma unroll
  for (int group = 0; group < kGroupsOf<kColumns>; ++group) {
    FillSlab<kColumns>(slabs + group * kSlabBytes, group, pair_of);
  }
  FenceForProducts();
  __syncwarp();  // all lanes have written, and the copy engine sees it
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int group = 0; group < kGroupsOf<kColumns>; ++group) {
      store(slabs + group * kSlabBytes, group * kSlabColumns);
    }
  }
  __syncwarp();
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_LINES_CUH_
