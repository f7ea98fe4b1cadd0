// What kernels for few rows of experts share: what they take, and what they know of it ahead.
#ifndef QUIRE_KERNELS_CUDA_MOE_FEW_ROWS_H_
#define QUIRE_KERNELS_CUDA_MOE_FEW_ROWS_H_

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

// Two tokens of top 8. Weights pass from L2 to the multiprocessors once for each row, where a tile takes 16 rows of an
// expert at once; with more rows this was not measured.
inline constexpr int32_t kMaxFewExpertRows = 16;

// When a launch may read the offsets and the index of rows.
enum class RoutingAge {
  kNew,  // the launch before this one may have written them
  kOld,  // it waited for whoever did, so weights are on their way before this one takes its turn
};

// Whether params of bf16 are such: up to so many rows, and every row of x and w in whole groups of eight on a multiple of 16
// bytes.
inline bool AreFewRows(const TileParams& p) {
  return p.rows <= kMaxFewExpertRows && p.inputs % 8 == 0 && InWholeGroups(p.x, p.x_row_bytes) &&
         InWholeGroups(p.w[0], p.w_row_bytes, p.w_batch_bytes) &&
         InWholeGroups(p.w[1], p.w_row_bytes, p.w_batch_bytes) &&
         int64_t{p.rows} * p.outputs < INT32_MAX / 2;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_FEW_ROWS_H_
