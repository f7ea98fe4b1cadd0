#include "kernels/cuda/row_ops.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/maths.h"

namespace quire::cuda {
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

void RequireNorm(const char* name, std::span<const float> weight, float eps) {
  Require(!weight.empty() && std::cmp_less_equal(weight.size(), kMaxNormWidth),
          "{}.weight: expected 1..{} values, got {}", name, kMaxNormWidth, weight.size());
  Require(std::isfinite(eps) && eps >= 0, "{}.eps: expected a finite number >= 0, got {}", name,
          eps);
}

}  // namespace

int SumThreads(int64_t width) {
  const int64_t groups = CeilDiv(width, int64_t{8});
  return static_cast<int>(std::clamp<int64_t>(RoundUp(groups, int64_t{32}), 32, 1024));
}

void Validate(const EmbedArgs& args) {
  const int64_t width = args.table.dim(1);
  RequireShape("embed.table", args.table, {args.table.dim(0), width});
  Require(args.table.dim(0) >= 1, "embed.table: expected one row or more, got none");
  RequireF32("embed.hidden", args.hidden, {std::ssize(args.tokens), width});
}

void Validate(const AddRmsNormArgs& args) {
  const int64_t num_tokens = args.hidden.dim(0);
  const int64_t width = std::ssize(args.weight);
  RequireNorm("add_rms_norm", args.weight, args.eps);
  RequireF32("add_rms_norm.hidden", args.hidden, {num_tokens, width});
  RequireShape("add_rms_norm.update", args.update, {num_tokens, width});
  RequireShape("add_rms_norm.normed", args.normed, {num_tokens, width});
}

void Validate(const RmsNormArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = std::ssize(args.weight);
  RequireNorm("rms_norm", args.weight, args.eps);
  RequireShape("rms_norm.y", args.y, {num_tokens, width});
  RequireShape("rms_norm.x", args.x, {num_tokens, width});
}

void Validate(const GatherRopeArgs& args) {
  const int64_t num_tokens = std::ssize(args.positions);
  const int64_t pairs = args.table_cos.dim(1);
  RequireF32("gather_rope.table_cos", args.table_cos, {args.table_cos.dim(0), pairs});
  RequireF32("gather_rope.table_sin", args.table_sin, {args.table_cos.dim(0), pairs});
  Require(args.table_cos.dim(0) >= 1, "gather_rope.table_cos: expected one row or more, got none");
  RequireF32("gather_rope.cos", args.cos, {num_tokens, pairs});
  RequireF32("gather_rope.sin", args.sin, {num_tokens, pairs});
}

void Validate(const RopeArgs& args) {
  const int64_t num_tokens = args.x.dim(0);
  const int64_t num_heads = args.x.dim(1);
  const int64_t rope_dim = args.x.dim(2);
  RequireShape("rope.x", args.x, {num_tokens, num_heads, rope_dim});
  Require(rope_dim % 2 == 0, "rope.x: expected an even rope_dim, got {}", rope_dim);
  RequireShape("rope.y", args.y, {num_tokens, num_heads, rope_dim});
  RequireF32("rope.cos", args.cos, {num_tokens, rope_dim / 2});
  RequireF32("rope.sin", args.sin, {num_tokens, rope_dim / 2});
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

void Validate(const CombineArgs& args) {
  const int64_t num_tokens = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  const int64_t num_choices = std::ssize(args.row_of);
  RequireShape("combine.y", args.y, {num_tokens, width});
  Require(num_tokens == 0 ? num_choices == 0 : num_choices > 0 && num_choices % num_tokens == 0,
          "combine.row_of: expected as many for each of {} tokens, got {}", num_tokens,
          num_choices);
  RequireSize("combine.weights", args.weights.size(), num_choices);
  RequireShape("combine.rows", args.rows, {num_choices, width});
  if (args.shared.empty()) return;
  RequireShape("combine.shared", args.shared, {num_tokens, width});
  Require(args.shared.dtype() == args.rows.dtype(), "combine.shared: expected {} as rows, got {}",
          DTypeName(args.rows.dtype()), DTypeName(args.shared.dtype()));
}

void Validate(const CombineArgs& combine, const AddRmsNormArgs& norm) {
  Validate(combine);
  Validate(norm);
  Require(combine.y.dtype() == DType::kBf16, "combine.y: expected bf16 ahead of a norm, got {}",
          DTypeName(combine.y.dtype()));
  RequireShape("add_rms_norm.update", norm.update, {combine.y.dim(0), combine.y.dim(1)});
  const bool same = norm.update.dtype() == DType::kBf16 &&
                    norm.update.stride(0) == combine.y.stride(0) &&
                    (combine.y.dim(0) == 0 || norm.update.Row<Bf16>(0) == combine.y.Row<Bf16>(0));
  Require(same, "add_rms_norm.update: expected the rows of combine.y, got others");
}

}  // namespace quire::cuda
