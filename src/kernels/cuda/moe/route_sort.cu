// SortByExpert, DropPadding.
//
// A counting sort in three steps. Choices are cut into segments, one warp each: (1) every segment
// counts its choices per expert; (2) these counts are summed over the segments before, and over the
// experts before; (3) every segment places its choices in order. A choice's row is thus the number of
// choices before it in (expert, choice) order: no atomics, and nothing depends on how segments lie.
#include <cstdint>

#include "base/maths.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/moe/route_sort.cuh"
#include "kernels/cuda/moe/route_sort.h"
#include "kernels/cuda/row_ops/row_ops_launch.cuh"

namespace quire::cuda {
namespace {

// ---- Few choices: one CTA, the counts in shared memory ----

__global__ void __launch_bounds__(kSortWarps * 32)
    SortAtOnceKernel(Choices choices, int32_t* offsets, int32_t* row_of, int32_t* token_of,
                     int32_t* used) {
  TakeTurn();
  auto* const counts =
      reinterpret_cast<int32_t*>(LaunchedShared<16>());  // [kSortWarps, num_experts]
  SortInCta<kSortWarps>(choices, counts, offsets, row_of, token_of, used);
}

// ---- Many: the counts in global memory ----

__device__ int64_t SegmentOfWarp() {
  return int64_t{blockIdx.x} * kSegmentWarps + threadIdx.x / 32;
}

__global__ void __launch_bounds__(kSegmentWarps * 32)
    CountSegmentsKernel(Choices choices, int32_t* counts) {
  TakeTurn();
  const int64_t num_choices = choices.Count();
  const int64_t begin = SegmentOfWarp() * kSegmentChoices;
  if (begin >= num_choices) return;
  const int64_t end = begin + kSegmentChoices < num_choices ? begin + kSegmentChoices : num_choices;
  CountSegment(choices, begin, end, counts + SegmentOfWarp() * choices.num_experts);
}

__global__ void __launch_bounds__(kSortWarps * 32)
    ScanSegmentsKernel(Choices choices, int32_t* counts, int32_t* offsets, int32_t* used) {
  TakeTurn();
  ScanCounts(counts, CeilDiv(choices.Count(), int64_t{kSegmentChoices}), choices.num_experts,
             offsets, used);
}

__global__ void __launch_bounds__(kSegmentWarps * 32)
    PlaceSegmentsKernel(Choices choices, int32_t* counts, int32_t* row_of, int32_t* token_of) {
  TakeTurn();
  const int64_t num_choices = choices.Count();
  const int64_t begin = SegmentOfWarp() * kSegmentChoices;
  if (begin >= num_choices) return;
  const int64_t end = begin + kSegmentChoices < num_choices ? begin + kSegmentChoices : num_choices;
  PlaceSegment(choices, begin, end, counts + SegmentOfWarp() * choices.num_experts, row_of,
               token_of);
}

// ---- Padding ----

constexpr int kDropThreads = 256;

__global__ void __launch_bounds__(kDropThreads)
    DropPaddingKernel(int32_t* experts, int64_t num_choices, int32_t top_k, LiveRows live) {
  TakeTurn();
  const int64_t choice = int64_t{blockIdx.x} * kDropThreads + threadIdx.x;
  if (choice < num_choices && !IsLive(live, choice / top_k)) experts[choice] = kNoExpert;
}

}  // namespace

void DropPadding(std::span<int32_t> experts, int32_t top_k, LiveRows live, const Stream& stream) {
  const int64_t num_choices = std::ssize(experts);
  Require(top_k >= 1 && num_choices % top_k == 0,
          "drop_padding.experts: expected {} for each token, got {}", top_k, num_choices);
  if (num_choices == 0) return;
  const auto grid = static_cast<unsigned>(CeilDiv(num_choices, int64_t{kDropThreads}));
  LaunchAhead("drop_padding", DropPaddingKernel, {grid, kDropThreads}, stream, experts.data(),
              num_choices, top_k, live);
}

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
  int32_t* const token_of = args.token_of.data();
  if (choices.capacity <= kMaxChoicesAtOnce) {
    const int shared = kSortWarps * args.num_experts * static_cast<int>(sizeof(int32_t));
    Check(cudaFuncSetAttribute(SortAtOnceKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSortWarps * kMaxExperts * static_cast<int>(sizeof(int32_t))),
          "sort_by_expert: shared memory");
    LaunchAhead("sort_by_expert", SortAtOnceKernel,
                {1, kSortWarps * 32, static_cast<size_t>(shared)}, stream, choices, offsets, row_of,
                token_of, args.used);
    return;
  }
  const auto grid =
      static_cast<unsigned>(CeilDiv(choices.capacity, int64_t{kSegmentChoices} * kSegmentWarps));
  int32_t* const counts = args.workspace.data();
  LaunchAhead("sort_by_expert: count", CountSegmentsKernel, {grid, kSegmentWarps * 32}, stream,
              choices, counts);
  LaunchAhead("sort_by_expert: scan", ScanSegmentsKernel, {1, kSortWarps * 32}, stream, choices,
              counts, offsets, args.used);
  LaunchAhead("sort_by_expert: place", PlaceSegmentsKernel, {grid, kSegmentWarps * 32}, stream,
              choices, counts, row_of, token_of);
}

}  // namespace quire::cuda
