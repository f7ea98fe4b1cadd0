// Kernels for the tests of this folder.
#ifndef QUIRE_DEVICE_CUDA_TEST_KERNELS_H_
#define QUIRE_DEVICE_CUDA_TEST_KERNELS_H_

#include <cstdint>
#include <span>

#include "device/cuda/status.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

// values[i] += amount, on the device.
void AddToAll(std::span<int32_t> values, int32_t amount, const Stream& stream);

// Every thread of `ctas` CTAs with `threads` reports `fault` by Launch::kTest and its own index.
void ReportFromAll(StatusWord status, DeviceFault fault, int ctas, int threads,
                   const Stream& stream);

// Occupies the device for about `cycles` clock cycles of it, then does values[0] += 1.
void AddAfterAWhile(std::span<int32_t> values, int64_t cycles, const Stream& stream);

// Launches with more threads per CTA than any device has; throws what a launch does.
void LaunchTooLarge(const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_TEST_KERNELS_H_
