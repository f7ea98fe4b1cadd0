// The small ops of a layer: each works on the rows of a [num_tokens, width] array by itself, so a
// row's bits depend on the row alone. Arithmetic is in f32; docs/numerics.md has the order of the
// operations. "act" is a backend's type of activations: f32 on the CPU, bf16 or f32 on a device.
//
//   RmsNorm    y = x / sqrt(mean(x^2) + eps) * weight * scale
//   LayerNorm  y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//   Rope       pairs (a, b) of rope_dim values -> (a cos - b sin, b cos + a sin)
//   SiluMul    y = gate / (1 + exp(-gate)) * up, of rows [gate | up]
//   AddScaled  y += scale * x
//   CopyRows   y = x, in y's type
//   Route      scores -> which experts, with which weights
//   Combine    y = sum_j weight_j * row_j over a token's experts, in the order of the choice, + shared
#ifndef QUIRE_KERNELS_ROW_OPS_H_
#define QUIRE_KERNELS_ROW_OPS_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "kernels/quantised_rows.h"

namespace quire {

struct RmsNormArgs {
  ConstTensorView x = {};              // [num_tokens, width] act
  std::span<const float> weight = {};  // [width], width >= 1
  float eps = 1e-6f;                   // finite, >= 0
  TensorView y = {};                   // [num_tokens, width] act; may be x
  float scale = 1.0f;
  QuantisedRows codes = {};  // of y, besides, on a device; or none
};

struct LayerNormArgs {
  ConstTensorView x = {};              // [num_tokens, width] act
  std::span<const float> weight = {};  // [width], width >= 1
  std::span<const float> bias = {};    // [width]
  float eps = 1e-6f;                   // finite, >= 0
  TensorView y = {};                   // [num_tokens, width] act; may be x
};

// How rotary pairs lie in a row: (2i, 2i + 1), or (i, i + rope_dim / 2).
enum class RopePairs { kInterleaved, kHalves };

struct RopeArgs {
  // [num_tokens, num_heads, rope_dim] act; often the last values of wider heads:
  // q.Columns(nope_dim, rope_dim).
  ConstTensorView x = {};
  ConstTensorView cos = {};  // [num_tokens, rope_dim / 2] f32
  ConstTensorView sin = {};  // as cos
  RopePairs pairs = RopePairs::kInterleaved;
  TensorView y = {};  // as x, act; may be x
};

struct SiluMulArgs {
  ConstTensorView gate_up = {};  // [num_tokens, 2 * width] act
  TensorView y = {};             // [num_tokens, width] act; not in gate_up
  QuantisedRows codes = {};      // of y, besides, on a device; or none
};

struct AddScaledArgs {
  ConstTensorView x = {};  // [num_tokens, width] act
  float scale = 1.0f;
  TensorView y = {};  // [num_tokens, width] f32; may be x
};

struct CopyRowsArgs {
  ConstTensorView x = {};  // [num_tokens, width] f32 or act
  TensorView y = {};       // [num_tokens, width] f32 or act; not in x
};

// Of an expert's logit: its share of exp over all of them, or 1 / (1 + exp(-logit)).
enum class ScoreFunction { kSoftmax, kSigmoid };

// How experts are chosen, by score plus bias. Ties go to the lower number, of groups and of
// experts. Experts of groups that were not kept are left out, whatever their scores: the same as
// masking with -inf, as DeepSeek's own code does. (transformers masks with 0. Of V2's softmax scores that can differ only
// where a kept expert's score is itself 0, and then only in which expert gets weight 0; of V3's, with a bias, where a kept
// expert's sum is below 0.)
//
// A score that is NaN ranks as -inf, so experts are always in range and distinct; its weight, if it
// is chosen, is NaN. A NaN or +inf among the logits of a softmax makes every score NaN, as does a
// row of nothing but -inf.
enum class ExpertSelection {
  kGreedy,       // the top_k highest; groups do not matter
  kGroupMax,     // the top_groups groups by their highest, then as kGreedy within them
  kGroupTopTwo,  // the same, but groups by the sum of their two highest
};

// Choosing works in arrays on the stack. DeepSeek-V3 chooses 8 of 256 experts in 8 groups, Kimi-K2
// 8 of 384.
inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxTopK = 64;
inline constexpr int32_t kMaxExpertGroups = 64;

struct RouteShape {
  int32_t num_experts = 1;
  int32_t top_k = 1;
  int32_t num_groups = 1;  // equal parts of the experts, in order; of two or more for kGroupTopTwo
  int32_t top_groups = 1;  // with top_k experts or more
  ScoreFunction score = ScoreFunction::kSoftmax;
  ExpertSelection selection = ExpertSelection::kGreedy;
  bool normalize = false;  // weights divided by (their sum + 1e-20)
  float scale = 1.0f;      // weights times this, after normalising
};

// Throws Error(kInvalidArgument) naming the field and its value.
void Validate(const RouteShape& shape);

struct RouteArgs {
  RouteShape shape = {};
  ConstTensorView logits = {};       // [num_tokens, num_experts] f32
  std::span<const float> bias = {};  // [num_experts], added to scores for the choice only; or empty
  std::span<int32_t> experts = {};   // [num_tokens, top_k], highest biased score first
  std::span<float> weights = {};     // [num_tokens, top_k], from the scores without bias
};

struct CombineArgs {
  ConstTensorView rows = {};             // [num_tokens * top_k or more, width] act
  std::span<const int32_t> row_of = {};  // [num_tokens, top_k]: where each choice's row is
  std::span<const float> weights = {};   // [num_tokens, top_k]
  ConstTensorView shared = {};           // [num_tokens, width] as rows, added last; or empty
  TensorView y = {};                     // [num_tokens, width] act; not in rows or shared
};

// Throw Error(kInvalidArgument) naming the argument, the expected and the actual value. They look at
// shapes and numbers; types, and what lies in memory, are the backend's to check.
void Validate(const RmsNormArgs& args);
void Validate(const LayerNormArgs& args);
void Validate(const RopeArgs& args);
void Validate(const SiluMulArgs& args);
void Validate(const AddScaledArgs& args);
void Validate(const CopyRowsArgs& args);
void Validate(const RouteArgs& args);
void Validate(const CombineArgs& args);

}  // namespace quire

#endif  // QUIRE_KERNELS_ROW_OPS_H_
