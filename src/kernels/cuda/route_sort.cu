// SortByExpert and GatherRows.
//
// A counting sort in three steps. Choices are cut into segments, one warp each: (1) every segment
// counts its choices per expert; (2) these counts are summed over the segments before, and over the
// experts before; (3) every segment places its choices in order. A choice's row is thus the number of
// choices before it in (expert, choice) order: no atomics, and nothing depends on how segments lie.
#include <cstdint>

#include "base/maths.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/route.h"
#include "kernels/cuda/route_sort.h"
#include "kernels/cuda/row_ops_launch.cuh"
#include "kernels/cuda/row_ops_math.cuh"

namespace quire::cuda {
namespace {

constexpr unsigned kAllLanes = ~0u;

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
    if (expert >= 0 && expert < num_experts) return expert;
    Report(status, DeviceFault::kExpert, Launch::kDispatch, static_cast<uint32_t>(choice));
    return 0;
  }
};

// Calls fn(choice, expert, rank, count, first) for the choices of [begin, end), 32 at once, by the
// calling warp: `rank` of this choice among the `count` of those 32 with its expert, `first` in one
// lane of each expert. A lane past the end has expert -1.
template <class Fn>
__device__ void ForChoices(const Choices& choices, int64_t begin, int64_t end, Fn fn) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = begin; i < end; i += 32) {
    const int64_t choice = i + lane;
    const int32_t expert = choice < end ? choices.ExpertOf(choice) : -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    fn(choice, expert, rank, __popc(same), rank == 0);
  }
}

// counts[e] = how many of [begin, end) chose e. `counts` is this warp's own.
__device__ void CountSegment(const Choices& choices, int64_t begin, int64_t end, int32_t* counts) {
  for (int e = static_cast<int>(threadIdx.x) % 32; e < choices.num_experts; e += 32) counts[e] = 0;
  __syncwarp();
  ForChoices(choices, begin, end, [&](int64_t, int32_t expert, int, int count, bool first) {
    if (first && expert >= 0) counts[expert] += count;  // one lane per expert
    __syncwarp();  // the next 32 may add to the same count from another lane
  });
}

// Places the choices of [begin, end): next[e] is the row of the segment's next choice of e.
__device__ void PlaceSegment(const Choices& choices, int64_t begin, int64_t end, int32_t* next,
                             int32_t* row_of) {
  ForChoices(choices, begin, end,
             [&](int64_t choice, int32_t expert, int rank, int count, bool first) {
               if (expert >= 0) row_of[choice] = next[expert] + rank;
               __syncwarp();  // all have read before the first of each expert moves it on
               if (first && expert >= 0) next[expert] += count;
               __syncwarp();
             });
}

