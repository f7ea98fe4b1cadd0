// Experts on the device: which ones, and in which order their rows lie.
//
//   Route         logits -> experts and weights, as kernels/row_ops.h defines them, bit for bit
//   SortByExpert  gives every choice a row: rows of one expert together, in the order of tokens
//   RouteAndSort  both; in one launch for few choices
//   DropPadding   choices of tokens that are padding are of no expert
//
// A choice is (token, place among its top_k), numbered token * top_k + place. All spans and views are
// of device memory; ops launch and return.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTE_H_
#define QUIRE_KERNELS_CUDA_MOE_ROUTE_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/row_ops.h"

namespace quire::cuda {

// One warp per token. Scores, choices and weights have the CPU's bits, where that has fused
// multiply-add: exponentials and sums are the same operations in the same order.
void Route(const RouteArgs& args, LiveRows live, const Stream& stream);

// A choice of nobody's: it has no row.
inline constexpr int32_t kNoExpert = -1;

struct SortByExpertArgs {
  int32_t num_experts = 1;  // 1..kMaxExperts
  int32_t top_k = 1;        // 1..kMaxTopK
  // [num_tokens, top_k] or kNoExpert; one that is not there is reported and counts as expert 0.
  std::span<const int32_t> experts = {};
  std::span<int32_t> offsets = {};   // [num_experts + 1]: expert e has the rows offsets[e]..[e + 1]
  std::span<int32_t> row_of = {};    // [num_tokens, top_k]: the choice's row, if it has one
  std::span<int32_t> token_of = {};  // [num_tokens * top_k]: the token of every live row
  int32_t* used = nullptr;           // if given: how many experts have rows
  std::span<int32_t> workspace = {};  // SortWorkspace(num_tokens * top_k, num_experts)
  LiveRows live = {};                 // tokens
  StatusWord status = {};
};

// Up to this many choices are sorted by one CTA in one launch; more take three.
inline constexpr int64_t kMaxChoicesAtOnce = 8192;

// How many int32 values sorting needs: 0 up to kMaxChoicesAtOnce.
int64_t SortWorkspace(int64_t num_choices, int32_t num_experts);

// Throw Error(kInvalidArgument) naming the argument, the expected and the actual value. They read no
// device memory.
void Validate(const SortByExpertArgs& args);
void Validate(const RouteArgs& route, const SortByExpertArgs& sort);

void SortByExpert(const SortByExpertArgs& args, const Stream& stream);

// `experts` are [num_tokens, top_k], of which `live` count. For sorting what several ranks have chosen: each has
// padding of its own.
void DropPadding(std::span<int32_t> experts, int32_t top_k, LiveRows live, const Stream& stream);

// One launch routes and sorts up to so many choices among so many experts: more have no room in the CTA that
// sorts, or are sorted faster by several.
inline constexpr int64_t kMaxChoicesRouted = 512;
inline constexpr int32_t kMaxExpertsRouted = 384;
bool RoutesAtOnce(const RouteShape& shape, int64_t num_tokens);

// Route and then SortByExpert: the same in every array, and with RoutesAtOnce in one launch.
// `sort.experts` are `route.experts`; `sort.live` counts for both.
void RouteAndSort(const RouteArgs& route, const SortByExpertArgs& sort, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTE_H_
