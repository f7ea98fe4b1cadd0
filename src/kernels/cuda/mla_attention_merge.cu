// Folds the partials of query tiles that were cut between workers: a warp per row, in ascending
// order, a partial that the row does not reach skipped.
#include "kernels/cuda/mla_attention_work.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarpsPerCta = 4;

template <class Exponent>
class MergeRow {
 public:
  __device__ MergeRow(const MlaKernelArgs& args, const Merge& merge, const RowBlock& block,
                      int32_t row)
      : args_(args),
        merge_(merge),
        block_(block),
        row_(row),
        visible_(block.VisibleTo(args, block.TokenOf(row))) {
    first_cut_ = NumSplits(block.tile.kv_end, args.plan.work) - (merge.num_partials - 1);
  }

  __device__ void Run(int lane) {
    const int32_t latent_dim = args_.store.dims.latent_dim;
    for (int32_t column = lane; column < latent_dim; column += kWarp) WriteColumn(column);
    if (lane == 0) {
      const float2 state = FoldAll([](const Fold&, const StateView&) {});
      WriteLse(args_, Token(), block_.HeadOf(row_),
               state.y == 0.0f ? -INFINITY : Exponent::LogSumExp(state.x, state.y));
    }
  }

 private:
  __device__ int64_t Token() const { return block_.tile.q_begin.raw() + block_.TokenOf(row_); }

  // Calls step(fold, later) for every partial the row reaches; returns m and l.
  template <class Step>
  __device__ float2 FoldAll(Step step) const {
    const StateView first = StateAt(args_, args_.partials, merge_.first_partial);
    float m = first.m[row_], l = first.l[row_];
    const int32_t split_keys = static_cast<int32_t>(args_.plan.work.split.raw());
    for (int32_t i = 1; i < merge_.num_partials; ++i) {
      if ((first_cut_ + i - 1) * split_keys >= visible_) break;  // nor any later one
      const StateView later = StateAt(args_, args_.partials, merge_.first_partial + i);
      const Fold fold = Fold::Of<Exponent>(m, l, later.m[row_], later.l[row_]);
      step(fold, later);
      m = fold.m;
      l = fold.l;
    }
    return {m, l};
  }

  __device__ void WriteColumn(int32_t column) const {
    const StateView first = StateAt(args_, args_.partials, merge_.first_partial);
    float sum = first.o[row_ * first.o_stride + column];
    const float2 state = FoldAll([&](const Fold& fold, const StateView& later) {
      sum = fold.Sum(sum, later.o[row_ * later.o_stride + column]);
    });
    const float value = state.y == 0.0f ? 0.0f : __fdiv_rn(sum, state.y);
    if (args_.out.is_bf16) {
      args_.out.Row<Bf16>(Token(), block_.HeadOf(row_))[column] = ToBf16(value);
    } else {
      args_.out.Row<float>(Token(), block_.HeadOf(row_))[column] = value;
    }
  }

  const MlaKernelArgs& args_;
  const Merge& merge_;
  const RowBlock& block_;
  int32_t row_;
  int32_t visible_;
  int32_t first_cut_;  // the first split that is a partial of its own
};

// CTA x, y: merge x, rows from kWarpsPerCta y on.
template <class Exponent>
__global__ void MlaMerge(const __grid_constant__ MlaKernelArgs args) {
  if (static_cast<int32_t>(blockIdx.x) >= args.plan.counts->num_merges) return;
  const Merge merge = args.plan.merges[blockIdx.x];
  const int32_t row = static_cast<int32_t>(blockIdx.y * kWarpsPerCta + threadIdx.x / kWarp);
  if (merge.first_partial + merge.num_partials > args.max_partials) {
    if (threadIdx.x == 0 && blockIdx.y == 0) {
      Report(args.status, DeviceFault::kCapacity, Launch::kMlaMerge,
             static_cast<uint32_t>(merge.first_partial + merge.num_partials - 1));
    }
    return;
  }
  const RowBlock block = RowBlock::Of(args, args.plan.tiles[merge.tile], 0, args.tile_rows);
  if (row >= block.num_rows) return;
  if (block.tile.q_begin.raw() + block.tile.q_count > args.num_tokens) return;
  MergeRow<Exponent>(args, merge, block, row).Run(static_cast<int>(threadIdx.x % kWarp));
}

}  // namespace

void LaunchMlaMerge(const MlaAttentionArgs& args, MlaExponent exponent, const Stream& stream,
                    StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, status);
  if (kernel_args.plan.max_merges == 0) return;
  const dim3 grid(static_cast<unsigned>(kernel_args.plan.max_merges),
                  static_cast<unsigned>(CeilDiv(kernel_args.tile_rows, kWarpsPerCta)));
  if (exponent == MlaExponent::kNatural) {
    MlaMerge<NaturalExponent><<<grid, kWarpsPerCta * kWarp, 0, stream.get()>>>(kernel_args);
  } else {
    MlaMerge<Base2Exponent><<<grid, kWarpsPerCta * kWarp, 0, stream.get()>>>(kernel_args);
  }
  CheckLaunch("MlaMerge");
}

}  // namespace quire::cuda
