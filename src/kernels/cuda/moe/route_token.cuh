// How a warp chooses the experts of one token.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTE_TOKEN_CUH_
#define QUIRE_KERNELS_CUDA_MOE_ROUTE_TOKEN_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/row_ops.h"

namespace quire::cuda {

// Loops here are short and run once, and a launch of one CTA waits for its code too. So what is done for every slot is
// code for kStep of them at most, and the rest of a loop is not unrolled.

// The number of the calling warp, which the compiler takes for the same in all its lanes: then it makes no other code for
// lanes that have parted.
__device__ inline int WarpId() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
}
__device__ inline int LaneId() { return static_cast<int>(threadIdx.x) % 32; }

// How the experts of a shape lie in groups, as the choice reads it.
struct ExpertGroups {
  int32_t size = 0;       // 0: they are chosen without groups
  int32_t lane_bits = 0;  // 2^lane_bits lanes have a group, 32 groups or fewer at a time

  explicit ExpertGroups(const RouteShape& shape) {
    if (shape.selection == ExpertSelection::kGreedy) return;
    size = shape.num_experts / shape.num_groups;
    // Eight at most: then a warp has room for four groups or more, and they are compared by fours.
    while (lane_bits < 3 && shape.num_groups << (lane_bits + 1) <= 32) ++lane_bits;
  }
};

// ---- Slots ----

// A lane's values are in kSlots registers, which have numbers when compiled: for a loop over them they go round.
template <int kSlots>
inline constexpr int kStep = kSlots < 4 ? kSlots : 4;

// values[s] = fn(values[s]) for every s, by the code of kTogether of them.
template <int kTogether, int kSlots, class Fn>
__device__ void ForSlots(float (&values)[kSlots], Fn fn) {
  static_assert(kSlots % kTogether == 0);
#pragma unroll 1
  for (int first = 0; first < kSlots; first += kTogether) {
    float done[kTogether];
#pragma unroll
    for (int s = 0; s < kTogether; ++s) done[s] = fn(values[s]);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      values[s] = s + kTogether < kSlots ? values[s + kTogether] : done[s + kTogether - kSlots];
    }
  }
}

// A row in memory: a token's logits, or the bias.
struct WholeRow {
  const float* row;

  // This lane's, which are of experts 32 s + lane: all loads are under way before one is used.
  template <int kSlots>
  __device__ void Load(int n, float missing, float (&mine)[kSlots]) const {
    const float* const from = row + LaneId();
#pragma unroll
    for (int s = 0; s < kSlots; ++s) mine[s] = LaneId() < n - 32 * s ? from[32 * s] : missing;
  }
};

// The bias, which nobody writes: loaded before a launch takes its turn, or before a loop over tokens.
template <int kSlots>
struct HeldBias {
  float held[kSlots];

  __device__ HeldBias(const float* bias, int n) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      held[s] = 0.0f;
      if (bias != nullptr && LaneId() < n - 32 * s) {
        held[s] = LoadHere<float>(reinterpret_cast<const std::byte*>(bias + 32 * s + LaneId()));
      }
    }
  }
  __device__ void Load(int, float (&mine)[kSlots]) const {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) mine[s] = held[s];
  }
};

// The same, loaded where it is added: its registers are others' until then.
struct LateBias {
  const float* bias;  // or null

  template <int kSlots>
  __device__ void Load(int n, float (&mine)[kSlots]) const {
    WholeRow{bias}.Load(bias == nullptr ? 0 : n, 0.0f, mine);
  }
};

// ---- Ranks ----

// Orders as the values do, from 1 up; NaN as -inf and -0 as 0. 0 is below all of them: not there.
__device__ inline uint32_t RankOf(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(fmaxf(value, -INFINITY), 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float ValueOf(uint32_t rank) {
  return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

// ---- Scores ----

// The highest logit of them all; NaN is skipped.
template <int kSlots>
__device__ float HighestOf(const float (&logits)[kSlots]) {
  float top = -INFINITY;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) top = fmaxf(top, logits[s]);
  return ValueOf(__reduce_max_sync(kAllLanes, RankOf(top)));
}

// The sum over a row as on the CPU: value i to partial sum i mod 16, ascending, then a tree. None is below 0, and those
// that are not there are 0: zeros change no sum. The same in all lanes.
template <int kSlots>
__device__ float SumRow(const float (&values)[kSlots]) {
  float sum = 0.0f;  // of lanes below 16
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const float of_upper = __shfl_down_sync(kAllLanes, values[s], 16);
    sum = __fadd_rn(__fadd_rn(sum, values[s]), of_upper);
  }
#pragma unroll
  for (int half = 8; half >= 1; half /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(kAllLanes, sum, half));
  }
  return __shfl_sync(kAllLanes, sum, 0);
}

