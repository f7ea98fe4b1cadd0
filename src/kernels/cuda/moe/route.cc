#include "kernels/cuda/moe/route.h"

#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cuda/moe/route_sort.h"

namespace quire::cuda {
namespace {

void RequireSize(const char* name, size_t actual, int64_t expected) {
  Require(std::cmp_equal(actual, expected), "{}: expected {} values, got {}", name, expected,
          actual);
}

}  // namespace

int64_t SortWorkspace(int64_t num_choices, int32_t num_experts) {
  if (num_choices <= kMaxChoicesAtOnce) return 0;
  return CeilDiv(num_choices, int64_t{kSegmentChoices}) * num_experts;
}

void Validate(const SortByExpertArgs& args) {
  Require(args.num_experts >= 1 && args.num_experts <= kMaxExperts,
          "sort_by_expert.num_experts: expected 1..{}, got {}", kMaxExperts, args.num_experts);
  Require(args.top_k >= 1 && args.top_k <= kMaxTopK, "sort_by_expert.top_k: expected 1..{}, got {}",
          kMaxTopK, args.top_k);
  const int64_t num_choices = std::ssize(args.experts);
  Require(num_choices % args.top_k == 0 && num_choices <= INT32_MAX,
          "sort_by_expert.experts: expected {} for each token and at most {}, got {}", args.top_k,
          INT32_MAX, num_choices);
  RequireSize("sort_by_expert.offsets", args.offsets.size(), int64_t{args.num_experts} + 1);
  RequireSize("sort_by_expert.row_of", args.row_of.size(), num_choices);
  RequireSize("sort_by_expert.token_of", args.token_of.size(), num_choices);
  const int64_t needed = SortWorkspace(num_choices, args.num_experts);
  Require(std::ssize(args.workspace) >= needed,
          "sort_by_expert.workspace: expected {} values or more, got {}", needed,
          args.workspace.size());
}

void Validate(const RouteArgs& route, const SortByExpertArgs& sort) {
  Validate(route);
  Validate(sort);
  Require(sort.num_experts == route.shape.num_experts && sort.top_k == route.shape.top_k,
          "route_and_sort: expected to sort {} of {} experts, got {} of {}", route.shape.top_k,
          route.shape.num_experts, sort.top_k, sort.num_experts);
  Require(
      sort.experts.data() == route.experts.data() && sort.experts.size() == route.experts.size(),
      "route_and_sort: expected to sort the {} choices that are routed, got {} others",
      route.experts.size(), sort.experts.size());
}

bool RoutesAtOnce(const RouteShape& shape, int64_t num_tokens) {
  return shape.num_experts <= kMaxExpertsRouted && num_tokens >= 1 &&
         num_tokens * shape.top_k <= kMaxChoicesRouted;
}

}  // namespace quire::cuda