// The sum of the values of all threads before this one; all of the CTA's 1024 call it. `total` is the
// sum of all.
__device__ int32_t SumBefore(int32_t value, int32_t& total) {
  __shared__ int32_t warps[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();  // every warp's sum is there before any thread reads them
  int32_t before_warp = 0;
  total = 0;
  for (int w = 0; w < 32; ++w) {
    if (w < warp) before_warp += warps[w];
    total += warps[w];
  }
  return before_warp + sum - value;
}

// From counts per segment to where the choices of each segment begin: thread e does expert e.
__device__ void ScanCounts(int32_t* counts, int64_t num_segments, int32_t num_experts,
                           int32_t* offsets, int32_t* used) {
  const int e = static_cast<int>(threadIdx.x);
  int32_t mine = 0;
  if (e < num_experts) {
    for (int64_t s = 0; s < num_segments; ++s) mine += counts[s * num_experts + e];
  }
  int32_t total;
  int32_t next = SumBefore(mine, total);
  const int num_used = __syncthreads_count(mine > 0);
  if (e == 0) offsets[num_experts] = total;
  if (e == 0 && used != nullptr) *used = num_used;
  if (e >= num_experts) return;
  offsets[e] = next;
  for (int64_t s = 0; s < num_segments; ++s) {
    const int32_t count = counts[s * num_experts + e];
    counts[s * num_experts + e] = next;
    next += count;
  }
}

// ---- Few choices: one CTA, the counts in shared memory ----

__global__ void __launch_bounds__(kSortWarps * 32)
    SortAtOnceKernel(Choices choices, int32_t* offsets, int32_t* row_of, int32_t* used) {
  extern __shared__ int32_t counts[];  // [kSortWarps, num_experts]
  const int64_t num_choices = choices.Count();
  // Whole warps' worth of choices, so that a segment's 32 are never another's too.
  const int64_t length = RoundUp(CeilDiv(num_choices, int64_t{kSortWarps}), int64_t{32});
  const int64_t warp = threadIdx.x / 32;
  const int64_t begin = warp * length;
  const int64_t end = begin + length < num_choices ? begin + length : num_choices;
  int32_t* const mine = counts + warp * choices.num_experts;
  CountSegment(choices, begin, end, mine);
  __syncthreads();  // all segments are counted before experts are summed
  ScanCounts(counts, kSortWarps, choices.num_experts, offsets, used);
  __syncthreads();  // every segment's rows are known before any is placed
  PlaceSegment(choices, begin, end, mine, row_of);
}

// ---- Many: the counts in global memory ----

__device__ int64_t SegmentOfWarp() {
  return int64_t{blockIdx.x} * kSegmentWarps + threadIdx.x / 32;
}

__global__ void __launch_bounds__(kSegmentWarps * 32)
    CountSegmentsKernel(Choices choices, int32_t* counts) {
  const int64_t num_choices = choices.Count();
  const int64_t begin = SegmentOfWarp() * kSegmentChoices;
  if (begin >= num_choices) return;
  const int64_t end = begin + kSegmentChoices < num_choices ? begin + kSegmentChoices : num_choices;
  CountSegment(choices, begin, end, counts + SegmentOfWarp() * choices.num_experts);
}

__global__ void __launch_bounds__(kSortWarps * 32)
    ScanSegmentsKernel(Choices choices, int32_t* counts, int32_t* offsets, int32_t* used) {
  ScanCounts(counts, CeilDiv(choices.Count(), int64_t{kSegmentChoices}), choices.num_experts,
             offsets, used);
}

__global__ void __launch_bounds__(kSegmentWarps * 32)
    PlaceSegmentsKernel(Choices choices, int32_t* counts, int32_t* row_of) {
  const int64_t num_choices = choices.Count();
  const int64_t begin = SegmentOfWarp() * kSegmentChoices;
  if (begin >= num_choices) return;
  const int64_t end = begin + kSegmentChoices < num_choices ? begin + kSegmentChoices : num_choices;
  PlaceSegment(choices, begin, end, counts + SegmentOfWarp() * choices.num_experts, row_of);
}

// ---- Rows ----

template <bool kVector>
__global__ void __launch_bounds__(kCutThreads)
    GatherRowsKernel(Rows<const Bf16> x, const int32_t* row_of, int64_t top_k, int64_t num_choices,
                     int64_t width, Rows<Bf16> y, LiveRows live, StatusWord status) {
  const int64_t choice = blockIdx.x;
  const int64_t token = choice / top_k;
  const int64_t begin = CutBegin();
  if (begin >= width || !IsLive(live, token)) return;
  const int64_t to = row_of[choice];
  if (to < 0 || to >= num_choices) {
    if (begin == 0) {
      Report(status, DeviceFault::kExpert, Launch::kDispatch, static_cast<uint32_t>(choice));
    }
    return;
  }
  if constexpr (kVector) {
    *reinterpret_cast<uint4*>(y[to] + begin) = *reinterpret_cast<const uint4*>(x[token] + begin);
  } else {
    for (int64_t i = begin; i < width && i < begin + kGroup; ++i) y[to][i] = x[token][i];
  }
}

}  // namespace

void SortByExpert(const SortByExpertArgs& args, const Stream& stream) {
  Validate(args);
  const Choices choices = {.experts = args.experts.data(),
                           .num_experts = args.num_experts,
                           .top_k = args.top_k,
                           .capacity = std::ssize(args.experts),
                           .live = args.live,
                           .status = args.status};
  int32_t* const offsets = args.offsets.data();
  int32_t* const row_of = args.row_of.data();
  if (choices.capacity <= kMaxChoicesAtOnce) {
    const int shared = kSortWarps * args.num_experts * static_cast<int>(sizeof(int32_t));
    Check(cudaFuncSetAttribute(SortAtOnceKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSortWarps * kMaxExperts * static_cast<int>(sizeof(int32_t))),
          "sort_by_expert: shared memory");
    SortAtOnceKernel<<<1, kSortWarps * 32, static_cast<size_t>(shared), stream.get()>>>(
        choices, offsets, row_of, args.used);
    CheckLaunch("sort_by_expert");
    return;
  }
  const auto grid =
      static_cast<unsigned>(CeilDiv(choices.capacity, int64_t{kSegmentChoices} * kSegmentWarps));
  int32_t* const counts = args.workspace.data();
  CountSegmentsKernel<<<grid, kSegmentWarps * 32, 0, stream.get()>>>(choices, counts);
  CheckLaunch("sort_by_expert: count");
  ScanSegmentsKernel<<<1, kSortWarps * 32, 0, stream.get()>>>(choices, counts, offsets, args.used);
  CheckLaunch("sort_by_expert: scan");
  PlaceSegmentsKernel<<<grid, kSegmentWarps * 32, 0, stream.get()>>>(choices, counts, row_of);
  CheckLaunch("sort_by_expert: place");
}

void GatherRows(const GatherRowsArgs& args, const Stream& stream) {
  Validate(args);
  const int64_t width = args.x.dim(1);
  const int64_t num_choices = std::ssize(args.row_of);
  if (num_choices == 0 || width == 0) return;
  WithVector(InGroups(args.x, width) && InGroups(args.y, width), [&](auto vector) {
    GatherRowsKernel<decltype(vector)::value>
        <<<CutGrid(num_choices, width), kCutThreads, 0, stream.get()>>>(
            RowsOf<const Bf16>(args.x), args.row_of.data(), num_choices / args.x.dim(0),
            num_choices, width, RowsOf<Bf16>(args.y), args.live, args.status);
  });
  CheckLaunch("gather_rows");
}

}  // namespace quire::cuda