// From logits, -inf where there is none; NaN, which is never `top`, makes every score NaN through the sum.
template <int kSlots>
__device__ void Softmax(float (&values)[kSlots]) {
  const float top = HighestOf(values);
  ForSlots<kStep<kSlots>>(values, [&](float logit) {
    const float below = __fsub_rn(logit, top);
    return Select(isnan(below), below, ExpAsOnCpu(below));
  });
  const float sum = SumRow(values);
  bool all_divide = true;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) all_divide &= !(values[s] > 0.0f && values[s] < 0x1p-70f);
  if (__all_sync(kAllLanes, all_divide)) {
    const UncheckedDivisor divisor(sum);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) values[s] = divisor.Divide(values[s]);
  } else {
    ForSlots<1>(values, [&](float value) { return __fdiv_rn(value, sum); });
  }
}

// ---- Choosing ----

// The highest rank of a lane's, in place `slot`; of equal ones the first.
struct Best {
  uint32_t rank = 0;
  int slot = 0;

  // Of slots kFirst to kFirst + kCount - 1, as a tree.
  template <int kFirst, int kCount, int kSlots>
  static __device__ Best Of(const uint32_t (&ranks)[kSlots]) {
    if constexpr (kCount == 1) {
      return {ranks[kFirst], kFirst};
    } else {
      const Best a = Of<kFirst, kCount / 2>(ranks);
      const Best b = Of<kFirst + kCount / 2, kCount - kCount / 2>(ranks);
      return {max(a.rank, b.rank), b.rank > a.rank ? b.slot : a.slot};
    }
  }
};

// A group of experts as one of its lanes sees it: every 2^lane_bits-th of its ranks.
struct GroupShare {
  uint32_t* first;
  int count, step;  // of ranks of this share; from one to the next

  // fn(first, left) for four of them at a time, of which the first `left` are there.
  template <class Fn>
  __device__ void ForFours(Fn fn) const {
    uint32_t* next = first;
#pragma unroll 1
    for (int left = count; left > 0; left -= 4, next += 4 * step) fn(next, left);
  }
};

// What a group is worth, as a rank; by all of its lanes, which get the same.
__device__ inline uint32_t RankOfGroup(const RouteShape& shape, const GroupShare& share,
                                       int lanes) {
  const uint32_t lowest = RankOf(-INFINITY);
  uint32_t first = lowest, second = lowest;
  share.ForFours([&](const uint32_t* from, int left) {
    uint32_t ranks[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) ranks[k] = k < left ? from[k * share.step] : lowest;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      second = max(second, min(first, ranks[k]));
      first = max(first, ranks[k]);
    }
  });
#pragma unroll 1
  for (int step = 1; step < lanes; step *= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, first, step);
    const uint32_t other_second = __shfl_xor_sync(kAllLanes, second, step);
    second = max(max(second, other_second), min(first, other));
    first = max(first, other);
  }
  if (shape.selection == ExpertSelection::kGroupMax) return first;
  return RankOf(__fadd_rn(ValueOf(first), ValueOf(second)));
}

// Of `ranks`, one for each expert, those of groups that are not kept become 0: groups that top_groups others come before.
__device__ inline void DropGroups(const RouteShape& shape, const ExpertGroups& groups,
                                  uint32_t* ranks) {
  const int num_groups = shape.num_groups, bits = groups.lane_bits, lanes = 1 << bits;
  const int mine = LaneId() >> bits, place = LaneId() & (lanes - 1);
  const auto share_of = [&](int group) {
    const int count = group < num_groups ? (groups.size - place + lanes - 1) >> bits : 0;
    return GroupShare{.first = ranks + group * groups.size + place, .count = count, .step = lanes};
  };
  uint32_t rank = 0, upper_rank = 0;  // of group `mine`, and of mine + 32
#pragma unroll 1
  for (int first = num_groups > 32 ? 32 : 0; first >= 0; first -= 32) {
    upper_rank = rank;
    const uint32_t of_group = RankOfGroup(shape, share_of(first + mine), lanes);
    rank = first + mine < num_groups ? of_group : 0;
  }
#pragma unroll 1
  for (int first = num_groups > 32 ? 32 : 0; first >= 0; first -= 32) {
    const uint32_t of_mine = first == 0 ? rank : upper_rank;
    int before = 0;
#pragma unroll 1
    for (int g = 0; g < num_groups; g += 4) {  // those past the last are not there
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t other =
            __shfl_sync(kAllLanes, g < 32 ? rank : upper_rank, (g + k) << bits & 31);
        before += other > of_mine || (other == of_mine && g + k < first + mine) ? 1 : 0;
      }
    }
    GroupShare share = share_of(first + mine);
    if (before < shape.top_groups) share.count = 0;
    share.ForFours([&](uint32_t* to, int left) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < left) to[k * share.step] = 0;
      }
    });
  }
  __syncwarp();  // what is dropped is dropped for every lane
}

