#include "kernels/cuda/row_ops/row_ops.h"

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

void RequireNorm(const char* name, std::span<const float> weight, float eps) {
  Require(!weight.empty() && std::cmp_less_equal(weight.size(), kMaxNormWidth),
          "{}.weight: expected 1..{} values, got {}", name, kMaxNormWidth, weight.size());
  Require(std::isfinite(eps) && eps >= 0, "{}.eps: expected a finite number >= 0, got {}", name,
          eps);
}

// Of rows that are written, or none.
void RequireCodes(const char* name, const QuantisedRows& codes, const TensorView& rows) {
  if (codes.empty()) return;
  Require(rows.dtype() == DType::kBf16, "{}: expected rows of bf16, got {}", name,
          DTypeName(rows.dtype()));
  RequireQuantised(name, codes, rows.dim(0), rows.dim(1));
}

}  // namespace

int SumThreads(int64_t width) {
  const int64_t groups = CeilDiv(width, int64_t{8});
  return static_cast<int>(std::clamp<int64_t>(RoundUp(groups, int64_t{32}), 32, 1024));
}

void Validate(const EmbedRowsArgs& args) {
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
  RequireCodes("add_rms_norm.codes", args.codes, args.normed);
}

void ValidateOnDevice(const RmsNormArgs& args) {
  RequireNorm("rms_norm", args.weight, args.eps);
  Validate(args);
  RequireCodes("rms_norm.codes", args.codes, args.y);
}

void ValidateOnDevice(const SiluMulArgs& args) {
  Validate(args);
  RequireCodes("silu_mul.codes", args.codes, args.y);
}

void ValidateOnDevice(const StepAngles& angles) {
  const int64_t num_tokens = std::ssize(angles.positions);
  const int64_t pairs = angles.table_cos.dim(1);
  RequireF32("gather_rope.table_cos", angles.table_cos, {angles.table_cos.dim(0), pairs});
  RequireF32("gather_rope.table_sin", angles.table_sin, {angles.table_cos.dim(0), pairs});
  Require(angles.table_cos.dim(0) >= 1,
          "gather_rope.table_cos: expected one row or more, got none");
  RequireF32("gather_rope.cos", angles.cos, {num_tokens, pairs});
  RequireF32("gather_rope.sin", angles.sin, {num_tokens, pairs});
}

void Validate(const CombineArgs& combine, const AddRmsNormArgs& norm) {
  Validate(combine);
  Validate(norm);
  Require(combine.y.dtype() == DType::kBf16, "combine.y: expected bf16 ahead of a norm, got {}",
          DTypeName(combine.y.dtype()));
  RequireShape("add_rms_norm.update", norm.update, {combine.y.dim(0), combine.y.dim(1)});
  const bool same =
      norm.update.dtype() == DType::kBf16 && norm.update.stride(0) == combine.y.stride(0) &&
      (combine.y.dim(0) == 0 || norm.update.Address<Bf16>() == combine.y.Address<Bf16>());
  Require(same, "add_rms_norm.update: expected the rows of combine.y, got others");
}

}  // namespace quire::cuda
