#include "kernels/cpu/mha_prefill.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/attention_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mha_prefill.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/row_codec-inl.h"
#include "kernels/cpu/softmax_output-inl.h"
#include "kernels/cpu/tile_ops-inl.h"

// Outside the per-target part: the same for every SIMD target.
#ifndef QUIRE_KERNELS_CPU_MHA_PREFILL_SCRATCH_
#define QUIRE_KERNELS_CPU_MHA_PREFILL_SCRATCH_
namespace quire::cpu {

// Where a head's parts lie once padded to whole blocks of columns.
struct HeadShape {
  int64_t row_columns;     // of a decoded cache row
  int64_t latent_columns;  // of its latent part
  int64_t nope_columns;    // of a key head without its rope part
  TileShape tile;          // one block of query tokens: dim of a key head, columns of a value head

  static HeadShape Of(const MhaShape& shape) {
    const int64_t nope = RoundUp<int64_t>(shape.nope_dim, kBlockColumns);
    const int64_t rope = RoundUp<int64_t>(shape.dims.rope_dim, kBlockColumns);
    return {.row_columns = RoundUp<int64_t>(shape.dims.values(), kBlockColumns),
            .latent_columns = RoundUp<int64_t>(shape.dims.latent_dim, kBlockColumns),
            .nope_columns = nope,
            .tile = TileShape::Of(kBlockRows, nope + rope, shape.value_dim)};
  }
  int64_t weight_columns() const { return nope_columns + tile.o_stride; }
};

// What one thread needs for one head of one sequence.
struct HeadScratch {
  float* weights;  // [weight_columns / kBlockRows][latent_columns][kBlockRows], nope then values
  float* rows;     // a tile of decoded cache rows
  float* keys;     // the same tile as keys of this head
  float* values;   // and as values
  float* q;        // [query blocks][dim][kBlockRows]
  float* p;        // [kTileKeys][kBlockRows]
  float* alpha;    // [kBlockRows]
  SoftmaxState chunk;   // of the chunk at hand
  SoftmaxState merged;  // of all chunks before it

  static int64_t Floats(const HeadShape& head, int64_t query_blocks) {
    return head.weight_columns() * head.latent_columns + ColumnOffset(head.row_columns) +
           ColumnOffset(head.tile.dim) + ColumnOffset(head.tile.o_stride) +
           (query_blocks * head.tile.dim + kTileKeys + 1) * kBlockRows +
           2 * SoftmaxState::Floats(query_blocks * kBlockRows, head.tile.o_stride);
  }
  static HeadScratch At(float* memory, const HeadShape& head, int64_t query_blocks) {
    HeadScratch s;
    s.weights = memory;
    s.rows = s.weights + head.weight_columns() * head.latent_columns;
    s.keys = s.rows + ColumnOffset(head.row_columns);
    s.values = s.keys + ColumnOffset(head.tile.dim);
    s.q = s.values + ColumnOffset(head.tile.o_stride);
    s.p = s.q + query_blocks * head.tile.dim * kBlockRows;
    s.alpha = s.p + kTileKeys * kBlockRows;
    float* states = s.alpha + kBlockRows;
    const int64_t rows = query_blocks * kBlockRows;
    s.chunk = SoftmaxState::At(states, rows);
    s.merged = SoftmaxState::At(states + SoftmaxState::Floats(rows, head.tile.o_stride), rows);
    return s;
  }
};

}  // namespace quire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// One head of one sequence on one thread.
class HeadRun {
 public:
  HeadRun(const MhaPrefillArgs& args, int32_t seq, int32_t head, const HeadShape& shape,
          float* memory)
      : args_(args),
        plan_(args.plan),
        seq_(seq),
        head_(head),
        shape_(shape),
        q_begin_(plan_.q_offset[static_cast<size_t>(seq)].raw()),
        q_len_(plan_.QLen(seq)),
        kv_len_(plan_.kv_len[static_cast<size_t>(seq)]),
        num_blocks_(CeilDiv(q_len_.raw(), kBlockRows)),
        scratch_(HeadScratch::At(memory, shape, num_blocks_)) {}

