// The warpgroup that has scores and weights of up to 16 rows: S^T = K Q^T, softmax, weights to shared memory.
//
// Keys are a product's rows. A thread has two of them, and four rows of queries: its scores are
// s[4 j + 2 i + e], of key 16 warp + lane / 4 + 8 i and row 8 j + lane % 4 * 2 + e.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_SCORER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_SCORER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_queries.cuh"

namespace quire::cuda::mla {

// Scores over bf16 keys in panels.
struct PanelScores {
  using Keys = Bf16Keys;
  using Shared = SharedParts;
  using Place = PartPlace;
  static constexpr bool kInFours = false;

  // As keys come. The turn comes with the first of them.
  static __device__ __forceinline__ Turn Multiply(Shared& shared, const Place& place, int, int,
                                                  float (&s)[8]) {
    constexpr uint32_t kQueryBytes = PanelRows<kNarrowRows>::kPanelBytes;
    const uint32_t q = UniformHere(SharedAddress(&shared.q));
    HoldSums(s);
    Turn turn;
    BeginProducts();
#pragma unroll
    for (uint32_t part = 0; part < RingParts::kParts; ++part) {
      place.WaitUntilFull(part);
      if (part == 0) turn = place.ThisTurn();
      if (turn.needs_fence) FenceForProducts();
      const uint32_t keys = Uniform(place.Panel(RingParts::Begin(part)));
#pragma unroll
      for (uint32_t i = 0; i < 4 * RingParts::kPartPanels; ++i) {
        const uint32_t panel = RingParts::Begin(part) + i / 4;
        const uint64_t a = PanelOperand(keys, i / 4 * kPanelBytes + i % 4 * 32);
        const uint64_t b = PanelOperand(q, panel * kQueryBytes + i % 4 * 32);
        MultiplyPanels(s, a, b, part > 0 || i > 0);
      }
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(s);
    return turn;
  }
  // Weights are written, and products read them.
  static __device__ __forceinline__ void FenceWeights() { FenceForProducts(); }
};

// Scores say how keys are multiplied: PanelScores, or CodeScores.
template <class Scores>
class NarrowScorer : Participant {
 public:
  using Keys = typename Scores::Keys;
  using Shared = typename Scores::Shared;

  __device__ NarrowScorer(const MlaKernelArgs& args, Shared& shared, int role)
      : Participant(args, shared, role), shared_(shared), place_(shared) {}

  __device__ __forceinline__ void Run() {
    ForEachOrder([&] {
      LoadQueries();
      ForEachSplit([&](int32_t, int32_t, bool has_keys) {
#pragma unroll
        for (RowSoftmax<Keys>& row : rows_) row.Begin();
        l_ = 0.0f;
        has_pairs_ = false;
        for (bool ends = !has_keys; !ends;) ends = RunTurn();
        EndSplit();
      });
    });
  }

 private:
  static constexpr int kThreadRows = 4;

  // Row 2 j + e of the four.
  __device__ __forceinline__ int32_t RowOf(int which) const {
    return which / 2 * 8 + thread_ % 4 * 2 + which % 2;
  }
  __device__ __forceinline__ int Warp() const { return thread_ / kWarp; }
  // 0..7: of a warp's keys, and of 8 more behind them.
  __device__ __forceinline__ int KeyOfEight() const { return thread_ % kWarp / 4; }

  // Nobody else reads queries.
  __device__ __forceinline__ void LoadQueries() {
    Sync();  // products of the piece before have ended in all warps
    CopyQueries<Keys::kAreF16, Scores::kInFours>(args_, Block(), shared_.q, told_.q_units, thread_);
    Sync();  // queries are written
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      float scale = args_.scale * kLog2E;
      if constexpr (Keys::kAreF16) scale *= told_.q_units[RowOf(which)];
      rows_[which].SetScale(scale);
    }
  }

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    float s[2 * kThreadRows];
    const Turn turn = Scores::Multiply(shared_, place_, thread_, barrier_, s);
    if (!turn.is_seen_by_all) MaskKeys(turn.pass, s);
    FollowMaxima(s);
#pragma unroll
    for (int i = 0; i < 2 * kThreadRows; ++i) s[i] = rows_[WhichOf(i)].WeightOf(s[i]);
    StoreWeights(s);
    Scores::FenceWeights();
    place_.Weighted();
    AddPairs();  // of the turn before, whose warps have all written theirs by now
    SharePairs(s);
    place_.Advance();
    return turn.ends_split;
  }

