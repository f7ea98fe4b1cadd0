// A warpgroup that adds values, O += P V over half of their columns, and writes what a split ends with. Of each
// half of a tile's panels it has two, so that both adders are done with the first half at the same time.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_

#include <type_traits>

#include "kernels/cuda/mla_attention/mla_attention_pair.cuh"
#include "kernels/cuda/mla_attention/mla_attention_sums.cuh"

namespace quire::cuda::mla {

// Of two products, one of each half, of 128 columns each.
struct AdderColumns {
  static constexpr int32_t kProduct = TileParts::kPartPanels * kPanelValues;
  static constexpr int32_t kHalf = kHalfPanels * kPanelValues;  // of both adders
  static constexpr int32_t kPatches = kProduct / kPatchColumns;

  static constexpr int32_t Of(int patch) {
    return patch / kPatches * kHalf + patch % kPatches * kPatchColumns;
  }
};

template <class Keys>
class Adder : RowSums<kHalves, AdderColumns::kProduct / 2, AdderColumns> {
 public:
  // Adder `adder` of the two.
  __device__ Adder(const MlaKernelArgs& args, SharedTiles& shared, int32_t worker, int role,
                   int adder)
      : RowSums(args, shared, worker, role), shared_(shared), adder_(adder) {
    part_ = {
        .row = thread_ / 32 * 16, .column = adder_ * AdderColumns::kProduct, .tells = adder_ == 0};
  }

  __device__ __forceinline__ void Run() {
    RunSplits<Keys::kAreF16 ? 2 : 6>([&] { return RunTurn(); }, [] {});  // sums are patches
  }

 private:
  // Of a thread: two rows, a quarter of the columns.
  static constexpr int kHalfSums = AdderColumns::kProduct / 2, kSums = kHalves * kHalfSums;

  __device__ __forceinline__ uint32_t KeysAt(int stage) const {
    return SharedAddress(&shared_.keys[stage]);
  }

  // ---- Weights ----

  // Weights of a tile, as products take them. Those of bf16 each thread loads once, for all eight products; f16
  // leaves no registers for that (its adders have fewer), and products read them from shared memory.
  class LoadedWeights {
   public:
    // Of half of the keys.
    __device__ __forceinline__ void Load(uint32_t panel, int thread, uint32_t half) {
      const uint32_t row =
          static_cast<uint32_t>(thread) / 32 * 16 + static_cast<uint32_t>(thread) % 16;
#pragma unroll
      for (uint32_t step = 2 * half; step < 2 * half + 2; ++step) {
        uint32_t(&w)[4] = weights_[step];
        const uint32_t chunk = 2 * step + static_cast<uint32_t>(thread) % 32 / 16;
        LoadMatrices(panel + PanelChunk(row, chunk), w[0], w[1], w[2], w[3]);
      }
    }
    __device__ __forceinline__ void Multiply(uint32_t step, float (&o)[kHalfSums],
                                             uint64_t values) {
      MultiplyRows(o, weights_[step], values);
    }
    // Products that took them have ended.
    __device__ __forceinline__ void Hold() {
#pragma unroll
      for (uint32_t step = 0; step < 4; ++step) HoldOperand(weights_[step]);
    }

   private:
    uint32_t weights_[4][4];
  };
  class SharedWeights {
   public:
    __device__ __forceinline__ void Load(uint32_t panel, int, uint32_t) { panel_ = panel; }
    __device__ __forceinline__ void Multiply(uint32_t step, float (&o)[kHalfSums],
                                             uint64_t values) {
      MultiplyValuesF16(o, PanelOperand(panel_, step * 32), values);
    }
    __device__ __forceinline__ void Hold() {}

   private:
    uint32_t panel_;
  };
  using Weights = std::conditional_t<Keys::kAreF16, SharedWeights, LoadedWeights>;

  // ---- Turns ----

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    const int stage = Uniform(ring_.stage);
    for (const PhaseBarrier& full : shared_.full[stage]) full.Wait(ring_.parity);
    // All that can be known before there are weights.
    const Turn turn = shared_.turns[stage];
    if (turn.needs_fence) FenceForProducts();
    Weights weights;
    TakeWeights(stage, 0, weights);
    Rescale(stage);
    if (turn.keeps_others) {
      AddValuesOfToken(stage, weights, turn);
    } else {
      AddValues(stage, weights, turn.ends_split);
    }
    ring_.Advance();
    return turn.ends_split;
  }

