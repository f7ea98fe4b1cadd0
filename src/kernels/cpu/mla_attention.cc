#include "kernels/cpu/mla_attention.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/attention_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mla_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/row_codec-inl.h"
#include "kernels/cpu/softmax_output-inl.h"
#include "kernels/cpu/tile_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// One query tile on one worker. Tokens are the tile's query tokens; a token's rows are its heads.
class TileRun {
 public:
  TileRun(const MlaAttentionArgs& args, const QueryTile& tile, const TileShape& shape,
          const WorkerScratch& scratch)
      : args_(args), plan_(args.plan), tile_(tile), shape_(shape), scratch_(scratch) {}

  void PackQueries() {
    const int64_t num_heads = args_.q.dim(1);
    for (int32_t t = 0; t < tile_.q_count; ++t) {
      float* packed = scratch_.q + t * shape_.dim * shape_.row_stride;
      for (int64_t h = 0; h < shape_.row_stride; ++h) {
        PackRow(t, h < num_heads ? h : -1,
                packed + h / kBlockRows * (kBlockRows * shape_.dim) + h % kBlockRows);
      }
    }
  }

  // Leaves the state of split `split` in scratch.split.
  void RunSplit(int32_t split) {
    const TokenCount begin = plan_.work.split * split;
    const TokenCount end = Min(begin + plan_.work.split, tile_.kv_end);
    for (int32_t t = 0; t < tile_.q_count; ++t) Reset(scratch_.split.Token(shape_, t));
    for (TokenCount key = begin; key < end; key += kKeyTile) {
      const TokenCount tile_end = Min(key + kKeyTile, end);
      if (SharedByAllQueries(key)) {
        LoadKeys(key, tile_end, tile_.q_begin);
        for (int32_t t = 0; t < tile_.q_count; ++t) AttendTile(t, key, tile_end);
      } else {
        for (int32_t t = 0; t < tile_.q_count; ++t) {
          LoadKeys(key, Min(tile_end, VisibleTo(t)), tile_.q_begin + TokenCount(t));
          AttendTile(t, key, tile_end);
        }
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
      if (SeesSplit(t, split)) {
        Fold(scratch_.split.Token(shape_, t), scratch_.folded.Token(shape_, t));
      }
    }
  }

  void Fold(const SoftmaxState& later, const SoftmaxState& state) const {
    FoldState(shape_, later, state);
  }

  const SoftmaxState& split_state() const { return scratch_.split; }
  const SoftmaxState& folded_state() const { return scratch_.folded; }

  // Writes out and lse of token t from its complete state.
  void WriteToken(int32_t t, const SoftmaxState& state) const {
    for (int64_t h = 0; h < args_.q.dim(1); ++h) {
      WriteSoftmaxRow({.o = state.o + h * shape_.o_stride, .m = state.m[h], .l = state.l[h]},
                      tile_.q_begin.raw() + t, h, args_.out, args_.lse);
    }
  }

 private:
  // Transposes one head's query into column `to` of its block; head -1 is padding.
  void PackRow(int32_t t, int64_t head, float* to) const {
    const int64_t num_values = head < 0 ? 0 : args_.q.dim(2);
    const int64_t token = tile_.q_begin.raw() + t;
    if (head >= 0 && args_.q.dtype() == DType::kF32) {
      const float* from = args_.q.Row<float>(token, head);
      for (int64_t i = 0; i < num_values; ++i) to[i * kBlockRows] = from[i];
    } else if (head >= 0) {
      const Bf16* from = args_.q.Row<Bf16>(token, head);
      for (int64_t i = 0; i < num_values; ++i) to[i * kBlockRows] = ToFloat(from[i]);
    }
    for (int64_t i = num_values; i < shape_.dim; ++i) to[i * kBlockRows] = 0.0f;
  }

  void Reset(const SoftmaxState& state) const {
    std::fill_n(state.m, shape_.row_stride, -std::numeric_limits<float>::infinity());
    std::fill_n(state.l, shape_.row_stride, 0.0f);
    std::fill_n(state.o, shape_.row_stride * shape_.o_stride, 0.0f);
  }

  // Never more than the tile's own end: the plan decides how far this tile reads.
  TokenCount VisibleTo(int32_t t) const {
    return Min(tile_.kv_end, plan_.Visible(tile_.seq, tile_.q_begin + TokenCount(t)));
  }

  // Key tiles before the last committed one hold the same keys for every query of a tree; from
  // there on each query sums its own path, in depth order.
  bool SharedByAllQueries(TokenCount key) const {
    const size_t seq = static_cast<size_t>(tile_.seq);
    return !plan_.IsTree(tile_.seq) || key + kKeyTile <= plan_.committed[seq];
  }

  // Decodes keys [begin, end), in the order in which `query` sums them.
  void LoadKeys(TokenCount begin, TokenCount end, TokenCount query) const {
    const KvLayout& layout = args_.store.read_layout();
    RowTarget to{.base = scratch_.keys, .block_stride = kColumnBlockStride};
    for (TokenCount p = begin; p < end; p += TokenCount(1), to.base += kBlockColumns) {
      const TokenCount position = plan_.KeyPosition(tile_.seq, query, p);
      const PageCount index = plan_.page_size.FullPages(position);
      const PageId page = plan_.Row(tile_.seq)[static_cast<size_t>(index.raw())];
      DecodeRow(layout, args_.store.Page(page), plan_.page_size.OffsetOf(position), to);
      for (int32_t i = layout.dims().values(); i < shape_.key_columns; ++i) *to.At(i) = 0.0f;
    }
  }

  void AttendTile(int32_t t, TokenCount begin, TokenCount end) const {
    const TokenCount seen = Min(end, VisibleTo(t)) - begin;
    if (seen <= TokenCount(0)) return;
    const int32_t num_keys = static_cast<int32_t>(seen.raw());
    const SoftmaxState state = scratch_.split.Token(shape_, t);
    ScoreTile(scratch_.q + t * shape_.dim * shape_.row_stride, shape_.row_stride / kBlockRows,
              shape_.dim, scratch_.keys, num_keys, scratch_.p, kBlockRows * kTileKeys);
    SoftmaxTile(shape_, SeeAll(), args_.scale, num_keys, scratch_.p, state.m, state.l,
                scratch_.alpha);
    ValueTile(shape_, scratch_.p, scratch_.keys, num_keys, scratch_.alpha, state.o);
  }

  const MlaAttentionArgs& args_;
  const Plan& plan_;
  const QueryTile tile_;
  const TileShape shape_;
  WorkerScratch scratch_;
};

// The state at `index` of a row of partials, each laid out for a full query tile.
SoftmaxState PartialAt(float* partials, int64_t index, const TileShape& shape,
                       const WorkShape& work) {
  const int64_t tokens = work.query_tile.raw();
  return SoftmaxState::At(partials + index * SoftmaxState::Floats(shape, tokens), shape, tokens);
}

void CopyState(const SoftmaxState& from, const TileShape& shape, int64_t tokens,
               const SoftmaxState& to) {
  const int64_t rows = tokens * shape.row_stride;
  std::copy_n(from.m, rows, to.m);
  std::copy_n(from.l, rows, to.l);
  std::copy_n(from.o, rows * shape.o_stride, to.o);
}

// Runs splits [begin, end) of one tile. Its first partial, if it has any, is number first_partial.
void RunPiece(const MlaAttentionArgs& args, const QueryTile& tile, int32_t begin, int32_t end,
              const TileShape& shape, const WorkerScratch& scratch, float* partials,
              int64_t first_partial) {
  TileRun run(args, tile, shape, scratch);
  run.PackQueries();
  const WorkShape& work = args.plan.work;
  for (int32_t split = begin; split < end; ++split) {
    run.RunSplit(split);
    if (begin == 0) {
      run.FoldSplit(split);
    } else {
      CopyState(run.split_state(), shape, tile.q_count,
                PartialAt(partials, first_partial + split - begin, shape, work));
    }
  }
  if (begin > 0) return;
  if (end < NumSplits(tile.kv_end, work)) {
    CopyState(run.folded_state(), shape, tile.q_count,
              PartialAt(partials, first_partial, shape, work));
    return;
  }
  for (int32_t t = 0; t < tile.q_count; ++t) {
    run.WriteToken(t, run.folded_state().Token(shape, t));
  }
}

void RunWorker(const MlaAttentionArgs& args, int32_t worker, const TileShape& shape,
               float* worker_memory, float* partials) {
  const Plan& plan = args.plan;
  const WorkerStart begin = plan.workers[static_cast<size_t>(worker)];
  const WorkerStart end = plan.workers[static_cast<size_t>(worker) + 1];
  const int64_t tokens = plan.work.query_tile.raw();
  const WorkerScratch scratch = WorkerScratch::At(worker_memory, shape, tokens);
  int64_t next_partial = begin.first_partial;
  for (int32_t i = begin.tile; i < std::min<int64_t>(end.tile + 1, std::ssize(plan.tiles)); ++i) {
    const QueryTile& tile = plan.tiles[static_cast<size_t>(i)];
    const int32_t num_splits = NumSplits(tile.kv_end, plan.work);
    const int32_t first = i == begin.tile ? begin.split : 0;
    const int32_t last = i == end.tile ? end.split : num_splits;
    if (first >= last) continue;
    RunPiece(args, tile, first, last, shape, scratch, partials, next_partial);
    if (first > 0) {
      next_partial += last - first;
    } else if (last < num_splits) {
      next_partial += 1;
    }
  }
}

// Folds the partials of one token of one cut tile, in ascending order, into the first, and writes
// it.
void MergeToken(const MlaAttentionArgs& args, const Merge& merge, int32_t t, const TileShape& shape,
                float* partials) {
  const QueryTile& tile = args.plan.tiles[static_cast<size_t>(merge.tile)];
  const WorkShape& work = args.plan.work;
  const TileRun run(args, tile, shape, WorkerScratch());
  const SoftmaxState folded = PartialAt(partials, merge.first_partial, shape, work).Token(shape, t);
  const int32_t first_cut = NumSplits(tile.kv_end, work) - (merge.num_partials - 1);
  for (int32_t i = 1; i < merge.num_partials; ++i) {
    if (!run.SeesSplit(t, first_cut + i - 1)) continue;
    run.Fold(PartialAt(partials, merge.first_partial + i, shape, work).Token(shape, t), folded);
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

HWY_EXPORT(RunWorker);
HWY_EXPORT(MergeToken);

// Query rows that share one decoded key tile: 64 keep a worker's queries and sums within the second
// level cache beside the keys, and spread the cost of decoding thin.
constexpr int32_t kRowsPerTile = 64;
// Keys per split: 64 workers can share a sequence of 64k, and folding a split costs under 1% of it.
constexpr TokenCount kSplitKeys{1024};

TileShape ShapeOf(int64_t num_heads, const KvDims& dims) {
  return TileShape::Of(num_heads, dims.values(), dims.latent_dim);
}

ByteOffset WorkspaceFor(int64_t num_workers, int64_t num_partials, int64_t query_tile,
                        const TileShape& shape) {
  return ByteOffset(4 * WorkerScratch::Floats(shape, query_tile)) * num_workers +
         ByteOffset(4 * SoftmaxState::Floats(shape, query_tile)) * num_partials;
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
  return WorkspaceFor(work.num_workers, MaxPartials(capacity, work), work.query_tile.raw(),
                      ShapeOf(shape.num_heads, shape.dims));
}

void MlaAttention(const MlaAttentionArgs& args, Executor& executor) {
  const Plan& plan = args.plan;
  const TileShape shape =
      ShapeOf(args.q.rank() == 3 ? args.q.dim(1) : 0, args.store.layout().dims());
  const int64_t query_tile = plan.work.query_tile.raw();
  Validate(args, WorkspaceFor(plan.work.num_workers, plan.num_partials, query_tile, shape));
  float* memory = reinterpret_cast<float*>(args.workspace.data());
  const int64_t worker_floats = WorkerScratch::Floats(shape, query_tile);
  float* partials = memory + worker_floats * plan.work.num_workers;
  executor.Run(plan.work.num_workers, [&](int64_t worker) {
    HWY_DYNAMIC_DISPATCH(RunWorker)
    (args, static_cast<int32_t>(worker), shape, memory + worker * worker_floats, partials);
  });
  executor.Run(std::ssize(plan.merges) * query_tile, [&](int64_t i) {
    const Merge& merge = plan.merges[static_cast<size_t>(i / query_tile)];
    const int32_t t = static_cast<int32_t>(i % query_tile);
    if (t >= plan.tiles[static_cast<size_t>(merge.tile)].q_count) return;
    HWY_DYNAMIC_DISPATCH(MergeToken)(args, merge, t, shape, partials);
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
