// Heads of one row that the warps of a product's launch rotate beside it.
#ifndef QUIRE_KERNELS_CUDA_GEMM_ROW_ROTATION_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_ROW_ROTATION_CUH_

#include <cstdint>

#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/cuda/row_ops/row_ops_rope.cuh"
#include "kernels/row_ops.h"

namespace quire::cuda {

// None with num_heads 0.
struct RowRotation {
  Heads<const Bf16> x;
  Heads<Bf16> y;
  const float *cos, *sin;
  RopePairs pairs;
  int32_t num_heads, num_pairs;
};

inline RowRotation RowRotationOf(const RopeArgs& rope) {
  return {.x = HeadsOf<const Bf16>(rope.x),
          .y = HeadsOf<Bf16>(rope.y),
          .cos = rope.cos.Address<float>(),
          .sin = rope.sin.Address<float>(),
          .pairs = rope.pairs,
          .num_heads = static_cast<int32_t>(rope.x.dim(1)),
          .num_pairs = static_cast<int32_t>(rope.x.dim(2) / 2)};
}

// By warp `warp` of the grid's num_warps: the last ones have a head each, since those have less of the product where it
// does not come out even.
__device__ inline void RotateHeads(const RowRotation& rotation, int warp, int num_warps, int lane) {
#pragma unroll 1
  for (int head = num_warps - 1 - warp; head < rotation.num_heads; head += num_warps) {
    RotateHead(lane, rotation.x.At(0, head), rotation.cos, rotation.sin, rotation.pairs,
               rotation.num_pairs, rotation.y.At(0, head));
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_ROW_ROTATION_CUH_
