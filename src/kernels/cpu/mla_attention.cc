#include "kernels/cpu/mla_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "attn/work.h"
#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/attention_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mla_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/paged_rows-inl.h"
#include "kernels/cpu/softmax_output-inl.h"
#include "kernels/cpu/tile_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// One query tile on one worker. Its rows are the heads of its tokens, token after token without
// padding between: a block of rows may hold heads of several tokens.
class TileRun {
 public:
  TileRun(const MlaAttentionArgs& args, const QueryTile& tile, const WorkerScratch& scratch)
      : args_(args),
        plan_(args.plan),
        tile_(tile),
        num_heads_(args.q.dim(1)),
        shape_(TileShape::Of(tile.q_count * num_heads_, args.store.layout().dims())),
        is_tree_(args.plan.IsTree(tile.seq)),
        scratch_(scratch) {}

  void PackQueries() {
    for (int64_t row = 0; row < shape_.rows; ++row) {
      PackRow(row, scratch_.q + row / kBlockRows * (kBlockRows * shape_.dim) + row % kBlockRows);
    }
  }

  // Leaves the state of split `split` in scratch.split.
  void RunSplit(int32_t split) {
    const TokenCount begin = plan_.work.split * split;
    const TokenCount end = Min(begin + plan_.work.split, tile_.kv_end);
    Reset(scratch_.split);
    for (TokenCount key = begin; key < end; key += kKeyTile) {
      const TokenCount tile_end = Min(key + kKeyTile, end);
      const TokenCount shared = Min(tile_end, SharedKeys());
      LoadKeys(key, key, shared, tile_.q_count - 1);
      if (shared == tile_end) {
        Attend(0, tile_.q_count, key, tile_end);
        continue;
      }
      for (int32_t t = 0; t < tile_.q_count; ++t) {
        LoadKeys(key, Max(key, shared), Min(tile_end, VisibleTo(t)), t);
        Attend(t, t + 1, key, tile_end);
      }
    }
  }

  // Whether token t sees any key of split `split`: if not, its partial is skipped.
  bool SeesSplit(int32_t t, int32_t split) const { return plan_.work.split * split < VisibleTo(t); }

  // Folds scratch.split, the state of split `split`, into scratch.folded.
  void FoldSplit(int32_t split) {
    if (split == 0) {
      std::swap(scratch_.split, scratch_.folded);
      return;
    }
    for (int32_t t = 0; t < tile_.q_count; ++t) {
      if (SeesSplit(t, split)) FoldToken(t, scratch_.split, scratch_.folded);
    }
  }

  // Folds token t's rows of the later state into those of the earlier one.
  void FoldToken(int32_t t, const SoftmaxState& later, const SoftmaxState& state) const {
    const int64_t row = t * num_heads_;
    FoldRows(num_heads_, shape_.o_stride, later.From(row, shape_), state.From(row, shape_));
  }

  void CopyState(const SoftmaxState& from, const SoftmaxState& to) const {
    std::copy_n(from.m, shape_.rows, to.m);
    std::copy_n(from.l, shape_.rows, to.l);
    std::copy_n(from.o, shape_.rows * shape_.o_stride, to.o);
  }

  const SoftmaxState& split_state() const { return scratch_.split; }
  const SoftmaxState& folded_state() const { return scratch_.folded; }

  // Writes out and lse of token t from its complete state.
  void WriteToken(int32_t t, const SoftmaxState& state) const {
    for (int64_t h = 0; h < num_heads_; ++h) {
      const int64_t row = t * num_heads_ + h;
      WriteSoftmaxRow({.o = state.o + row * shape_.o_stride, .m = state.m[row], .l = state.l[row]},
                      tile_.q_begin.raw() + t, h, args_.out, args_.lse);
    }
  }

 private:
  // Transposes one row's query into column `to` of its block; past the last row it is zeros.
  void PackRow(int64_t row, float* to) const {
    if (row >= tile_.q_count * num_heads_) {
      PackZeros(shape_.dim, to);
    } else {
      PackQuery(args_.q, tile_.q_begin.raw() + row / num_heads_, row % num_heads_, shape_.dim, to);
    }
  }

  void Reset(const SoftmaxState& state) const {
    std::fill_n(state.m, shape_.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.l, shape_.rows, 0.0f);
    std::fill_n(state.o, shape_.rows * shape_.o_stride, 0.0f);
  }

