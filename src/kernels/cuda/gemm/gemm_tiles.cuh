// The tiles of a launch, in the order in which CTAs take them: of one matrix, of several, or expert by expert.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_TILES_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_TILES_CUH_

#include <cstdint>

#include "base/maths.h"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

// The outputs of y that a tile has: of gate and up, half of its rows of w each.
template <int kOutputs>
constexpr int OutputsOfY(bool gated) {
  return gated ? kOutputs / 2 : kOutputs;
}

// Row tiles times columns of tiles of one matrix, in the order in which CTAs take them: those of the same outputs, which
// read the same weights, one behind the other. With kPair, tiles 2 i and 2 i + 1 are those of a pair of CTAs. Of an odd
// number of row tiles the last has no neighbour: there a pair has two columns, and each CTA weights of its own. Where
// that is the last of an odd number of columns, the second CTA has none.
template <bool kPair>
class TileBlock {
 public:
  struct Tile {
    int row_tile, column;
    bool has_same_weights;  // as the pair's other
  };

  __device__ TileBlock(int row_tiles, int columns) : row_tiles_(row_tiles), columns_(columns) {}

  __device__ int count() const {
    if constexpr (!kPair) return row_tiles_ * columns_;
    return 2 * (columns_ / 2 * row_tiles_ + columns_ % 2 * ((row_tiles_ + 1) / 2));
  }

  __device__ Tile At(int number) const {
    if constexpr (!kPair) return {number % row_tiles_, number / row_tiles_, false};
    // Two columns have as many pairs as there are row tiles.
    const int cta = number % 2, first_column = number / 2 / row_tiles_ * 2;
    const int pair = number / 2 % row_tiles_;
    const int neighbours = row_tiles_ / 2;  // pairs of them
    if (pair < neighbours * min(2, columns_ - first_column)) {
      return {pair % neighbours * 2 + cta, first_column + pair / neighbours, true};
    }
    return {row_tiles_ - 1, first_column + cta, false};
  }

 private:
  const int row_tiles_, columns_;
};

// The columns of tiles, and where their tiles are.
template <int kTileRows>
struct TileColumns {
  int count, outputs;

  __device__ TileColumns(const TileParams& p, int tile_outputs)
      : count((p.outputs + tile_outputs - 1) / tile_outputs), outputs(tile_outputs) {}

  // Tile `tile` of `rows`. One of a column that is not there has no rows, and weights that become 0.
  template <class Tile>
  __device__ TilePlace Place(int batch, const RowRange& rows, const Tile& tile) const {
    return {.batch = batch,
            .row = tile.column < count ? rows.begin + tile.row_tile * kTileRows : rows.end,
            .row_end = rows.end,
            .first_output = tile.column * outputs,
            .has_same_weights = tile.has_same_weights};
  }
};

// Where the rows of up to kMost experts are, and how many tiles the experts before each have.
template <int kTileRows, int kMost, bool kPair>
struct ExpertTiles {
  using Block = TileBlock<kPair>;
  using Columns = TileColumns<kTileRows>;

  int32_t first_tile[kMost + 1];  // the last is the number of all
  int32_t offset[kMost + 1];

  // By all threads of a CTA; a barrier follows. Loads are where they stand: what was there before the kernel began may
  // be in a cache.
  __device__ void Load(const TileParams& p, int num_threads) {
    for (int e = static_cast<int>(threadIdx.x); e <= p.num_experts; e += num_threads) {
      offset[e] = LoadHere<int32_t>(reinterpret_cast<const std::byte*>(p.offsets + e));
    }
  }

