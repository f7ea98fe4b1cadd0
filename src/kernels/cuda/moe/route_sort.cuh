// A counting sort of choices by expert, in pieces that one CTA or several put together.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTE_SORT_CUH_
#define QUIRE_KERNELS_CUDA_MOE_ROUTE_SORT_CUH_

#include <cstdint>

#include "base/maths.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/row_ops/row_ops.h"

namespace quire::cuda {

struct Choices {
  const int32_t* experts;
  int32_t num_experts;
  int32_t top_k;
  int64_t capacity;
  LiveRows live;
  StatusWord status;

  // Of the tokens that there are.
  __device__ int64_t Count() const {
    if (live.count == nullptr) return capacity;
    const int64_t count = int64_t{*live.count} * top_k;
    return count < 0 ? 0 : count < capacity ? count : capacity;
  }
  __device__ int32_t ExpertOf(int64_t choice) const {
    const int32_t expert = experts[choice];
    if (expert == kNoExpert || (expert >= 0 && expert < num_experts)) return expert;
    Report(status, DeviceFault::kExpert, Launch::kDispatch, static_cast<uint32_t>(choice));
    return 0;
  }
};

// Calls fn(choice, expert, rank, count, first) for the choices of [begin, end), 32 at once, by the
// calling warp: `rank` of this choice among the `count` of those 32 with its expert, `first` in one
// lane of each expert. A lane past the end has kNoExpert.
template <class Fn>
__device__ void ForChoices(const Choices& choices, int64_t begin, int64_t end, Fn fn) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1  // as in route_token.cuh
  for (int64_t i = begin; i < end; i += 32) {
    const int64_t choice = i + lane;
    const int32_t expert = choice < end ? choices.ExpertOf(choice) : kNoExpert;
    const unsigned same = __match_any_sync(~0u, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    fn(choice, expert, rank, __popc(same), rank == 0);
  }
}

// counts[e] = how many of [begin, end) chose e. `counts` is this warp's own.
__device__ inline void CountSegment(const Choices& choices, int64_t begin, int64_t end,
                                    int32_t* counts) {
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) % 32; e < choices.num_experts; e += 32) counts[e] = 0;
  __syncwarp();
  ForChoices(choices, begin, end, [&](int64_t, int32_t expert, int, int count, bool first) {
    if (first && expert >= 0) counts[expert] += count;  // one lane per expert
    __syncwarp();  // the next 32 may add to the same count from another lane
  });
}

// Places the choices of [begin, end): next[e] is the row of the segment's next choice of e. Rows are
// below the number of choices, as they count them.
__device__ inline void PlaceSegment(const Choices& choices, int64_t begin, int64_t end,
                                    int32_t* next, int32_t* row_of, int32_t* token_of) {
  ForChoices(choices, begin, end,
             [&](int64_t choice, int32_t expert, int rank, int count, bool first) {
               if (expert >= 0) {
                 const int32_t row = next[expert] + rank;
                 row_of[choice] = row;
                 token_of[row] = static_cast<int32_t>(choice) / choices.top_k;
               }
               __syncwarp();  // all have read before the first of each expert moves it on
               if (first && expert >= 0) next[expert] += count;
               __syncwarp();
             });
}

// The sum of the values of all threads before this one; all of the CTA call it. `total` is the sum of all.
__device__ inline int32_t SumBefore(int32_t value, int32_t& total) {
  __shared__ int32_t warps[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();  // every warp's sum is there before any thread reads them
  const int32_t of_warp = lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : 0;
  total = __reduce_add_sync(~0u, of_warp);
  return __reduce_add_sync(~0u, lane < warp ? of_warp : 0) + sum - value;
}

// An expert's counts, of segments `first` and those after it, loaded at once; 0 past the last.
constexpr int kHeldSegments = 16;
__device__ inline void HoldCounts(const int32_t* counts, int64_t first, int64_t num_segments,
                                  int32_t num_experts, int32_t (&held)[kHeldSegments]) {
#pragma unroll
  for (int i = 0; i < kHeldSegments; ++i) {
    held[i] = first + i < num_segments ? counts[(first + i) * num_experts] : 0;
  }
}

// From counts per segment to where the choices of each segment begin: thread e does expert e.
__device__ inline void ScanCounts(int32_t* counts, int64_t num_segments, int32_t num_experts,
                                  int32_t* offsets, int32_t* used) {
  const int e = static_cast<int>(threadIdx.x);
  int32_t held[kHeldSegments];
  int32_t mine = 0;
  if (e < num_experts) {
#pragma unroll 1
    for (int64_t s = 0; s < num_segments; s += kHeldSegments) {
      HoldCounts(counts + e, s, num_segments, num_experts, held);
#pragma unroll
      for (int i = 0; i < kHeldSegments; ++i) mine += held[i];
    }
  }
  int32_t total;
  int32_t next = SumBefore(mine, total);
  const int num_used = __syncthreads_count(mine > 0);
  if (e == 0) offsets[num_experts] = total;
  if (e == 0 && used != nullptr) *used = num_used;
  if (e >= num_experts) return;
  offsets[e] = next;
#pragma unroll 1
  for (int64_t s = 0; s < num_segments; s += kHeldSegments) {
    HoldCounts(counts + e, s, num_segments, num_experts, held);
#pragma unroll
    for (int i = 0; i < kHeldSegments; ++i) {
      if (s + i < num_segments) counts[(s + i) * num_experts + e] = next;
      next += held[i];
    }
  }
}

// Sorts by one CTA of kWarps warps, a thread or more for each expert: a warp has a segment. `counts` are
// [kWarps, num_experts] of its shared memory. The choices were written before a barrier of the CTA.
template <int kWarps>
__device__ void SortInCta(const Choices& choices, int32_t* counts, int32_t* offsets,
                          int32_t* row_of, int32_t* token_of, int32_t* used) {
  const int64_t num_choices = choices.Count();
  // Whole warps' worth of choices, so that a segment's 32 are never another's too.
  const int64_t length = RoundUp(CeilDiv(num_choices, int64_t{kWarps}), int64_t{32});
  const int64_t warp = threadIdx.x / 32;
  const int64_t begin = warp * length;
  const int64_t end = begin + length < num_choices ? begin + length : num_choices;
  int32_t* const mine = counts + warp * choices.num_experts;
  CountSegment(choices, begin, end, mine);
  __syncthreads();  // all segments are counted before experts are summed
  ScanCounts(counts, kWarps, choices.num_experts, offsets, used);
  __syncthreads();  // every segment's rows are known before any is placed
  PlaceSegment(choices, begin, end, mine, row_of, token_of);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTE_SORT_CUH_
