// A row's values as e4m3 codes with a scale for every 128: of rows in memory, or as they are made.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_CODES_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_CODES_CUH_

#include <cstdint>

#include "base/narrow_float.h"
#include "kernels/cuda/gemm/gemm_quantise.h"

namespace quire::cuda {

// Writes the codes of a thread's values, those from `first` on of a row of `width`, and with the first value
// of a block its scale. Values from `width` on are 0. All lanes of a warp call it, with values one behind the
// other's, and those of lane 0 begin a block: then a block's lanes are neighbours.
template <int kValues>
__device__ void WriteCodes(const float (&values)[kValues], int64_t row, int first, int width,
                           const CodeRows& to) {
  static_assert(kValues % 4 == 0 && 32 * kValues % kScaleBlock == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (first - lane * kValues >= width) return;  // the whole warp
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    largest = fmaxf(largest, fabsf(values[i]));  // passes NaN over: its code is NaN
  }
#pragma unroll
  for (int distance = kScaleBlock / kValues / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const int in_block = first % kScaleBlock;
  if (first - in_block >= width) return;
  const float scale = largest / kFp8E4m3Max;
  uint32_t words[kValues / 4] = {};
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    // A scale that underflowed to 0 belongs to values below 2^-141, which become 0 as well.
    const float scaled = scale == 0.0f && !isnan(values[i]) ? 0.0f : values[i] / scale;
    words[i / 4] |= static_cast<uint32_t>(ToFp8E4m3(scaled).bits) << (8 * (i % 4));
  }
  uint8_t* const codes = to.codes + row * to.code_stride + first;
  if constexpr (kValues == 8) {
    *reinterpret_cast<uint2*>(codes) = make_uint2(words[0], words[1]);
  } else {
    static_assert(kValues == 4);
    *reinterpret_cast<uint32_t*>(codes) = words[0];
  }
  if (in_block == 0) to.scales[row * to.scale_stride + first / kScaleBlock] = scale;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_CODES_CUH_
