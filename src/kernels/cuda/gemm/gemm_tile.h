// The tile kernel: the one matrix product of our own, behind cuda::Gemm and cuda::ExpertGemm.
//
// What an element of y is computed from, and in which order, is fixed by (outputs, inputs) alone, of a
// rank's part of a matrix those of the whole:
//
//   1. The inputs are cut into num_splits ranges of split_inputs (GemmSplits).
//   2. Within a range products are summed 16 at a time, ascending, by tensor-core instructions into
//      f32; 32 at a time where codes are multiplied with codes. Of e4m3 weights, every 128 inputs are
//      summed by themselves, and the sum times its scales is added on with one fused multiply-add.
//   3. The ranges' sums are added ascending, then the bias.
//
// The tile sizes differ in how many rows and outputs a CTA takes, never in that order, so a row has the
// same bits in any of them and beside any other rows. Neither do alignment and the way operands are copied.
//
// A range belongs to one CTA and the CTAs of one tile are a cluster: they exchange their sums
// through distributed shared memory. So there is no workspace, no atomic, no second kernel.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/maths.h"
#include "device/cuda/cuda.h"
#include "kernels/quantised_rows.h"

namespace quire::cuda {

enum class TileMath {
  kBf16,  // bf16 x bf16
  // e4m3 codes of both, with scales per (row, 128 inputs) and 128 x 128 block: products of warpgroups,
  // which keep fewer bits than the others (docs/numerics.md).
  kFp8,
  kFp8KeepX,  // bf16 x, e4m3 w: the codes are widened to bf16, which is exact
};

enum class TileSize {
  // 16 x 64: a row of w is read once for up to 16 rows of x; of kFp8 16 x 128 too, by the copy engine
  // (kernels/cuda/gemm/gemm_decode.h).
  kDecode,
  kMedium,  // 64 x 64; of kFp8 and of experts' kBf16 64 x 128 too, by the copy engine
  // 128 x 128; of bf16 128 x 256. Of that and kFp8 by warpgroups (kernels/cuda/gemm/gemm_warpgroup.h).
  kPrefill,
  kPrefillWide,  // 128 x 192: of kFp8 with one range of inputs only
  // Two of them, one below the other, that read their weights once: by warpgroups only.
  kPrefillPair,
  kPrefillWidePair,
};

struct TileExtent {
  int32_t rows = 0;
  int32_t outputs = 0;
};

constexpr TileExtent ExtentOf(TileSize size) {
  switch (size) {
    case TileSize::kDecode:
      return {16, 64};
    case TileSize::kMedium:
      return {64, 64};
    case TileSize::kPrefill:
      return {128, 128};
    case TileSize::kPrefillWide:
      return {128, 192};
    case TileSize::kPrefillPair:
      return {256, 128};
    case TileSize::kPrefillWidePair:
      return {256, 192};
  }
  return {};
}
constexpr bool IsLarge(TileSize size) { return ExtentOf(size).rows >= 128; }

enum class TileLoads {
  kAligned,    // every row of x and w begins on a multiple of 16 bytes: cp.async
  kUnaligned,  // any address: byte by byte, in the medium tile only
};

// Whether rows that are so many bytes apart all begin on a multiple of 16 bytes, in matrices or batches that are so many
// bytes apart.
inline bool InWholeGroups(const void* first, int64_t row_bytes, int64_t batch_bytes = 0) {
  return reinterpret_cast<uintptr_t>(first) % 16 == 0 && row_bytes % 16 == 0 &&
         batch_bytes % 16 == 0;
}

// An instance of the kernel.
struct TileChoice {
  TileMath math = TileMath::kBf16;
  TileSize size = TileSize::kMedium;
  TileLoads loads = TileLoads::kUnaligned;
};

// Device pointers and strides of one launch.
struct TileParams {
  const std::byte* x = nullptr;  // [num_batches][rows, inputs] bf16, or e4m3 with kFp8
  int64_t x_row_bytes = 0;
  int64_t x_batch_bytes = 0;
  const float* x_scales = nullptr;  // kFp8: [rows, ceil(inputs / 128)]
  int64_t x_scale_stride = 0;
  // [num_batches or num_experts][outputs, inputs]. With `gated`, w[0] is gate and w[1] is up, and
  // y = silu(gate x) * (up x); otherwise w[1] is w[0].
  const std::byte* w[2] = {};
  int64_t w_row_bytes = 0;
  int64_t w_batch_bytes = 0;
  const float* w_scales[2] = {};  // [ceil(outputs / 128), ceil(inputs / 128)]
  int64_t w_scale_stride = 0;
  int64_t w_scale_batch = 0;
  std::byte* y = nullptr;  // [num_batches][rows, outputs]
  int64_t y_stride = 0;    // elements
  int64_t y_batch = 0;     // elements
  bool y_is_f32 = false;
  bool y_in_pairs = false;  // two neighbours of an even column can be written at once
  bool gated = false;
  const float* bias = nullptr;  // [outputs], or null
  int32_t rows = 0;  // of y, and of x without x_index; the capacity where there are offsets
  int32_t outputs = 0;
  int32_t inputs = 0;
  int32_t split_inputs = 0;
  int32_t num_splits = 1;
  int32_t num_batches = 1;
  const int32_t* offsets = nullptr;  // [num_experts + 1] in device memory, or null
  int32_t num_experts = 0;
  bool offsets_are_old = false;  // the launch before this one waited for whoever wrote them
  // [rows] in device memory, or null; with offsets only. Row r of y is of row x_index[r] of x, which
  // has x_rows of them; one that is not there is reported and read as row 0.
  const int32_t* x_index = nullptr;
  int32_t x_rows = 0;
  StatusWord status = {};
};

// Of a Hopper GPU. Another number changes no bit of tiles, but BoxedRanges (gemm_boxed.h).
inline constexpr int32_t kMultiprocessors = 132;
// More than any model has: what a CTA scans to find its rows stays below a microsecond.
inline constexpr int32_t kMaxExperts = 1024;
// Portable clusters have at most 8 CTAs.
inline constexpr int32_t kMaxSplits = 8;

// How many ranges the inputs are cut into: as many as it takes that one row's product (tiles of 64
// outputs) has a CTA for each of the 132 multiprocessors, while a range keeps 512 inputs, which is
// as long as it takes to fill and drain the stages. 96 CTAs whose codes the copy engine brings should
// have as much under way as memory can give. A function of the matrix alone, never of rows.
constexpr int32_t GemmSplits(int64_t outputs, int64_t inputs, TileMath math) {
  const int64_t ctas = math == TileMath::kFp8 ? 96 : 132;
  int32_t splits = 1;
  while (splits < kMaxSplits && CeilDiv(outputs, int64_t{64}) * splits < ctas &&
         inputs >= 1024 * int64_t{splits}) {
    splits *= 2;
  }
  return splits;
}
// The inputs of all ranges but the last: whole steps, of weights with scales whole blocks.
constexpr int64_t GemmSplitInputs(int64_t inputs, int32_t splits, TileMath math) {
  const int64_t step = math == TileMath::kBf16 ? 64 : kScaleBlock;
  return RoundUp(CeilDiv(inputs, int64_t{splits}), step);
}

// The most tiles of `tile_rows` rows that `rows` rows of `num_experts` experts can make. Every
// expert that has rows may leave one tile partly filled.
constexpr int64_t MaxRowTiles(int64_t rows, int64_t num_experts, int64_t tile_rows) {
  return (rows + std::min(rows, num_experts) * (tile_rows - 1)) / tile_rows;
}

// Launches params as they are; validated by the callers. num_splits is 1 with offsets, and with `gated` but for
// aligned prefill tiles of kBf16.
void LaunchTiles(const TileParams& params, const TileChoice& tile, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_H_
