// A warpgroup that adds values, O += P V over half of their columns, and writes what a split ends with.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_sums.cuh"

namespace quire::cuda::mla {

// Of two products of 128 columns each.
struct AdderColumns {
  static constexpr int32_t Of(int patch) { return patch * 8; }
};

template <class Keys>
class Adder : RowSums<2, 64, AdderColumns> {
 public:
  __device__ Adder(const MlaKernelArgs& args, SharedTiles& shared, int32_t worker, int role,
                   int half)
      : RowSums(args, shared, worker, role), shared_(shared), half_(half) {
    part_ = {.row = thread_ / 32 * 16, .column = half_ * kHalf, .tells = half_ == 0};
  }

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

  __device__ __forceinline__ uint32_t KeysAt(int stage) const {
    return SharedAddress(&shared_.keys[stage]);
  }

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

  SharedTiles& shared_;
  const int half_;
  RingPosition<kStages> ring_;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_
