// What one logit comes to: its place in the order, its weight, its adjustments. Operation by operation
// as decode/sampling.cc has it; intrinsics, so that no compiler flag changes a bit.
#ifndef QUIRE_DECODE_CUDA_SAMPLING_MATH_CUH_
#define QUIRE_DECODE_CUDA_SAMPLING_MATH_CUH_

#include <cstdint>

#include "decode/cuda/sampling.h"

namespace quire::cuda {

inline constexpr float kMaxFloat = 3.402823466e38f;

// ---- Order ----

// Keys order as candidates do: the highest logit has the least key. +inf counts as the largest
// number, NaN as -inf, -0 as 0.
__device__ inline uint32_t KeyOf(float value) {
  if (!(value > -INFINITY)) value = -INFINITY;
  value = fminf(value, kMaxFloat);
  const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}
__device__ inline float ValueOf(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key : ~key & 0x7fffffffu);
}
inline constexpr uint32_t kLastKey = 0xff800000u;  // of -inf

// ---- Weights ----

// exp(-x), x clamped to 0..87: the CPU's ExpOfMinus, which says how it works.
__device__ inline float ExpOfMinus(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const int32_t bits = __float_as_int(x);
  const int32_t most = 0x42ae0000;  // 87
  const float exponent = -__int_as_float(bits < 0 ? 0 : bits > most ? most : bits);
  const float rounded = __fadd_rn(__fmul_rn(exponent, 1.44269504f), kRound);
  const float doublings = __fsub_rn(rounded, kRound);
  const float r = __fsub_rn(__fsub_rn(exponent, __fmul_rn(doublings, 0.693359375f)),
                            __fmul_rn(doublings, -2.12194440e-4f));
  const float r2 = __fmul_rn(r, r);
  const float p76 = __fadd_rn(__fmul_rn(1.9875691500e-4f, r), 1.3981999507e-3f);
  const float p54 = __fadd_rn(__fmul_rn(8.3334519073e-3f, r), 4.1665795894e-2f);
  const float p32 = __fadd_rn(__fmul_rn(1.6666665459e-1f, r), 5.0000001201e-1f);
  const float high = __fadd_rn(__fmul_rn(__fadd_rn(__fmul_rn(p76, r2), p54), r2), p32);
  const float p = __fadd_rn(__fmul_rn(high, r2), __fadd_rn(r, 1.0f));
  const float power = __uint_as_float((__float_as_uint(rounded) + 127u) << 23);
  return __fmul_rn(p, power);
}

// Weights as integers: multiples of 2^-kWeightBits of the highest one's. A row's sum is below 2^63.
inline constexpr int kWeightBits = 44;

__device__ inline uint64_t FixedWeight(float weight) {
  return __float2ull_rn(__fmul_rn(weight, 0x1p44f));
}

struct Weigher {
  float highest;
  float scale;  // 1 / temperature

  __device__ float Weight(float value) const {
    return ExpOfMinus(__fmul_rn(__fsub_rn(highest, value), scale));
  }
  __device__ uint64_t operator()(float value) const { return FixedWeight(Weight(value)); }
};

// The smallest temperatures have no finite inverse.
__device__ inline Weigher MakeWeigher(float highest, float temperature) {
  return {.highest = fminf(highest, kMaxFloat),
          .scale = fminf(__fdiv_rn(1.0f, temperature), kMaxFloat)};
}

// For counting alone.
struct NoWeight {
  __device__ uint64_t operator()(float) const { return 0; }
};

// ---- Draws ----

__device__ inline uint64_t Mix(uint64_t state) {
  uint64_t x = state + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The CPU's UniformDraw, times 2^53.
__device__ inline uint64_t DrawBits(uint64_t seed, int32_t sample, int64_t position) {
  const uint64_t stream = Mix(Mix(seed) ^ static_cast<uint32_t>(sample));
  return Mix(stream ^ static_cast<uint64_t>(position)) >> 11;
}

// The least integer that is `part` * 2^-53 of `total` or more; part <= 2^53, total < 2^63.
__device__ inline uint64_t PartOf(uint64_t part, uint64_t total) {
  const uint64_t low = part * total;
  const uint64_t high = __umul64hi(part, total);
  const uint64_t floor = high << 11 | low >> 53;
  return floor + ((low & ((uint64_t{1} << 53) - 1)) != 0 ? 1 : 0);
}

// top_p * 2^53, rounded up. That is exact from 2^-29 on; below, the first candidate always does.
__device__ inline uint64_t PartOfTopP(float top_p) {
  return static_cast<uint64_t>(ceil(static_cast<double>(top_p) * 0x1p53));
}

// ---- Bias and penalties ----

// What `logit` becomes; no change rules a token out by overflow or brings back one that is (-inf).
__device__ inline float Changed(float logit, float changed) {
  if (!(logit > -INFINITY)) return logit;
  return changed < -kMaxFloat ? -kMaxFloat : changed > kMaxFloat ? kMaxFloat : changed;
}

__device__ inline float Penalized(const SampleItem& item, int32_t count, float logit) {
  const float penalty = item.repetition_penalty;
  logit = Changed(logit, logit > 0.0f ? __fdiv_rn(logit, penalty) : __fmul_rn(logit, penalty));
  const float frequency = __fmul_rn(static_cast<float>(count), item.frequency_penalty);
  logit = Changed(logit, __fsub_rn(logit, frequency));
  return count > 0 ? Changed(logit, __fsub_rn(logit, item.presence_penalty)) : logit;
}

__device__ inline bool HasPenalties(const SampleItem& item) {
  return item.repetition_penalty != 1.0f || item.frequency_penalty != 0.0f ||
         item.presence_penalty != 0.0f;
}

__device__ inline float LogprobOf(float logit, float log_sum_exp) {
  return logit == -INFINITY ? logit : __fsub_rn(fminf(logit, kMaxFloat), log_sum_exp);
}

}  // namespace quire::cuda

#endif  // QUIRE_DECODE_CUDA_SAMPLING_MATH_CUH_
