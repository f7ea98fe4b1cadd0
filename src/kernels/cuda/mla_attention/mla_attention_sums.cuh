// The sums that a role has of its rows when a split ends: folded with those before, stored as a state, or
// written.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_SUMS_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_SUMS_CUH_

#include "kernels/cuda/mla_attention/mla_attention_participant.cuh"

namespace quire::cuda::mla {

// What a warp has of them.
struct SumsPart {
  int32_t row, column;  // the first ones
  bool tells;           // of its rows' statistics, which other warps have as well
};

// Sums of a product of 64 columns and 16 rows, as a thread of the warpgroup has them, become patches: of rows lane / 4 and
// 8 below, two values beside each other.
__device__ __forceinline__ void TurnToPatches(float (&o)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) TransposeFloats(o[i], o[i + 1]);
#pragma unroll
  for (int i = 2; i < 4; ++i) {
    const float second = o[i];
    o[i] = o[i + 2];
    o[i + 2] = second;
  }
}

// A warp has patches of 16 rows and 8 columns, of which a thread has four sums each (StateView::Sums): of
// kProducts products kFloats each. Patch n begins Columns::Of(n) columns behind the warp's first one.
template <int kProducts, int kFloats, class Columns>
class RowSums : protected Participant {
 protected:
  static constexpr int kPatches = kProducts * kFloats / 4;

  __device__ RowSums(const MlaKernelArgs& args, SharedOrders& told, int32_t worker, int role)
      : Participant(args, told, role), worker_(worker) {}

  // Row 0 or 1 of the two that a thread has sums of.
  __device__ __forceinline__ int32_t RowOf(int which) const {
    return part_.row + thread_ % 32 / 4 + 8 * which;
  }

