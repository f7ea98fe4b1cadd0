// Quotients of very many divisors, for the test of whether they need the check of a division.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_DIVISION_FACTS_H_
#define QUIRE_KERNELS_CUDA_ROW_OPS_DIVISION_FACTS_H_

#include <cstdint>
#include <span>

#include "device/cuda/stream.h"

namespace quire::cuda {

// different[i] += how many of the 2^23 divisors in [scale, 2 scale) UncheckedDivisor divides x[i] by otherwise than
// __fdiv_rn. `scale` is a power of two; both spans are the device's.
void CountDifferentQuotients(float scale, std::span<const float> x, std::span<uint32_t> different,
                             const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_DIVISION_FACTS_H_
