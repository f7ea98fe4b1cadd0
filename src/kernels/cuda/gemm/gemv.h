// Products of few rows: a layer's router in a decode step, and all of its products with one sequence or
// two.
//
// There a tile kernel has a few CTAs, each of which reads its part of the matrix step by step. Here a
// CTA has one output (up to four where there are many): its rows of w are read by 256 threads at once.
//
// An element is summed in an order that the number of inputs fixes: groups of eight inputs, group g
// to thread g mod 256, one fused multiply-add each, ascending; the threads of a warp as a tree
// (16 + 16, 8 + 8, ...), the warps ascending, then the bias. It is not the order of the tile kernel.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMV_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMV_H_

#include <cstdint>

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"

namespace quire::cuda {

// So many rows of x with so many outputs, or fewer rows with more: every CTA reads all rows of x.
inline constexpr int64_t kMaxGemvRows = 8, kMaxGemvOutputs = 512;
inline constexpr int64_t kFewGemvRows = 2, kMaxGemvOutputsOfFew = 8192;

// Whether Gemv takes the product: one bf16 matrix within these limits, and every row of x and w in
// whole groups on a multiple of 16 bytes. y and the bias may lie anywhere.
bool GemvTakes(const GemmArgs& args);

// The product. Throws Error(kInvalidArgument) as Gemm does, and where GemvTakes is false.
void Gemv(const GemmArgs& args, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMV_H_