  // -inf where a row does not see a key, or takes no part in the pass.
  __device__ __forceinline__ void MaskKeys(Pass pass, float (&s)[2 * kThreadRows]) const {
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      const int32_t row = RowOf(which);
      const bool takes_part = pass.token == kAllTokens || pass.token == Block().TokenOf(row);
      const int32_t visible = ThisOrder().visible[row];
      const uint64_t nodes = ThisOrder().nodes[row];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t key = pass.key + Warp() * 16 + KeyOfEight() + 8 * i;
        const int32_t node = key - Block().nodes_begin;
        const bool is_node = node >= 0 && node < 64 && (nodes >> node & 1) != 0;
        if (!takes_part || (key >= visible && !is_node)) s[IndexOf(which, i)] = -INFINITY;
      }
    }
  }

  // After it products have ended in all warps, too.
  __device__ __forceinline__ void FollowMaxima(const float (&s)[2 * kThreadRows]) {
    float top[kThreadRows], alpha[kThreadRows];
    bool follows = false;
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      top[which] = fmaxf(s[IndexOf(which, 0)], s[IndexOf(which, 1)]);
      follows |= rows_[which].WouldFollow(top[which]);
      alpha[which] = 1.0f;
    }
    if (SyncWarpgroupAny(barrier_, follows)) {
      ShareTops(top);
#pragma unroll
      for (int which = 0; which < kThreadRows; ++which) {
        const float4 tops = shared_.scorer.tops[RowOf(which)];
        alpha[which] = rows_[which].Follow(fmaxf(fmaxf(tops.x, tops.y), fmaxf(tops.z, tops.w)));
      }
    }
    if (thread_ >= 4) return;
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      shared_.alpha[place_.turn()][RowOf(which)] = alpha[which];
    }
  }
  // The highest score that each row has of a warp's keys, for all warps.
  __device__ __forceinline__ void ShareTops(const float (&top)[kThreadRows]) {
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      float most = fmaxf(top[which], __shfl_xor_sync(kAllLanes, top[which], 4));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 8));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 16));
      if (thread_ % kWarp < 4) (&shared_.scorer.tops[RowOf(which)].x)[Warp()] = most;
    }
    Sync();
  }

  // Rows of weights, 64 keys each.
  __device__ __forceinline__ void StoreWeights(const float (&s)[2 * kThreadRows]) const {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = PackWeights<Keys>(s + 2 * i);  // keys alternate
    const uint32_t lane = static_cast<uint32_t>(thread_) % kWarp, matrix = lane / 8;
    const uint32_t chunk = static_cast<uint32_t>(Warp()) * 2 + matrix % 2;
    StoreMatricesTransposed(place_.Weights() + PanelChunk(matrix / 2 * 8 + lane % 8, chunk), pairs);
  }

  // ---- Sums of weights ----
  //
  // As other rows have them: l has four parts, over keys 2t and 2t + 1 of every eight, eight behind eight. So
  // every thread hands out the sums of two keys, and 64 threads add them, a turn later.

  __device__ __forceinline__ void SharePairs(const float (&s)[2 * kThreadRows]) {
    auto& pairs = shared_.scorer.pairs[place_.parity()];
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = s[IndexOf(which, i)];
        const float pair = weight + __shfl_xor_sync(kAllLanes, weight, 4);
        if (KeyOfEight() % 2 == 0) pairs[Warp() * 2 + i][RowOf(which)][KeyOfEight() / 2] = pair;
      }
    }
    has_pairs_ = true;
  }
  // Of the turn before the place at hand.
  __device__ __forceinline__ void AddPairs() {
    if (!has_pairs_ || thread_ >= 4 * kNarrowRows) return;
    const auto& pairs = shared_.scorer.pairs[place_.parity() ^ 1];
    float sum = 0.0f;
#pragma unroll
    for (int eight = 0; eight < kTileKeys / 8; ++eight) {
      sum += pairs[eight][thread_ / 4][thread_ % 4];
    }
    l_ = __fmaf_rn(shared_.alpha[place_.TurnBefore()][thread_ / 4], l_, sum);
  }

  __device__ __forceinline__ void EndSplit() {
    told_.taken.Wait(ended_parity_ ^ 1);
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      if (thread_ < 4) shared_.scorer.ended_m[RowOf(which)] = rows_[which].Maximum();
    }
    Sync();
    AddPairs();
    if (thread_ < 4 * kNarrowRows) {
      l_ += __shfl_xor_sync(kAllLanes, l_, 1);
      l_ += __shfl_xor_sync(kAllLanes, l_, 2);
      if (thread_ % 4 == 0) {
        told_.stats[thread_ / 4] = make_float2(shared_.scorer.ended_m[thread_ / 4], l_);
      }
    }
    told_.ended.Arrive();
    ended_parity_ ^= 1;
  }

  static constexpr __device__ int IndexOf(int which, int i) {
    return which / 2 * 4 + i * 2 + which % 2;
  }
  static constexpr __device__ int WhichOf(int index) { return index / 4 * 2 + index % 2; }

  Shared& shared_;
  typename Scores::Place place_;
  RowSoftmax<Keys> rows_[kThreadRows];
  float l_ = 0.0f;          // of row thread / 4, the part thread % 4; of 64 threads alone
  bool has_pairs_ = false;  // that were not added yet
  uint32_t ended_parity_ = 0;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_SCORER_CUH_
