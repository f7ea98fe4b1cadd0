// How the row ops are launched: a kernel per element type, rows whole or cut.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_LAUNCH_CUH_
#define QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_LAUNCH_CUH_

#include <cstdint>
#include <type_traits>

#include "base/maths.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {

// fn(T()) with the element type that a view has.
template <class Fn>
void WithElement(DType dtype, Fn fn) {
  if (dtype == DType::kF32) {
    fn(float());
  } else {
    fn(Bf16());
  }
}

// fn(std::bool_constant): whether all rows can be read and written in groups.
template <class Fn>
void WithVector(bool vector, Fn fn) {
  if (vector) {
    fn(std::true_type());
  } else {
    fn(std::false_type());
  }
}

__device__ inline bool IsLive(LiveRows live, int64_t row) {
  return live.count == nullptr || row < *live.count;
}

// Ops without sums cut a row: one CTA per row and kCutValues values of it.
inline constexpr int kCutThreads = 256;
inline constexpr int64_t kCutValues = int64_t{kCutThreads} * kGroup;

inline dim3 CutGrid(int64_t num_rows, int64_t width) {
  return dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>(CeilDiv(width, kCutValues)));
}

// Where this thread's group begins in the row.
__device__ inline int64_t CutBegin() {
  return int64_t{blockIdx.y} * kCutValues + int64_t{threadIdx.x} * kGroup;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_LAUNCH_CUH_
