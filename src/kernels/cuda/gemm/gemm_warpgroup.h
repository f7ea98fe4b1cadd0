// The products of many rows, by warpgroups: the prefill tiles of kernels/cuda/gemm/gemm_tile.h, kPrefill,
// kPrefillWide, kPrefillPair and kPrefillWidePair.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_WARPGROUP_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_WARPGROUP_H_

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

// As LaunchTiles, of bf16 x and w whose rows begin on multiples of 16 bytes: the same bits, since
// products of warpgroups are those of warps (docs/numerics.md), added in the same order.
void LaunchWarpgroupTiles(const TileParams& params, TileSize size, const Stream& stream);

// The same of e4m3 x and w, an even number of inputs.
void LaunchWarpgroupCodes(const TileParams& params, TileSize size, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_WARPGROUP_H_
