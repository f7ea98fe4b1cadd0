// Latent attention for any shape and type, in f32: one fused multiply-add per value, ascending, in
// one thread, as on the CPU. A CTA runs kRows rows of a piece; keys come 64 at a time, 32 values of
// them at a time through shared memory.
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"

namespace quire::cuda {
namespace {

constexpr int kRows = 8;  // their sums fit shared memory up to 4096 values a row
constexpr int kPlainThreads = 256;
constexpr int kChunk = 32;  // values of a key that are staged at once
constexpr int kPairs = kRows * kTileKeys / kPlainThreads;  // (row, key) pairs of a thread

struct SharedPlain {
  float keys[kTileKeys][kChunk + 1];  // one more, so that a column's words lie in different banks
  float q[kRows][kChunk];
  float p[kRows][kTileKeys];  // scores, then weights
  float m[kRows], l[kRows], alpha[kRows];
  int32_t visible[kRows];
  int32_t count[kRows];  // keys of the pass that the row sees
  int64_t slots[kTileKeys];
};

// Value i of a latent row, as the store returns it.
__device__ float ValueAt(const StoreView& store, const uint8_t* row, int32_t i) {
  if (store.format == KvFormat::kLatentF32) return reinterpret_cast<const float*>(row)[i];
  if (store.format == KvFormat::kLatentBf16) {
    return ToFloat(reinterpret_cast<const Bf16*>(row)[i]);
  }
  if (i < store.dims.latent_dim) {
    return __fmul_rn(ToFloat(Fp8E4m3{row[i]}),
                     LoadScale(row + store.parts[1].begin, i / kFp8ScaleGroup));
  }
  return ToFloat(
      reinterpret_cast<const Bf16*>(row + store.parts[2].begin)[i - store.dims.latent_dim]);
}

class PlainRun {
 public:
  __device__ PlainRun(const MlaKernelArgs& args, const Piece& piece, int32_t row_begin,
                      SharedPlain& shared, float* o)
      : args_(args),
        piece_(piece),
        block_(RowBlock::Of(args, piece.tile, row_begin, kRows)),
        shared_(shared),
        o_(o),
        latent_dim_(args.store.dims.latent_dim),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void Run(int32_t worker) {
    if (thread_ < kRows) {
      shared_.visible[thread_] =
          thread_ < block_.num_rows ? block_.VisibleTo(args_, block_.TokenOf(thread_)) : 0;
    }
    const int32_t split_keys = static_cast<int32_t>(args_.plan.work.split.raw());
    const StateView folded = StateAt(args_, args_.folded, worker);
    const int32_t step = piece_.Step(args_.plan.work);
    for (int32_t split = piece_.first; split < piece_.last; split += step) {
      Reset();
      RunSplit(split * split_keys, step * split_keys);
      if (piece_.first > 0) {
        StorePartial(piece_.partial + split - piece_.first);
        continue;
      }
      if (split > 0) FoldInto(folded, split * split_keys);
      if (split + step < piece_.last) Store(folded);
    }
    if (piece_.first > 0) return;
    if (piece_.last < piece_.num_splits) {
      StorePartial(piece_.partial);
    } else {
      Write();
    }
  }

 private:
  __device__ void Reset() {
    if (thread_ < kRows) {
      shared_.m[thread_] = -INFINITY;
      shared_.l[thread_] = 0.0f;
    }
    for (int32_t i = thread_; i < kRows * latent_dim_; i += kPlainThreads) o_[i] = 0.0f;
    __syncthreads();
  }

  __device__ void RunSplit(int32_t begin, int32_t split_keys) {
    const int32_t end = min(begin + split_keys, block_.kv_end);
    for (Pass pass = block_.PassAt(begin); pass.key < end; pass = block_.Next(pass)) {
      Prepare(pass, min(end, pass.key + kTileKeys));
      Score();
      Softmax();
      AddValues();
    }
  }

  // Slots of the pass, and how many of its keys each row sees.
  __device__ void Prepare(Pass pass, int32_t end) {
    const int32_t limit =
        pass.token == kAllTokens ? end : min(end, block_.VisibleTo(args_, pass.token));
    if (thread_ < kTileKeys) shared_.slots[thread_] = block_.SlotOf(args_, pass, thread_, limit);
    if (thread_ < kRows) {
      const bool takes_part = thread_ >= block_.FirstRow(pass) && thread_ < block_.EndRow(pass);
      const int32_t seen = min(limit, shared_.visible[thread_]) - pass.key;
      shared_.count[thread_] = takes_part ? max(0, seen) : 0;
    }
    __syncthreads();
  }

