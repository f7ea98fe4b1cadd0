// Folds the partials of query tiles that were cut between workers, in ascending order: a CTA per row,
// four columns a thread. The factors of 32 partials are computed at once, a lane each, since maxima
// can be taken in any order; sums run partial after partial, with the next ones already on their way.
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;      // of a thread
constexpr int kRowsAtOnce = 64;  // CTAs of a merge
constexpr int kInFlight = 32;    // partials

template <class Exponent>
class MergeRow {
 public:
  __device__ MergeRow(const MlaKernelArgs& args, const Merge& merge, const RowBlock& block,
                      int32_t row)
      : args_(args),
        merge_(merge),
        block_(block),
        row_(row),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        num_partials_(NumReached()) {}

  __device__ void Run() {
    const int64_t stride = MlaStateStride(args_.store.dims.latent_dim);
    for (int64_t first = 0; first < stride; first += kThreads * kColumns) {
      const int64_t column = first + int64_t{threadIdx.x} * kColumns;
      float4 sum = column < stride ? Load(0, column) : float4{};
      const float2 state = FoldAll([&](int32_t begin, int32_t count, float a, float b) {
        AddPartials(begin, count, a, b, column < stride, column, sum);
      });
      if (column < stride) Write(column, sum, state.y);
      if (first == 0 && threadIdx.x == 0) {
        WriteLse(args_, Token(), block_.HeadOf(row_),
                 state.y == 0.0f ? -INFINITY : Exponent::LogSumExp(state.x, state.y));
      }
    }
  }

 private:
  __device__ int64_t Token() const { return block_.tile.q_begin.raw() + block_.TokenOf(row_); }
  __device__ StateView State(int32_t i) const {
    return StateAt(args_, args_.partials, merge_.first_partial + i);
  }
  __device__ float4 Load(int32_t i, int64_t column) const {
    const StateView state = State(i);
    return *reinterpret_cast<const float4*>(state.o + row_ * state.o_stride + column);
  }

  // In exact mode a partial that the row does not reach is left out. Otherwise it holds nothing, and
  // folding it changes nothing.
  __device__ int32_t NumReached() const {
    if (!args_.plan.work.exact) return merge_.num_partials;
    const int32_t num_splits = NumSplits(block_.tile.kv_end, args_.plan.work);
    const int32_t first_cut = num_splits - (merge_.num_partials - 1);
    const int32_t visible = block_.VisibleTo(args_, block_.TokenOf(row_));
    const int32_t reached = NumSplits(TokenCount(visible), args_.plan.work) - first_cut + 1;
    return max(1, min(reached, merge_.num_partials));
  }

  // Calls step(begin, count, a, b) for partials [begin, begin + count) with the factors of each: of
  // what was summed before it (a) and its own (b), those of partial begin + i in lane i. Returns m
  // and l. All lanes of a warp call this.
  template <class Step>
  __device__ float2 FoldAll(Step step) const {
    const StateView first = State(0);
    float m = first.m[row_], l = first.l[row_];
    float2 next = MaximumAndSum(1 + lane_);
    for (int32_t begin = 1; begin < num_partials_; begin += kWarp) {
      const int32_t count = min(kWarp, num_partials_ - begin);
      const float later_m = next.x, later_l = next.y;
      next = MaximumAndSum(begin + kWarp + lane_);  // on its way while these are folded
      const float top = fmaxf(m, MaximumUpTo(later_m));
      const float above = __shfl_up_sync(kAllLanes, top, 1);
      const float a = Exponent::Exp((lane_ == 0 ? m : above) - Anchor(top));
      const float b = Exponent::Exp(later_m - Anchor(top));
      step(begin, count, a, b);
      const float share = __fmul_rn(b, later_l);
      for (int32_t i = 0; i < count; ++i) {
        l = __fmaf_rn(__shfl_sync(kAllLanes, a, i), l, __shfl_sync(kAllLanes, share, i));
      }
      m = __shfl_sync(kAllLanes, top, count - 1);
    }
    return {m, l};
  }