  void Run() {
    PackWeights();
    PackQueries();
    ResetStates(scratch_.merged);
    for (TokenCount begin{0}; begin < kv_len_; begin += args_.chunk) {
      RunChunk(begin, Min(begin + args_.chunk, kv_len_));
    }
    for (int64_t j = 0; j < q_len_.raw(); ++j) {
      WriteSoftmaxRow({.o = scratch_.merged.o + j * shape_.tile.o_stride,
                       .m = scratch_.merged.m[j],
                       .l = scratch_.merged.l[j]},
                      q_begin_ + j, head_, args_.out, args_.lse);
    }
  }

 private:
  float WeightAt(int64_t row, int64_t column) const {
    return args_.w_kv_b.dtype() == DType::kF32 ? args_.w_kv_b.Row<float>(row)[column]
                                               : ToFloat(args_.w_kv_b.Row<Bf16>(row)[column]);
  }

  // Columns [0, nope_dim) of the packed weights make k_nope, those from nope_columns on make v;
  // what lies between and behind is zero.
  void PackWeights() {
    const int64_t first_row = int64_t{head_} * (args_.shape.nope_dim + args_.shape.value_dim);
    for (int64_t column = 0; column < shape_.weight_columns(); ++column) {
      float* to = scratch_.weights + column / kBlockRows * (shape_.latent_columns * kBlockRows) +
                  column % kBlockRows;
      const bool is_value = column >= shape_.nope_columns;
      const int64_t part = is_value ? column - shape_.nope_columns : column;
      const bool used = part < (is_value ? args_.shape.value_dim : args_.shape.nope_dim);
      const int64_t row = first_row + part + (is_value ? args_.shape.nope_dim : 0);
      for (int64_t i = 0; i < shape_.latent_columns; ++i) {
        to[i * kBlockRows] = used && i < args_.shape.dims.latent_dim ? WeightAt(row, i) : 0.0f;
      }
    }
  }

  float QueryAt(int64_t token, int64_t i) const {
    return args_.q.dtype() == DType::kF32 ? args_.q.Row<float>(token, head_)[i]
                                          : ToFloat(args_.q.Row<Bf16>(token, head_)[i]);
  }

  void PackQueries() {
    std::fill_n(scratch_.q, num_blocks_ * shape_.tile.dim * kBlockRows, 0.0f);
    for (int64_t j = 0; j < q_len_.raw(); ++j) {
      float* to = scratch_.q + j / kBlockRows * (shape_.tile.dim * kBlockRows) + j % kBlockRows;
      for (int64_t i = 0; i < args_.q.dim(2); ++i) {
        const bool is_rope = i >= args_.shape.nope_dim;
        const int64_t column = is_rope ? shape_.nope_columns + i - args_.shape.nope_dim : i;
        to[column * kBlockRows] = QueryAt(q_begin_ + j, i);
      }
    }
  }