  __device__ void StageChunk(int32_t begin, int32_t n) {
    for (int e = thread_; e < kTileKeys * kChunk; e += kPlainThreads) {
      const int key = e / kChunk, i = begin + e % kChunk;
      const int64_t slot = shared_.slots[key];
      shared_.keys[key][e % kChunk] =
          slot >= 0 && i < n ? ValueAt(args_.store, args_.store.LatentRow(slot), i) : 0.0f;
    }
    for (int e = thread_; e < kRows * kChunk; e += kPlainThreads) {
      const int row = e / kChunk, i = begin + e % kChunk;
      shared_.q[row][e % kChunk] = row < block_.num_rows && i < n ? QueryAt(row, i) : 0.0f;
    }
  }

  __device__ float QueryAt(int row, int32_t i) const {
    const int64_t token = piece_.tile.q_begin.raw() + block_.TokenOf(row);
    const int32_t head = block_.HeadOf(row);
    return args_.q.is_bf16 ? ToFloat(args_.q.Row<Bf16>(token, head)[i])
                           : args_.q.Row<float>(token, head)[i];
  }

  // Dots run over all values ascending; zeros behind the last one change no sum.
  __device__ void Score() {
    const int32_t n = args_.store.dims.latent_dim + args_.store.dims.rope_dim;
    const int key = thread_ % kTileKeys, first_row = thread_ / kTileKeys;
    float dot[kPairs] = {};
    for (int32_t begin = 0; begin < n; begin += kChunk) {
      StageChunk(begin, n);
      __syncthreads();  // the chunk is whole
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const int row = first_row + pair * (kPlainThreads / kTileKeys);
          dot[pair] = __fmaf_rn(shared_.q[row][i], shared_.keys[key][i], dot[pair]);
        }
      }
      __syncthreads();  // nobody reads it any more
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      shared_.p[first_row + pair * (kPlainThreads / kTileKeys)][key] =
          __fmul_rn(args_.scale, dot[pair]);
    }
    __syncthreads();
  }

  // Scores become weights; m is raised, l summed in the order of the keys.
  __device__ void Softmax() {
    if (thread_ < kRows) {
      float top = shared_.m[thread_];
      for (int k = 0; k < shared_.count[thread_]; ++k) top = fmaxf(top, shared_.p[thread_][k]);
      const float factor = expf(shared_.m[thread_] - Anchor(top));
      shared_.alpha[thread_] = shared_.count[thread_] > 0 ? factor : 1.0f;
      shared_.m[thread_] = top;
    }
    __syncthreads();
    for (int e = thread_; e < kRows * kTileKeys; e += kPlainThreads) {
      const int row = e / kTileKeys, key = e % kTileKeys;
      if (key >= shared_.count[row]) continue;
      shared_.p[row][key] = expf(shared_.p[row][key] - Anchor(shared_.m[row]));
    }
    __syncthreads();
    if (thread_ < kRows) {
      float sum = __fmul_rn(shared_.alpha[thread_], shared_.l[thread_]);
      for (int k = 0; k < shared_.count[thread_]; ++k) sum += shared_.p[thread_][k];
      shared_.l[thread_] = sum;
    }
  }

