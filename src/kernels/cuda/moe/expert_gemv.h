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

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/moe/few_rows.h"

namespace quire::cuda {

// Launches params of AreFewRows as they are.
void LaunchExpertGemv(const TileParams& params, RoutingAge age, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_H_
