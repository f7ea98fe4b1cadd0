// The products of experts with few rows, with the tile kernel's bits: what expert_gemv.h has for steps that need not be
// exact.
//
// A warp has a strip of one row: 16 outputs of it, of gate and up eight of each (kernels/cuda/gemm/gemm_strips.h). Strips of
// all rows are dealt out to the warps of all multiprocessors, those of one strip side by side, so that rows of one expert
// read its weights at one time.
#ifndef QUIRE_KERNELS_CUDA_MOE_EXPERT_STRIPS_H_
#define QUIRE_KERNELS_CUDA_MOE_EXPERT_STRIPS_H_

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/moe/few_rows.h"

namespace quire::cuda {

// Whether LaunchExpertStrips takes params of bf16 as they are: AreFewRows, of as many inputs as a warp has room for.
bool ExpertStripsTake(const TileParams& params);

void LaunchExpertStrips(const TileParams& params, RoutingAge age, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_EXPERT_STRIPS_H_
