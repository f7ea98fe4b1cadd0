// Products of few rows: all of a layer with one sequence or two, and of up to eight those with few outputs.
//
// There a tile kernel has a few CTAs, each of which reads its part of the matrix step by step. Here few outputs
// are one of a CTA each (up to four): their rows of w are read by 256 threads at once. Of many a team of threads has four at a
// time, and asks for the rows of the next while it multiplies (kernels/cuda/gemm/gemv_quads.cuh).
//
// An element is summed in an order that the number of inputs alone fixes, by one fused multiply-add for each input,
// ascending: groups of eight inputs, group g to thread g mod 256; the threads of a warp as a tree (16 + 16, 8 + 8, ...), the
// warps ascending, then the bias. That is not the order of the tile kernel.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMV_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMV_H_

#include <cstdint>

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/row_ops.h"

namespace quire::cuda {

// So many rows of x with so many outputs, or fewer rows with more: every CTA reads all rows of x. Several matrices
// count as many outputs, each on a multiple of four, and have one row.
inline constexpr int64_t kMaxGemvRows = 8, kMaxGemvOutputs = 512;
inline constexpr int64_t kFewGemvRows = 2, kMaxGemvOutputsOfFew = 12288;

// Whether Gemv takes the product: bf16 matrices within these limits, and every row of x and w in
// whole groups on a multiple of 16 bytes. y and the bias may lie anywhere.
bool GemvTakes(const GemmArgs& args);

// The product. Throws Error(kInvalidArgument) as Gemm does, and where GemvTakes is false.
void Gemv(const GemmArgs& args, const Stream& stream);

// Whether a launch of the product, which Gemv takes, can rotate heads, too: one row of bf16 heads, with several
// matrices or many outputs.
bool GemvRotates(const GemmArgs& args, const RopeArgs& rope);
// The product, and in the same launch Rope. Neither reads what the other writes.
void GemvAndRope(const GemmArgs& args, const RopeArgs& rope, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMV_H_
