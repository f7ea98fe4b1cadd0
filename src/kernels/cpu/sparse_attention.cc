#include "kernels/cpu/sparse_attention.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/attention_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sparse_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/paged_rows-inl.h"
#include "kernels/cpu/softmax_output-inl.h"
#include "kernels/cpu/tile_ops-inl.h"

// Outside the per-target part: the same for every SIMD target.
#ifndef QUIRE_KERNELS_CPU_SPARSE_ATTENTION_SHAPE_
#define QUIRE_KERNELS_CPU_SPARSE_ATTENTION_SHAPE_
namespace quire::cpu {

// Some heads of one query token: what is computed at once. Queries choose different keys, so no two
// of them share a decoded tile.
struct HeadGroup {
  int32_t seq = 0;
  TokenCount query;  // counted over the step
  TokenCount visible;
  int64_t first_head = 0;
  int64_t num_heads = 0;
};

// Heads that share a decoded tile of keys: as many as the rows of dense attention's tiles.
inline constexpr int64_t kMaxGroupHeads = 64;

}  // namespace quire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

class GroupRun {
 public:
  GroupRun(const SparseAttentionArgs& args, const HeadGroup& group, float* memory)
      : args_(args),
        group_(group),
        chosen_(args.chosen.subspan(static_cast<size_t>(group.query.raw() * args.top_k),
                                    static_cast<size_t>(args.top_k))),
        shape_(TileShape::Of(group.num_heads, args.store.layout().dims())),
        scratch_(WorkerScratch::At(memory, shape_)) {}

  void Run() {
    const int64_t num_keys = CountChosen();
    PackQueries();
    Reset(scratch_.folded);
    const int64_t split = args_.plan.work.split.raw();
    for (int64_t begin = 0; begin < num_keys; begin += split) {
      RunSplit(begin, std::min(begin + split, num_keys));
      if (begin == 0) {
        std::swap(scratch_.split, scratch_.folded);
      } else {
        FoldRows(group_.num_heads, shape_.o_stride, scratch_.split, scratch_.folded);
      }
    }
    const SoftmaxState& state = scratch_.folded;
    for (int64_t h = 0; h < group_.num_heads; ++h) {
      WriteSoftmaxRow({.o = state.o + h * shape_.o_stride, .m = state.m[h], .l = state.l[h]},
                      group_.query.raw(), group_.first_head + h, args_.out, args_.lse);
    }
  }

 private:
  // Entries up to the first -1. They are indices into a row of pages: none is believed.
  int64_t CountChosen() const {
    int64_t count = 0;
    int32_t last = -1;
    for (; count < std::ssize(chosen_) && chosen_[static_cast<size_t>(count)] != -1; ++count) {
      const int32_t position = chosen_[static_cast<size_t>(count)];
      Require(position > last && position < group_.visible.raw(),
              "chosen[{}, {}]: expected a position above {} and below {}, got {}", group_.query,
              count, last, group_.visible, position);
      last = position;
    }
    return count;
  }

  void PackQueries() const {
    for (int64_t row = 0; row < shape_.rows; ++row) {
      float* to = scratch_.q + row / kBlockRows * (kBlockRows * shape_.dim) + row % kBlockRows;
      if (row < group_.num_heads) {
        PackQuery(args_.q, group_.query.raw(), group_.first_head + row, shape_.dim, to);
      } else {
        PackZeros(shape_.dim, to);
      }
    }
  }

  void Reset(const SoftmaxState& state) const {
    std::fill_n(state.m, shape_.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.l, shape_.rows, 0.0f);
    std::fill_n(state.o, shape_.rows * shape_.o_stride, 0.0f);
  }

