// Heads of one row that are rotated in the launch of a product beside them.
#ifndef QUIRE_KERNELS_CUDA_GEMM_ROW_ROTATION_H_
#define QUIRE_KERNELS_CUDA_GEMM_ROW_ROTATION_H_

#include "kernels/row_ops.h"

namespace quire::cuda {

inline bool RotatesOneRow(const RopeArgs& rope) {
  return rope.x.dim(0) == 1 && rope.x.dtype() == DType::kBf16 && rope.y.dtype() == DType::kBf16;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_ROW_ROTATION_H_
