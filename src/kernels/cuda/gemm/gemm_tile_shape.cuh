// What the tile kernel's parts share: sizes, the layout of shared memory, and where a CTA works.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_SHAPE_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_SHAPE_CUH_

#include <algorithm>
#include <cstdint>

#include "device/cuda/status.cuh"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

// A row of a tile in shared memory: 64 bf16 or 128 e4m3, and one row of each of the 32 banks.
inline constexpr int kRowBytes = 128;

template <TileMath kMathOf, TileSize kSizeOf>
struct Tile {
  static constexpr TileMath kMath = kMathOf;
  static constexpr TileSize kSize = kSizeOf;
  static constexpr int kRows = ExtentOf(kSize).rows;
  static constexpr int kOutputs = ExtentOf(kSize).outputs;
  // Warps side by side along rows and outputs: decode 1 x 4, medium 2 x 2, prefill 4 x 2; of codes, which a warpgroup
  // multiplies, 4 x 1.
  static constexpr bool kIsWarpgroup = kMath == TileMath::kFp8;
  static constexpr int kRowWarps = kIsWarpgroup || kRows >= 128 ? 4 : (kRows + 31) / 32;
  static constexpr int kOutputWarps = kIsWarpgroup ? 1 : kSize == TileSize::kDecode ? 4 : 2;
  static_assert(!kIsWarpgroup || kSize == TileSize::kMedium);
  static constexpr int kThreads = 32 * kRowWarps * kOutputWarps;
  static constexpr int kWarpRows = kRows / kRowWarps;
  static constexpr int kWarpOutputs = kOutputs / kOutputWarps;
  static constexpr int kRowFragments = kWarpRows / 16;
  static constexpr int kOutputFragments = kWarpOutputs / 8;
  // Inputs of a step: one row of w in shared memory. Rows of bf16 x beside e4m3 w take two panels.
  static constexpr int kInputs = kMath == TileMath::kBf16 ? 64 : 128;
  static constexpr int kXPanels = kMath == TileMath::kFp8KeepX ? 2 : 1;
  static constexpr int kXBytes = kRows * kRowBytes * kXPanels;
  static constexpr int kWBytes = kOutputs * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWBytes;
  // Decode: 5 stages of 8 KB of weights are under way in each of 3 CTAs of a multiprocessor, well
  // above the 36 KB that 4.8 TB/s times a microsecond of latency need.
  static constexpr int kStages = kSize == TileSize::kDecode   ? 6
                                 : kSize == TileSize::kMedium ? 4
                                                              : 3;
  static constexpr int kSumBytes = kRows * kOutputs * 4;  // a range's sums, for the cluster
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, kSumBytes);
  // Two sets of sums of the prefill tile need more registers than two CTAs leave. Shared memory has no
  // room for three CTAs of the medium one with two panels.
  static constexpr int kMinCtas = kSize == TileSize::kPrefill     ? 1
                                  : 3 * kSharedBytes > 227 * 1024 ? 2
                                                                  : 3;

  // What the index arithmetic below relies on.
  static_assert(kRows == kRowWarps * kWarpRows && kWarpRows == 16 * kRowFragments);
  static_assert(kOutputs == kOutputWarps * kWarpOutputs && kWarpOutputs % 16 == 0);
  static_assert(kThreads % 128 == 0 && kRows * 8 % kThreads == 0 && kOutputs * 8 % kThreads == 0);
  static_assert(kScaleBlock % kOutputs == 0);  // a tile's outputs are of one row of blocks
};

