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

namespace quire::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kRouteWarps = 4;  // tokens of a CTA; nothing but the launch is shared

struct RouteRows {
  Rows<const float> logits;
  const float* bias;  // or null
  int32_t* experts;
  float* weights;
  int64_t num_tokens;
};

RouteRows RowsOfRoute(const RouteArgs& args) {
  return {.logits = RowsOf<const float>(args.logits),
          .bias = args.bias.data(),
          .experts = args.experts.data(),
          .weights = args.weights.data(),
          .num_tokens = args.logits.dim(0)};
}

// kSlots * 32 >= num_experts.
template <int kSlots>
__global__ void __launch_bounds__(kRouteWarps * 32)
    RouteKernel(RouteShape shape, RouteRows rows, LiveRows live) {
  TakeTurn();
  __shared__ float all_scores[kRouteWarps][kMaxExperts];
  __shared__ float all_biased[kRouteWarps][kMaxExperts];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t token = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (token >= rows.num_tokens || !IsLive(live, token)) return;  // the whole warp
  RouteToken<kSlots>(shape, WholeLogits{rows.logits[token]}, rows.bias, all_scores[warp],
                     all_biased[warp], rows.experts + token * shape.top_k,
                     rows.weights + token * shape.top_k);
}

// ---- With the sort, for a warp's choices ----

// A warp for each token, of which there are as many as warps; the choices are one for each lane of one.
constexpr int kFewWarps = 8;
constexpr int kFewChoices = 32;

bool AreFew(const RouteShape& shape, int64_t num_tokens) {
  return num_tokens <= kFewWarps && num_tokens * shape.top_k <= kFewChoices;
}

// A choice's row is counted, not sorted: it is how many of the choices come before it. So there is one barrier,
// and thread e has the offset of expert e after as many comparisons as there are choices.
template <int kSlots>
__global__ void __launch_bounds__(kFewWarps * 32, 1)
    RouteFewKernel(RouteShape shape, RouteRows rows, LiveRows live, int32_t* offsets,
                   int32_t* row_of, int32_t* token_of, int32_t* used) {
  __shared__ int32_t chosen[kFewChoices];
  __shared__ float weights[kFewChoices];
  // [tokens, 2, num_experts], without and with the bias.
  auto* const scores = reinterpret_cast<float*>(LaunchedShared<16>());
  const int n = shape.num_experts, thread = static_cast<int>(threadIdx.x);
  const int token = thread / 32;
  // Nobody writes the bias.
  if (rows.bias != nullptr && thread * 32 < n) {
    PrefetchLine(reinterpret_cast<const std::byte*>(rows.bias + thread * 32));
  }
  TakeTurn();
  // On its way while tokens are routed, whether they are there or not.
  const int num_live = live.count == nullptr ? INT32_MAX : *live.count;
  if (token < rows.num_tokens) {
    RouteToken<kSlots>(shape, WholeLogits{rows.logits[token]}, rows.bias, scores + token * 2 * n,
                       scores + token * 2 * n + n, chosen + token * shape.top_k,
                       weights + token * shape.top_k);
  }
  __syncthreads();  // every choice is there before any is counted
  const int num_tokens = min(max(num_live, 0), static_cast<int>(rows.num_tokens));
  const int num_choices = num_tokens * shape.top_k;
  const auto count_below = [&](int expert) {
    int count = 0;
#pragma unroll 1  // as in route_token.cuh
    for (int c = 0; c < num_choices; ++c) count += chosen[c] < expert ? 1 : 0;
    return count;
  };
#pragma unroll 1
  for (int e = thread; e <= n; e += kFewWarps * 32) offsets[e] = count_below(e);
  if (token > 0) return;
  const bool is_choice = thread < num_choices;
  int same_before = 0;
  if (is_choice) {
    const int expert = chosen[thread];
#pragma unroll 1
    for (int c = 0; c < thread; ++c) same_before += chosen[c] == expert ? 1 : 0;
    const int row = count_below(expert) + same_before;
    rows.experts[thread] = expert;
    rows.weights[thread] = weights[thread];
    row_of[thread] = row;
    token_of[row] = thread / shape.top_k;
  }
  const unsigned firsts = __ballot_sync(~0u, is_choice && same_before == 0);
  if (thread == 0 && used != nullptr) *used = __popc(firsts);
}

