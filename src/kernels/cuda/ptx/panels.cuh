// What the functions of instructions.cuh and warpgroup.cuh are told of warps, operands and stages.
#ifndef QUIRE_KERNELS_CUDA_PTX_PANELS_CUH_
#define QUIRE_KERNELS_CUDA_PTX_PANELS_CUH_

#include <cstdint>

namespace quire::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = ~0u;
inline constexpr int kWarpgroup = 128;  // threads

// Operands in shared memory lie in panels, rows of 128 bytes whose 16-byte chunks are permuted by the
// row's number (PanelChunk). A panel begins on a multiple of 1024.

// Where chunk `chunk` of row `row` lies in a panel.
__device__ inline uint32_t PanelChunk(uint32_t row, uint32_t chunk) {
  return row * 128 + ((chunk ^ row) & 7) * 16;
}

// What a product is told of an operand that begins `bytes` behind `address`, both multiples of 16.
// `leading`: bytes from a panel to the next, where a product's columns go over several (transposed
// operands only).
__device__ inline uint64_t PanelOperand(uint32_t address, uint32_t bytes = 0,
                                        uint32_t leading = 0) {
  constexpr uint64_t kEightRows = 1024, kPermuted = 1;
  constexpr uint64_t kHigh = (kEightRows >> 4) | kPermuted << 30;
  return kHigh << 32 | (((address & 0x3ffff) >> 4) + (bytes >> 4) + (leading << 12));
}

// A value that all lanes of a warp have, so that the compiler knows it: operands of products are made of
// such, in the registers that a warp has once.
template <class T>
__device__ inline T Uniform(T value) {
  return __shfl_sync(~0u, value, 0);
}

// Where a role is in a ring of stages that are filled and emptied again and again, each with barriers
// whose phases `parity` counts.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_PANELS_CUH_
