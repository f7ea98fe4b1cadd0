// Folds the partials of query tiles that were cut between workers. A warp has some patches of the states, and folds
// partials in ascending order. Of many partials each warp of a CTA has a range, and what they have is folded in the
// end, in ascending order too; in exact mode a range is always all partials, so that bits are those of a worker that
// had the tile alone.
#include <algorithm>

#include "base/maths.h"
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"

namespace quire::cuda {
namespace {

constexpr int kMergeWarps = 8;
constexpr int kPatches = 4;  // of a warp, beside each other
constexpr int kAtOnce = 4;   // partials that are under way
constexpr int32_t kColumns = kPatches * static_cast<int32_t>(kPatchColumns);
constexpr int32_t kManyPartials = 2 * kMergeWarps;  // are shared among the warps
constexpr int64_t kMostCtas = 2 * 132;              // that fit on the device at once

// What a row's partials come to, so far: of the two rows that a lane has.
struct RowState {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
};
// The four sums that a lane has of each patch.
struct PatchSums {
  float4 of[kPatches];
};

struct SharedMerge {
  PatchSums sums[kMergeWarps][kWarp];
  RowState states[kMergeWarps][kWarp];
};

// What a CTA merges: patches of one row of them.
struct MergeItem {
  bool exists = false;
  Merge merge = {};
  QueryTile tile = {};
  int32_t row = 0;     // the first of its patches'
  int32_t number = 0;  // of those with the same rows
};

__device__ bool SharesPartials(const MlaKernelArgs& args, int32_t num_partials) {
  return !args.plan.work.exact && num_partials >= kManyPartials;
}

// How the items of merges follow each other.
class MergeItems {
 public:
  explicit __device__ MergeItems(const MlaKernelArgs& args)
      : args_(args),
        down_(static_cast<int32_t>(MlaStateRows(args.tile_rows) / kPatchRows)),
        across_(
            CeilDiv(static_cast<int32_t>(MlaStateColumns(args.store.dims.latent_dim)), kColumns)) {}

  // All lanes of a warp ask together: each counts the items of a merge.
  __device__ MergeItem At(int32_t number) const {
    const int32_t num_merges = args_.plan.counts->num_merges;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarp;
    for (int32_t first = 0; first < num_merges; first += kWarp) {
      Merge merge;
      if (first + lane < num_merges) merge = args_.plan.merges[static_cast<size_t>(first + lane)];
      const int32_t across = AcrossOf(merge.num_partials);
      int32_t end = merge.num_partials == 0 ? 0 : down_ * across;
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int32_t before = __shfl_up_sync(kAllLanes, end, distance);
        if (lane >= distance) end += before;
      }
      const uint32_t behind = __ballot_sync(kAllLanes, number < end);
      if (behind != 0) return ItemOf(number, __ffs(static_cast<int>(behind)) - 1, merge, end);
      number -= __shfl_sync(kAllLanes, end, kWarp - 1);
    }
    return {};
  }

 private:
  __device__ int32_t AcrossOf(int32_t num_partials) const {
    return SharesPartials(args_, num_partials) ? across_ : CeilDiv(across_, kMergeWarps);
  }
  // `number` is of the merge that `lane` has, whose items end before `end`.
  __device__ MergeItem ItemOf(int32_t number, int lane, Merge merge, int32_t end) const {
    merge = {.tile = __shfl_sync(kAllLanes, merge.tile, lane),
             .first_partial = __shfl_sync(kAllLanes, merge.first_partial, lane),
             .num_partials = __shfl_sync(kAllLanes, merge.num_partials, lane)};
    const int32_t across = AcrossOf(merge.num_partials);
    number -= __shfl_sync(kAllLanes, end, lane) - down_ * across;
    return {.exists = true,
            .merge = merge,
            .tile = args_.plan.tiles[static_cast<size_t>(merge.tile)],
            .row = number / across * static_cast<int32_t>(kPatchRows),
            .number = number % across};
  }

