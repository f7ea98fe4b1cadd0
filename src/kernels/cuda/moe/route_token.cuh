// How a warp chooses the experts of one token.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTE_TOKEN_CUH_
#define QUIRE_KERNELS_CUDA_MOE_ROUTE_TOKEN_CUH_

#include <cstdint>

#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/row_ops.h"

namespace quire::cuda {

// Loops here are short and run once, so they are not unrolled: a launch of one CTA waits for its code too, and with
// them RouteAndSortKernel had more than 64 KiB.

__device__ inline int LaneId() { return static_cast<int>(threadIdx.x) % 32; }

// ---- Scores ----

// The sum over a row as on the CPU: value i to partial sum i mod 16, ascending, then a tree. The same
// in all lanes.
__device__ inline float SumRow(const float* values, int n) {
  float sum = 0.0f;
  if (LaneId() < 16) {
#pragma unroll 1
    for (int i = LaneId(); i < n; i += 16) sum = __fadd_rn(sum, values[i]);
  }
#pragma unroll
  for (int half = 8; half >= 1; half /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(kAllLanes, sum, half));
  }
  return __shfl_sync(kAllLanes, sum, 0);
}

// A token's logits as they lie in memory.
struct WholeLogits {
  const float* row;

  // This lane's, which are of experts 32 s + lane: all loads are under way before one is used.
  template <int kSlots>
  __device__ void Load(int n, float (&mine)[kSlots]) const {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int i = 32 * s + LaneId();
      mine[s] = i < n ? row[i] : -INFINITY;
    }
  }
};

// Copies logits to scores, a lane its own, which it alone touches until they are scores. Returns the highest of
// them all; fmaxf skips NaN.
template <int kSlots, class Logits>
__device__ float CopyLogits(const Logits& logits, int n, float* scores) {
  float mine[kSlots];
  logits.Load(n, mine);
  float top = -INFINITY;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int i = 32 * s + LaneId();
    top = fmaxf(top, mine[s]);
    if (i < n) scores[i] = mine[s];
  }
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, half));
  }
  return top;
}

// From logits; NaN, which is never `top`, makes every score NaN through the sum.
__device__ inline void SoftmaxRow(float top, int n, float* scores) {
#pragma unroll 1
  for (int i = LaneId(); i < n; i += 32) {
    const float below = __fsub_rn(scores[i], top);
    scores[i] = isnan(below) ? below : ExpAsOnCpu(below);
  }
  __syncwarp();  // every lane's exponentials are there before they are summed
  const float sum = SumRow(scores, n);
#pragma unroll 1
  for (int i = LaneId(); i < n; i += 32) scores[i] = __fdiv_rn(scores[i], sum);
}

__device__ inline void SigmoidRow(int n, float* scores) {
#pragma unroll 1
  for (int i = LaneId(); i < n; i += 32) scores[i] = Sigmoid(scores[i]);
}

// ---- Choosing ----

// Orders as the values do, from 1 up; NaN as -inf and -0 as 0. 0 is below all of them: not there.
__device__ inline uint32_t RankOf(float value) {
  if (isnan(value)) value = -INFINITY;
  const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Takes the highest rank that is left in the warp, the lower number of equal ones: slot s of lane l
// holds number 32 s + l. At least one is left.
template <int kSlots>
__device__ int TakeHighest(uint32_t (&ranks)[kSlots]) {
  uint32_t highest = 0;
  unsigned number = 0xffffffffu;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (ranks[s] > highest) {
      highest = ranks[s];
      number = static_cast<unsigned>(32 * s + LaneId());
    }
  }
  const uint32_t most = __reduce_max_sync(kAllLanes, highest);
  const unsigned taken = __reduce_min_sync(kAllLanes, highest == most ? number : 0xffffffffu);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (static_cast<unsigned>(32 * s + LaneId()) == taken) ranks[s] = 0;
  }
  return static_cast<int>(taken);
}

__device__ inline float GroupScore(ExpertSelection selection, const float* scores, int count) {
  float first = -INFINITY;
  float second = first;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (scores[i] > first) {
      second = first;
      first = scores[i];
    } else if (scores[i] > second) {
      second = scores[i];
    }
  }
  return selection == ExpertSelection::kGroupMax ? first : __fadd_rn(first, second);
}

// A bit per group that is kept, the same in all lanes.
__device__ inline uint64_t KeptGroups(const RouteShape& shape, const float* biased) {
  constexpr int kSlots = kMaxExpertGroups / 32;
  const int group_size = shape.num_experts / shape.num_groups;
  uint32_t ranks[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int group = 32 * s + LaneId();
    ranks[s] = group < shape.num_groups
                   ? RankOf(GroupScore(shape.selection, biased + group * group_size, group_size))
                   : 0;
  }
  uint64_t kept = 0;
#pragma unroll 1
  for (int i = 0; i < shape.top_groups; ++i) kept |= uint64_t{1} << TakeHighest(ranks);
  return kept;
}

// The experts and weights of the token with these logits, by the calling warp. kSlots * 32 >=
// num_experts; `scores` and `biased` are this warp's own, num_experts each; `bias` may be null.
template <int kSlots, class Logits>
__device__ void RouteToken(const RouteShape& shape, const Logits& logits, const float* bias,
                           float* scores, float* biased, int32_t* experts, float* weights) {
  const int n = shape.num_experts;
  const float top = CopyLogits<kSlots>(logits, n, scores);
  if (shape.score == ScoreFunction::kSoftmax) {
    SoftmaxRow(top, n, scores);
  } else {
    SigmoidRow(n, scores);
  }
  __syncwarp();
#pragma unroll 1
  for (int e = LaneId(); e < n; e += 32) {
    biased[e] = bias == nullptr ? scores[e] : __fadd_rn(scores[e], bias[e]);
  }
  __syncwarp();  // groups read what other lanes wrote

  const bool grouped = shape.selection != ExpertSelection::kGreedy;
  const int group_size = grouped ? n / shape.num_groups : n;
  const uint64_t kept = grouped ? KeptGroups(shape, biased) : 1;
  uint32_t ranks[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int e = 32 * s + LaneId();
    ranks[s] = e < n && (kept >> (e / group_size) & 1) != 0 ? RankOf(biased[e]) : 0;
  }

  float sum = 0.0f;
  int32_t chosen[kMaxTopK / 32] = {};  // lane l keeps choices l and l + 32
#pragma unroll 1
  for (int j = 0; j < shape.top_k; ++j) {
    const int e = TakeHighest(ranks);
    sum = __fadd_rn(sum, scores[e]);
    if (j % 32 == LaneId()) (j < 32 ? chosen[0] : chosen[1]) = e;
  }
  const float divisor = shape.normalize ? __fadd_rn(sum, 1e-20f) : 1.0f;
#pragma unroll
  for (int s = 0; s < kMaxTopK / 32; ++s) {
    const int j = 32 * s + LaneId();
    if (j >= shape.top_k) break;
    experts[j] = chosen[s];
    weights[j] = __fmul_rn(__fdiv_rn(scores[chosen[s]], divisor), shape.scale);
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTE_TOKEN_CUH_
