// What the ways to merge partials have in common: which item a CTA has, the partials that a row reaches, results.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_MERGE_ITEMS_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_MERGE_ITEMS_CUH_

#include "kernels/cuda/mla_attention/mla_attention_work.cuh"

namespace quire::cuda::merge {

inline constexpr int kWarps = 8;
inline constexpr int32_t kManyPartials = 2 * kWarps;

// Columns of an item, by the number of its partials. Of few each warp has patches of its own.
inline constexpr int kPatches = 4;  // of a warp, beside each other
inline constexpr int32_t kColumns = kPatches * static_cast<int32_t>(kPatchColumns);
// Of many in exact mode: so many patches of partials are in shared memory at once.
inline constexpr int32_t kRoomPatches = 128;
__device__ inline int32_t ChainPatches(int32_t num_partials) {
  return num_partials > kRoomPatches / 2 ? 1 : num_partials > kRoomPatches / 4 ? 2 : 4;
}
template <bool kExact>
__device__ int32_t ItemColumns(int32_t num_partials) {
  if (num_partials < kManyPartials) return kWarps * kColumns;
  return kExact ? ChainPatches(num_partials) * static_cast<int32_t>(kPatchColumns) : kColumns;
}

// What a CTA merges: patches of one row of them.
struct Item {
  bool exists = false;
  Merge merge = {};
  QueryTile tile = {};
  int32_t row = 0;     // the first of its patches'
  int32_t number = 0;  // of those with the same rows
};

// How the items of merges follow each other.
template <bool kExact>
class Items {
 public:
  explicit __device__ Items(const MlaKernelArgs& args)
      : args_(args),
        down_(static_cast<int32_t>(MlaStateRows(args.tile_rows) / kPatchRows)),
        columns_(static_cast<int32_t>(MlaStateColumns(args.store.dims.latent_dim))) {}

  // All lanes of a warp ask together: each counts the items of a merge.
  __device__ Item At(int32_t number) const {
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
    return CeilDiv(columns_, ItemColumns<kExact>(num_partials));
  }
  // `number` is of the merge that `lane` has, whose items end before `end`.
  __device__ Item ItemOf(int32_t number, int lane, Merge merge, int32_t end) const {
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
  const int32_t down_, columns_;  // rows of patches; columns of a state
};

// In exact mode a partial that a row does not reach is left out; otherwise it holds nothing, and folding it
// changes nothing. Not inlined: a merge is short, and waits for its own instructions.
__device__ inline __noinline__ int32_t NumReachedExactly(const MlaKernelArgs& args, QueryTile tile,
                                                         int32_t token, int32_t num_partials) {
  const TokenCount visible = args.plan.Visible(tile.seq, tile.q_begin + TokenCount(token));
  const int32_t num_splits = NumSplits(tile.kv_end, args.plan.work);
  const int32_t first_cut = num_splits - (num_partials - 1);
  const int32_t reached = NumSplits(Min(tile.kv_end, visible), args.plan.work) - first_cut + 1;
  return max(1, min(reached, num_partials));
}

// ---- Results ----

// Two values at once where they lie for it, and the second is there.
template <class T, class Pair>
__device__ void WritePair(T* row, int32_t column, int32_t latent_dim, Pair pair) {
  static_assert(sizeof(Pair) == 2 * sizeof(T));
  const int32_t count = latent_dim - column;
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

// Writes what a tile's row came to: of kCount patches beside each other two sums each, from `column` on.
template <class Exponent, int kCount>
__device__ void WriteRow(const MlaKernelArgs& args, const QueryTile& tile, int32_t row,
                         int32_t column, const float2 (&sums)[kCount], float m, float l) {
  const int64_t token = tile.q_begin.raw() + row / args.num_heads;
  const int32_t head = row % args.num_heads;
  const int32_t latent_dim = args.store.dims.latent_dim;
  const float factor = ShareOfOne(l);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int32_t at = column + i * static_cast<int32_t>(kPatchColumns);
    const float x = sums[i].x * factor, y = sums[i].y * factor;
    if (args.out.is_bf16) {
      WritePair(args.out.Row<Bf16>(token, head), at, latent_dim, PackBf16(x, y));
    } else {
      WritePair(args.out.Row<float>(token, head), at, latent_dim, make_float2(x, y));
    }
  }
  if (column == 0) {
    WriteLse(args, token, head, l == 0.0f ? -INFINITY : Exponent::LogSumExp(m, l));
  }
}

}  // namespace quire::cuda::merge

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_MERGE_ITEMS_CUH_
