// What kernels have of their launch.
#ifndef QUIRE_DEVICE_CUDA_KERNEL_CUH_
#define QUIRE_DEVICE_CUDA_KERNEL_CUH_

#include <cstddef>

namespace quire::cuda {

// Waits until all that kernels before this one have written is there; then the next one may be placed,
// once every CTA has come so far (device/cuda/launch.h).
__device__ inline void TakeTurn() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

// The shared memory that the launch asked for (LaunchShape::shared_bytes), on a multiple of kAlignment.
template <size_t kAlignment>
__device__ inline std::byte* LaunchedShared() {
  static_assert(kAlignment == 16 || kAlignment == 128 || kAlignment == 1024);
  // A name has one alignment in a file, and all begin at the same place.
  if constexpr (kAlignment == 16) {
    extern __shared__ __align__(16) std::byte launched_on_16[];
    return launched_on_16;
  } else if constexpr (kAlignment == 128) {
    extern __shared__ __align__(128) std::byte launched_on_128[];
    return launched_on_128;
  } else {
    extern __shared__ __align__(1024) std::byte launched_on_1024[];
    return launched_on_1024;
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_KERNEL_CUH_