  // A key that a row does not see is left out: 0 times a value that is not finite is not 0.
  __device__ void AddValues() {
    int32_t most = 0;
    for (int row = 0; row < kRows; ++row) most = max(most, shared_.count[row]);
    for (int32_t column = thread_; column < latent_dim_; column += kPlainThreads) {
      float sum[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        sum[row] = __fmul_rn(shared_.alpha[row], o_[row * latent_dim_ + column]);
      }
      for (int32_t k = 0; k < most; ++k) {
        const float value = ValueAt(args_.store, args_.store.LatentRow(shared_.slots[k]), column);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          if (k < shared_.count[row]) sum[row] = __fmaf_rn(shared_.p[row][k], value, sum[row]);
        }
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) o_[row * latent_dim_ + column] = sum[row];
    }
    __syncthreads();  // before the next pass changes counts, slots and weights
  }

  __device__ void Store(const StateView& to) {
    for (int32_t e = thread_; e < block_.num_rows * latent_dim_; e += kPlainThreads) {
      const int32_t row = e / latent_dim_;
      to.Sum(block_.row_begin + row, e % latent_dim_) = o_[e];
    }
    if (thread_ < block_.num_rows) {
      to.m[block_.row_begin + thread_] = shared_.m[thread_];
      to.l[block_.row_begin + thread_] = shared_.l[thread_];
    }
    __syncthreads();  // before Reset
  }

  __device__ void StorePartial(int64_t index) {
    if (index < args_.max_partials) {
      Store(StateAt(args_, args_.partials, index));
    } else if (thread_ == 0) {
      Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
             static_cast<uint32_t>(index));
    }
  }

  // The state at hand becomes `earlier` and itself folded; rows that do not reach the split, which
  // begins at `begin`, keep the earlier one as it is.
  __device__ void FoldInto(const StateView& earlier, int32_t begin) {
    for (int32_t e = thread_; e < block_.num_rows * latent_dim_; e += kPlainThreads) {
      const int32_t row = e / latent_dim_, at = block_.row_begin + row;
      const float before = earlier.Sum(at, e % latent_dim_);
      const Fold fold =
          Fold::Of<NaturalExponent>(earlier.m[at], earlier.l[at], shared_.m[row], shared_.l[row]);
      o_[e] = begin < shared_.visible[row] ? fold.Sum(before, o_[e]) : before;
    }
    __syncthreads();  // m and l were read by all
    if (thread_ < block_.num_rows) {
      const int32_t at = block_.row_begin + thread_;
      const Fold fold = Fold::Of<NaturalExponent>(earlier.m[at], earlier.l[at], shared_.m[thread_],
                                                  shared_.l[thread_]);
      const bool reaches = begin < shared_.visible[thread_];
      shared_.m[thread_] = reaches ? fold.m : earlier.m[at];
      shared_.l[thread_] = reaches ? fold.l : earlier.l[at];
    }
    __syncthreads();
  }

  __device__ void Write() {
    for (int32_t e = thread_; e < block_.num_rows * latent_dim_; e += kPlainThreads) {
      const int32_t row = e / latent_dim_, column = e % latent_dim_;
      const int64_t token = piece_.tile.q_begin.raw() + block_.TokenOf(row);
      const float value = o_[e] * ShareOfOne(shared_.l[row]);
      if (args_.out.is_bf16) {
        args_.out.Row<Bf16>(token, block_.HeadOf(row))[column] = ToBf16(value);
      } else {
        args_.out.Row<float>(token, block_.HeadOf(row))[column] = value;
      }
    }
    if (thread_ < block_.num_rows) {
      const float l = shared_.l[thread_];
      WriteLse(args_, piece_.tile.q_begin.raw() + block_.TokenOf(thread_), block_.HeadOf(thread_),
               l == 0.0f ? -INFINITY : NaturalExponent::LogSumExp(shared_.m[thread_], l));
    }
    __syncthreads();  // before the next piece
  }

  const MlaKernelArgs& args_;
  const Piece& piece_;
  const RowBlock block_;
  SharedPlain& shared_;
  float* o_;  // [kRows, latent_dim]
  int32_t latent_dim_;
  int thread_;
};

// CTA x, y: worker x, rows [kRows y, kRows (y + 1)) of every tile.
__global__ void __launch_bounds__(kPlainThreads)
    MlaPlain(const __grid_constant__ MlaKernelArgs args) {
  TakeTurn();
  __shared__ SharedPlain shared;
  auto* const o = reinterpret_cast<float*>(LaunchedShared<16>());
  const int32_t worker = static_cast<int32_t>(blockIdx.x);
  const int32_t row_begin = static_cast<int32_t>(blockIdx.y) * kRows;
  ForEachPiece(args.plan, worker, [&](const Piece& piece) {
    if (row_begin >= piece.tile.q_count * args.num_heads) return;
    if (piece.tile.q_begin.raw() + piece.tile.q_count > args.num_tokens) return;
    PlainRun(args, piece, row_begin, shared, o).Run(worker);
  });
}

}  // namespace

void LaunchMlaPlain(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                    StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, lists, status);
  const size_t bytes = size_t{4 * kRows} * static_cast<size_t>(kernel_args.store.dims.latent_dim);
  Check(cudaFuncSetAttribute(MlaPlain, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "MlaPlain: shared memory");
  const dim3 grid(static_cast<unsigned>(args.plan.work.num_workers),
                  static_cast<unsigned>(CeilDiv(kernel_args.tile_rows, kRows)));
  LaunchAhead("MlaPlain", MlaPlain, {grid, kPlainThreads, static_cast<size_t>(bytes)}, stream,
              kernel_args);
}

}  // namespace quire::cuda
