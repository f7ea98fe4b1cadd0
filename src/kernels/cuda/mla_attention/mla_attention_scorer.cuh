// The warpgroup that has scores and weights: S = Q K^T, softmax, weights to shared memory.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_SCORER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_SCORER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_queries.cuh"

namespace quire::cuda::mla {

template <class Keys>
class Scorer : Participant {
 public:
  __device__ Scorer(const MlaKernelArgs& args, SharedTiles& shared, int role)
      : Participant(args, shared, role), shared_(shared) {}

  __device__ __forceinline__ void Run() {
    ForEachOrder([&] {
      LoadQueries();
      ForEachSplit([&](int32_t, int32_t, bool has_keys) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          rows_[which].Begin();
          l_[which] = 0.0f;
        }
        for (bool ends = !has_keys; !ends;) ends = RunTurn();
        EndSplit();
      });
    });
  }

 private:
  // Row 0 or 1 of the two whose scores a product leaves in this thread.
  __device__ __forceinline__ int32_t RowOf(int which) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * which;
  }
  __device__ __forceinline__ int32_t VisibleTo(int which) const {
    return ThisOrder().visible[RowOf(which)];
  }
  __device__ __forceinline__ uint32_t KeysAt(int stage) const {
    return SharedAddress(&shared_.keys[stage]);
  }

  // Nobody else reads queries.
  __device__ __forceinline__ void LoadQueries() {
    Sync();  // products of the piece before have ended in all warps
    CopyQueries<Keys::kAreF16>(args_, Block(), shared_.q, told_.q_units, thread_);
    Sync();  // queries are written
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float scale = args_.scale * kLog2E;
      if constexpr (Keys::kAreF16) scale *= told_.q_units[RowOf(which)];
      rows_[which].SetScale(scale);
    }
  }

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    const int stage = Uniform(ring_.stage);
    float s[32];
    const Turn turn = MultiplyKeys(stage, s);
    if (!turn.is_seen_by_all) MaskKeys(turn.pass, s);
    float alpha[2] = {1.0f, 1.0f}, sums[2] = {0.0f, 0.0f};
    FollowMaxima(s, alpha);
    StoreAlpha(stage, alpha);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Weigh(half, s, sums);
      StoreWeights(stage, half, s);
      if constexpr (Keys::kAreF16) FenceForProducts();  // products read them
      shared_.weighted[stage][half].Arrive();
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      l_[which] = __fmaf_rn(alpha[which], l_[which], sums[which]);
    }
    ring_.Advance();
    return turn.ends_split;
  }

  // As keys come. The turn comes with the first of them.
  __device__ __forceinline__ Turn MultiplyKeys(int stage, float (&s)[32]) {
    const uint32_t q = UniformHere(SharedAddress(&shared_.q)), keys = KeysAt(stage);
    HoldSums(s);
    Turn turn;
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < 4 * kPanels; ++i) {
      const uint32_t panel = i / 4, part = TileParts::Of(panel);
      if (i == 4 * TileParts::Begin(part)) {
        shared_.full[stage][part].Wait(ring_.parity);
        if (part == 0) turn = shared_.turns[stage];
        if (turn.needs_fence) FenceForProducts();
      }
      const uint32_t at = panel * kPanelBytes + i % 4 * 32;
      if (Keys::kAreF16 && panel < kPanels - 1) {
        MultiplyPanelsF16(s, PanelOperand(q, at), PanelOperand(keys, at), i > 0);
      } else {
        MultiplyPanels(s, PanelOperand(q, at), PanelOperand(keys, at), i > 0);
      }
    }
    CommitProducts();
    shared_.asked[stage].Arrive();
    WaitForProducts<0>();
    HoldSums(s);
    return turn;
  }

  // -inf where a row does not see a key, or takes no part in the pass.
  __device__ __forceinline__ void MaskKeys(Pass pass, float (&s)[32]) const {
    int32_t count[2];
    uint64_t nodes[2];  // bit j: key j of ours
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const bool takes_part =
          pass.token == kAllTokens || pass.token == Block().TokenOf(RowOf(which));
      const int32_t first = pass.key + thread_ % 4 * 2, node = first - Block().nodes_begin;
      count[which] = takes_part ? VisibleTo(which) - first : 0;
      nodes[which] = takes_part ? ThisOrder().nodes[RowOf(which)] : 0;
      nodes[which] = node <= -64 || node >= 64 ? 0
                     : node >= 0               ? nodes[which] >> node
                                               : nodes[which] << -node;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = i / 4 * 8 + i % 2, which = i % 4 / 2;
      if (key >= count[which] && (nodes[which] >> key & 1) == 0) s[i] = -INFINITY;
    }
  }

  // alpha: what older sums are to be multiplied with, 1 where m stays.
  __device__ __forceinline__ void FollowMaxima(const float (&s)[32], float (&alpha)[2]) {
    float top[2];
    bool follows = false;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float tops[4];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float score = s[i / 2 * 4 + 2 * which + i % 2];
        tops[i % 4] = i < 4 ? score : fmaxf(tops[i % 4], score);
      }
      top[which] = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
      follows |= rows_[which].WouldFollow(top[which]);
    }
    if (!__any_sync(kAllLanes, follows)) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float most = fmaxf(top[which], __shfl_xor_sync(kAllLanes, top[which], 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      alpha[which] = rows_[which].Follow(most);
    }
  }

  __device__ __forceinline__ void StoreAlpha(int stage, const float (&alpha)[2]) {
    if (thread_ % 4 != 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) shared_.alpha[stage][RowOf(which)] = alpha[which];
  }

  // Scores of half of the keys become weights, and are added to a thread's sums.
  __device__ __forceinline__ void Weigh(int half, float (&s)[32], float (&sums)[2]) {
#pragma unroll
    for (int chunk = 4 * half; chunk < 4 * half + 4; ++chunk) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float &low = s[4 * chunk + 2 * which], &high = s[4 * chunk + 2 * which + 1];
        low = rows_[which].WeightOf(low);
        high = rows_[which].WeightOf(high);
        sums[which] += low + high;
      }
    }
  }
  __device__ __forceinline__ void StoreWeights(int stage, int half, const float (&s)[32]) {
    // 16 rows of 16 keys at a time: lane l gives the address of row l % 16, of the first or the last eight keys.
    const uint32_t panel = KeysAt(stage) + kWeightsPanel;
    const uint32_t lane = static_cast<uint32_t>(thread_) % kWarp;
    const uint32_t row = static_cast<uint32_t>(thread_) / kWarp * 16 + lane % 16;
#pragma unroll
    for (int step = 2 * half; step < 2 * half + 2; ++step) {
      uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = PackWeights<Keys>(s + 8 * step + 2 * i);
      StoreMatrices(panel + PanelChunk(row, static_cast<uint32_t>(2 * step) + lane / 16), m);
    }
  }

  // A thread's l is of its own keys: a quarter of every eight.
  __device__ __forceinline__ void EndSplit() {
    told_.taken.Wait(ended_parity_ ^ 1);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      l_[which] += __shfl_xor_sync(kAllLanes, l_[which], 1);
      l_[which] += __shfl_xor_sync(kAllLanes, l_[which], 2);
      if (thread_ % 4 == 0)
        told_.stats[RowOf(which)] = make_float2(rows_[which].Maximum(), l_[which]);
    }
    told_.ended.Arrive();
    ended_parity_ ^= 1;
  }

  SharedTiles& shared_;
  RowSoftmax<Keys> rows_[2];
  float l_[2];  // of our rows; of our keys until the split ends
  RingPosition<kStages> ring_;
  uint32_t ended_parity_ = 0;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_SCORER_CUH_
