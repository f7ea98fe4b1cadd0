// From the running softmax of a row to its output and log-sum-exp. Compiled once per SIMD target.
#if defined(QUIRE_KERNELS_CPU_SOFTMAX_OUTPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_SOFTMAX_OUTPUT_INL_H_
#undef QUIRE_KERNELS_CPU_SOFTMAX_OUTPUT_INL_H_
#else
#define QUIRE_KERNELS_CPU_SOFTMAX_OUTPUT_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

struct SoftmaxRow {
  const float* o;  // sums of weight * value
  float m;         // maximum score
  float l;         // sum of weights; 0 where nothing was seen
};

// Writes out[token, head] and, if there is one, lse[token, head].
HWY_INLINE void WriteSoftmaxRow(const SoftmaxRow& row, int64_t token, int64_t head,
                                const TensorView& out, const TensorView& lse) {
  const bool empty = row.l == 0.0f;
  const int64_t n = out.dim(2);
  if (out.dtype() == DType::kF32) {
    float* to = out.Row<float>(token, head);
    for (int64_t i = 0; i < n; ++i) to[i] = empty ? 0.0f : row.o[i] / row.l;
  } else {
    Bf16* to = out.Row<Bf16>(token, head);
    for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(empty ? 0.0f : row.o[i] / row.l);
  }
  if (lse.empty()) return;
  lse.Row<float>(token)[head] =
      empty ? -std::numeric_limits<float>::infinity() : row.m + std::log(row.l);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