  const MlaKernelArgs& args_;
  const int32_t down_, across_;  // rows of patches; items of one where partials are shared
};

// In exact mode a partial that a row does not reach is left out; otherwise it holds nothing, and folding it
// changes nothing. Not inlined: a merge is short, and waits for its own instructions.
__device__ __noinline__ int32_t NumReachedExactly(const MlaKernelArgs& args, QueryTile tile,
                                                  int32_t token, int32_t num_partials) {
  const TokenCount visible = args.plan.Visible(tile.seq, tile.q_begin + TokenCount(token));
  const int32_t num_splits = NumSplits(tile.kv_end, args.plan.work);
  const int32_t first_cut = num_splits - (num_partials - 1);
  const int32_t reached = NumSplits(Min(tile.kv_end, visible), args.plan.work) - first_cut + 1;
  return max(1, min(reached, num_partials));
}

template <class Exponent>
class MergePatches {
 public:
  __device__ MergePatches(const MlaKernelArgs& args, const MergeItem& item, SharedMerge& shared)
      : args_(args),
        tile_(item.tile),
        num_rows_(item.tile.q_count * args.num_heads),
        shared_(shared),
        num_partials_(item.merge.num_partials),
        shares_(SharesPartials(args, num_partials_)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        row_(item.row),
        column_((shares_ ? item.number : item.number * kMergeWarps + warp_) * kColumns),
        stride_(static_cast<int32_t>(MlaStateFloats(args.tile_rows, args.store.dims.latent_dim))) {
    const StateView first = StateAt(args, args.partials, item.merge.first_partial);
    m_ = first.m + RowOf(0);
    l_ = first.l + RowOf(0);
    first_sums_ = &first.Sums(row_, column_, lane_);
  }

  // All threads of a CTA call this.
  __device__ void Run() {
    const int32_t share = shares_ ? CeilDiv(num_partials_, kMergeWarps) : num_partials_;
    const int32_t begin = shares_ ? warp_ * share : 0;
    for (float4& sums : sums_.of) sums = {-0.0f, -0.0f, -0.0f, -0.0f};  // times 0 and x: x
    if (column_ < static_cast<int32_t>(MlaStateColumns(args_.store.dims.latent_dim))) {
      FoldPartials(begin, min(begin + share, num_partials_));
    }
    if (!shares_) {
      Write(0, sums_.of);
      return;
    }
    shared_.sums[warp_][lane_] = sums_;
    shared_.states[warp_][lane_] = state_;
    __syncthreads();  // all ranges are there
    if (warp_ < kPatches) FoldRanges(CeilDiv(num_partials_, share));
    __syncthreads();  // and were read
  }

 private:
  // One of the two rows that this lane has sums of.
  __device__ int32_t RowOf(int which) const { return row_ + lane_ / 4 + 8 * which; }
  __device__ bool HasRow(int which) const { return RowOf(which) < num_rows_; }
  __device__ int32_t ColumnOf(int patch) const {
    return column_ + patch * static_cast<int32_t>(kPatchColumns) + lane_ % 4 * 2;
  }

  __device__ void FoldPartials(int32_t begin, int32_t end) {
    const int32_t reached[2] = {NumReached(0), NumReached(1)};
#pragma unroll 1
    for (; begin < end; begin += kAtOnce) {
      PatchSums later[kAtOnce];
      RowState states[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) Load(min(begin + i, end - 1), later[i], states[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Fold folds[2] = {FoldOf(0, states[i], begin + i < min(end, reached[0])),
                               FoldOf(1, states[i], begin + i < min(end, reached[1]))};
#pragma unroll
        for (int patch = 0; patch < kPatches; ++patch) {
          Add(folds, later[i].of[patch], sums_.of[patch]);
        }
      }
    }
  }
  __device__ int32_t NumReached(int which) const {
    if (!args_.plan.work.exact || !HasRow(which)) return num_partials_;
    return NumReachedExactly(args_, tile_, RowOf(which) / args_.num_heads, num_partials_);
  }

  __device__ void Load(int32_t i, PatchSums& sums, RowState& state) const {
    const int64_t distance = int64_t{i} * stride_;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (!HasRow(which)) continue;
      state.m[which] = m_[distance + 8 * which];
      state.l[which] = l_[distance + 8 * which];
    }
    const float4* from = first_sums_ + distance / 4;
#pragma unroll
    for (int patch = 0; patch < kPatches; ++patch) {
      const bool has_sums = HasRow(0) && ColumnOf(patch) < args_.store.dims.latent_dim;
      sums.of[patch] = has_sums ? from[patch * kWarp] : float4{};
    }
  }

  // Of a row's state with a later one, which it becomes; or of the row with nothing: sums, and their signs,
  // stay as they are.
  __device__ Fold FoldOf(int which, const RowState& later, bool counts) {
    if (!counts) return {.a = 1.0f, .b = -0.0f};
    const Fold fold =
        Fold::Of<Exponent>(state_.m[which], state_.l[which], later.m[which], later.l[which]);
    state_.m[which] = fold.m;
    state_.l[which] = fold.l;
    return fold;
  }
  static __device__ void Add(const Fold (&folds)[2], const float4& later, float4& sums) {
    sums.x = folds[0].Sum(sums.x, later.x);
    sums.y = folds[0].Sum(sums.y, later.y);
    sums.z = folds[1].Sum(sums.z, later.z);
    sums.w = folds[1].Sum(sums.w, later.w);
  }

  // Warp w has patch w of what the ranges came to.
  __device__ void FoldRanges(int32_t num_ranges) {
    float4 sums[1] = {shared_.sums[0][lane_].of[warp_]};
    state_ = shared_.states[0][lane_];
#pragma unroll 1
    for (int32_t range = 1; range < num_ranges; ++range) {
      const RowState later = shared_.states[range][lane_];
      const Fold folds[2] = {FoldOf(0, later, true), FoldOf(1, later, true)};
      Add(folds, shared_.sums[range][lane_].of[warp_], sums[0]);
    }
    Write(warp_, sums);
  }

  // Writes kCount patches from `patch` on, as results.
  template <int kCount>
  __device__ void Write(int patch, const float4 (&sums)[kCount]) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (!HasRow(which)) return;
      const int64_t token = tile_.q_begin.raw() + RowOf(which) / args_.num_heads;
      const int32_t head = RowOf(which) % args_.num_heads;
      const float l = state_.l[which], factor = ShareOfOne(l);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float x = (which == 0 ? sums[i].x : sums[i].z) * factor;
        const float y = (which == 0 ? sums[i].y : sums[i].w) * factor;
        if (args_.out.is_bf16) {
          WritePair(args_.out.Row<Bf16>(token, head), ColumnOf(patch + i), PackBf16(x, y));
        } else {
          WritePair(args_.out.Row<float>(token, head), ColumnOf(patch + i), make_float2(x, y));
        }
      }
      if (ColumnOf(patch) == 0) {
        WriteLse(args_, token, head,
                 l == 0.0f ? -INFINITY : Exponent::LogSumExp(state_.m[which], l));
      }
    }
  }
  // Two values at once where they lie for it, and the second is there.
  template <class T, class Pair>
  __device__ void WritePair(T* row, int32_t column, Pair pair) const {
    static_assert(sizeof(Pair) == 2 * sizeof(T));
    const int32_t count = args_.store.dims.latent_dim - column;
    T* to = row + column;
    if (count >= 2 && reinterpret_cast<uintptr_t>(to) % sizeof(Pair) == 0) {
      *reinterpret_cast<Pair*>(to) = pair;
      return;
    }
    T values[2];
    memcpy(values, &pair, sizeof(pair));
    if (count >= 1) to[0] = values[0];
    if (count >= 2) to[1] = values[1];
  }

  const MlaKernelArgs& args_;
  const QueryTile tile_;
  const int32_t num_rows_;  // of the tile
  SharedMerge& shared_;
  const int32_t num_partials_;
  const bool shares_;
  const int warp_, lane_;
  const int32_t row_, column_;  // of the warp's first patch
  // Of the first partial, m and l of our first row, and our sums of the first patch; from a partial to the next.
  const float *m_, *l_;
  const float4* first_sums_;
  const int32_t stride_;
  PatchSums sums_;
  RowState state_;
};