  // Of half of the keys, when they are there; with the first alpha is, too.
  __device__ __forceinline__ void TakeWeights(int stage, uint32_t half, Weights& weights) {
    shared_.weighted[stage][half].Wait(ring_.parity);
    weights.Load(KeysAt(stage) + kWeightsPanel, thread_, half);
  }

  // Multiplies older sums.
  __device__ __forceinline__ void Rescale(int stage) {
    const float alpha[2] = {shared_.alpha[stage][RowOf(0)], shared_.alpha[stage][RowOf(1)]};
    if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) o_[i / kHalfSums][i % kHalfSums] *= alpha[i % 4 / 2];
  }

  // Gives each half of the tile back when its values are added; the turn, alpha and weights were read before
  // the first of them, or go with the second.
  __device__ __forceinline__ void AddValues(int stage, Weights& weights, bool ends_split) {
    const uint32_t values =
        KeysAt(stage) + static_cast<uint32_t>(adder_) * (TileParts::kPartPanels * kPanelBytes);
    HoldSums(o_[0]);
    HoldSums(o_[1]);
    BeginProducts();
#pragma unroll
    for (uint32_t half = 0; half < kHalves; ++half) {
#pragma unroll
      for (uint32_t keys = 0; keys < kTileKeys; keys += 16) {
        if (half == 0 && keys == kTileKeys / 2) {
          TakeWeights(stage, 1, weights);
          BeginProducts();
        }
        const uint64_t b =
            PanelOperand(values, half * kHalfPanels * kPanelBytes + keys * 128, kPanelBytes);
        weights.Multiply(keys / 16, o_[half], b);
      }
      CommitProducts();
      // Threads wrote and read the weights; keys come over them.
      if (!Keys::kAreF16 && half == 0) FenceForProducts();
      WaitForProducts<0>();
      if (half == 0) {
        GiveBack(stage, 0);
        if (!ends_split) WaitForNextScores();
        BeginProducts();
      }
    }
    HoldSums(o_[0]);
    HoldSums(o_[1]);
    weights.Hold();
    // Ended before there were weights; but no phase ends without somebody who waits for it.
    shared_.asked[stage].Wait(ring_.parity);
    GiveBack(stage, 1);
  }
  // Half of a tile's panels, to those who have keys come there. Its products have ended in the whole warp.
  __device__ __forceinline__ void GiveBack(int stage, uint32_t half) {
    PhaseBarrier& empty = shared_.empty[stage][half];
    empty.Arrive();
    if constexpr (Keys::kCtas > 1) {
      __syncwarp();  // no arrival of this warp is behind the peer's next one here
      if (thread_ % kWarp == 0) empty.ArriveLooselyAt(PeerRank());
    }
  }
  // Values of the second half are added while weights of the next tile are made, when nobody else has products:
  // scores that compete with them would come later, and leave tensor cores idle then.
  __device__ __forceinline__ void WaitForNextScores() const {
    RingPosition<kStages> next = ring_;
    next.Advance();
    if (!shared_.full[next.stage][TileParts::kParts - 1].HasEnded(next.parity)) return;
    shared_.asked[next.stage].Wait(next.parity);
  }
  // Rows of other tokens keep their sums: 0 times a value that is not finite is not 0.
  __device__ __forceinline__ void AddValuesOfToken(int stage, Weights& weights, const Turn& turn) {
    const int32_t token = turn.pass.token;
    const StateView kept = StateAt(args_, args_.kept, worker_);
    StoreSums(kept);
    AddValues(stage, weights, turn.ends_split);
    const bool keeps[2] = {Block().TokenOf(RowOf(0)) != token, Block().TokenOf(RowOf(1)) != token};
    ForEachPatch(kept, [&](const float4& before, float* now) {
      now[0] = Select(keeps[0], before.x, now[0]);
      now[1] = Select(keeps[0], before.y, now[1]);
      now[2] = Select(keeps[1], before.z, now[2]);
      now[3] = Select(keeps[1], before.w, now[3]);
    });
  }

  SharedTiles& shared_;
  const int adder_;
  RingPosition<kStages> ring_;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ADDER_CUH_