  // Never more than the tile's own end: the plan decides how far this tile reads.
  TokenCount VisibleTo(int32_t t) const {
    return Min(tile_.kv_end, plan_.Visible(tile_.seq, tile_.q_begin + TokenCount(t)));
  }

  // So many keys are the same for every query; from there on each query sums its own path, in depth
  // order.
  TokenCount SharedKeys() const {
    return is_tree_ ? plan_.committed[static_cast<size_t>(tile_.seq)] : tile_.kv_end;
  }

  // Decodes keys [begin, end) of the tile that begins with `first`, in the order in which token t sums
  // them.
  void LoadKeys(TokenCount first, TokenCount begin, TokenCount end, int32_t t) const {
    const TokenCount query = tile_.q_begin + TokenCount(t);
    RowTarget to{.base = scratch_.keys + (begin - first).raw() * kBlockColumns,
                 .block_stride = kColumnBlockStride};
    for (TokenCount p = begin; p < end; p += TokenCount(1), to.base += kBlockColumns) {
      DecodeKey(plan_, args_.store, tile_.seq, query, p, shape_.key_columns, to);
    }
  }

  // Tokens [first, last) against the decoded keys [begin, end), as far as each sees them. Together
  // if they are all the tile's tokens and see the same keys, otherwise block by block.
  void Attend(int32_t first, int32_t last, TokenCount begin, TokenCount end) const {
    TokenCount least = end, most = begin;
    for (int32_t t = first; t < last; ++t) {
      least = Min(least, VisibleTo(t));
      most = Max(most, Min(end, VisibleTo(t)));
    }
    if (most == begin) return;
    if (last - first == tile_.q_count && least >= most) {
      AttendAll(KeyCount(begin, most));
      return;
    }
    const int64_t end_row = last * num_heads_;
    for (int64_t row = first * num_heads_ / kBlockRows * kBlockRows; row < end_row;
         row += kBlockRows) {
      AttendBlock(row, first * num_heads_, end_row, begin, most);
    }
  }

  // All rows, which see all of the decoded keys.
  void AttendAll(int32_t num_keys) const {
    const int64_t num_rows = tile_.q_count * num_heads_;
    const int64_t whole = num_rows / kBlockRows * kBlockRows;
    if (num_rows == whole || !FitsHalf(0, num_rows - whole)) {
      AttendBlocks(shape_, 0, SeeAll(), num_keys);
      return;
    }
    TileShape blocks = shape_;
    blocks.rows = whole;
    if (whole > 0) AttendBlocks(blocks, 0, SeeAll(), num_keys);
    AttendHalf(whole, SeeAll(), num_keys);
  }

  // Whether rows [first, end) of a block are all in one half of it.
  static bool FitsHalf(int64_t first, int64_t end) {
    return kHasHalves && first / kHalfRows == (end - 1) / kHalfRows;
  }

  // One block, of which the rows in [first_row, end_row) attend; the others see nothing and stay
  // as they are.
  void AttendBlock(int64_t row, int64_t first_row, int64_t end_row, TokenCount begin,
                   TokenCount end) const {
    HWY_ALIGN int32_t counts[kBlockRows] = {};
    for (int64_t r = std::max(row, first_row); r < std::min(row + kBlockRows, end_row); ++r) {
      counts[r - row] = KeyCount(begin, Min(end, VisibleTo(static_cast<int32_t>(r / num_heads_))));
    }
    const int64_t first = std::max<int64_t>(first_row - row, 0);
    const bool fits_half = FitsHalf(first, std::min(end_row - row, kBlockRows));
    const int32_t* const seen = counts + (fits_half ? first / kHalfRows * kHalfRows : 0);
    const auto [least, most] =
        std::minmax_element(seen, seen + (fits_half ? kHalfRows : kBlockRows));
    if (*most == 0) return;
    if (fits_half && *least == *most) {
      AttendHalf(row + (seen - counts), SeeAll(), *most);
    } else if (fits_half) {
      AttendHalf(row + (seen - counts), SeeFirst{seen}, *most);
    } else if (*least == *most) {
      AttendBlocks(shape_.OneBlock(), row, SeeAll(), *most);
    } else {
      AttendBlocks(shape_.OneBlock(), row, SeeFirst{counts}, *most);
    }
  }

