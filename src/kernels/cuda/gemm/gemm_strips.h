// Products of one or two rows of bf16 with the tile kernel's bits: a layer's dense products in exact decode steps of one
// sequence or two.
//
//   y = x w^T + bias, or, of gate and up, silu(x gate^T) * (x up^T)
//
// A strip is 16 outputs, or eight of gate and of up, over one range of the inputs, and a warp's. What a launch of one row
// waits for is latency: so a warp asks for the weights of 512 inputs at once, before its turn, and waits for no other warp
// but where the ranges of its outputs are added, which are a CTA's. An element's order of summation is that of
// kernels/cuda/gemm/gemm_tile.h, with its ranges (GemmRanges).
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_STRIPS_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_STRIPS_H_

#include <cstdint>

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/row_ops.h"

namespace quire::cuda {

inline constexpr int64_t kMaxStripRows = 2;
// Strips of a launch, each range one: 16 for a multiprocessor, of which 12 of 512 inputs are there at once, and more of
// fewer. A vocabulary's are more.
inline constexpr int64_t kMaxStrips = 16 * kMultiprocessors;
// Rows times inputs of x that a warp has, in all of its range: 12 KiB.
inline constexpr int64_t kMaxStripX = 6144;

inline constexpr int32_t kMaxStripBytes = 227 * 1024;  // of a CTA's shared memory

inline constexpr int32_t kStripRows = 16, kStripStepInputs = 64;  // of a step's weights
// Steps whose weights are under way in a warp, 16 KiB. Of one row three CTAs of four warps fit a multiprocessor: two of a
// product of 3648 x 2048, and one of the next.
inline constexpr int32_t kStripRingSteps = 8;
// A CTA has the ranges of a strip's outputs, and several such strips where all multiprocessors have one.
inline constexpr int32_t kMostStripWarps = 4;

// How a launch is laid out, as its product is.
struct StripLayout {
  // Of a strip: the 16 rows of a product of tensor cores, of gate and up eight of each.
  int32_t outputs = 0;
  int32_t strips = 0;  // of a matrix's outputs
  int32_t strips_of_cta = 0;
  int32_t warps = 0;       // of a CTA, one for each range of its strips
  int32_t ring_bytes = 0;  // of a warp
  // From a row of x to the next: 16 bytes past a multiple of 128, so that eight lie in all banks.
  int32_t x_stride = 0;
  int32_t warp_bytes = 0;  // the ring, and x behind it

  int32_t SharedBytes() const { return warps * warp_bytes; }
};
StripLayout StripLayoutOf(const TileParams& params);

// Whether StripGemm takes the product: bf16 within these limits, whole groups of eight inputs, and every row of x and w on
// a multiple of 16 bytes. y and the bias may lie anywhere.
bool StripsTake(const GemmArgs& args);

// The product. Throws Error(kInvalidArgument) as Gemm does, and where StripsTake is false.
void StripGemm(const GemmArgs& args, const Stream& stream);
// The product, and in the same launch Rope of RotatesOneRow. Neither reads what the other writes.
void StripGemmAndRope(const GemmArgs& args, const RopeArgs& rope, const Stream& stream);

// Launches params as they are, num_splits of split_inputs inputs, without offsets; rope, or null, is validated.
void LaunchStrips(const TileParams& params, const RopeArgs* rope, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_STRIPS_H_
