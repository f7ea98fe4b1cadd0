// Products of up to 64 rows of bf16 by the copy engine: a layer's dense products in decode steps of many sequences.
//
//   y = x w^T + bias, or, of gate and up, silu(x gate^T) * (x up^T)
//
// Weights are read once and little is computed with them, so what counts is that all multiprocessors ask for weights,
// from before the kernel before has ended: a tile of 64 outputs has its inputs cut among the CTAs of a cluster, which
// add their sums through each other's shared memory. An element's order of summation is the tile kernel's
// (kernels/cuda/gemm/gemm_tile.h), with ranges of its own, BoxedRanges, or with those it is told: with GemmRanges it has
// the tile kernel's bits. The number of rows changes no bit.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_BOXED_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_BOXED_H_

#include <cstdint>
#include <optional>

#include "base/maths.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"

namespace quire::cuda {

inline constexpr int64_t kMaxBoxedRows = 64;
// Tiles of 64 outputs for which all multiprocessors have room at once. More, such as those of a vocabulary, are
// cuBLASLt's: rows of x are read for every tile, as many bytes as weights.
inline constexpr int64_t kMaxBoxedTiles = 2 * kMultiprocessors;

// Whether BoxedGemm takes the product: bf16, up to so many rows and tiles, every row of x and w on a multiple of 16
// bytes, and no x that several matrices share. y and the bias may lie anywhere.
bool BoxedTakes(const GemmArgs& args);

// How many ranges the inputs of so many tiles are cut into: doubled while CTAs are at most one and a half for each
// multiprocessor, so that kernels beside and the next one find room, and a range has about 256 inputs at least, four steps.
constexpr int32_t BoxedRanges(int64_t tiles, int64_t inputs) {
  int32_t ranges = 1;
  while (ranges < kMaxSplits && 2 * ranges * tiles <= kMultiprocessors * 3 / 2 &&
         inputs >= 512 * int64_t{ranges}) {
    ranges *= 2;
  }
  return ranges;
}

// The product, with `ranges` (1, 2, 4 or 8) of GemmSplitInputs instead of BoxedRanges if given. Throws Error(kInvalidArgument) as Gemm
// does, and where BoxedTakes is false.
void BoxedGemm(const GemmArgs& args, const Stream& stream, std::optional<int32_t> ranges = {});

// Launches params as they are, num_splits of split_inputs inputs, without offsets.
void LaunchBoxed(const TileParams& params, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_BOXED_H_