  // The blocks of `shape`, from row `row` on, against the first num_keys decoded keys.
  template <class See>
  void AttendBlocks(const TileShape& shape, int64_t row, See see, int32_t num_keys) const {
    const SoftmaxState state = scratch_.split.From(row, shape);
    ScoreTile(scratch_.q + row * shape.dim, shape.num_blocks(), shape.dim, scratch_.keys, num_keys,
              scratch_.p, kBlockRows * kTileKeys);
    SoftmaxTile(shape, see, args_.scale, num_keys, scratch_.p, state.m, state.l, scratch_.alpha);
    ValueTile(shape, see, scratch_.p, scratch_.keys, num_keys, scratch_.alpha, state.o);
  }

  // The same for half a block, which begins at `row`.
  template <class See>
  void AttendHalf(int64_t row, See see, int32_t num_keys) const {
    const int64_t lane = row % kBlockRows;
    const SoftmaxState state = scratch_.split.From(row, shape_);
    const TileShape block = shape_.OneBlock();
    TileShape half = block;
    half.rows = kHalfRows;
    float* const p = scratch_.p + lane;
    ScoreTile<kHalfVecs>(scratch_.q + (row - lane) * block.dim + lane, 1, block.dim, scratch_.keys,
                         num_keys, p, 0);
    SoftmaxTile<kHalfVecs>(block, see, args_.scale, num_keys, p, state.m, state.l, scratch_.alpha);
    ValueTile(half, see, p, scratch_.keys, num_keys, scratch_.alpha, state.o);
  }

  static int32_t KeyCount(TokenCount begin, TokenCount end) {
    return static_cast<int32_t>(Max(end - begin, TokenCount(0)).raw());
  }

  const MlaAttentionArgs& args_;
  const Plan& plan_;
  const QueryTile tile_;
  const int64_t num_heads_;
  const TileShape shape_;
  const bool is_tree_;
  WorkerScratch scratch_;
};

// The state at `index` of a row of partials, each laid out for a full query tile.
SoftmaxState PartialAt(float* partials, int64_t index, const TileShape& full) {
  return SoftmaxState::At(partials + index * SoftmaxState::Floats(full.rows, full.o_stride),
                          full.rows);
}

void RunPiece(const MlaAttentionArgs& args, const Piece& piece, const TileShape& full,
              const WorkerScratch& scratch, float* partials) {
  TileRun run(args, piece.tile, scratch);
  run.PackQueries();
  for (int32_t split = piece.first; split < piece.last; ++split) {
    run.RunSplit(split);
    if (piece.first == 0) {
      run.FoldSplit(split);
    } else {
      run.CopyState(run.split_state(),
                    PartialAt(partials, piece.partial + split - piece.first, full));
    }
  }
  if (piece.first > 0) return;
  if (piece.last < piece.num_splits) {
    run.CopyState(run.folded_state(), PartialAt(partials, piece.partial, full));
    return;
  }
  for (int32_t t = 0; t < piece.tile.q_count; ++t) run.WriteToken(t, run.folded_state());
}

// Some tokens of a tile of one split.
void RunTokens(const MlaAttentionArgs& args, const QueryTile& tile, const TileShape& full,
               float* worker_memory) {
  TileRun run(args, tile, WorkerScratch::At(worker_memory, full));
  run.PackQueries();
  run.RunSplit(0);
  for (int32_t t = 0; t < tile.q_count; ++t) run.WriteToken(t, run.split_state());
}

void RunWorker(const MlaAttentionArgs& args, int32_t worker, const TileShape& full,
               float* worker_memory, float* partials) {
  const WorkerScratch scratch = WorkerScratch::At(worker_memory, full);
  ForEachPiece(args.plan, worker,
               [&](const Piece& piece) { RunPiece(args, piece, full, scratch, partials); });
}

