// Route: one warp chooses the experts of one token. RouteAndSort: the same by the warps of a CTA, or of a
// cluster, of which one CTA then sorts the choices.
#include <cooperative_groups.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/moe/route_sort.cuh"
#include "kernels/cuda/moe/route_sort.h"
#include "kernels/cuda/moe/route_token.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_launch.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/row_ops.h"

namespace quire::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kRouteWarps = 4;  // tokens of a CTA; nothing but the launch is shared

struct RouteRows {
  RouteShape shape;
  ExpertGroups groups;
  Rows<const float> logits;
  const float* bias;  // or null
  int32_t* experts;
  float* weights;
  int64_t num_tokens;
};

RouteRows RowsOfRoute(const RouteArgs& args) {
  return {.shape = args.shape,
          .groups = ExpertGroups(args.shape),
          .logits = RowsOf<const float>(args.logits),
          .bias = args.bias.data(),
          .experts = args.experts.data(),
          .weights = args.weights.data(),
          .num_tokens = args.logits.dim(0)};
}

// kSlots * 32 >= num_experts.
template <int kSlots>
__global__ void __launch_bounds__(kRouteWarps * 32) RouteKernel(RouteRows rows, LiveRows live) {
  const HeldBias<kSlots> bias(rows.bias, rows.shape.num_experts);
  TakeTurn();
  __shared__ __align__(16) float all_scores[kRouteWarps][kTokenScores<kSlots>];
  const int warp = WarpId();
  const int64_t token = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (token >= rows.num_tokens || !IsLive(live, token)) return;  // the whole warp
  const int64_t choice = token * rows.shape.top_k;
  RouteToken<kSlots>(rows.shape, rows.groups, WholeRow{rows.logits[token]}, bias, all_scores[warp],
                     [&](int j, int expert, float weight) {
                       rows.experts[choice + j] = expert;
                       rows.weights[choice + j] = weight;
                     });
}

// ---- With the sort, for a warp's choices ----

// A warp for each token, of which there are as many as warps; the choices are one for each lane of one.
constexpr int kFewWarps = 8;
constexpr int kFewChoices = 32;

bool AreFew(const RouteShape& shape, int64_t num_tokens) {
  return num_tokens <= kFewWarps && num_tokens * shape.top_k <= kFewChoices;
}

// Of the choices, as keys, how many are below a key each.
template <int kCounts>
__device__ void CountBelow(const int32_t* keys, int num_keys, const int (&than)[kCounts],
                           int (&counts)[kCounts]) {
#pragma unroll 1  // as in route_token.cuh
  for (int c = 0; c < num_keys; c += 4) {
    const int4 four = *reinterpret_cast<const int4*>(keys + c);
#pragma unroll
    for (int i = 0; i < kCounts; ++i) {
      counts[i] += (four.x < than[i] ? 1 : 0) + (four.y < than[i] ? 1 : 0) +
                   (four.z < than[i] ? 1 : 0) + (four.w < than[i] ? 1 : 0);
    }
  }
}

