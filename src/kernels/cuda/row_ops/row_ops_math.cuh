// Rows in groups of eight values, and the maths of the row ops.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_MATH_CUH_
#define QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_MATH_CUH_

#include <cstdint>

#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

inline constexpr int kGroup = 8;  // values that a thread loads at once: 16 bytes of bf16

// The rows of a view, as a kernel's argument. T is float or Bf16, const for inputs.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;  // from one row to the next, in values

  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};

template <class T, class View>
Rows<T> RowsOf(const View& view) {
  if (view.empty() || view.dim(0) == 0) return {};
  return {.data = view.template Address<std::remove_const_t<T>>(), .stride = view.stride(0)};
}

// Whether every row can be read in whole groups by 16-byte loads.
template <class View>
bool InGroups(const View& view, int64_t width) {
  if (view.empty() || view.dim(0) == 0) return true;
  const auto address = view.dtype() == DType::kF32
                           ? reinterpret_cast<uintptr_t>(view.template Address<float>())
                           : reinterpret_cast<uintptr_t>(view.template Address<Bf16>());
  return width % kGroup == 0 && address % 16 == 0 &&
         view.stride(0) * DTypeBytes(view.dtype()) % 16 == 0;
}

// ---- One value ----

__device__ inline float LoadValue(const float* from) { return *from; }
__device__ inline float LoadValue(const Bf16* from) { return ToFloat(*from); }
__device__ inline void StoreValue(float value, float* to) { *to = value; }
__device__ inline void StoreValue(float value, Bf16* to) { *to = ToBf16(value); }

// ---- Eight values, from `begin` on, of a row of `width` ----
//
// kVector: InGroups() holds. Without it what is past the end reads as 0 and is not written. Both are
// the same values in the same places, so no bit depends on it.

__device__ inline void LoadWhole(const float* from, float (&v)[kGroup]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ inline void Widen(uint4 bits, float (&v)[kGroup]) {
  const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // the lower half is the first value
    v[2 * i] = internal::FloatFromBits(pairs[i] << 16);
    v[2 * i + 1] = internal::FloatFromBits(pairs[i] & 0xffff0000u);
  }
}
__device__ inline void LoadWhole(const Bf16* from, float (&v)[kGroup]) {
  Widen(*reinterpret_cast<const uint4*>(from), v);
}
__device__ inline void StoreWhole(const float (&v)[kGroup], float* to) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ inline void StoreWhole(const float (&v)[kGroup], Bf16* to) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = ToBf16(v[2 * i]).bits | static_cast<uint32_t>(ToBf16(v[2 * i + 1]).bits) << 16;
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <bool kVector, class T>
__device__ void LoadGroup(const T* row, int64_t begin, int64_t width, float (&v)[kGroup]) {
  if constexpr (kVector) {
    LoadWhole(row + begin, v);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      v[i] = begin + i < width ? LoadValue(row + begin + i) : 0.0f;
    }
  }
}
template <bool kVector, class T>
__device__ void StoreGroup(const float (&v)[kGroup], int64_t begin, int64_t width, T* row) {
  if constexpr (kVector) {
    StoreWhole(v, row + begin);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (begin + i < width) StoreValue(v[i], row + begin + i);
    }
  }
}

// ---- Sums ----

// The sum over the CTA's threads (a multiple of 32, up to 1024), the same in all of them. All call
// it, and the scratch is free again after the next barrier.
__device__ inline float SumOfThreads(float value, float (&scratch)[32]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) value += __shfl_xor_sync(~0u, value, half);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();  // every warp's sum is in the scratch before any thread reads it
  value = lane < num_warps ? scratch[lane] : 0.0f;
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) value += __shfl_xor_sync(~0u, value, half);
  return value;
}

// ---- Functions, operation by operation as kernels/cpu/row_ops.cc has them ----

// exp as Highway's f32 Exp computes it on targets with fused multiply-add, bit for bit: which experts
// are chosen must not depend on the backend. 0 below -104 and for NaN.
__device__ inline float ExpAsOnCpu(float x) {
  // To the nearest integer: half is added with the sign of x, then the fraction dropped.
  const float scaled = __fmaf_rn(x, 1.442695040888963407359924681f, copysignf(0.5f, x));
  const int32_t q = __float2int_rz(scaled);
  const float qf = static_cast<float>(q);
  float r = __fmaf_rn(qf, -0.693145751953125f, x);  // ln 2 in two parts
  r = __fmaf_rn(qf, -1.428606765330187045e-6f, r);
  const float r2 = __fmul_rn(r, r);
  const float r4 = __fmul_rn(r2, r2);
  const float p10 = __fmaf_rn(0.166666671633720397949219f, r, 0.5f);
  const float p32 = __fmaf_rn(0.00833336077630519866943359f, r, 0.0416664853692054748535156f);
  const float p54 = __fmaf_rn(0.000198527617612853646278381f, r, 0.00139304355252534151077271f);
  const float p = __fmaf_rn(r4, p54, __fmaf_rn(r2, p32, p10));
  const float y = __fadd_rn(__fmaf_rn(p, r2, r), 1.0f);
  // 2^q in two factors: it may be subnormal, and its halves are not.
  const int32_t half = q >> 1;
  const auto power = [](int32_t e) {
    return internal::FloatFromBits((static_cast<uint32_t>(e) + 0x7fu) << 23);
  };
  const float result = __fmul_rn(__fmul_rn(y, power(half)), power(q - half));
  return x >= -104.0f ? result : 0.0f;
}

__device__ inline float Silu(float x) {
  const float e = ExpAsOnCpu(-fabsf(x));
  // -inf counts as the least finite number: it times e = 0 would be NaN.
  const float below = __fmul_rn(fmaxf(x, -3.402823466e38f), e);
  return __fdiv_rn(x < 0.0f ? below : x, __fadd_rn(1.0f, e));
}

// x / divisor as __fdiv_rn, and its operations, but for the check of whether they are enough, which is a branch: they are
// for divisors of 1 to 2^10, and x of 0 or 2^-70 to 1, or NaN; and for a divisor of 1 and any x up to 1.
class UncheckedDivisor {
 public:
  __device__ explicit UncheckedDivisor(float divisor) : divisor_(divisor) {
    const float close = ReciprocalApprox(divisor);
    inverse_ = __fmaf_rn(close, __fmaf_rn(-divisor, close, 1.0f), close);
  }
  __device__ float Divide(float x) const {
    const float close = __fmul_rn(x, inverse_);
    return __fmaf_rn(inverse_, __fmaf_rn(-divisor_, close, x), close);
  }

 private:
  float divisor_, inverse_;
};

__device__ inline float Sigmoid(float x) {
  const float e = ExpAsOnCpu(-fabsf(x));
  // Below 2^-24, e is divided by 1, of which the inverse is exact.
  const float value = UncheckedDivisor(__fadd_rn(1.0f, e)).Divide(x < 0.0f ? e : 1.0f);
  return isnan(x) ? x : value;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_MATH_CUH_
