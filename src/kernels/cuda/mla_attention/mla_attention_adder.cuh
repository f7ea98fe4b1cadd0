// A warpgroup that adds values, O += P V over half of their columns, and writes what a split ends with.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_participant.cuh"

namespace quire::cuda::mla {

template <class Keys>
class Adder : Participant {
 public:
  __device__ Adder(const MlaKernelArgs& args, SharedTiles& shared, int32_t worker, int role)
      : Participant(args, shared, role), worker_(worker), half_(role - kAdders) {}

  __device__ __forceinline__ void Run() {
    ForEachOrder([&] {
      ForEachSplit([&](int32_t split, int32_t end, bool has_keys) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) o_[i / 64][i % 64] = 0.0f;
        for (bool ends = !has_keys; !ends;) ends = RunTurn();
        TakeStats();
        FinishSplit(split, end);
      });
    });
  }

 private:
  static constexpr int kHalf = 256;        // columns
  static constexpr int kSums = kHalf / 2;  // of a thread: two rows, a quarter of the columns

  // ---- Turns ----

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    const int stage = Uniform(ring_.stage);
    for (const PhaseBarrier& full : shared_.full[stage]) full.Wait(ring_.parity);
    shared_.weighted[stage].Wait(ring_.parity);
    const Turn turn = shared_.turns[stage];
    if (turn.needs_fence) FenceForProducts();
    Rescale(stage);
    if (turn.keeps_others) {
      AddValuesOfToken(stage, turn.pass.token);
    } else {
      AddValues(stage);
    }
    shared_.empty[stage].Arrive();
    ring_.Advance();
    return turn.ends_split;
  }

  // Multiplies older sums.
  __device__ __forceinline__ void Rescale(int stage) {
    const float alpha[2] = {shared_.alpha[stage][RowOf(0)], shared_.alpha[stage][RowOf(1)]};
    if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) o_[i / 64][i % 64] *= alpha[i % 4 / 2];
  }

  __device__ __forceinline__ void AddValues(int stage) {
    const uint32_t weights = KeysAt(stage) + kWeightsPanel;
    const uint32_t values =
        KeysAt(stage) + static_cast<uint32_t>(half_) * (kPanels / 2 * kPanelBytes);
    HoldSums(o_[0]);
    HoldSums(o_[1]);
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint64_t a = PanelOperand(weights, i / 2 * 32);
      const uint64_t b =
          PanelOperand(values, i % 2 * 2 * kPanelBytes + i / 2 * 16 * 128, kPanelBytes);
      if constexpr (Keys::kAreF16) {
        MultiplyValuesF16(o_[i % 2], a, b);
      } else {
        MultiplyValues(o_[i % 2], a, b);
      }
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(o_[0]);
    HoldSums(o_[1]);
  }
  // Rows of other tokens keep their sums: 0 times a value that is not finite is not 0.
  __device__ __forceinline__ void AddValuesOfToken(int stage, int32_t token) {
    const StateView kept = StateAt(args_, args_.kept, worker_);
    StoreSums(kept);
    AddValues(stage);
    const bool keeps[2] = {Block().TokenOf(RowOf(0)) != token, Block().TokenOf(RowOf(1)) != token};
    ForEachPatch(kept, [&](const float4& before, float* now) {
      now[0] = Select(keeps[0], before.x, now[0]);
      now[1] = Select(keeps[0], before.y, now[1]);
      now[2] = Select(keeps[1], before.z, now[2]);
      now[3] = Select(keeps[1], before.w, now[3]);
    });
  }

  // ---- States ----

  // m and l of the split that has ended.
  __device__ __forceinline__ void TakeStats() {
    shared_.ended.Wait(ended_parity_);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float2 stats = shared_.stats[RowOf(which)];
      m_[which] = stats.x;
      l_[which] = stats.y;
    }
    shared_.taken.Arrive();
    ended_parity_ ^= 1;
  }

  // Calls per_patch(a state's sums, ours) for all patches of 8 columns of which we have four sums each. Behind
  // the last row both are of no use.
  template <class PerPatch>
  __device__ __forceinline__ void ForEachPatch(const StateView& state, PerPatch per_patch) {
    if (RowOf(0) >= Block().num_rows) return;
    float4* sums = &state.Sums(Block().row_begin + RowOf(0), half_ * kHalf, thread_ % 32);
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n) per_patch(sums[n * 32], o_[n / 16] + n % 16 * 4);
  }
  // Calls per_row(row, m, l), in one thread of all that have the row.
  template <class PerRow>
  __device__ __forceinline__ void ForEachStatistic(PerRow per_row) const {
    if (half_ != 0 || thread_ % 4 != 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (RowOf(which) < Block().num_rows) per_row(RowOf(which), m_[which], l_[which]);
    }
  }

  // What was summed since the split began: splits [split, end), more than one only if they are all of
  // the piece.
  __device__ __forceinline__ void FinishSplit(int32_t split, int32_t end) {
    const Piece& piece = ThisPiece();
    if (piece.first > 0) {
      StorePartial(piece.partial + split - piece.first);
      return;
    }
    const StateView folded = StateAt(args_, args_.folded, worker_);
    if (split > 0) FoldWith(folded, split * SplitKeys());
    if (end < piece.last) {
      StoreSums(folded);
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

  __device__ __forceinline__ void StoreSums(const StateView& to) {
    ForEachPatch(to, [](float4& sums, const float* now) {
      sums = make_float4(now[0], now[1], now[2], now[3]);
    });
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
  // begins at `begin`, keep the earlier one as it is. Every thread reads the sums that it wrote.
  __device__ __forceinline__ void FoldWith(const StateView& earlier, int32_t begin) {
    Fold folds[2];
    bool reaches[2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      folds[which] =
          Fold::Of<Base2Exponent>(folded_m_[which], folded_l_[which], m_[which], l_[which]);
      reaches[which] = begin < VisibleTo(which);
      m_[which] = reaches[which] ? folds[which].m : folded_m_[which];
      l_[which] = reaches[which] ? folds[which].l : folded_l_[which];
    }
    ForEachPatch(earlier, [&](const float4& before, float* now) {
      now[0] = Select(reaches[0], folds[0].Sum(before.x, now[0]), before.x);
      now[1] = Select(reaches[0], folds[0].Sum(before.y, now[1]), before.y);
      now[2] = Select(reaches[1], folds[1].Sum(before.z, now[2]), before.z);
      now[3] = Select(reaches[1], folds[1].Sum(before.w, now[3]), before.w);
    });
  }

  template <class T, class Store>
  __device__ __forceinline__ void WriteAs(Store store) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int32_t row = RowOf(which);
      if (row >= Block().num_rows) continue;
      const float factor = ShareOfOne(l_[which]);
      T* to = args_.out.Row<T>(Token(row), Block().HeadOf(row)) + half_ * kHalf + thread_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
        const float* sums = o_[n / 16] + n % 16 * 4 + 2 * which;
        store(to + n * 8, sums[0] * factor, sums[1] * factor);
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

  const int32_t worker_;
  const int half_;
  float o_[2][kSums / 2];
  float m_[2], l_[2];                // of our rows, when a split has ended
  float folded_m_[2], folded_l_[2];  // of the splits before
  RingPosition<kStages> ring_;
  uint32_t ended_parity_ = 0;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_