template <class Exponent>
__global__ void __launch_bounds__(kMergeWarps* kWarp, 2)
    MlaMerge(const __grid_constant__ MlaKernelArgs args) {
  TakeTurn();  // it is not launched ahead and waits for nobody, but the next kernel may be placed
  __shared__ SharedMerge shared;
  const MergeItems items(args);
  int32_t number = static_cast<int32_t>(blockIdx.x);
  for (MergeItem item = items.At(number); item.exists; item = items.At(number)) {
    number += static_cast<int32_t>(gridDim.x);
    const int64_t end = item.merge.first_partial + item.merge.num_partials;
    if (end > args.max_partials) {
      if (threadIdx.x == 0 && item.row == 0 && item.number == 0) {
        Report(args.status, DeviceFault::kCapacity, Launch::kMlaMerge,
               static_cast<uint32_t>(end - 1));
      }
      continue;
    }
    if (item.row >= item.tile.q_count * args.num_heads) continue;
    if (item.tile.q_begin.raw() + item.tile.q_count > args.num_tokens) continue;
    MergePatches<Exponent>(args, item, shared).Run();
  }
}

}  // namespace

void LaunchMlaMerge(const MlaAttentionArgs& args, MlaExponent exponent, const Stream& stream,
                    StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, {}, status);
  if (args.plan.merges.empty()) return;
  const int64_t patches = MlaStateRows(kernel_args.tile_rows) / kPatchRows *
                          (MlaStateColumns(kernel_args.store.dims.latent_dim) / kPatchColumns);
  const int64_t items = static_cast<int64_t>(args.plan.merges.size()) * patches;
  const auto merge =
      exponent == MlaExponent::kNatural ? MlaMerge<NaturalExponent> : MlaMerge<Base2Exponent>;
  merge<<<static_cast<unsigned>(std::min(items, kMostCtas)), kMergeWarps * kWarp, 0,
          stream.get()>>>(kernel_args);
  CheckLaunch("MlaMerge");
}

}  // namespace quire::cuda
