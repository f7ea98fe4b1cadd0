// device/cuda/kernel.cuh of the emulated GPU.
#ifndef QUIRE_DEVICE_CUDA_KERNEL_CUH_
#define QUIRE_DEVICE_CUDA_KERNEL_CUH_

#include <cstddef>

#include "testing/cuda/emulator/machine.h"

namespace quire::cuda {

inline void TakeTurn() { emulator::TakeTurn(); }

template <size_t kAlignment>
inline std::byte* LaunchedShared() {
  return emulator::DynamicShared();
}

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_KERNEL_CUH_
