// Latent attention by products of a warp, for rows of 512 + 64 values: of up to 16 query rows over bf16
// keys, and of any number over fp8 keys; the warpgroup kernel has the rest. A CTA of eight warps runs up
// to 64 rows of a piece. Where those are 16, two CTAs share a multiprocessor, and one computes while the
// other's tile comes.
//
// What bounds it: over bf16 keys the memory bus (a tile is 72 KiB for 2.2 MFLOP), over fp8 keys their
// conversion.
#include <type_traits>

#include "kernels/cuda/mla_attention/mla_attention_attend.cuh"

namespace quire::cuda {
namespace mla {

constexpr float kLog2E = 0x1.715476p0f;

// Begins to copy the rows' queries into shared memory, a tile of `rows` rows; zeros behind the last.
__device__ void LoadQueryTile(const MlaKernelArgs& args, const RowBlock& block, int32_t rows,
                              uint32_t q, int thread) {
  for (int32_t e = thread; e < rows * kRowChunks; e += kThreads) {
    const int32_t row = e / kRowChunks;
    const uint32_t chunk = static_cast<uint32_t>(e % kRowChunks);
    const bool is_row = row < block.num_rows;
    // Without a row nothing is read; the address must be one of q all the same.
    const int64_t token = block.tile.q_begin.raw() + block.TokenOf(is_row ? row : 0);
    const Bf16* from = args.q.Row<Bf16>(token, block.HeadOf(is_row ? row : 0));
    const uint32_t r = static_cast<uint32_t>(row);
    const uint32_t line = chunk < 64
                              ? q + r * kLatentBytes + chunk / 8 * kLine
                              : q + static_cast<uint32_t>(rows) * kLatentBytes + r * kRopeBytes;
    CopyAsync16(line + Permuted(chunk, r), reinterpret_cast<const std::byte*>(from) + chunk * 16,
                is_row ? 16 : 0);
  }
}

// One piece, whose rows are kGroups groups of 16 at most.
template <class Shared, int kGroups, class Scores>
class PieceRun {
 public:
  static constexpr bool kFp8 = std::is_same_v<Shared, SharedFp8>;

  // Of the piece in shared.state.
  __device__ PieceRun(const MlaKernelArgs& args, Shared& shared)
      : args_(args),
        piece_(shared.state.piece),
        block_(shared.state.block),
        shared_(shared),
        stats_(shared.stats),
        thread_(static_cast<int>(threadIdx.x)),
        at_(thread_) {}

  __device__ void Run(int32_t worker) {
    const uint32_t q = SharedAddress(shared_.q);
    LoadQueryTile(args_, block_, 16 * kGroups, q, thread_);
    if (thread_ < kMlaRows) {
      stats_.visible[thread_] =
          thread_ < block_.num_rows ? block_.VisibleTo(args_, block_.TokenOf(thread_)) : 0;
    }
    if constexpr (Scores::kKeepsQueries) {
      CommitCopies();
      WaitForCopies<0>();
      __syncthreads();  // queries are written
      scores_.LoadQueries(q, at_);
    } else {
      __syncthreads();  // visible is written; queries come with the first tile
    }
    next_ = block_.PassAt(piece_.first * SplitKeys());
    end_ = min(piece_.last * SplitKeys(), block_.kv_end);
    Pass pass = next_;
    BeginLoads();
    const int32_t step = piece_.Step(args_.plan.work);
    for (int32_t split = piece_.first; split < piece_.last; split += step) {
      Reset();
      const int32_t split_end = min((split + step) * SplitKeys(), block_.kv_end);
      for (; pass.key < split_end; pass = block_.Next(pass)) RunPass(pass);
      FinishSplit(split, split + step, worker);
    }
    WaitForCopies<0>();  // in a piece without keys nobody has waited for the queries
  }

 private:
  // ---- Loading ----

