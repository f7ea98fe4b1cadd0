// The codes of rows that row ops make, beside the rows.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_CODES_CUH_
#define QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_CODES_CUH_

#include <cstdint>
#include <type_traits>

#include "base/narrow_float.h"
#include "kernels/cuda/gemm/gemm_codes.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {

// Writes the codes of the values that StoreGroup writes, if they are wanted: of what will be in memory, which
// is rounded to bf16. What is past the end of the row may be anything. All lanes of a warp call it, each with
// the group behind that of the lane before, and those of lane 0 begin a block.
template <bool kVector, class T>
__device__ void StoreCodes(const float (&v)[kGroup], int64_t row, int64_t begin, int64_t width,
                           const CodeRows& to) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (to.codes == nullptr) return;
    float rounded[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const bool inside = kVector ? begin < width : begin + i < width;
      rounded[i] = inside ? ToFloat(ToBf16(v[i])) : 0.0f;
    }
    WriteCodes(rounded, row, static_cast<int>(begin), static_cast<int>(width), to);
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_CODES_CUH_
