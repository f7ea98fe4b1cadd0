// Reporting from kernels.
#ifndef QUIRE_DEVICE_CUDA_STATUS_CUH_
#define QUIRE_DEVICE_CUDA_STATUS_CUH_

#include <cstdint>

#include "device/cuda/status.h"

namespace quire::cuda {

// Sets the status word if it is 0: the first report stays. `launch` is a Launch. Any thread may call
// it, and it orders nothing: the host reads the word behind the kernel.
__device__ inline void Report(StatusWord status, DeviceFault fault, uint32_t launch,
                              uint32_t index) {
  if (status.word == nullptr || fault == DeviceFault::kNone) return;
  atomicCAS(status.word, 0ull, EncodeReport(fault, launch, index));
}

__device__ inline void Report(StatusWord status, DeviceFault fault, Launch launch, uint32_t index) {
  Report(status, fault, static_cast<uint32_t>(launch), index);
}

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_STATUS_CUH_