template <int kSlots>
void LaunchRouteFew(const RouteArgs& route, const SortByExpertArgs& sort, const Stream& stream) {
  const RouteRows rows = RowsOfRoute(route);
  const auto shared = static_cast<size_t>(2 * rows.num_tokens * sort.num_experts) * sizeof(float);
  LaunchAhead("route_few", RouteFewKernel<kSlots>, {1, kFewWarps * 32, shared}, stream, route.shape,
              rows, sort.live, sort.offsets.data(), sort.row_of.data(), sort.token_of.data(),
              sort.used);
}

// ---- With the sort, by a cluster ----

// A cluster of CTAs, whose warps choose for a token each; then the first CTA sorts. One multiprocessor would choose
// for 64 tokens three times as long.
constexpr unsigned kRouteCtas = 8;
// A warp for each segment of 32 choices, a thread for each expert.
constexpr int kRoutedWarps = static_cast<int>(kMaxChoicesRouted) / 32;
static_assert(kRoutedWarps * 32 >= kMaxExpertsRouted);

// choices.experts is set here.
template <int kSlots>
__global__ void __launch_bounds__(kRoutedWarps * 32, 1)
    RouteAndSortKernel(RouteShape shape, RouteRows rows, Choices choices, int32_t* offsets,
                       int32_t* row_of, int32_t* token_of, int32_t* used) {
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.barrier_arrive();
  TakeTurn();
  __shared__ int32_t chosen[kMaxChoicesRouted];  // the first CTA's are those of all
  // [kRoutedWarps, num_experts], then [kRoutedWarps, 2, num_experts] scores, without and with the bias.
  auto* const counts = reinterpret_cast<int32_t*>(LaunchedShared<16>());
  const int n = shape.num_experts;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float* const scores = reinterpret_cast<float*>(counts + kRoutedWarps * n) + warp * 2 * n;
  const int64_t num_choices = choices.Count();
  const int64_t num_tokens = num_choices / shape.top_k;
  int32_t* const all_chosen = cluster.map_shared_rank(chosen, 0);
  cluster.barrier_wait();  // the first CTA is there before anybody writes to its memory
#pragma unroll 1
  for (int64_t token = cluster.block_rank() + kRouteCtas * warp; token < num_tokens;
       token += kRouteCtas * kRoutedWarps) {
    RouteToken<kSlots>(shape, WholeLogits{rows.logits[token]}, rows.bias, scores, scores + n,
                       all_chosen + token * shape.top_k, rows.weights + token * shape.top_k);
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
  const auto shared = [](int num_experts) {
    return 3 * kRoutedWarps * num_experts * static_cast<int>(sizeof(int32_t));
  };
  Check(cudaFuncSetAttribute(RouteAndSortKernel<kSlots>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared(kSlots * 32)),
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
               .shared_bytes = static_cast<size_t>(shared(sort.num_experts)),
               .cluster = kRouteCtas},
              stream, route.shape, RowsOfRoute(route), choices, sort.offsets.data(),
              sort.row_of.data(), sort.token_of.data(), sort.used);
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
    LaunchAhead("route", RouteKernel<8>, {grid, threads}, stream, args.shape, rows, live);
  } else if (args.shape.num_experts <= 12 * 32) {  // Kimi-K2
    LaunchAhead("route", RouteKernel<12>, {grid, threads}, stream, args.shape, rows, live);
  } else {
    LaunchAhead("route", RouteKernel<kMaxExperts / 32>, {grid, threads}, stream, args.shape, rows,
                live);
  }
}

void RouteAndSort(const RouteArgs& route, const SortByExpertArgs& sort, const Stream& stream) {
  Validate(route, sort);
  if (!RoutesAtOnce(route.shape, route.logits.dim(0))) {
    Route(route, sort.live, stream);
    SortByExpert(sort, stream);
  } else if (route.shape.num_experts <= 4 * 32) {
    LaunchRouteAndSort<4>(route, sort, stream);
  } else if (route.shape.num_experts <= 8 * 32) {
    LaunchRouteAndSort<8>(route, sort, stream);
  } else {
    LaunchRouteAndSort<kMaxExpertsRouted / 32>(route, sort, stream);
  }
}

}  // namespace quire::cuda
