// How fast the device is at best, measured in the run that is compared with it.
#ifndef QUIRE_KERNELS_CUDA_ROOF_H_
#define QUIRE_KERNELS_CUDA_ROOF_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/narrow_float.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

struct Roofs {
  double read_bytes_per_s = 0;  // a kernel that reads 2 GiB of random bytes and writes nothing
  double flops_per_s = 0;       // cuBLASLt's product of two large matrices of random bf16
};

// The best of `repeats`. Takes 2 GiB of the device meanwhile. Throws Error where there is no cuBLASLt.
Roofs MeasureRoofs(int repeats);
double MeasureReadRoof(int repeats);  // bytes per second

// What is measured with. Zeros would not do: they switch fewer transistors, so that the device
// draws less power and keeps a higher clock than it has for a model.

// Numbers of -1..1, from a fixed seed.
void FillRandom(std::span<Bf16> values, const Stream& stream);
// Reads every byte once: the exclusive or of all 32-bit words is added to *sum by exclusive or.
// The words begin at a multiple of 16 bytes, and four of them or a multiple of that are there.
void XorAll(std::span<const uint32_t> words, uint32_t* sum, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROOF_H_