// Byte `chunk * 16` of row `row` of a panel. Chunks are exchanged by the row's number, so that the
// same chunk of eight rows, which ldmatrix reads at once, lies in all 32 banks.
__device__ inline uint32_t InPanel(int row, int chunk) {
  return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// What a CTA computes: outputs from first_output on of rows row .. min(row + kRows, row_end), with
// the weights of `batch`, over the inputs of `split`. None if row >= row_end.
struct TilePlace {
  int batch = 0;
  int row = 0;
  int row_end = 0;
  int first_output = 0;
  int split = 0;
  bool has_same_weights = false;  // as the other CTA of a pair
};

struct RowTile {
  int expert = 0, row = 0, row_end = 0;
};

struct RowRange {
  int begin = 0, end = 0;
};

// The rows of an expert, within those that there are whatever its offset and the next one say.
__device__ inline RowRange RowsBetween(const TileParams& p, int offset, int next) {
  const int begin = min(max(offset, 0), p.rows);
  return {begin, min(max(next, begin), p.rows)};
}
__device__ inline RowRange RowsOf(const TileParams& p, int expert) {
  return RowsBetween(p, p.offsets[expert], p.offsets[expert + 1]);
}

__device__ inline void ReportBadOffsets(const TileParams& p, int num_threads) {
  for (int e = static_cast<int>(threadIdx.x); e < p.num_experts; e += num_threads) {
    const int begin = p.offsets[e], end = p.offsets[e + 1];
    if (begin < 0 || end < begin || end > p.rows) {
      Report(p.status, DeviceFault::kExpert, Launch::kGemm, static_cast<uint32_t>(e));
    }
  }
}

// Row tile number `tile`, counted over the experts in order; an empty one past the last. Every
// thread counts the tiles of a few experts in a row, and a scan over the threads says whose it is.
template <class T>
__device__ RowTile FindRowTile(const TileParams& p, unsigned tile) {
  __shared__ RowTile found;
  __shared__ unsigned warp_tiles[T::kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto tiles_of = [&](int e) {
    const RowRange rows = RowsOf(p, e);
    return static_cast<unsigned>(rows.end - rows.begin + T::kRows - 1) / T::kRows;
  };
  const int per_thread = (p.num_experts + T::kThreads - 1) / T::kThreads;
  const int first = min(static_cast<int>(threadIdx.x) * per_thread, p.num_experts);
  const int last = min(first + per_thread, p.num_experts);
  unsigned mine = 0;
  for (int e = first; e < last; ++e) mine += tiles_of(e);
  unsigned upto = mine;  // of this warp's threads up to this one
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += other;
  }
  if (lane == 31) warp_tiles[warp] = upto;
  if (threadIdx.x == 0) found = {};
  __syncthreads();  // warp_tiles and the empty `found` are written
  unsigned before = upto - mine;
  for (int w = 0; w < warp; ++w) before += warp_tiles[w];
  if (tile >= before && tile - before < mine) {  // one thread at most
    int e = first;
    for (; tile - before >= tiles_of(e); ++e) before += tiles_of(e);
    const RowRange rows = RowsOf(p, e);
    found = {e, rows.begin + static_cast<int>(tile - before) * T::kRows, rows.end};
  }
  __syncthreads();  // `found` is written
  return found;
}

// Tiles run in groups of 8 rows of tiles, outputs by outputs: the CTAs that are on the device at one
// time then share their rows of w and of x in the L2 cache.
template <class T>
__device__ TilePlace FindPlace(const TileParams& p) {
  constexpr int kGroup = 8;
  const int splits = p.num_splits;
  const int columns = static_cast<int>(gridDim.x) / splits, rows = static_cast<int>(gridDim.y);
  const int linear = static_cast<int>(blockIdx.x) / splits + static_cast<int>(blockIdx.y) * columns;
  const int group_begin = linear / (kGroup * columns) * kGroup;
  const int group_rows = min(kGroup, rows - group_begin);
  const int in_group = linear % (kGroup * columns);
  const int row_tile = group_begin + in_group % group_rows;
  const int column = in_group / group_rows;
  TilePlace place;
  place.split = static_cast<int>(blockIdx.x) % splits;
  // A gated tile has half as many outputs, from two matrices.
  place.first_output = column * (p.gated ? T::kOutputs / 2 : T::kOutputs);
  if (p.offsets == nullptr) {
    place.batch = static_cast<int>(blockIdx.z);
    place.row = row_tile * T::kRows;
    place.row_end = p.rows;
    return place;
  }
  if (blockIdx.x == 0 && blockIdx.y == 0) ReportBadOffsets(p, T::kThreads);
  const RowTile tile = FindRowTile<T>(p, static_cast<unsigned>(row_tile));
  place.batch = tile.expert;
  place.row = tile.row;
  place.row_end = tile.row_end;
  return place;
}

// The rows of x for a thread's rows `first`, `first` + kStep, ... of y, as far as these are before
// `end`: the same rows, or those of the index. A row that x does not have is row 0, and reported where
// `reports` is set. Two classes and two kernels, as registers are scarce.
template <int kCount, int kStep, bool kIndexed>
class XRows {
 public:
  __device__ XRows(const TileParams&, int first, int end, bool /*reports*/)
      : first_(first), end_(end) {}

  __device__ bool There(int i) const { return first_ + i * kStep < end_; }
  __device__ int operator[](int i) const { return first_ + i * kStep; }
  // Row i begins Offset(i, stride) after Origin, which can be read whatever rows are there.
  template <class Element>
  __device__ const Element* Origin(const Element* x, int64_t stride) const {
    return x + min(first_, end_ - 1) * stride;
  }
  __device__ int64_t Offset(int i, int64_t stride) const { return i * kStep * stride; }

 private:
  const int first_, end_;
};

template <int kCount, int kStep>
class XRows<kCount, kStep, true> {
 public:
  __device__ XRows(const TileParams& p, int first, int end, bool reports) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = first + i * kStep;
      rows_[i] = row < end ? p.x_index[row] : -1;
      if (row >= end || (rows_[i] >= 0 && rows_[i] < p.x_rows)) continue;
      rows_[i] = 0;
      if (reports) {
        Report(p.status, DeviceFault::kExpert, Launch::kGemm, static_cast<uint32_t>(row));
      }
    }
  }

  __device__ bool There(int i) const { return rows_[i] >= 0; }
  __device__ int operator[](int i) const { return rows_[i]; }
  template <class Element>
  __device__ const Element* Origin(const Element* x, int64_t) const {
    return x;
  }
  __device__ int64_t Offset(int i, int64_t stride) const { return rows_[i] * stride; }

 private:
  int rows_[kCount];  // -1: none
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_SHAPE_CUH_