  __device__ int32_t SplitKeys() const { return static_cast<int32_t>(args_.plan.work.split.raw()); }
  __device__ uint32_t Tile() const { return SharedAddress(shared_.keys); }
  __device__ int32_t LimitOf(Pass pass) const {
    return pass.token == kAllTokens ? block_.kv_end : stats_.visible[block_.FirstRow(pass)];
  }
  // Begins to copy the tile whose slots are in shared memory.
  __device__ void Issue() {
    if constexpr (kFp8) {
      IssueFp8(args_.store, shared_.state.slots, SharedAddress(shared_.raw), thread_);
    } else {
      IssueBf16(args_.store, shared_.state.slots, Tile(), thread_);
    }
  }
  // This thread's slot of a pass. It is asked for early and stored late: the page row takes its
  // time to answer.
  __device__ int64_t LookUp(Pass pass) const {
    if (thread_ >= kTileKeys) return -1;
    return block_.SlotOf(args_, pass, thread_, LimitOf(pass));
  }
  __device__ int64_t LookUpNext() const { return next_.key < end_ ? LookUp(next_) : -1; }
  __device__ void StoreSlot(int64_t slot) {
    if (thread_ < kTileKeys) shared_.state.slots[thread_] = slot;
  }
  // A group is closed even if it is empty: waiting counts groups.
  __device__ void IssueNext() {
    if (next_.key < end_) {
      Issue();
      next_ = block_.Next(next_);
    }
    CommitCopies();
  }
  __device__ void BeginLoads() {
    StoreSlot(LookUpNext());
    __syncthreads();  // slots are written
    IssueNext();
    __syncthreads();  // and read
  }

  // ---- Passes ----

  // Some rows see keys of this tile that others do not. Then a value that is not finite cannot just
  // be multiplied with 0.
  __device__ bool IsPartlySeen(Pass pass) const {
    return pass.token == kAllTokens && min(pass.key + kTileKeys, block_.kv_end) > stats_.visible[0];
  }
  // Waits for all threads; whether any of them says so. `asks` is the same for all.
  static __device__ bool AnyThread(bool asks, bool says) {
    if (asks) return __syncthreads_or(says) != 0;
    __syncthreads();
    return false;
  }

  __device__ void RunPass(Pass pass) {
    if constexpr (kFp8) {
      RunFp8Pass(pass);
    } else {
      RunBf16Pass(pass);
    }
  }

  __device__ void RunBf16Pass(Pass pass) {
    WaitForCopies<0>();
    const bool partly = IsPartlySeen(pass);
    // Barrier: the tile is whole, and everyone has read the slots.
    if (AnyThread(partly, partly && CopiedNonFinite(Tile(), thread_))) {
      RunTokens(pass);
    } else {
      const int64_t slot = LookUpNext();
      Attend(pass, [&] { StoreSlot(slot); });
    }
    __syncthreads();  // nobody reads this tile any more, and slots are written
    IssueNext();
  }

  __device__ void RunFp8Pass(Pass pass) {
    const int64_t slot = LookUpNext();
    WaitForCopies<0>();
    // The raw tile is whole, everyone has read the slots, and nobody reads the tile before any more.
    __syncthreads();
    const bool partly = IsPartlySeen(pass);
    const bool found = ConvertFp8(SharedAddress(shared_.raw), Tile(), thread_);
    StoreSlot(slot);
    // Barrier: the tile is whole, slots are written, and nobody reads the raw tile any more.
    if (AnyThread(partly, found)) {
      RunTokens(pass);
      __syncthreads();  // slots are written, and nobody reads the tile any more
      IssueNext();
    } else {
      IssueNext();
      Attend(pass, [] {});
    }
  }

  // The tile again for each token by itself, with the keys that it sees. Rare: a value is not
  // finite, and not every row sees it. Leaves the slots of the next tile.
  __device__ void RunTokens(Pass pass) {
    for (int32_t token = block_.first_token; token <= block_.last_token; ++token) {
      const Pass one{.key = pass.key, .token = token};
      const int64_t slot = LookUp(one);
      __syncthreads();  // nobody reads the tile or the slots any more
      StoreSlot(slot);
      __syncthreads();  // slots are written
      Issue();
      CommitCopies();
      WaitForCopies<0>();
      __syncthreads();  // the tile is whole
      if constexpr (kFp8) {
        ConvertFp8(SharedAddress(shared_.raw), Tile(), thread_);
        __syncthreads();
      }
      Attend(one, [] {});
    }
    StoreSlot(LookUpNext());
  }

  // Calls between() when the scores are computed: by then what was asked for early has come.
  template <class Between>
  __device__ void Attend(Pass pass, Between between) {
    const uint32_t keys = Tile(), p = keys + kRopeBegin;
    float s[Scores::kKeyGroups][4] = {};
    scores_.Multiply(SharedAddress(shared_.q), keys, at_, s);
    between();
    const int32_t first = block_.FirstRow(pass), end = block_.EndRow(pass);
    Softmax<Scores>(s, args_.scale * kLog2E, pass.key, first, end, parity_, p, stats_, at_);
    __syncthreads();  // weights, alpha, sums and m are written
    parity_ ^= 1;
    AddWeights<kGroups>(stats_, thread_);
    if (pass.token == kAllTokens || block_.first_token == block_.last_token) {
      AddValues<kGroups>(p, keys, stats_, at_, o_);
    } else {
      AddValuesOfRows<kGroups>(p, keys, first, end, stats_, at_, o_);
    }
  }

