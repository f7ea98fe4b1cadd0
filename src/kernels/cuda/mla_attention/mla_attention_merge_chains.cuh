// Many partials in exact mode: they fold one behind the other, and a sum is a chain of as many multiply-adds. What a
// step of it multiplies with is known without sums: from maxima alone, which may be gone over in any order. So a CTA
// has all partials of few columns under way at once, meanwhile computes every step's factors, and then each thread
// has a chain that waits for nothing but itself.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_MERGE_CHAINS_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_MERGE_CHAINS_CUH_

#include "kernels/cuda/mla_attention/mla_attention_merge_items.cuh"

namespace quire::cuda::merge {

struct SharedChains {
  static constexpr int kRows = static_cast<int>(kPatchRows);
  // A thread that reads a row's has others beside it that read the next row's, or the eighth behind it.
  static constexpr int kPitch = kRoomPatches + 1;

  float4 sums[kRoomPatches][kWarp];  // partial by partial
  float2 factors[kRows][kPitch];     // of a partial: m as .x; then a and b of its fold
  float l[kRows][kPitch];
  float m[kRows];  // of all partials so far
};

template <class Exponent>
class MergeChains {
 public:
  __device__ MergeChains(const MlaKernelArgs& args, const Item& item, SharedChains& shared)
      : args_(args),
        tile_(item.tile),
        shared_(shared),
        num_partials_(item.merge.num_partials),
        num_patches_(ChainPatches(num_partials_)),
        first_row_(item.row),
        num_rows_(item.tile.q_count * args.num_heads - item.row),
        first_column_(item.number * num_patches_ * static_cast<int32_t>(kPatchColumns)),
        stride_(MlaStateFloats(args.tile_rows, args.store.dims.latent_dim)),
        first_(StateAt(args, args.partials, item.merge.first_partial)),
        thread_(static_cast<int>(threadIdx.x)),
        row_(thread_ % kPairs / 2 / 4 + thread_ % 2 * 8),
        column_(first_column_ + thread_ / kPairs * static_cast<int32_t>(kPatchColumns) +
                thread_ % kPairs / 2 % 4 * 2) {}

  // All threads of a CTA call this.
  __device__ void Run() {
    const int32_t at_once = kRoomPatches / num_patches_;
    int32_t reached[kWarpRows] = {};
    for (int32_t begin = 0; begin < num_partials_; begin += at_once) {
      const int32_t count = min(at_once, num_partials_ - begin);
      __syncthreads();  // what is there was read
      CopyStatistics(begin, count);
      CommitCopies();
      CopySums(begin, count);
      CommitCopies();
      if (begin == 0) FindReach(reached);
      WaitForCopies<1>();
      __syncthreads();  // statistics are there
#pragma unroll
      for (int which = 0; which < kWarpRows; ++which) {
        if (WarpRow(which) < num_rows_) MakeFactors(which, count, reached[which] - begin);
      }
      WaitForCopies<0>();
      __syncthreads();  // sums and factors are there
      if (HasChain()) FoldSums(count);
    }
    if (!HasChain()) return;
    const float2 sums[1] = {sums_};
    WriteRow<Exponent>(args_, tile_, first_row_ + row_, column_, sums, shared_.m[row_], l_);
  }

 private:
  using State = SharedChains;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kPairs = 2 * kWarp;  // of sums of a row beside each other, that a patch has
  static constexpr int kWarpRows = State::kRows / kWarps;  // whose factors a warp computes
  static constexpr int kRounds = kRoomPatches / kWarp;

  __device__ int32_t WarpRow(int which) const { return thread_ / kWarp * kWarpRows + which; }
  __device__ bool HasChain() const {
    return thread_ < num_patches_ * kPairs && row_ < num_rows_ &&
           column_ < args_.store.dims.latent_dim;
  }

  // ---- What partials hold ----