// A choice's row is counted, not sorted: it is how many of the choices come before it, by expert and then by number.
// So there is one barrier behind the choices, and thread e has the offset of expert e after as many comparisons as there
// are choices.
template <int kSlots>
__global__ void __launch_bounds__(kFewWarps * 32, 1)
    RouteFewKernel(RouteRows rows, LiveRows live, int32_t* offsets, int32_t* row_of,
                   int32_t* token_of, int32_t* used) {
  // Of choice c of expert e, e * kFewChoices + c; those that are not there come behind all others.
  __shared__ __align__(16) int32_t keys[kFewChoices];
  __shared__ int32_t tokens[kFewChoices];
  constexpr int32_t kNoKey = INT32_MAX;
  auto* const scores = reinterpret_cast<float*>(LaunchedShared<16>());
  const int n = rows.shape.num_experts, top_k = rows.shape.top_k;
  const int thread = static_cast<int>(threadIdx.x), lane = LaneId();
  const int token = WarpId(), num_tokens = static_cast<int>(rows.num_tokens);
  const HeldBias<kSlots> bias(token < num_tokens ? rows.bias : nullptr, n);
  if (token < num_tokens && lane < top_k) tokens[token * top_k + lane] = token;
  if (thread < kFewChoices) keys[thread] = kNoKey;
  __syncthreads();  // no key comes behind a choice's
  TakeTurn();
  if (token < num_tokens) {
    // On its way while the token is routed, whether it is there or not.
    const int num_live = live.count == nullptr ? INT32_MAX : *live.count;
    RouteToken<kSlots>(rows.shape, rows.groups, WholeRow{rows.logits[token]}, bias,
                       scores + token * kTokenScores<kSlots>, [&](int j, int expert, float weight) {
                         if (token >= num_live) return;
                         const int choice = token * top_k + j;
                         keys[choice] = expert * kFewChoices + choice;
                         rows.experts[choice] = expert;
                         rows.weights[choice] = weight;
                       });
  }
  __syncthreads();  // every choice is there before any is counted
  // Lane c of every warp counts for choice c, too, and the first warp's stores what it has counted.
  const int key = keys[lane];
  const int first_key = key / kFewChoices * kFewChoices;  // of its expert
  const unsigned choices = __ballot_sync(kAllLanes, key != kNoKey);
#pragma unroll 1
  for (int e = thread; e - lane < n; e += kFewWarps * 32) {
    int before[3] = {};
    CountBelow(keys, num_tokens * top_k, {e * kFewChoices, key, first_key}, before);
    const auto [offset, row, offset_of_choice] = before;
    if (e < n) offsets[e] = offset;
    const unsigned firsts = __ballot_sync(kAllLanes, key != kNoKey && row == offset_of_choice);
    if (e >= kFewChoices) continue;
    if (key != kNoKey) {
      row_of[lane] = row;
      token_of[row] = tokens[lane];
    }
    if (lane == 0) offsets[n] = __popc(choices);
    if (lane == 0 && used != nullptr) *used = __popc(firsts);
  }
}

template <int kSlots>
void LaunchRouteFew(const RouteArgs& route, const SortByExpertArgs& sort, const Stream& stream) {
  const RouteRows rows = RowsOfRoute(route);
  const auto shared = static_cast<size_t>(rows.num_tokens * kTokenScores<kSlots>) * sizeof(float);
  LaunchAhead("route_few", RouteFewKernel<kSlots>, {1, kFewWarps * 32, shared}, stream, rows,
              sort.live, sort.offsets.data(), sort.row_of.data(), sort.token_of.data(), sort.used);
}

// ---- With the sort, by a cluster ----

// A cluster of CTAs, whose warps choose for a token each; then the first CTA sorts. One multiprocessor would choose
// for 64 tokens three times as long.
constexpr unsigned kRouteCtas = 8;
// A warp for each segment of 32 choices, a thread for each expert.
constexpr int kRoutedWarps = static_cast<int>(kMaxChoicesRouted) / 32;
static_assert(kRoutedWarps * 32 >= kMaxExpertsRouted);

// Of the first CTA that sorts, [kRoutedWarps, num_experts], then of each warp scores.
template <int kSlots>
int RoutedBytes(int num_experts) {
  constexpr int kScores = kTokenScores<kSlots>;
  return kRoutedWarps * (num_experts + kScores) * static_cast<int>(sizeof(int32_t));
}