  // By one warp, then.
  __device__ void Count(const TileParams& p, int tile_outputs) {
    const Columns columns(p, tile_outputs);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int per_lane = (p.num_experts + 31) / 32;
    const int first = min(lane * per_lane, p.num_experts);
    const int last = min(first + per_lane, p.num_experts);
    int mine = 0;
    for (int e = first; e < last; ++e) {
      first_tile[e] = mine;
      mine += BlockOf(Rows(p, e), columns).count();
    }
    int upto = mine;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, upto, distance);
      if (lane >= distance) upto += other;
    }
    for (int e = first; e < last; ++e) first_tile[e] += upto - mine;
    if (lane == 31) first_tile[p.num_experts] = upto;
  }

  // Tile `number` of all, expert by expert.
  __device__ TilePlace At(const TileParams& p, const Columns& columns, int number) const {
    int low = 0, high = p.num_experts;  // the last expert that begins with the tile or before
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_tile[middle] <= number ? low : high) = middle;
    }
    const RowRange rows = Rows(p, low);
    return columns.Place(low, rows, BlockOf(rows, columns).At(number - first_tile[low]));
  }

 private:
  __device__ static Block BlockOf(const RowRange& rows, const Columns& columns) {
    return {(rows.end - rows.begin + kTileRows - 1) / kTileRows, columns.count};
  }
  __device__ RowRange Rows(const TileParams& p, int expert) const {
    return RowsBetween(p, offset[expert], offset[expert + 1]);
  }
};

// The tiles of a launch, in the order in which CTAs take them.
template <int kTileRows, int kMost, bool kPair>
class Tiles {
 public:
  // `experts` are counted, where there are some.
  __device__ Tiles(const TileParams& p, int tile_outputs,
                   const ExpertTiles<kTileRows, kMost, kPair>& experts)
      : p_(p),
        experts_(experts),
        columns_(p, tile_outputs),
        row_tiles_((p.rows + kTileRows - 1) / kTileRows),
        batch_tiles_(p.offsets != nullptr ? experts.first_tile[p.num_experts]
                                          : row_tiles_ / kGroup * BlockOf(kGroup).count() +
                                                BlockOf(row_tiles_ % kGroup).count()) {}

  __device__ int count() const { return p_.num_batches * batch_tiles_; }

  __device__ TilePlace At(int number) const {
    if (p_.offsets != nullptr) return experts_.At(p_, columns_, number);
    const int in_batch = number % batch_tiles_, group_tiles = BlockOf(kGroup).count();
    const int first_row_tile = in_batch / group_tiles * kGroup;
    const auto group = BlockOf(min(kGroup, row_tiles_ - first_row_tile));
    return columns_.Place(number / batch_tiles_, {first_row_tile * kTileRows, p_.rows},
                          group.At(in_batch % group_tiles));
  }

 private:
  // Row tiles, outputs by outputs: what CTAs have at one time then shares x and w in L2.
  static constexpr int kGroup = 8;

  __device__ TileBlock<kPair> BlockOf(int row_tiles) const { return {row_tiles, columns_.count}; }

  const TileParams& p_;
  const ExpertTiles<kTileRows, kMost, kPair>& experts_;
  const TileColumns<kTileRows> columns_;
  const int row_tiles_, batch_tiles_;
};

// Tile `number`, of which this CTA has its range of inputs where `ranges` CTAs share a tile.
template <class TilesOfLaunch>
__device__ __forceinline__ TilePlace PlaceOf(const TilesOfLaunch& tiles, int number, int ranges) {
  TilePlace at = tiles.At(number);
  at.split = static_cast<int>(blockIdx.x) % ranges;
  return at;
}

// A role takes every gridDim-th tile; where `ranges` CTAs share one, they take it together.
template <class TilesOfLaunch, class Role>
__device__ __forceinline__ void RunTiles(const TilesOfLaunch& tiles, Role& role, int ranges = 1) {
  const int count = tiles.count(), step = static_cast<int>(gridDim.x) / ranges;
  for (int tile = static_cast<int>(blockIdx.x) / ranges; tile < count; tile += step) {
    role.Run(PlaceOf(tiles, tile, ranges));
  }
}

// How many that are, where none is shared.
template <class TilesOfLaunch>
__device__ __forceinline__ int NumTilesOfCta(const TilesOfLaunch& tiles) {
  const int step = static_cast<int>(gridDim.x);
  return max(0, tiles.count() - static_cast<int>(blockIdx.x) + step - 1) / step;
}

// The most tiles that a launch can have, but for those of pairs whose second CTA has none.
template <class P>
int64_t MostTiles(const TileParams& p) {
  const int64_t row_tiles = p.offsets != nullptr
                                ? MaxRowTiles(p.rows, p.num_experts, P::kTileRows)
                                : CeilDiv(p.rows, P::kTileRows) * int64_t{p.num_batches};
  return row_tiles * CeilDiv(p.outputs, OutputsOfY<P::kOutputs>(p.gated));
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_TILES_CUH_