  // Leaves the state of the list's entries [begin, end) in scratch_.split.
  void RunSplit(int64_t begin, int64_t end) const {
    Reset(scratch_.split);
    const SoftmaxState& state = scratch_.split;
    for (int64_t tile = begin; tile < end; tile += kTileKeys) {
      const auto num_keys = static_cast<int32_t>(std::min(kTileKeys, end - tile));
      RowTarget to{.base = scratch_.keys, .block_stride = kColumnBlockStride};
      for (int64_t i = tile; i < tile + num_keys; ++i, to.base += kBlockColumns) {
        DecodeKey(args_.plan, args_.store, group_.seq, group_.query,
                  TokenCount(chosen_[static_cast<size_t>(i)]), shape_.key_columns, to);
      }
      ScoreTile(scratch_.q, shape_.num_blocks(), shape_.dim, scratch_.keys, num_keys, scratch_.p,
                kBlockRows * kTileKeys);
      SoftmaxTile(shape_, SeeAll(), args_.scale, num_keys, scratch_.p, state.m, state.l,
                  scratch_.alpha);
      ValueTile(shape_, SeeAll(), scratch_.p, scratch_.keys, num_keys, scratch_.alpha, state.o);
    }
  }

  const SparseAttentionArgs& args_;
  const HeadGroup group_;
  const std::span<const int32_t> chosen_;
  const TileShape shape_;
  WorkerScratch scratch_;
};

void RunGroup(const SparseAttentionArgs& args, const HeadGroup& group, float* memory) {
  GroupRun(args, group, memory).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(RunGroup);

// Heads of a group: few where there would not be a group for every worker otherwise. It changes no
// bit, and a tile of keys is decoded once for each group.
int64_t GroupHeads(int64_t num_tokens, int64_t num_heads, int64_t num_workers) {
  const int64_t groups_each = CeilDiv(num_workers, std::max<int64_t>(num_tokens, 1));
  const int64_t heads = RoundUp(CeilDiv(num_heads, groups_each), kBlockRows);
  return std::min({heads, kMaxGroupHeads, num_heads});
}

ByteOffset WorkspaceFor(int64_t num_workers, int64_t num_heads, const KvDims& dims) {
  const TileShape full = TileShape::Of(std::min(num_heads, kMaxGroupHeads), dims);
  return ByteOffset(4 * WorkerScratch::Floats(full)) * num_workers;
}

// Calls fn(group) for every group of heads of the step, in order.
template <class Fn>
void ForEachGroup(const SparseAttentionArgs& args, Fn fn) {
  const Plan& plan = args.plan;
  const int64_t num_heads = args.q.dim(1);
  const int64_t group_heads =
      GroupHeads(plan.num_query_tokens.raw(), num_heads, plan.work.num_workers);
  for (const QueryTile& tile : plan.tiles) {
    for (int32_t t = 0; t < tile.q_count; ++t) {
      const TokenCount query = tile.q_begin + TokenCount(t);
      const TokenCount visible = plan.Visible(tile.seq, query);
      for (int64_t head = 0; head < num_heads; head += group_heads) {
        fn(HeadGroup{.seq = tile.seq,
                     .query = query,
                     .visible = visible,
                     .first_head = head,
                     .num_heads = std::min(group_heads, num_heads - head)});
      }
    }
  }
}

}  // namespace

ByteOffset SparseAttentionWorkspace(const WorkShape& work, const MlaShape& shape) {
  Validate(work);
  Validate(shape);
  return WorkspaceFor(work.num_workers, shape.num_heads, shape.dims);
}

void SparseAttention(const SparseAttentionArgs& args, Executor& executor) {
  const int64_t num_workers = args.plan.work.num_workers;
  const int64_t num_heads = args.q.rank() == 3 ? std::max<int64_t>(1, args.q.dim(1)) : 1;
  const ByteOffset bytes = WorkspaceFor(num_workers, num_heads, args.store.layout().dims());
  Validate(args, bytes);
  float* memory = reinterpret_cast<float*>(args.workspace.data());
  const int64_t worker_floats = bytes.raw() / 4 / num_workers;
  executor.Run(num_workers, [&](int64_t worker) {
    int64_t number = 0;
    ForEachGroup(args, [&](const HeadGroup& group) {
      if (number++ % num_workers != worker) return;
      HWY_DYNAMIC_DISPATCH(RunGroup)(args, group, memory + worker * worker_floats);
    });
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