// choices.experts is set here.
template <int kSlots>
__global__ void __launch_bounds__(kRoutedWarps * 32, 1)
    RouteAndSortKernel(RouteRows rows, Choices choices, int32_t* offsets, int32_t* row_of,
                       int32_t* token_of, int32_t* used) {
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.barrier_arrive();
  const HeldBias<kSlots> bias(rows.bias, rows.shape.num_experts);
  TakeTurn();
  __shared__ int32_t chosen[kMaxChoicesRouted];  // the first CTA's are those of all
  auto* const counts = reinterpret_cast<int32_t*>(LaunchedShared<16>());
  const int warp = WarpId();
  float* const scores = reinterpret_cast<float*>(counts + kRoutedWarps * rows.shape.num_experts) +
                        warp * kTokenScores<kSlots>;
  const int64_t num_choices = choices.Count();
  const int64_t num_tokens = num_choices / rows.shape.top_k;
  int32_t* const all_chosen = cluster.map_shared_rank(chosen, 0);
  cluster.barrier_wait();  // the first CTA is there before anybody writes to its memory
#pragma unroll 1
  for (int64_t token = cluster.block_rank() + kRouteCtas * warp; token < num_tokens;
       token += kRouteCtas * kRoutedWarps) {
    const int64_t choice = token * rows.shape.top_k;
    RouteToken<kSlots>(rows.shape, rows.groups, WholeRow{rows.logits[token]}, bias, scores,
                       [&](int j, int expert, float weight) {
                         all_chosen[choice + j] = expert;
                         rows.weights[choice + j] = weight;
                       });
    __syncwarp();  // all lanes have read their scores before the next token's are written
  }
  cluster.sync();  // every choice is there before any is counted
  if (cluster.block_rank() > 0) return;
  for (int64_t i = threadIdx.x; i < num_choices; i += kRoutedWarps * 32) {
    rows.experts[i] = chosen[i];
  }

  choices.experts = chosen;
  SortInCta<kRoutedWarps>(choices, counts, offsets, row_of, token_of, used);
}

template <int kSlots>
void LaunchRouteAndSort(const RouteArgs& route, const SortByExpertArgs& sort,
                        const Stream& stream) {
  if (AreFew(route.shape, route.logits.dim(0))) return LaunchRouteFew<kSlots>(route, sort, stream);
  Check(
      cudaFuncSetAttribute(RouteAndSortKernel<kSlots>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           RoutedBytes<kSlots>(kSlots * 32)),
      "route_and_sort: shared memory");
  const Choices choices = {.experts = nullptr,
                           .num_experts = sort.num_experts,
                           .top_k = sort.top_k,
                           .capacity = std::ssize(sort.experts),
                           .live = sort.live,
                           .status = sort.status};
  LaunchAhead("route_and_sort", RouteAndSortKernel<kSlots>,
              {.grid = kRouteCtas,
               .block = kRoutedWarps * 32,
               .shared_bytes = static_cast<size_t>(RoutedBytes<kSlots>(sort.num_experts)),
               .cluster = kRouteCtas},
              stream, RowsOfRoute(route), choices, sort.offsets.data(), sort.row_of.data(),
              sort.token_of.data(), sort.used);
}

}  // namespace

void Route(const RouteArgs& args, LiveRows live, const Stream& stream) {
  Validate(args);
  const int64_t num_tokens = args.logits.dim(0);
  if (num_tokens == 0) return;
  const RouteRows rows = RowsOfRoute(args);
  const auto grid = static_cast<unsigned>(CeilDiv(num_tokens, int64_t{kRouteWarps}));
  const int threads = kRouteWarps * 32;
  if (args.shape.num_experts <= 8 * 32) {
    LaunchAhead("route", RouteKernel<8>, {grid, threads}, stream, rows, live);
  } else if (args.shape.num_experts <= 12 * 32) {  // Kimi-K2
    LaunchAhead("route", RouteKernel<12>, {grid, threads}, stream, rows, live);
  } else {
    LaunchAhead("route", RouteKernel<kMaxExperts / 32>, {grid, threads}, stream, rows, live);
  }
}

void RouteAndSort(const RouteArgs& route, const SortByExpertArgs& sort, const Stream& stream) {
  Validate(route, sort);
  if (!RoutesAtOnce(route.shape, route.logits.dim(0))) {
    Route(route, sort.live, stream);
    SortByExpert(sort, stream);
  } else if (route.shape.num_experts <= 2 * 32) {
    LaunchRouteAndSort<2>(route, sort, stream);
  } else if (route.shape.num_experts <= 4 * 32) {
    LaunchRouteAndSort<4>(route, sort, stream);
  } else if (route.shape.num_experts <= 8 * 32) {
    LaunchRouteAndSort<8>(route, sort, stream);
  } else {
    LaunchRouteAndSort<kMaxExpertsRouted / 32>(route, sort, stream);
  }
}

}  // namespace quire::cuda
