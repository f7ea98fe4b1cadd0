// Folds the partials of query tiles that were cut between workers. A warp has some patches of the states, and folds
// partials in ascending order. Of many partials each warp of a CTA has a range, and what they have is folded in the
// end, in ascending order too. In exact mode every partial is folded by itself, so that bits are those of a worker
// that had the tile alone: many of them as chains (mla_attention_merge_chains.cuh).
#include <algorithm>

#include "base/maths.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_merge_chains.cuh"
#include "kernels/cuda/mla_attention/mla_attention_merge_items.cuh"

namespace quire::cuda {
namespace merge {
namespace {

constexpr int kAtOnce = 4;              // partials that are under way
constexpr int64_t kMostCtas = 2 * 132;  // that fit on the device at once

// What a row's partials come to, so far: of the two rows that a lane has.
struct RowState {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
};
// The four sums that a lane has of each patch.
struct PatchSums {
  float4 of[kPatches];
};

struct SharedMerge {
  PatchSums sums[kWarps][kWarp];
  RowState states[kWarps][kWarp];
};

template <class Exponent, bool kExact>
class MergePatches {
 public:
  __device__ MergePatches(const MlaKernelArgs& args, const Item& item, SharedMerge* shared)
      : args_(args),
        tile_(item.tile),
        num_rows_(item.tile.q_count * args.num_heads),
        shared_(shared),
        num_partials_(item.merge.num_partials),
        shares_(!kExact && num_partials_ >= kManyPartials),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        row_(item.row),
        column_((shares_ ? item.number : item.number * kWarps + warp_) * kColumns),
        stride_(static_cast<int32_t>(MlaStateFloats(args.tile_rows, args.store.dims.latent_dim))) {
    const StateView first = StateAt(args, args.partials, item.merge.first_partial);
    m_ = first.m + RowOf(0);
    l_ = first.l + RowOf(0);
    first_sums_ = &first.Sums(row_, column_, lane_);
  }

  // All threads of a CTA call this.
  __device__ void Run() {
    const int32_t share = shares_ ? CeilDiv(num_partials_, kWarps) : num_partials_;
    const int32_t begin = shares_ ? warp_ * share : 0;
    for (float4& sums : sums_.of) sums = {-0.0f, -0.0f, -0.0f, -0.0f};  // times 0 and x: x
    if (column_ < static_cast<int32_t>(MlaStateColumns(args_.store.dims.latent_dim))) {
      FoldPartials(begin, min(begin + share, num_partials_));
    }
    if (!shares_) {
      Write(0, sums_.of);
      return;
    }
    shared_->sums[warp_][lane_] = sums_;
    shared_->states[warp_][lane_] = state_;
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
    if (!kExact || !HasRow(which)) return num_partials_;
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
    float4 sums[1] = {shared_->sums[0][lane_].of[warp_]};
    state_ = shared_->states[0][lane_];
#pragma unroll 1
    for (int32_t range = 1; range < num_ranges; ++range) {
      const RowState later = shared_->states[range][lane_];
      const Fold folds[2] = {FoldOf(0, later, true), FoldOf(1, later, true)};
      Add(folds, shared_->sums[range][lane_].of[warp_], sums[0]);
    }
    Write(warp_, sums);
  }

  // Writes kCount patches from `patch` on, as results.
  template <int kCount>
  __device__ void Write(int patch, const float4 (&sums)[kCount]) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (!HasRow(which)) return;
      float2 pairs[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        pairs[i] =
            which == 0 ? make_float2(sums[i].x, sums[i].y) : make_float2(sums[i].z, sums[i].w);
      }
      WriteRow<Exponent>(args_, tile_, RowOf(which), ColumnOf(patch), pairs, state_.m[which],
                         state_.l[which]);
    }
  }

  const MlaKernelArgs& args_;
  const QueryTile tile_;
  const int32_t num_rows_;     // of the tile
  SharedMerge* const shared_;  // where warps have ranges
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

template <class Exponent, bool kExact>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    MlaMerge(const __grid_constant__ MlaKernelArgs args) {
  TakeTurn();  // it is not launched ahead and waits for nobody, but the next kernel may be placed
  std::byte* const memory = LaunchedShared<16>();
  const Items<kExact> items(args);
  int32_t number = static_cast<int32_t>(blockIdx.x);
  for (Item item = items.At(number); item.exists; item = items.At(number)) {
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
    if (kExact && item.merge.num_partials >= kManyPartials) {
      MergeChains<Exponent>(args, item, *reinterpret_cast<SharedChains*>(memory)).Run();
    } else {
      MergePatches<Exponent, kExact>(args, item, reinterpret_cast<SharedMerge*>(memory)).Run();
    }
  }
}

template <class Exponent, bool kExact>
void LaunchMerge(const MlaKernelArgs& args, const Stream& stream) {
  constexpr int kBytes = static_cast<int>(kExact ? sizeof(SharedChains) : sizeof(SharedMerge));
  const auto kernel = MlaMerge<Exponent, kExact>;
  if (kExact) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "MlaMerge: shared memory");
  }
  const int64_t patches = MlaStateRows(args.tile_rows) / kPatchRows *
                          (MlaStateColumns(args.store.dims.latent_dim) / kPatchColumns);
  const int64_t items = static_cast<int64_t>(args.plan.merges.size()) * patches;
  LaunchInTurn("MlaMerge", kernel,
               {.grid = dim3(static_cast<unsigned>(std::min(items, kMostCtas))),
                .block = dim3(kWarps * kWarp),
                .shared_bytes = kBytes},
               stream, args);
}

}  // namespace
}  // namespace merge

void LaunchMlaMerge(const MlaAttentionArgs& args, MlaExponent exponent, const Stream& stream,
                    StatusWord status) {
  using namespace merge;
  if (args.plan.merges.empty()) return;
  const bool is_base2 = exponent == MlaExponent::kBase2;
  const auto launch =
      args.plan.work.exact
          ? (is_base2 ? LaunchMerge<Base2Exponent, true> : LaunchMerge<NaturalExponent, true>)
          : (is_base2 ? LaunchMerge<Base2Exponent, false> : LaunchMerge<NaturalExponent, false>);
  launch(KernelArgsOf(args, {}, status), stream);
}

}  // namespace quire::cuda
