// What instructions.cuh ends with: functions made of its own.
#ifndef QUIRE_KERNELS_CUDA_PTX_VALUES_CUH_
#define QUIRE_KERNELS_CUDA_PTX_VALUES_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

// As TransposeMatrix, of 32 bits: a lane has the two elements from 2 (l % 4) on of row l / 4.
__device__ inline void TransposeFloats(float& first, float& second) {
  const uint32_t a = __float_as_uint(first), b = __float_as_uint(second);
  const uint32_t low = TransposeMatrix(__byte_perm(a, b, 0x5410));
  const uint32_t high = TransposeMatrix(__byte_perm(a, b, 0x7632));
  first = __uint_as_float(__byte_perm(low, high, 0x5410));
  second = __uint_as_float(__byte_perm(low, high, 0x7632));
}

__device__ inline uint32_t F16PairToBf16(uint32_t pair) {
  const float2 wide = WidenF16(pair);
  return PackBf16(wide.x, wide.y);
}
// Four e4m3 codes as two pairs of bf16; exact, since e4m3 has 4 significant bits and 2^-9 .. 448.
__device__ inline void WidenToBf16(uint32_t codes, uint32_t& low, uint32_t& high) {
  WidenToF16(codes, low, high);
  low = F16PairToBf16(low);
  high = F16PairToBf16(high);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_VALUES_CUH_