// What RouteToken needs of shared memory, in floats: scores, and ranks.
template <int kSlots>
inline constexpr int kTokenScores = 2 * kSlots * 32;

// The experts and weights of the token with these logits, by the calling warp: store(j, expert, weight) of choice j, by
// one lane each. kSlots * 32 >= num_experts; `scores` are kTokenScores of this warp's own in shared memory, on a
// multiple of 16 bytes.
template <int kSlots, class Logits, class Bias, class Store>
__device__ void RouteToken(const RouteShape& shape, const ExpertGroups& groups,
                           const Logits& logits, const Bias& bias, float* scores, Store store) {
  const int n = shape.num_experts;
  float values[kSlots];
  logits.Load(n, -INFINITY, values);
  if (shape.score == ScoreFunction::kSoftmax) {
    Softmax(values);
  } else {
    ForSlots<kStep<kSlots>>(values, [](float logit) { return Sigmoid(logit); });
  }
  auto* const all_ranks = reinterpret_cast<uint32_t*>(scores + kSlots * 32);
  {
    float added[kSlots];
    bias.Load(n, added);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      scores[32 * s + LaneId()] = values[s];
      const uint32_t rank = RankOf(__fadd_rn(values[s], added[s]));
      all_ranks[32 * s + LaneId()] = LaneId() < n - 32 * s ? rank : 0;
    }
  }
  __syncwarp();  // every lane's scores are there before others read them
  if (groups.size > 0) DropGroups(shape, groups, all_ranks);

  // From here on a lane has the experts from kSlots * lane on, so of equal ranks the first lane's comes first.
  const int mine = kSlots * LaneId();
  static_assert(kSlots % 2 == 0);  // two at a time
  uint32_t ranks[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; s += 2) {
    const uint2 pair = *reinterpret_cast<const uint2*>(all_ranks + mine + s);
    ranks[s] = pair.x;
    ranks[s + 1] = pair.y;
  }
  __syncwarp();  // all have read the ranks, where choices are written next
  auto* const chosen = reinterpret_cast<int32_t*>(all_ranks);

  // A lane offers its best, and has found the next one when it is known which lane's is taken.
  const auto take = [&](int slot) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) ranks[s] = s == slot ? 0 : ranks[s];
  };
  Best best = Best::Of<0, kSlots>(ranks);
  take(best.slot);
#pragma unroll 1
  for (int j = 0; j < shape.top_k; ++j) {
    const uint32_t most = __reduce_max_sync(kAllLanes, best.rank);
    const Best next = Best::Of<0, kSlots>(ranks);
    const unsigned have_most = __ballot_sync(kAllLanes, best.rank == most);
    const bool is_taken = (have_most & (0u - have_most)) == 1u << LaneId();
    if (is_taken) chosen[j] = mine + best.slot;
    take(is_taken ? next.slot : -1);
    if (is_taken) best = next;
  }
  __syncwarp();  // every choice is there before it is read

  float sum = 0.0f;
  if (shape.normalize) {
#pragma unroll 1
    for (int first = 0; first < shape.top_k; first += 32) {
      const float score = first + LaneId() < shape.top_k ? scores[chosen[first + LaneId()]] : 0.0f;
#pragma unroll 1
      for (int j = 0; j < min(32, shape.top_k - first); j += 4) {  // zeros change no sum
#pragma unroll
        for (int k = 0; k < 4; ++k) sum = __fadd_rn(sum, __shfl_sync(kAllLanes, score, j + k));
      }
    }
  }
  const float divisor = shape.normalize ? __fadd_rn(sum, 1e-20f) : 1.0f;
#pragma unroll 1
  for (int j = LaneId(); j < shape.top_k; j += 32) {
    const int expert = chosen[j];
    store(j, expert, __fmul_rn(__fdiv_rn(scores[expert], divisor), shape.scale));
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTE_TOKEN_CUH_
