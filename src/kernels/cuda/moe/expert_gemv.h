// The products of experts with few rows: mostly one row an expert, so that each weight is read for one.
//
// There tiles of rows have nothing to share, and most of a tile's CTAs wait for their first weights. Here the
// outputs of all rows are dealt out to the warps of all multiprocessors, evenly whatever was chosen, and a
// warp reads the next rows of w while it multiplies (kernels/cuda/moe/expert_gemv_rows.cuh). Rows of one expert each read
// its weights, at one time, so that L2 has them for all but the first.
//
// An element is summed by one fused multiply-add for each input, ascending: groups of eight inputs, group g to lane
// g mod 32, the halves of the group to sums 2 s and 2 s + 1 of it, where s = g / 32 mod 4, or, of gate and up, mod 2; the lane's
// sums as a tree (0 + 1, 2 + 3, ...), then the lanes' (16 + 16, 8 + 8, ...). That is not the order of the tile kernel.
#ifndef QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_H_
#define QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_H_

#include <cstdint>

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

// Two tokens of top 8. Weights pass from L2 to the multiprocessors once for each row, where a tile takes 16 rows of an
// expert at once; with more rows this was not measured.
inline constexpr int32_t kMaxExpertGemvRows = 16;

// When a launch may read the offsets and the index of rows.
enum class RoutingAge {
  kNew,  // the launch before this one may have written them
  kOld,  // it waited for whoever did, so weights are on their way before this one takes its turn
};

// Whether LaunchExpertGemv takes params of bf16 as they are: up to so many rows, and every row of x and w in
// whole groups of eight on a multiple of 16 bytes.
bool ExpertGemvTakes(const TileParams& params);

void LaunchExpertGemv(const TileParams& params, RoutingAge age, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_H_
