// Chains of tensor-core products of every kind that kernels use, for the test of how they add.
#ifndef QUIRE_KERNELS_CUDA_PTX_TENSOR_CORE_FACTS_H_
#define QUIRE_KERNELS_CUDA_PTX_TENSOR_CORE_FACTS_H_

#include <cstddef>

#include "device/cuda/stream.h"

namespace quire::cuda {

enum class Product {
  kWarp,      // mma.sync m16n8k16
  kPanels8,   // wgmma m64n8k16, both operands in shared memory
  kPanels16,  // m64n16k16, and so on
  kPanels32,
  kPanels64,
  kPanels128,
  kPanels256,
  kRows256,  // wgmma m64n256k16, a in registers, b transposed in shared memory
  kWarpF16,  // kWarp and kPanels8 of f16, all others up to here are of bf16
  kPanels8F16,
  kCodes8,  // wgmma m64n8k32 of e4m3, both operands in shared memory
  kCodes16,
  kCodes64,
  kCodes128,
  kCodes192,
};

struct ChainArgs {
  const std::byte* a = nullptr;  // [num_rows, k], bf16, f16 or e4m3; on 16 bytes
  const std::byte* b = nullptr;  // [num_columns, k]
  const float* start =
      nullptr;            // [num_rows, num_columns], or nullptr: sums begin with the first product
  float* sums = nullptr;  // [num_rows, num_columns]
  int num_rows = 0;       // a multiple of 64
  int num_columns = 0;    // a multiple of 256
  int k = 0;              // a multiple of a product's values
};

// sums = start + a b^T, 16 values (32 of e4m3) at a time ascending, each product added to the sum before it.
void MultiplyChain(Product product, const ChainArgs& args, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_TENSOR_CORE_FACTS_H_