  // ---- States ----

  __device__ void Reset() {
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
#pragma unroll
      for (int i = 0; i < kValueColumns / 2; ++i) o_[m][i / 4][i % 4] = 0.0f;
    }
    stats_.parts[thread_ / kMlaRows][thread_ % kMlaRows] = 0.0f;
    if (thread_ < kMlaRows) stats_.m[parity_][thread_] = -INFINITY;
  }

  // Calls fn(row, column, x, y) for the pairs of sums of this thread, row by row.
  template <class PerRow>
  __device__ void ForEachRow(PerRow per_row) {
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t row = m * 16 + half * 8 + static_cast<int32_t>(at_.row());
        if (row >= block_.num_rows) continue;
        auto per_pair = per_row(row);
#pragma unroll
        for (int n = 0; n < kValueColumns / 8; ++n) {
          per_pair(static_cast<int32_t>(at_.warp) * kValueColumns + n * 8 +
                       static_cast<int32_t>(at_.column()),
                   o_[m][n][2 * half], o_[m][n][2 * half + 1]);
        }
      }
    }
  }

  // What was summed since Reset: splits [split, end), more than one only if they are all of the
  // piece.
  __device__ void FinishSplit(int32_t split, int32_t end, int32_t worker) {
    __syncthreads();  // m and the parts of l are final
    if (thread_ < kMlaRows) stats_.l[thread_] = SumOfParts(stats_, thread_);
    __syncthreads();  // l is
    if (piece_.first > 0) {
      StorePartial(piece_.partial + split - piece_.first);
    } else {
      const StateView folded = StateAt(args_, args_.folded, worker);
      if (split > 0) FoldWith(folded, split * SplitKeys());
      if (end < piece_.last) {
        Store(folded);
      } else if (piece_.last < piece_.num_splits) {
        StorePartial(piece_.partial);
      } else {
        Write();
      }
    }
    __syncthreads();  // before m and l, or the queries, are written again
  }

  __device__ void Store(const StateView& to) {
    ForEachRow([&](int32_t row) {
      float* o = to.o + (block_.row_begin + row) * to.o_stride;
      return [o](int32_t column, float x, float y) {
        *reinterpret_cast<float2*>(o + column) = make_float2(x, y);
      };
    });
    if (thread_ < block_.num_rows) {
      to.m[block_.row_begin + thread_] = stats_.m[parity_][thread_];
      to.l[block_.row_begin + thread_] = stats_.l[thread_];
    }
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
  __device__ void FoldWith(const StateView& earlier, int32_t begin) {
    ForEachRow([&](int32_t row) {
      const int32_t index = block_.row_begin + row;
      const Fold fold = FoldOf(earlier, row);
      const bool reaches = begin < stats_.visible[row];
      const float* o = earlier.o + index * earlier.o_stride;
      return [fold, reaches, o](int32_t column, float& x, float& y) {
        const float2 before = *reinterpret_cast<const float2*>(o + column);
        x = reaches ? fold.Sum(before.x, x) : before.x;
        y = reaches ? fold.Sum(before.y, y) : before.y;
      };
    });
    __syncthreads();  // m and l were read by all
    if (thread_ < block_.num_rows) {
      const int32_t index = block_.row_begin + thread_;
      const Fold fold = FoldOf(earlier, thread_);
      const bool reaches = begin < stats_.visible[thread_];
      stats_.m[parity_][thread_] = reaches ? fold.m : earlier.m[index];
      stats_.l[thread_] = reaches ? fold.l : earlier.l[index];
    }
    __syncthreads();  // before they are stored or used
  }
  __device__ Fold FoldOf(const StateView& earlier, int32_t row) const {
    const int32_t index = block_.row_begin + row;
    return Fold::Of<Base2Exponent>(earlier.m[index], earlier.l[index], stats_.m[parity_][row],
                                   stats_.l[row]);
  }

  __device__ void Write() {
    ForEachRow([&](int32_t row) {
      const int64_t token = piece_.tile.q_begin.raw() + block_.TokenOf(row);
      const int32_t head = block_.HeadOf(row);
      const float factor = ShareOfOne(stats_.l[row]);
      const HeadsView& out = args_.out;
      float* wide = out.is_bf16 ? nullptr : out.Row<float>(token, head);
      Bf16* narrow = out.is_bf16 ? out.Row<Bf16>(token, head) : nullptr;
      return [factor, wide, narrow](int32_t column, float x, float y) {
        x *= factor;
        y *= factor;
        if (wide != nullptr) {
          *reinterpret_cast<float2*>(wide + column) = make_float2(x, y);
        } else {
          *reinterpret_cast<uint32_t*>(narrow + column) = PackBf16(x, y);
        }
      };
    });
    if (thread_ < block_.num_rows) {
      const float l = stats_.l[thread_];
      WriteLse(args_, piece_.tile.q_begin.raw() + block_.TokenOf(thread_), block_.HeadOf(thread_),
               l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(stats_.m[parity_][thread_], l));
    }
  }

  const MlaKernelArgs& args_;
  const Piece& piece_;  // these four in shared memory
  const RowBlock& block_;
  Shared& shared_;
  RowStats& stats_;
  const int thread_;
  const Lanes at_;

  Scores scores_;
  Sums<kGroups> o_;
  int parity_ = 0;  // which of stats.m is the running one
  Pass next_;       // the next to load
  int32_t end_;     // keys of the piece
};

