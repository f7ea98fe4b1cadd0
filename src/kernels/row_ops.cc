#include "kernels/row_ops.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

void RequireF32(const char* name, const ConstTensorView& view,
                std::initializer_list<int64_t> shape) {
  RequireShape(name, view, shape);
  Require(view.dtype() == DType::kF32, "{}: expected f32, got {}", name, DTypeName(view.dtype()));
}

void RequireSize(const char* name, size_t actual, int64_t expected) {
  Require(std::cmp_equal(actual, expected), "{}: expected {} values, got {}", name, expected,
          actual);
}

void RequireRange(const char* name, int32_t value, int32_t low, int32_t high) {
  Require(value >= low && value <= high, "{}: expected {}..{}, got {}", name, low, high, value);
}

void ValidateGroups(const RouteShape& shape) {
  RequireRange("route.num_groups", shape.num_groups, 1, kMaxExpertGroups);
  Require(shape.num_experts % shape.num_groups == 0,
          "route.num_groups: expected a divisor of {} experts, got {}", shape.num_experts,
          shape.num_groups);
  RequireRange("route.top_groups", shape.top_groups, 1, shape.num_groups);
  const int32_t group_size = shape.num_experts / shape.num_groups;
  Require(shape.selection != ExpertSelection::kGroupTopTwo || group_size >= 2,
          "route.num_groups: expected groups of two experts or more, got {} groups of {}",
          shape.num_groups, group_size);
  Require(shape.top_k <= shape.top_groups * group_size,
          "route.top_k: expected at most the {} experts of {} groups, got {}",
          shape.top_groups * group_size, shape.top_groups, shape.top_k);
}

}  // namespace

void Validate(const RouteShape& shape) {
  RequireRange("route.num_experts", shape.num_experts, 1, kMaxExperts);
  RequireRange("route.top_k", shape.top_k, 1, std::min(kMaxTopK, shape.num_experts));
  if (shape.selection != ExpertSelection::kGreedy) ValidateGroups(shape);
  Require(std::isfinite(shape.scale), "route.scale: expected a finite number, got {}", shape.scale);
}

void Validate(const RmsNormArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = std::ssize(args.weight);
  Require(width >= 1, "rms_norm.weight: expected one value or more, got none");
  RequireShape("rms_norm.y", args.y, {num_tokens, width});
  RequireShape("rms_norm.x", args.x, {num_tokens, width});
  Require(std::isfinite(args.eps) && args.eps >= 0,
          "rms_norm.eps: expected a finite number >= 0, got {}", args.eps);
}

void Validate(const LayerNormArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = std::ssize(args.weight);
  Require(width >= 1, "layer_norm.weight: expected one value or more, got none");
  Require(std::ssize(args.bias) == width, "layer_norm.bias: expected {} values, got {}", width,
          args.bias.size());
  RequireShape("layer_norm.y", args.y, {num_tokens, width});
  RequireShape("layer_norm.x", args.x, {num_tokens, width});
  Require(std::isfinite(args.eps) && args.eps >= 0,
          "layer_norm.eps: expected a finite number >= 0, got {}", args.eps);
}

void Validate(const RopeArgs& args) {
  const int64_t num_tokens = args.x.dim(0);
  const int64_t rope_dim = args.x.dim(2);
  RequireShape("rope.x", args.x, {num_tokens, args.x.dim(1), rope_dim});
  Require(rope_dim % 2 == 0, "rope.x: expected an even rope_dim, got {}", rope_dim);
  RequireF32("rope.cos", args.cos, {num_tokens, rope_dim / 2});
  RequireF32("rope.sin", args.sin, {num_tokens, rope_dim / 2});
  RequireShape("rope.y", args.y, {num_tokens, args.x.dim(1), rope_dim});
}

void Validate(const SiluMulArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  RequireShape("silu_mul.y", args.y, {num_tokens, width});
  RequireShape("silu_mul.gate_up", args.gate_up, {num_tokens, 2 * width});
}

void Validate(const AddScaledArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  RequireF32("add_scaled.y", args.y, {num_tokens, width});
  RequireShape("add_scaled.x", args.x, {num_tokens, width});
}

void Validate(const CopyRowsArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  RequireShape("copy_rows.y", args.y, {num_tokens, width});
  RequireShape("copy_rows.x", args.x, {num_tokens, width});
}

void Validate(const RouteArgs& args) {
  Validate(args.shape);
  const int64_t num_tokens = args.logits.dim(0);
  RequireF32("route.logits", args.logits, {num_tokens, args.shape.num_experts});
  if (!args.bias.empty()) RequireSize("route.bias", args.bias.size(), args.shape.num_experts);
  RequireSize("route.experts", args.experts.size(), num_tokens * args.shape.top_k);
  RequireSize("route.weights", args.weights.size(), num_tokens * args.shape.top_k);
}

void Validate(const CombineArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  const int64_t num_choices = std::ssize(args.row_of);
  RequireShape("combine.y", args.y, {num_tokens, width});
  Require(num_tokens == 0 ? num_choices == 0 : num_choices > 0 && num_choices % num_tokens == 0,
          "combine.row_of: expected as many for each of {} tokens, got {}", num_tokens,
          num_choices);
  RequireSize("combine.weights", args.weights.size(), num_choices);
  const int64_t num_rows = args.rows.rank() == 2 ? args.rows.dim(0) : 0;
  RequireShape("combine.rows", args.rows, {std::max(num_choices, num_rows), width});
  if (args.shared.empty()) return;
  RequireShape("combine.shared", args.shared, {num_tokens, width});
  Require(args.shared.dtype() == args.rows.dtype(), "combine.shared: expected {} as rows, got {}",
          DTypeName(args.rows.dtype()), DTypeName(args.shared.dtype()));
}

}  // namespace quire
