// The workspace of the CPU attention kernels: one function cuts it, so sizing and use agree.
#ifndef QUIRE_KERNELS_CPU_ATTENTION_SCRATCH_H_
#define QUIRE_KERNELS_CPU_ATTENTION_SCRATCH_H_

#include <algorithm>
#include <cstdint>

#include "attn/capacity.h"
#include "attn/kv_layout.h"
#include "base/maths.h"
#include "base/units.h"

namespace quire::cpu {

// Rows that are computed together: a whole number of vectors on every SIMD target.
inline constexpr int64_t kBlockRows = 16;
// Columns (values of a key) that lie together, for all keys of a tile.
inline constexpr int64_t kBlockColumns = 16;
// Columns of sums are padded to this, so that blocks of columns are whole on every target.
inline constexpr int64_t kColumnPad = 64;
inline constexpr int64_t kTileKeys = kKeyTile.raw();

// Floats from one block of columns to the next. The odd block of padding keeps the blocks of one
// key out of each other's cache sets: at 4096 bytes exactly, decoding a key would evict itself.
inline constexpr int64_t kColumnBlockStride = kBlockColumns * (kTileKeys + 1);

// Where column `column` of a tile's first key lies; key k is k * kBlockColumns further on.
constexpr int64_t ColumnOffset(int64_t column) {
  return column / kBlockColumns * kColumnBlockStride + column % kBlockColumns;
}

// Sizes, in floats, for `rows` query rows against keys of `dim` values whose first `value_dim` are
// summed.
struct TileShape {
  int64_t dim = 0;   // values of a key, padded with zeros
  int64_t rows = 0;  // padded to whole blocks
  int64_t o_stride = 0;
  int64_t key_columns = 0;

  static TileShape Of(int64_t rows, int64_t dim, int64_t value_dim) {
    TileShape shape;
    shape.dim = RoundUp(dim, kBlockColumns);
    shape.rows = RoundUp(rows, kBlockRows);
    shape.o_stride = RoundUp(value_dim, kColumnPad);
    shape.key_columns = std::max(shape.dim, shape.o_stride);
    return shape;
  }
  // Of rows of latent attention.
  static TileShape Of(int64_t rows, const KvDims& dims) {
    return Of(rows, dims.values(), dims.latent_dim);
  }
  int64_t num_blocks() const { return rows / kBlockRows; }
  TileShape OneBlock() const {
    TileShape block = *this;
    block.rows = kBlockRows;
    return block;
  }
};

// Running softmax of a number of rows: maxima, sums of weights, sums of weighted values.
struct SoftmaxState {
  float* m = nullptr;  // [rows]
  float* l = nullptr;  // [rows]
  float* o = nullptr;  // [rows][o_stride]

  static int64_t Floats(int64_t rows, int64_t o_stride) { return rows * (2 + o_stride); }
  static SoftmaxState At(float* memory, int64_t rows) {
    return {.m = memory, .l = memory + rows, .o = memory + 2 * rows};
  }
  // The state of the rows from `row` on.
  SoftmaxState From(int64_t row, const TileShape& shape) const {
    return {.m = m + row, .l = l + row, .o = o + row * shape.o_stride};
  }
};

// What one worker needs while it runs.
struct WorkerScratch {
  float* q = nullptr;      // [blocks][dim][kBlockRows]
  float* keys = nullptr;   // [key_columns / kBlockColumns][kTileKeys + 1][kBlockColumns]
  float* p = nullptr;      // [blocks][kTileKeys][kBlockRows]
  float* alpha = nullptr;  // [rows]
  SoftmaxState split;      // of the split at hand
  SoftmaxState folded;     // of all splits before it

  static int64_t Floats(const TileShape& shape) {
    return shape.dim * shape.rows + ColumnOffset(shape.key_columns) + kTileKeys * shape.rows +
           shape.rows + 2 * SoftmaxState::Floats(shape.rows, shape.o_stride);
  }
  static WorkerScratch At(float* memory, const TileShape& shape) {
    WorkerScratch scratch;
    scratch.q = memory;
    scratch.keys = scratch.q + shape.dim * shape.rows;
    scratch.p = scratch.keys + ColumnOffset(shape.key_columns);
    scratch.alpha = scratch.p + kTileKeys * shape.rows;
    float* states = scratch.alpha + shape.rows;
    scratch.split = SoftmaxState::At(states, shape.rows);
    scratch.folded =
        SoftmaxState::At(states + SoftmaxState::Floats(shape.rows, shape.o_stride), shape.rows);
    return scratch;
  }
};

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_ATTENTION_SCRATCH_H_
