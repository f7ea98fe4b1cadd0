// device/cuda/kernel.cuh of the emulated GPU: a kernel begins when all before it have ended.
#ifndef QUIRE_DEVICE_CUDA_KERNEL_CUH_
#define QUIRE_DEVICE_CUDA_KERNEL_CUH_

#include <cstddef>

#include "testing/cuda/emulator/machine.h"

namespace quire::cuda {

inline void TakeTurn() {}

template <size_t kAlignment>
inline std::byte* LaunchedShared() {
  return emulator::DynamicShared();
}

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_KERNEL_CUH_
