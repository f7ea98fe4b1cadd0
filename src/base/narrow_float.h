// bf16, f16 and fp8 e4m3 as stored: conversion rounds to nearest, ties to even.
//
//   Bf16     8 exponent bits, 7 mantissa bits: the upper half of a float. Overflow gives infinity.
//   F16      IEEE half: 5 exponent bits, 10 mantissa bits. Overflow gives infinity.
//   Fp8E4m3  e4m3fn: 4 exponent bits, 3 mantissa bits, no infinity, largest value 448. Conversion
//            saturates: anything beyond 448, infinities included, gives +-448. NaN stays NaN
//            (0x7f).
#ifndef QUIRE_BASE_NARROW_FLOAT_H_
#define QUIRE_BASE_NARROW_FLOAT_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace quire {
namespace internal {

QUIRE_HD inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
QUIRE_HD inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace internal

struct Bf16 {
  uint16_t bits = 0;
};

struct F16 {
  uint16_t bits = 0;
};

struct Fp8E4m3 {
  uint8_t bits = 0;
};

inline constexpr float kFp8E4m3Max = 448.0f;

QUIRE_HD inline Bf16 ToBf16(float value) {
  const uint32_t bits = internal::FloatBits(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // Adding 0x7fff plus the last kept bit carries exactly when the dropped half rounds up to even.
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // A NaN keeps its sign and upper payload, made quiet so that it cannot become an infinity.
  const uint32_t kept = is_nan ? (bits | 0x00400000u) : rounded;
  return Bf16{static_cast<uint16_t>(kept >> 16)};
}

QUIRE_HD inline float ToFloat(Bf16 value) {
  return internal::FloatFromBits(static_cast<uint32_t>(value.bits) << 16);
}

QUIRE_HD inline F16 ToF16(float value) {
  const uint32_t bits = internal::FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x1ffu);  // quiet, with the upper payload
  } else if (magnitude >= 0x477ff000u) {              // 65520, halfway from the largest to 2^16
    result = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal
    // Round the 23-bit mantissa to 10 bits, then move the exponent bias from 127 to 15.
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    result = (rounded >> 13) - ((127u - 15u) << 10);
  } else {
    // Subnormal: units of 2^-24. Adding 0.5 (ulp 2^-24) makes the float adder round to nearest even.
    const float shifted = internal::FloatFromBits(magnitude) + 0.5f;
    result = internal::FloatBits(shifted) - internal::FloatBits(0.5f);
  }
  return F16{static_cast<uint16_t>(sign | result)};
}

QUIRE_HD inline float ToFloat(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return internal::FloatFromBits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  // Read as float bits the value is 2^(127-15) too small; the product is exact.
  const float scaled = internal::FloatFromBits(magnitude << 13) * 0x1p112f;
  return internal::FloatFromBits(internal::FloatBits(scaled) | sign);
}

QUIRE_HD inline Fp8E4m3 ToFp8E4m3(float value) {
  const uint32_t bits = internal::FloatBits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Fp8E4m3{static_cast<uint8_t>(sign | 0x7fu)};
  // 464 is halfway between 448 (mantissa even: 1.75 = 110) and 480, which does not exist; both
  // the tie and all above saturate to 448.
  if (magnitude >= 0x43e80000u) return Fp8E4m3{static_cast<uint8_t>(sign | 0x7eu)};
  uint32_t result;
  if (magnitude >= 0x3c800000u) {  // 2^-6, the smallest normal
    // Round the 23-bit mantissa to 3 bits, then move the exponent bias from 127 to 7.
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    result = (rounded >> 20) - ((127u - 7u) << 3);
  } else {
    // Subnormal: units of 2^-9. Adding 2^14 (ulp 2^-9) makes the float adder round to nearest even.
    const float shifted = internal::FloatFromBits(magnitude) + 16384.0f;
    result = internal::FloatBits(shifted) - internal::FloatBits(16384.0f);
  }
  return Fp8E4m3{static_cast<uint8_t>(sign | result)};
}

QUIRE_HD inline float ToFloat(Fp8E4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) return internal::FloatFromBits(sign | 0x7fc00000u);
  // Read as float bits the value is 2^(127-7) too small; the product is exact, subnormals included.
  const float scaled = internal::FloatFromBits(magnitude << 20) * 0x1p120f;
  return internal::FloatFromBits(internal::FloatBits(scaled) | sign);
}

}  // namespace quire

#endif  // QUIRE_BASE_NARROW_FLOAT_H_
