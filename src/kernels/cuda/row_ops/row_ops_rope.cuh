// The rotation of a head by a warp: a launch of its own, or beside a product of few rows.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_ROPE_CUH_
#define QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_ROPE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/row_ops.h"

namespace quire::cuda {

template <class T>
struct Heads {
  T* data = nullptr;
  int64_t row_stride = 0, head_stride = 0;

  __device__ T* At(int64_t row, int64_t head) const {
    return data + row * row_stride + head * head_stride;
  }
};

template <class T, class View>
Heads<T> HeadsOf(const View& view) {
  return {.data = view.template Address<std::remove_const_t<T>>(),
          .row_stride = view.stride(0),
          .head_stride = view.stride(1)};
}

// A lane has both values of a pair before it writes either, so `to` may be `from`.
template <class TX, class TY>
__device__ void RotateHead(int lane, const TX* from, const float* cos, const float* sin,
                           RopePairs pairs, int64_t num_pairs, TY* to) {
  for (int64_t i = lane; i < num_pairs; i += 32) {
    const int64_t first = pairs == RopePairs::kInterleaved ? 2 * i : i;
    const int64_t second = pairs == RopePairs::kInterleaved ? 2 * i + 1 : i + num_pairs;
    const float a = LoadValue(from + first), b = LoadValue(from + second);
    const float c = cos[i], s = sin[i];
    StoreValue(__fmaf_rn(a, c, -__fmul_rn(b, s)), to + first);
    StoreValue(__fmaf_rn(b, c, __fmul_rn(a, s)), to + second);
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_ROPE_CUH_
