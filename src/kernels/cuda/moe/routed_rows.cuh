// Whose the rows are that a step's tokens made of their choices, where those are few: looked up by every CTA for itself.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTED_ROWS_CUH_
#define QUIRE_KERNELS_CUDA_MOE_ROUTED_ROWS_CUH_

#include <cstddef>
#include <cstdint>

#include "device/cuda/status.cuh"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/moe/few_rows.h"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

// The expert of every row that has one, and its row of x. Rows of experts follow each other.
struct RoutedRows {
  int32_t expert[kMaxFewExpertRows];
  int32_t x[kMaxFewExpertRows];
};

// All threads call it; returns the rows that there are. Loads are where they stand: what was there before this
// kernel began may be in a cache.
__device__ inline RowRange FindRoutedRows(const TileParams& p, RoutedRows& rows) {
  const auto offset = [&](int e) {
    const auto at = LoadHere<int32_t>(reinterpret_cast<const std::byte*>(p.offsets + e));
    return min(max(at, 0), p.rows);
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int first = offset(0);
  const RowRange all = {first, max(offset(p.num_experts), first)};
  if (thread < kMaxFewExpertRows) {
    rows.expert[thread] = 0;  // where offsets descend, no expert may have a row
    rows.x[thread] = thread;
    if (p.x_index != nullptr && thread >= all.begin && thread < all.end) {
      const auto x = LoadHere<int32_t>(reinterpret_cast<const std::byte*>(p.x_index + thread));
      const bool there = x >= 0 && x < p.x_rows;
      rows.x[thread] = there ? x : 0;
      if (!there && blockIdx.x == 0) {
        Report(p.status, DeviceFault::kExpert, Launch::kGemm, static_cast<uint32_t>(thread));
      }
    }
  }
  __syncthreads();  // every row has expert 0 before one gets its own
  for (int e = thread; e < p.num_experts; e += static_cast<int>(blockDim.x)) {
    const int begin = offset(e), end = offset(e + 1);
    for (int row = begin; row < end; ++row) rows.expert[row] = e;
  }
  __syncthreads();  // every row's expert is there before one is looked up
  return all;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTED_ROWS_CUH_
