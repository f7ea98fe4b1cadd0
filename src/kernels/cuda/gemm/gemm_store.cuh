// What becomes of a product's sums: bias, the gate, rounding, y.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_STORE_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_STORE_CUH_

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

// x / (1 + exp(-x)), within the error of the CPU's; 0 or x where exp(-|x|) is 0. The division is that of
// a denominator in [1, 2], by its reciprocal and one correction, so there is no branch in it.
__device__ inline float SiluByReciprocal(float x) {
  const float e = expf(-fabsf(x));
  const float denominator = 1.0f + e;
  const float numerator = x < 0 ? x * e : x;
  const float reciprocal = ReciprocalApprox(denominator);
  const float quotient = numerator * reciprocal;
  const float rest = __fmaf_rn(-denominator, quotient, numerator);
  const float result = __fmaf_rn(rest, reciprocal, quotient);
  return fabsf(x) > 104.0f ? fmaxf(x, 0.0f) : result;
}

// Outputs `output` and the next of `row`, as far as they exist.
__device__ inline void StorePair(const TileParams& p, int64_t batch, int row, int output, float a,
                                 float b) {
  if (output >= p.outputs) return;
  const bool both = output + 1 < p.outputs;
  if (p.bias != nullptr) {
    a += p.bias[output];
    if (both) b += p.bias[output + 1];
  }
  const int64_t at = batch * p.y_batch + row * p.y_stride + output;
  if (p.y_is_f32) {
    float* y = reinterpret_cast<float*>(p.y) + at;
    if (both && p.y_in_pairs) {
      *reinterpret_cast<float2*>(y) = {a, b};
      return;
    }
    y[0] = a;
    if (both) y[1] = b;
    return;
  }
  const uint32_t pair = PackBf16(a, b);
  uint16_t* y = reinterpret_cast<uint16_t*>(p.y) + at;
  if (both && p.y_in_pairs) {
    *reinterpret_cast<uint32_t*>(y) = pair;
    return;
  }
  y[0] = static_cast<uint16_t>(pair);
  if (both) y[1] = static_cast<uint16_t>(pair >> 16);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_STORE_CUH_