  // m and l of a partial; nothing behind the last.
  __device__ float2 MaximumAndSum(int32_t i) const {
    if (i >= num_partials_) return {-INFINITY, 0.0f};
    const StateView state = State(i);
    return {state.m[row_], state.l[row_]};
  }

  // Of the lanes up to and with this one.
  __device__ float MaximumUpTo(float value) const {
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const float before = __shfl_up_sync(kAllLanes, value, distance);
      if (lane_ >= distance) value = fmaxf(value, before);
    }
    return value;
  }

  __device__ void AddPartials(int32_t begin, int32_t count, float a, float b, bool loads,
                              int64_t column, float4& sum) const {
    for (int32_t i = 0; i < count; i += kInFlight) {
      float4 later[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (loads && i + j < count) later[j] = Load(begin + i + j, column);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (i + j >= count) break;  // the same for all lanes
        const Fold fold{.a = __shfl_sync(kAllLanes, a, i + j),
                        .b = __shfl_sync(kAllLanes, b, i + j)};
        sum.x = fold.Sum(sum.x, later[j].x);
        sum.y = fold.Sum(sum.y, later[j].y);
        sum.z = fold.Sum(sum.z, later[j].z);
        sum.w = fold.Sum(sum.w, later[j].w);
      }
    }
  }

  __device__ void Write(int64_t column, const float4& sum, float l) const {
    const float sums[kColumns] = {sum.x, sum.y, sum.z, sum.w};
    const float factor = ShareOfOne(l);
    for (int i = 0; i < kColumns && column + i < args_.store.dims.latent_dim; ++i) {
      const float value = sums[i] * factor;
      if (args_.out.is_bf16) {
        args_.out.Row<Bf16>(Token(), block_.HeadOf(row_))[column + i] = ToBf16(value);
      } else {
        args_.out.Row<float>(Token(), block_.HeadOf(row_))[column + i] = value;
      }
    }
  }

  const MlaKernelArgs& args_;
  const Merge& merge_;
  const RowBlock& block_;
  const int32_t row_;
  const int lane_;
  const int32_t num_partials_;  // that the row reaches
};

// CTA x, y: merge x, rows y, y + kRowsAtOnce, ...
template <class Exponent>
__global__ void __launch_bounds__(kThreads) MlaMerge(const __grid_constant__ MlaKernelArgs args) {
  if (static_cast<int32_t>(blockIdx.x) >= args.plan.counts->num_merges) return;
  const Merge merge = args.plan.merges[blockIdx.x];
  if (merge.first_partial + merge.num_partials > args.max_partials) {
    if (threadIdx.x == 0 && blockIdx.y == 0) {
      Report(args.status, DeviceFault::kCapacity, Launch::kMlaMerge,
             static_cast<uint32_t>(merge.first_partial + merge.num_partials - 1));
    }
    return;
  }
  const RowBlock block = RowBlock::Of(args, args.plan.tiles[merge.tile], 0, args.tile_rows);
  if (block.tile.q_begin.raw() + block.tile.q_count > args.num_tokens) return;
  for (int32_t row = static_cast<int32_t>(blockIdx.y); row < block.num_rows; row += kRowsAtOnce) {
    MergeRow<Exponent>(args, merge, block, row).Run();
  }
}

}  // namespace

void LaunchMlaMerge(const MlaAttentionArgs& args, MlaExponent exponent, const Stream& stream,
                    StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, {}, status);
  if (args.plan.merges.empty()) return;
  const dim3 grid(static_cast<unsigned>(args.plan.merges.size()),
                  static_cast<unsigned>(min(kernel_args.tile_rows, kRowsAtOnce)));
  if (exponent == MlaExponent::kNatural) {
    MlaMerge<NaturalExponent><<<grid, kThreads, 0, stream.get()>>>(kernel_args);
  } else {
    MlaMerge<Base2Exponent><<<grid, kThreads, 0, stream.get()>>>(kernel_args);
  }
  CheckLaunch("MlaMerge");
}

}  // namespace quire::cuda