  __device__ void CopyStatistics(int32_t begin, int32_t count) const {
    const int32_t row = thread_ % State::kRows;
    if (row >= num_rows_) return;
    for (int32_t i = thread_ / State::kRows; i < count; i += kThreads / State::kRows) {
      const int64_t from = (begin + i) * stride_ + first_row_ + row;
      Copy4(&shared_.factors[row][i].x, first_.m + from);
      Copy4(&shared_.l[row][i], first_.l + from);
    }
  }
  static __device__ void Copy4(float* to, const float* from) {
    CopyAsync4(SharedAddress(to), reinterpret_cast<const std::byte*>(from), 4);
  }
  // A warp has one of the patches, of every few partials. Rows and columns that there are not are not copied, and
  // nobody folds them.
  __device__ void CopySums(int32_t begin, int32_t count) const {
    const int32_t lane = thread_ % kWarp, warp = thread_ / kWarp;
    const int32_t patch = warp % num_patches_;
    const int32_t column = first_column_ + patch * static_cast<int32_t>(kPatchColumns);
    if (lane / 4 >= num_rows_ || column + lane % 4 * 2 >= args_.store.dims.latent_dim) return;
    const float4* first = &first_.Sums(first_row_, column, lane);
    for (int32_t i = warp / num_patches_; i < count; i += kWarps / num_patches_) {
      CopyAsync16(SharedAddress(&shared_.sums[i * num_patches_ + patch][lane]),
                  reinterpret_cast<const std::byte*>(first + (begin + i) * (stride_ / 4)), 16);
    }
  }

  // ---- Factors ----

  __device__ void FindReach(int32_t (&reached)[kWarpRows]) const {
#pragma unroll
    for (int which = 0; which < kWarpRows; ++which) {
      if (WarpRow(which) >= num_rows_) continue;
      const int32_t token = (first_row_ + WarpRow(which)) / args_.num_heads;
      reached[which] = NumReachedExactly(args_, tile_, token, num_partials_);
    }
  }
  // Of the first `count` partials in shared memory, of which the row reaches `reached`. A warp has a row, a lane a
  // partial: what the maximum was before it the lanes before it know.
  __device__ void MakeFactors(int which, int32_t count, int32_t reached) {
    const int32_t row = WarpRow(which), lane = thread_ % kWarp;
    float later[kRounds], m[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int32_t i = round * kWarp + lane;
      later[round] = i < min(count, reached) ? shared_.factors[row][i].x : -INFINITY;
      m[round] = later[round];
    }
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const float before = __shfl_up_sync(kAllLanes, m[round], distance);
        if (lane >= distance) m[round] = fmaxf(before, m[round]);
      }
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int32_t i = round * kWarp + lane;
      const float all = fmaxf(top_[which], m[round]);
      float earlier = __shfl_up_sync(kAllLanes, all, 1);
      if (lane == 0) earlier = top_[which];
      top_[which] = __shfl_sync(kAllLanes, all, kWarp - 1);
      if (i >= count) continue;
      // Without l, which is a chain like a sum. Folded with nothing sums, and their signs, stay as they are.
      const Fold fold = Fold::Of<Exponent>(earlier, 0.0f, later[round], 0.0f);
      shared_.factors[row][i] =
          i < reached ? make_float2(fold.a, fold.b) : make_float2(1.0f, -0.0f);
      if (i >= reached) shared_.l[row][i] = 0.0f;
    }
    if (lane == 0) shared_.m[row] = top_[which];
  }

  // ---- Chains ----

  __device__ void FoldSums(int32_t count) {
    const float2* sums = reinterpret_cast<const float2*>(shared_.sums) + thread_;
    const int32_t step = num_patches_ * kPairs;
#pragma unroll 16
    for (int32_t i = 0; i < count; ++i) {
      const float2 factors = shared_.factors[row_][i], later = sums[i * step];
      const Fold fold{.a = factors.x, .b = factors.y};
      sums_.x = fold.Sum(sums_.x, later.x);
      sums_.y = fold.Sum(sums_.y, later.y);
      l_ = fold.Sum(l_, shared_.l[row_][i]);
    }
  }

  const MlaKernelArgs& args_;
  const QueryTile tile_;
  SharedChains& shared_;
  const int32_t num_partials_, num_patches_;
  const int32_t first_row_, num_rows_;  // of the patches; those that the tile has from it on
  const int32_t first_column_;
  const int64_t stride_;   // from a partial to the next
  const StateView first_;  // partial
  const int thread_;
  // What the thread has a chain of, if it has one: two columns of a row of the patches.
  const int32_t row_, column_;
  float2 sums_ = {-0.0f, -0.0f};  // times 0 and x: x
  float l_ = 0.0f;
  float top_[kWarpRows] = {-INFINITY, -INFINITY};  // of rows whose factors the warp computes
};

}  // namespace quire::cuda::merge

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_MERGE_CHAINS_CUH_