  // All splits of all orders. Sums begin with 0; run_turn() adds to them, until it returns that the split ends;
  // to_patches() makes patches of them. kAhead: see FinishSplit.
  template <int kAhead, class RunTurn, class ToPatches>
  __device__ __forceinline__ void RunSplits(RunTurn run_turn, ToPatches to_patches) {
    ForEachOrder([&] {
      ForEachSplit([&](int32_t split, int32_t end, bool has_keys) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) Sum(i) = 0.0f;
        for (bool ends = !has_keys; !ends;) ends = run_turn();
        to_patches();
        TakeStats();
        FinishSplit<kAhead>(split, end);
      });
    });
  }

  // A turn whose keys are there, of a role at `place`. With the weights has come `alpha` of every row, which older sums
  // are multiplied with; then add() adds values. Returns whether the split ends with this turn.
  // SumRows says whose sums those are before to_patches(): a thread, of kThreads of the role, has sums of kRows rows,
  // RowOf(thread, 0) and so on, and its sum i is of the row WhichOf(i) of these.
  template <class SumRows, class Place, class Add>
  __device__ __forceinline__ bool AddTurn(Place& place, const Turn& turn, const float* alpha,
                                          Add add) {
    place.WaitForWeights();
    Rescale<SumRows>(alpha);
    if (turn.keeps_others) {
      AddForToken<SumRows>(turn.pass.token, add);
    } else {
      add();
    }
    place.Leave();
    place.Advance();
    return turn.ends_split;
  }

  // Calls per_patch(a state's sums, ours) for all patches of 8 columns of which we have four sums each. Behind
  // the last row both are of no use.
  template <class PerPatch>
  __device__ __forceinline__ void ForEachPatch(const StateView& state, PerPatch per_patch) {
    if (RowOf(0) >= Block().num_rows) return;
    float4* sums = &state.Sums(Block().row_begin + RowOf(0), part_.column, thread_ % 32);
#pragma unroll
    for (int n = 0; n < kPatches; ++n) per_patch(sums[Columns::Of(n) / 8 * 32], Patch(n));
  }
  __device__ __forceinline__ void StoreSums(const StateView& to) {
    ForEachPatch(to, [](float4& sums, const float* now) { StorePatch(now, sums); });
  }

  const int32_t worker_;
  SumsPart part_ = {};
  float o_[kProducts][kFloats];

 private:
  static constexpr int kSums = kProducts * kFloats;
  __device__ __forceinline__ float& Sum(int i) { return o_[i / kFloats][i % kFloats]; }

  // Multiplies older sums.
  template <class SumRows>
  __device__ __forceinline__ void Rescale(const float* alpha) {
    float mine[SumRows::kRows];
    bool changes = false;
#pragma unroll
    for (int which = 0; which < SumRows::kRows; ++which) {
      mine[which] = alpha[SumRows::RowOf(thread_, which)];
      changes |= mine[which] != 1.0f;
    }
    if (!__any_sync(kAllLanes, changes)) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) Sum(i) *= mine[SumRows::WhichOf(i)];
  }

  // add() is for the rows of one token, and those of others keep their sums: 0 times a value that is not finite is not 0.
  template <class SumRows, class Add>
  __device__ __forceinline__ void AddForToken(int32_t token, Add add) {
    float* kept = StateAt(args_, args_.kept, worker_).o + thread_;
#pragma unroll
    for (int i = 0; i < kSums; ++i) kept[i * SumRows::kThreads] = Sum(i);
    add();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const bool keeps = Block().TokenOf(SumRows::RowOf(thread_, SumRows::WhichOf(i))) != token;
      Sum(i) = Select(keeps, kept[i * SumRows::kThreads], Sum(i));
    }
  }

  // m and l of the split that has ended.
  __device__ __forceinline__ void TakeStats() {
    told_.ended.Wait(ended_parity_);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float2 stats = told_.stats[RowOf(which)];
      m_[which] = stats.x;
      l_[which] = stats.y;
    }
    told_.taken.Arrive();
    ended_parity_ ^= 1;
  }

  // What was summed since the split began: splits [split, end), more than one only if they are all of
  // the piece. kAhead patches of the state before it are on their way at once: as many as there are registers for.
  template <int kAhead>
  __device__ __forceinline__ void FinishSplit(int32_t split, int32_t end) {
    const Piece& piece = ThisPiece();
    if (piece.first > 0) {
      StorePartial(piece.partial + split - piece.first);
      return;
    }
    const StateView folded = StateAt(args_, args_.folded, worker_);
    const bool goes_on = end < piece.last;
    if (split > 0) {
      FoldWith<kAhead>(folded, split * SplitKeys(), goes_on);
    } else if (goes_on) {
      StoreSums(folded);
    }
    if (goes_on) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        folded_m_[which] = m_[which];
        folded_l_[which] = l_[which];
      }
    } else if (piece.last < piece.num_splits) {
      StorePartial(piece.partial);
    } else {
      Write();
    }
  }

  static __device__ __forceinline__ void StorePatch(const float* now, float4& sums) {
    sums = make_float4(now[0], now[1], now[2], now[3]);
  }
  __device__ __forceinline__ float* Patch(int n) { return o_[n * 4 / kFloats] + n * 4 % kFloats; }

  // Calls per_row(row, m, l), in one thread of all that have the row.
  template <class PerRow>
  __device__ __forceinline__ void ForEachStatistic(PerRow per_row) const {
    if (!part_.tells || thread_ % 4 != 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (RowOf(which) < Block().num_rows) per_row(RowOf(which), m_[which], l_[which]);
    }
  }

  __device__ __forceinline__ void StorePartial(int64_t index) {
    if (index >= args_.max_partials) {
      if (thread_ == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return;
    }
    const StateView to = StateAt(args_, args_.partials, index);
    StoreSums(to);
    ForEachStatistic([&](int32_t row, float m, float l) {
      to.m[Block().row_begin + row] = m;
      to.l[Block().row_begin + row] = l;
    });
  }

  // The state at hand becomes `earlier` and itself folded; rows that do not reach the split, which
  // begins at `begin`, keep the earlier one as it is. If it `goes_on`, it takes the place of the earlier one. Every
  // thread reads the sums that it wrote: some are on their way while those before them are folded and stored.
  template <int kAhead>
  __device__ __forceinline__ void FoldWith(const StateView& earlier, int32_t begin, bool goes_on) {
    Fold folds[2];
    bool reaches[2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      folds[which] =
          Fold::Of<Base2Exponent>(folded_m_[which], folded_l_[which], m_[which], l_[which]);
      reaches[which] = begin < ThisOrder().visible[RowOf(which)];
      m_[which] = reaches[which] ? folds[which].m : folded_m_[which];
      l_[which] = reaches[which] ? folds[which].l : folded_l_[which];
    }
    if (RowOf(0) >= Block().num_rows) return;
    float4* sums = &earlier.Sums(Block().row_begin + RowOf(0), part_.column, thread_ % 32);
    float4 before[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) before[n] = LoadPatch(sums, n);
#pragma unroll
    for (int n = 0; n < kPatches; ++n) {
      FoldPatch(folds, reaches, before[n % kAhead], Patch(n));
      if (goes_on) StorePatch(Patch(n), sums[Columns::Of(n) / 8 * 32]);
      if (n + kAhead < kPatches) before[n % kAhead] = LoadPatch(sums, n + kAhead);
    }
  }
  static __device__ __forceinline__ float4 LoadPatch(const float4* sums, int n) {
    const uint4 bits =
        LoadHere16(reinterpret_cast<const std::byte*>(sums + Columns::Of(n) / 8 * 32));
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
  }
  static __device__ __forceinline__ void FoldPatch(const Fold (&folds)[2], const bool (&reaches)[2],
                                                   const float4& before, float* now) {
    now[0] = Select(reaches[0], folds[0].Sum(before.x, now[0]), before.x);
    now[1] = Select(reaches[0], folds[0].Sum(before.y, now[1]), before.y);
    now[2] = Select(reaches[1], folds[1].Sum(before.z, now[2]), before.z);
    now[3] = Select(reaches[1], folds[1].Sum(before.w, now[3]), before.w);
  }

  template <class T, class Store>
  __device__ __forceinline__ void WriteAs(Store store) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int32_t row = RowOf(which);
      if (row >= Block().num_rows) continue;
      const float factor = ShareOfOne(l_[which]);
      T* to = args_.out.Row<T>(Token(row), Block().HeadOf(row)) + part_.column + thread_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kPatches; ++n) {
        const float* sums = Patch(n) + 2 * which;
        store(to + Columns::Of(n), sums[0] * factor, sums[1] * factor);
      }
    }
  }
  __device__ __forceinline__ void Write() {
    if (args_.out.is_bf16) {
      WriteAs<Bf16>(
          [](Bf16* to, float x, float y) { *reinterpret_cast<uint32_t*>(to) = PackBf16(x, y); });
    } else {
      WriteAs<float>(
          [](float* to, float x, float y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); });
    }
    ForEachStatistic([&](int32_t row, float m, float l) {
      WriteLse(args_, Token(row), Block().HeadOf(row),
               l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(m, l));
    });
  }
  __device__ __forceinline__ int64_t Token(int32_t row) const {
    return Block().tile.q_begin.raw() + Block().TokenOf(row);
  }

  float m_[2], l_[2];                // of our rows, when a split has ended
  float folded_m_[2], folded_l_[2];  // of the splits before
  uint32_t ended_parity_ = 0;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_SUMS_CUH_