// How many rows the pieces of a step have. A kernel for both kinds has fewer registers for each.
enum class PieceRows { kFew, kMany, kAny };  // up to 16; more; either

PieceRows PieceRowsOf(const MlaKernelArgs& args) {
  if (args.tile_rows <= kMlaFewRows) return PieceRows::kFew;
  return args.num_heads > kMlaFewRows ? PieceRows::kMany : PieceRows::kAny;
}

// CTAs of a worker, one per 64 rows of a tile, are neighbours: they read the same keys.
template <class Shared, PieceRows kPieceRows, int kCtasPerSm>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    MlaTensorCore(const __grid_constant__ MlaKernelArgs args, int32_t ctas_per_worker) {
  // Where there are registers to spare, they hold a part of the queries.
  constexpr int kKept = kPieceRows == PieceRows::kFew && kCtasPerSm == 1 ? 16 : 0;
  extern __shared__ __align__(128) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int32_t worker = static_cast<int32_t>(blockIdx.x) / ctas_per_worker;
  const int32_t row_begin = static_cast<int32_t>(blockIdx.x) % ctas_per_worker * kMlaRows;
  ForEachPiece(args.plan, worker, [&](const Piece& piece) {
    const int32_t rows = piece.tile.q_count * args.num_heads - row_begin;
    if (rows <= 0) return;
    if (piece.tile.q_begin.raw() + piece.tile.q_count > args.num_tokens) return;
    __syncthreads();  // nobody reads the piece before any more
    if (threadIdx.x == 0) {
      shared.state.piece = piece;
      shared.state.block = RowBlock::Of(args, piece.tile, row_begin, kMlaRows);
    }
    __syncthreads();  // the piece is written
    if (kPieceRows == PieceRows::kFew || (kPieceRows == PieceRows::kAny && rows <= 16)) {
      if constexpr (kPieceRows != PieceRows::kMany) {
        PieceRun<Shared, 1, NarrowScores<kKept>>(args, shared).Run(worker);
      }
    } else if constexpr (kPieceRows != PieceRows::kFew) {
      PieceRun<Shared, 4, WideScores>(args, shared).Run(worker);
    }
  });
}

template <class Shared, PieceRows kPieceRows, int kCtasPerSm = 1>
void LaunchRows(const MlaKernelArgs& args, const Stream& stream) {
  const int32_t ctas_per_worker = CeilDiv(args.tile_rows, kMlaRows);
  const auto kernel = MlaTensorCore<Shared, kPieceRows, kCtasPerSm>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(Shared))),
        "MlaTensorCore: shared memory");
  const unsigned ctas = static_cast<unsigned>(args.plan.work.num_workers * ctas_per_worker);
  kernel<<<ctas, kThreads, sizeof(Shared), stream.get()>>>(args, ctas_per_worker);
  CheckLaunch("MlaTensorCore");
}

void LaunchFp8(const MlaKernelArgs& args, const Stream& stream) {
  switch (PieceRowsOf(args)) {
    case PieceRows::kFew:
      return LaunchRows<SharedFp8, PieceRows::kFew>(args, stream);
    case PieceRows::kMany:
      return LaunchRows<SharedFp8, PieceRows::kMany>(args, stream);
    case PieceRows::kAny:
      return LaunchRows<SharedFp8, PieceRows::kAny>(args, stream);
  }
}

}  // namespace mla

void LaunchMlaWarps(const MlaAttentionArgs& args, const Stream& stream, StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, status);
  if (kernel_args.store.format == KvFormat::kLatentFp8) {
    mla::LaunchFp8(kernel_args, stream);
  } else {
    mla::LaunchRows<mla::SharedBf16, mla::PieceRows::kFew, MlaFewRowsCtas(KvFormat::kLatentBf16)>(
        kernel_args, stream);
  }
}

}  // namespace quire::cuda