  void ResetStates(const SoftmaxState& states) const {
    const int64_t rows = num_blocks_ * kBlockRows;
    std::fill_n(states.m, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(states.l, rows, 0.0f);
    std::fill_n(states.o, rows * shape_.tile.o_stride, 0.0f);
  }

  void RunChunk(TokenCount begin, TokenCount end) {
    ResetStates(scratch_.chunk);
    for (TokenCount key = begin; key < end; key += kKeyTile) {
      const int32_t num_keys = static_cast<int32_t>(Min(kKeyTile, end - key).raw());
      ExpandTile(key, num_keys);
      for (int64_t block = 0; block < num_blocks_; ++block) AttendBlock(block, key, num_keys);
    }
    FoldRows(num_blocks_ * kBlockRows, shape_.tile.o_stride, scratch_.chunk, scratch_.merged);
  }

  // Decodes num_keys rows from position `first` on and expands them into this head's keys and
  // values.
  void ExpandTile(TokenCount first, int32_t num_keys) {
    RowTarget to{.base = scratch_.rows, .block_stride = kColumnBlockStride};
    const int32_t latent_dim = args_.shape.dims.latent_dim;
    for (int32_t k = 0; k < num_keys; ++k, to.base += kBlockColumns) {
      const Slot slot = plan_.SlotAt(seq_, first + TokenCount(k));
      DecodeRow(args_.store.read_layout(), args_.store.Page(plan_.page_size.PageOf(slot)),
                plan_.page_size.OffsetOf(slot), to);
      CopyRope(k);
      // From here on the row is its latent part alone.
      for (int32_t i = latent_dim; i < shape_.row_columns; ++i) *to.At(i) = 0.0f;
    }
    ExpandColumns(0, shape_.nope_columns, num_keys, scratch_.keys);
    ExpandColumns(shape_.nope_columns, shape_.tile.o_stride, num_keys, scratch_.values);
  }

  // A block of weight columns is a block of "queries" whose scores are columns of the expanded
  // tile.
  void ExpandColumns(int64_t first, int64_t count, int32_t num_keys, float* to) const {
    ScoreTile(scratch_.weights + first * shape_.latent_columns, count / kBlockRows,
              shape_.latent_columns, scratch_.rows, num_keys, to, kColumnBlockStride);
  }

  void CopyRope(int32_t k) const {
    const int64_t rope_columns = shape_.tile.dim - shape_.nope_columns;
    for (int64_t i = 0; i < rope_columns; ++i) {
      scratch_.keys[ColumnOffset(shape_.nope_columns + i) + k * kBlockColumns] =
          i < args_.shape.dims.rope_dim
              ? scratch_.rows[ColumnOffset(args_.shape.dims.latent_dim + i) + k * kBlockColumns]
              : 0.0f;
    }
  }

  void AttendBlock(int64_t block, TokenCount first_key, int32_t num_keys) {
    HWY_ALIGN int32_t counts[kBlockRows];
    int32_t most = 0;
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const TokenCount j = Min(TokenCount(block * kBlockRows + r), q_len_ - TokenCount(1));
      const TokenCount seen = CausalVisible(q_len_, kv_len_, j) - first_key;
      counts[r] = static_cast<int32_t>(std::clamp<int64_t>(seen.raw(), 0, num_keys));
      most = std::max(most, counts[r]);
    }
    if (most == 0) return;
    const SoftmaxState state = scratch_.chunk.From(block * kBlockRows, shape_.tile);
    ScoreTile(scratch_.q + block * shape_.tile.dim * kBlockRows, 1, shape_.tile.dim, scratch_.keys,
              most, scratch_.p, kBlockRows * kTileKeys);
    SoftmaxTile(shape_.tile, SeeFirst{counts}, args_.scale, most, scratch_.p, state.m, state.l,
                scratch_.alpha);
    ValueTile(shape_.tile, SeeFirst{counts}, scratch_.p, scratch_.values, most, scratch_.alpha,
              state.o);
  }

  const MhaPrefillArgs& args_;
  const Plan& plan_;
  const int32_t seq_;
  const int32_t head_;
  const HeadShape shape_;
  const int64_t q_begin_;
  const TokenCount q_len_;
  const TokenCount kv_len_;
  const int64_t num_blocks_;
  const HeadScratch scratch_;
};

void RunHead(const MhaPrefillArgs& args, int32_t seq, int32_t head, const HeadShape& shape,
             float* memory) {
  HeadRun(args, seq, head, shape, memory).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(RunHead);

}  // namespace

ByteOffset MhaPrefillWorkspace(const MhaShape& shape, TokenCount max_q_len, int32_t num_threads) {
  Validate(shape);
  const int64_t blocks = CeilDiv(max_q_len.raw(), kBlockRows);
  return ByteOffset(4 * HeadScratch::Floats(HeadShape::Of(shape), blocks)) * num_threads;
}

void MhaPrefill(const MhaPrefillArgs& args, Executor& executor) {
  TokenCount max_q_len{0};
  for (int32_t b = 0; b < args.plan.num_seqs; ++b) max_q_len = Max(max_q_len, args.plan.QLen(b));
  const int64_t num_threads = executor.num_threads();
  Validate(args, MhaPrefillWorkspace(args.shape, max_q_len, executor.num_threads()));
  const HeadShape shape = HeadShape::Of(args.shape);
  const int64_t thread_floats = HeadScratch::Floats(shape, CeilDiv(max_q_len.raw(), kBlockRows));
  const int64_t num_heads = args.shape.num_heads;
  const int64_t num_items = args.plan.num_seqs * num_heads;
  // One cell per thread, since scratch belongs to a cell; heads of long and short sequences
  // alternate over them.
  executor.Run(num_threads, [&](int64_t cell) {
    float* memory = reinterpret_cast<float*>(args.workspace.data()) + cell * thread_floats;
    for (int64_t item = cell; item < num_items; item += num_threads) {
      const int32_t seq = static_cast<int32_t>(item / num_heads);
      if (args.plan.QLen(seq) == TokenCount(0)) continue;
      HWY_DYNAMIC_DISPATCH(RunHead)
      (args, seq, static_cast<int32_t>(item % num_heads), shape, memory);
    }
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