// Folds the partials of one token of one cut tile, in ascending order, into the first, and writes
// it.
void MergeToken(const MlaAttentionArgs& args, const Merge& merge, int32_t t, const TileShape& full,
                float* partials) {
  const QueryTile& tile = args.plan.tiles[static_cast<size_t>(merge.tile)];
  const TileRun run(args, tile, WorkerScratch());
  const SoftmaxState folded = PartialAt(partials, merge.first_partial, full);
  const int32_t first_cut = NumSplits(tile.kv_end, args.plan.work) - (merge.num_partials - 1);
  for (int32_t i = 1; i < merge.num_partials; ++i) {
    if (!run.SeesSplit(t, first_cut + i - 1)) continue;
    run.FoldToken(t, PartialAt(partials, merge.first_partial + i, full), folded);
  }
  run.WriteToken(t, folded);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(RunTokens);
HWY_EXPORT(RunWorker);
HWY_EXPORT(MergeToken);

// Query rows that share one decoded key tile: 64 keep a worker's queries and sums within the second
// level cache beside the keys, and spread the cost of decoding thin.
constexpr int32_t kRowsPerTile = 64;
// Keys per split: 64 workers can share a sequence of 64k, and folding a split costs under 1% of it.
constexpr TokenCount kSplitKeys{1024};

// A step of one short sequence is one tile of one split, which a single worker would run: how many of its
// tokens each is to take instead, in whole blocks of rows; 0 where workers have enough to do.
int32_t TokensOfEach(const Plan& plan, int64_t num_heads) {
  if (plan.tiles.size() != 1 || NumSplits(plan.tiles[0].kv_end, plan.work) != 1) return 0;
  const int64_t unit = kBlockRows / std::gcd(kBlockRows, num_heads);
  const int32_t q_count = plan.tiles[0].q_count;
  const int64_t each = RoundUp(CeilDiv(int64_t{q_count}, int64_t{plan.work.num_workers}), unit);
  return each < q_count ? static_cast<int32_t>(each) : 0;
}

// Tokens [first, first + each) of a tile, as far as it has any.
QueryTile PartOf(const QueryTile& tile, int32_t first, int32_t each, const Plan& plan) {
  QueryTile part = tile;
  part.q_begin = tile.q_begin + TokenCount(first);
  part.q_count = std::min(each, tile.q_count - first);
  TokenCount most{0};
  for (int32_t t = 0; t < part.q_count; ++t) {
    most = Max(most, plan.Visible(tile.seq, part.q_begin + TokenCount(t)));
  }
  part.kv_end = Min(tile.kv_end, most);
  return part;
}

ByteOffset WorkspaceFor(int64_t num_workers, int64_t num_partials, const TileShape& full) {
  return ByteOffset(4 * WorkerScratch::Floats(full)) * num_workers +
         ByteOffset(4 * SoftmaxState::Floats(full.rows, full.o_stride)) * num_partials;
}

}  // namespace

WorkShape MlaWorkShape(const MlaShape& shape, int32_t num_workers) {
  Validate(shape);
  return {.query_tile = TokenCount(std::max(1, kRowsPerTile / shape.num_heads)),
          .split = kSplitKeys,
          .num_workers = num_workers};
}

ByteOffset MlaAttentionWorkspace(const StepCapacity& capacity, const WorkShape& work,
                                 const MlaShape& shape) {
  Validate(capacity);
  Validate(work);
  Validate(shape);
  return WorkspaceFor(work.num_workers, MaxPartials(capacity, work),
                      TileShape::Of(work.query_tile.raw() * shape.num_heads, shape.dims));
}

void MlaAttention(const MlaAttentionArgs& args, Executor& executor) {
  const Plan& plan = args.plan;
  const int64_t query_tile = plan.work.query_tile.raw();
  const int64_t num_heads = args.q.rank() == 3 ? args.q.dim(1) : 0;
  const TileShape full = TileShape::Of(query_tile * num_heads, args.store.layout().dims());
  Validate(args, WorkspaceFor(plan.work.num_workers, plan.num_partials, full));
  float* memory = reinterpret_cast<float*>(args.workspace.data());
  const int64_t worker_floats = WorkerScratch::Floats(full);
  float* partials = memory + worker_floats * plan.work.num_workers;
  if (const int32_t each = TokensOfEach(plan, num_heads); each > 0) {
    executor.Run(CeilDiv(plan.tiles[0].q_count, each), [&](int64_t i) {
      const QueryTile part = PartOf(plan.tiles[0], static_cast<int32_t>(i) * each, each, plan);
      HWY_DYNAMIC_DISPATCH(RunTokens)(args, part, full, memory + i * worker_floats);
    });
    return;
  }
  executor.Run(plan.work.num_workers, [&](int64_t worker) {
    HWY_DYNAMIC_DISPATCH(RunWorker)
    (args, static_cast<int32_t>(worker), full, memory + worker * worker_floats, partials);
  });
  executor.Run(std::ssize(plan.merges) * query_tile, [&](int64_t i) {
    const Merge& merge = plan.merges[static_cast<size_t>(i / query_tile)];
    const int32_t t = static_cast<int32_t>(i % query_tile);
    if (t >= plan.tiles[static_cast<size_t>(merge.tile)].q_count) return;
    HWY_DYNAMIC_DISPATCH(MergeToken)(args, merge, t, full, partials);
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
