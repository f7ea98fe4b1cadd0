#include "kernels/cpu/row_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "base/maths.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_ops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "hwy/contrib/math/math-inl.h"  // after foreach_target.h

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

inline constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));

// ---- Rows as vectors ----

// How a vector of a row is read and written: whole, or the part that is left at the row's end.
// Both go through the same operations, so a value's bits do not depend on where in a vector it is.
struct Whole {
  HWY_INLINE VF Load(const float* from) const { return hn::LoadU(DF(), from); }
  HWY_INLINE void Store(VF v, float* to) const { hn::StoreU(v, DF(), to); }
  // The first and the second values of neighbouring pairs.
  HWY_INLINE void LoadPairs(const float* from, VF& a, VF& b) const {
    hn::LoadInterleaved2(DF(), from, a, b);
  }
  HWY_INLINE void StorePairs(VF a, VF b, float* to) const { hn::StoreInterleaved2(a, b, DF(), to); }
};
struct Part {
  HWY_INLINE VF Load(const float* from) const {
    float whole[kLanes] = {};
    std::copy_n(from, count, whole);
    return hn::LoadU(DF(), whole);
  }
  HWY_INLINE void Store(VF v, float* to) const {
    float whole[kLanes];
    hn::StoreU(v, DF(), whole);
    std::copy_n(whole, count, to);
  }
  HWY_INLINE void LoadPairs(const float* from, VF& a, VF& b) const {
    float whole[2 * kLanes] = {};
    std::copy_n(from, 2 * count, whole);
    hn::LoadInterleaved2(DF(), whole, a, b);
  }
  HWY_INLINE void StorePairs(VF a, VF b, float* to) const {
    float whole[2 * kLanes];
    hn::StoreInterleaved2(a, b, DF(), whole);
    std::copy_n(whole, 2 * count, to);
  }
  int64_t count;  // 1 .. kLanes - 1
};

// Calls fn(i, lanes) for the vectors of a row of n values, i being where they begin.
template <class Fn>
HWY_INLINE void ForVectors(int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) fn(i, Whole());
  if (i < n) fn(i, Part{.count = n - i});
}

// Sums are made of sixteen partial ones, as many as the widest vector has lanes: value i goes to
// sum i % 16, and those are added as a tree. So the order is the same for every width of vectors.
inline constexpr int64_t kPartials = 16;
static_assert(kPartials % kLanes == 0, "partial sums are a whole number of vectors");

// step(sum, values) adds one vector to the partial sums beneath it.
template <class Step>
HWY_INLINE float SumRow(const float* x, int64_t n, Step step) {
  const DF d;
  VF sums[kPartials / kLanes];
  for (VF& sum : sums) sum = hn::Zero(d);
  auto add = [&](const float* block) HWY_ATTR {
    for (int64_t i = 0; i < kPartials; i += kLanes) {
      sums[i / kLanes] = step(sums[i / kLanes], hn::LoadU(d, block + i));
    }
  };
  int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) add(x + i);
  if (i < n) {
    float block[kPartials] = {};  // zeros change no sum
    std::copy_n(x + i, n - i, block);
    add(block);
  }
  float parts[kPartials];
  for (i = 0; i < kPartials; i += kLanes) hn::StoreU(sums[i / kLanes], d, parts + i);
  for (int64_t half = kPartials / 2; half >= 1; half /= 2) {
    for (i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
}

// ---- Ops ----

void NormRow(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float squares = SumRow(x, n, [](VF sum, VF v) HWY_ATTR { return hn::MulAdd(v, v, sum); });
  const VF factor = hn::Set(DF(), 1.0f / std::sqrt(squares / static_cast<float>(n) + eps));
  ForVectors(n, [&](int64_t i, auto lanes) HWY_ATTR {
    lanes.Store(hn::Mul(hn::Mul(lanes.Load(x + i), factor), lanes.Load(weight + i)), y + i);
  });
}

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    NormRow(args.x.Row<float>(t), args.weight.data(), args.x.dim(1), args.eps,
            args.y.Row<float>(t));
    if (args.scale == 1.0f) continue;
    float* y = args.y.Row<float>(t);
    for (int64_t i = 0; i < args.y.dim(1); ++i) y[i] *= args.scale;
  }
}

// Differences from the mean are rounded once and kept in y, so that squares are of what is scaled.
void LayerNormRow(const LayerNormArgs& args, const float* x, float* y) {
  const DF d;
  const int64_t n = args.x.dim(1);
  const float sum = SumRow(x, n, [](VF sums, VF v) HWY_ATTR { return hn::Add(sums, v); });
  const VF mean = hn::Set(d, sum / static_cast<float>(n));
  ForVectors(n, [&](int64_t i, auto lanes)
                    HWY_ATTR { lanes.Store(hn::Sub(lanes.Load(x + i), mean), y + i); });
  const float squares = SumRow(y, n, [](VF sums, VF v) HWY_ATTR { return hn::MulAdd(v, v, sums); });
  const VF factor = hn::Set(d, 1.0f / std::sqrt(squares / static_cast<float>(n) + args.eps));
  const float* weight = args.weight.data();
  const float* bias = args.bias.data();
  ForVectors(n, [&](int64_t i, auto lanes) HWY_ATTR {
    lanes.Store(hn::MulAdd(hn::Mul(lanes.Load(y + i), factor), lanes.Load(weight + i),
                           lanes.Load(bias + i)),
                y + i);
  });
}

void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    LayerNormRow(args, args.x.Row<float>(t), args.y.Row<float>(t));
  }
}

// (a, b) -> (a cos - b sin, b cos + a sin), the second product rounded and the first one fused.
HWY_INLINE void Rotate(VF cos, VF sin, VF& a, VF& b) {
  const VF b_sin = hn::Mul(b, sin);
  const VF a_sin = hn::Mul(a, sin);
  a = hn::MulSub(a, cos, b_sin);
  b = hn::MulAdd(b, cos, a_sin);
}

void RotateNeighbours(const float* cos, const float* sin, int64_t num_pairs, float* x) {
  ForVectors(num_pairs, [&](int64_t i, auto lanes) HWY_ATTR {
    VF a, b;
    lanes.LoadPairs(x + 2 * i, a, b);
    Rotate(lanes.Load(cos + i), lanes.Load(sin + i), a, b);
    lanes.StorePairs(a, b, x + 2 * i);
  });
}

void RotateHalves(const float* cos, const float* sin, int64_t num_pairs, float* x) {
  float* second = x + num_pairs;
  ForVectors(num_pairs, [&](int64_t i, auto lanes) HWY_ATTR {
    VF a = lanes.Load(x + i);
    VF b = lanes.Load(second + i);
    Rotate(lanes.Load(cos + i), lanes.Load(sin + i), a, b);
    lanes.Store(a, x + i);
    lanes.Store(b, second + i);
  });
}

void RopeRows(const RopeArgs& args, int64_t begin, int64_t end) {
  const auto rotate = args.pairs == RopePairs::kInterleaved ? RotateNeighbours : RotateHalves;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < args.x.dim(1); ++h) {
      const float* x = args.x.Row<float>(t, h);
      float* y = args.y.Row<float>(t, h);
      if (x != y) std::copy_n(x, args.x.dim(2), y);
      rotate(args.cos.Row<float>(t), args.sin.Row<float>(t), args.cos.dim(1), y);
    }
  }
}

// exp(-|x|), and 0 for NaN. With it silu and the sigmoid do not overflow, and keep small results
// that x / (1 + exp(-x)) loses below -88.
HWY_INLINE VF ExpOfMinusAbs(VF x) { return hn::Exp(DF(), hn::Neg(hn::Abs(x))); }

HWY_INLINE VF Silu(VF x) {
  const DF d;
  const VF e = ExpOfMinusAbs(x);
  // -inf counts as the least finite number: it times e = 0 would be NaN.
  const VF least = hn::Set(d, std::numeric_limits<float>::lowest());
  const VF below = hn::Mul(hn::Max(x, least), e);
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), below, x), hn::Add(hn::Set(d, 1.0f), e));
}

HWY_INLINE VF Sigmoid(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF e = ExpOfMinusAbs(x);
  const VF value = hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
  return hn::IfThenElse(hn::IsNaN(x), x, value);
}

void SiluMulRows(const SiluMulArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.y.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = args.gate_up.Row<float>(t);
    const float* up = gate + width;
    float* y = args.y.Row<float>(t);
    ForVectors(width, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.Store(hn::Mul(Silu(lanes.Load(gate + i)), lanes.Load(up + i)), y + i);
    });
  }
}

HWY_INLINE void AddScaledRow(const float* x, float scale, int64_t n, float* y) {
  const VF factor = hn::Set(DF(), scale);
  ForVectors(n, [&](int64_t i, auto lanes) HWY_ATTR {
    lanes.Store(hn::MulAdd(factor, lanes.Load(x + i), lanes.Load(y + i)), y + i);
  });
}

HWY_INLINE void ScaleRow(const float* x, float scale, int64_t n, float* y) {
  const VF factor = hn::Set(DF(), scale);
  ForVectors(n, [&](int64_t i, auto lanes)
                    HWY_ATTR { lanes.Store(hn::Mul(factor, lanes.Load(x + i)), y + i); });
}

void AddScaledRows(const AddScaledArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    AddScaledRow(args.x.Row<float>(t), args.scale, args.y.dim(1), args.y.Row<float>(t));
  }
}

// A pass over y per choice: y stays in the first-level cache, and every row is read once, in order.
void CombineRows(const CombineArgs& args, int64_t begin, int64_t end) {
  const size_t top_k = args.row_of.size() / static_cast<size_t>(args.y.dim(0));
  for (int64_t t = begin; t < end; ++t) {
    const auto row_of = args.row_of.subspan(static_cast<size_t>(t) * top_k, top_k);
    const auto weights = args.weights.subspan(static_cast<size_t>(t) * top_k, top_k);
    float* y = args.y.Row<float>(t);
    ScaleRow(args.rows.Row<float>(row_of[0]), weights[0], args.y.dim(1), y);
    for (size_t j = 1; j < top_k; ++j) {
      AddScaledRow(args.rows.Row<float>(row_of[j]), weights[j], args.y.dim(1), y);
    }
    if (!args.shared.empty()) AddScaledRow(args.shared.Row<float>(t), 1.0f, args.y.dim(1), y);
  }
}

void SigmoidRow(const float* x, int64_t n, float* y) {
  ForVectors(
      n, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(Sigmoid(lanes.Load(x + i)), y + i); });
}

void SoftmaxRow(const float* x, int64_t n, float* y) {
  const DF d;
  const float top = *std::max_element(x, x + n);
  ForVectors(n, [&](int64_t i, auto lanes) HWY_ATTR {
    const VF below = hn::Sub(lanes.Load(x + i), hn::Set(d, top));
    // Highway's exp is 0 for NaN.
    lanes.Store(hn::IfThenElse(hn::IsNaN(below), below, hn::Exp(d, below)), y + i);
  });
  const float sum = SumRow(y, n, [](VF parts, VF v) HWY_ATTR { return hn::Add(parts, v); });
  ForVectors(n, [&](int64_t i, auto lanes)
                    HWY_ATTR { lanes.Store(hn::Div(lanes.Load(y + i), hn::Set(d, sum)), y + i); });
}

// The scores of one token's logits.
void ScoreRow(ScoreFunction function, const float* logits, int64_t num_experts, float* scores) {
  const auto score = function == ScoreFunction::kSoftmax ? SoftmaxRow : SigmoidRow;
  score(logits, num_experts, scores);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(RopeRows);
HWY_EXPORT(SiluMulRows);
HWY_EXPORT(AddScaledRows);
HWY_EXPORT(CombineRows);
HWY_EXPORT(ScoreRow);

// ---- Choosing experts ----

// The highest of the values offered, highest first; of equal ones those offered first. NaN counts
// as -inf.
class TopList {
 public:
  // Keeps as many as `indices` has room for.
  explicit TopList(std::span<int32_t> indices) : indices_(indices) {}

  void Offer(float value, int32_t index) {
    if (std::isnan(value)) value = -std::numeric_limits<float>::infinity();
    if (size_ == indices_.size()) {
      if (value <= values_[size_ - 1]) return;
      --size_;
    }
    size_t at = size_++;
    for (; at > 0 && value > values_[at - 1]; --at) {
      values_[at] = values_[at - 1];
      indices_[at] = indices_[at - 1];
    }
    values_[at] = value;
    indices_[at] = index;
  }

 private:
  std::span<int32_t> indices_;
  std::array<float, std::max(kMaxTopK, kMaxExpertGroups)> values_;  // [size_], beside indices_
  size_t size_ = 0;
};

// What a group of experts with these biased scores is worth.
float GroupScore(ExpertSelection selection, std::span<const float> scores) {
  float first = -std::numeric_limits<float>::infinity();
  float second = first;
  for (float score : scores) {
    if (score > first) {
      second = first;
      first = score;
    } else if (score > second) {
      second = score;
    }
  }
  return selection == ExpertSelection::kGroupMax ? first : first + second;
}

using GroupMask = std::array<bool, kMaxExpertGroups>;

GroupMask KeptGroups(const RouteShape& shape, std::span<const float> biased) {
  const size_t group_size = static_cast<size_t>(shape.num_experts / shape.num_groups);
  std::array<int32_t, kMaxExpertGroups> groups;
  const std::span<int32_t> top(groups.data(), static_cast<size_t>(shape.top_groups));
  TopList best(top);
  for (int32_t g = 0; g < shape.num_groups; ++g) {
    const size_t first = static_cast<size_t>(g) * group_size;
    best.Offer(GroupScore(shape.selection, biased.subspan(first, group_size)), g);
  }
  GroupMask kept = {};
  for (int32_t g : top) kept[static_cast<size_t>(g)] = true;
  return kept;
}

void ChooseExperts(const RouteShape& shape, std::span<const float> biased,
                   std::span<int32_t> experts) {
  const bool grouped = shape.selection != ExpertSelection::kGreedy;
  const int32_t group_size = shape.num_experts / (grouped ? shape.num_groups : 1);
  const GroupMask kept = grouped ? KeptGroups(shape, biased) : GroupMask{true};
  TopList best(experts);
  for (int32_t first = 0; first < shape.num_experts; first += group_size) {
    if (!kept[static_cast<size_t>(first / group_size)]) continue;
    for (int32_t e = first; e < first + group_size; ++e) {
      best.Offer(biased[static_cast<size_t>(e)], e);
    }
  }
}

void WeighExperts(const RouteShape& shape, std::span<const float> scores,
                  std::span<const int32_t> experts, std::span<float> weights) {
  float sum = 0.0f;
  for (size_t j = 0; j < experts.size(); ++j) {
    weights[j] = scores[static_cast<size_t>(experts[j])];
    sum += weights[j];
  }
  const float divisor = shape.normalize ? sum + 1e-20f : 1.0f;
  for (float& weight : weights) weight = weight / divisor * shape.scale;
}

void RouteRow(const RouteArgs& args, int64_t token) {
  const size_t num_experts = static_cast<size_t>(args.shape.num_experts);
  const size_t top_k = static_cast<size_t>(args.shape.top_k);
  const size_t at = static_cast<size_t>(token) * top_k;
  std::array<float, kMaxExperts> scores;
  std::array<float, kMaxExperts> biased;
  HWY_DYNAMIC_DISPATCH(ScoreRow)
  (args.shape.score, args.logits.Row<float>(token), args.shape.num_experts, scores.data());
  for (size_t e = 0; e < num_experts; ++e) {
    biased[e] = args.bias.empty() ? scores[e] : scores[e] + args.bias[e];
  }
  const std::span<int32_t> experts = args.experts.subspan(at, top_k);
  ChooseExperts(args.shape, std::span(biased).first(num_experts), experts);
  WeighExperts(args.shape, scores, experts, args.weights.subspan(at, top_k));
}

// ---- Rows over threads ----

// What a value of a row costs, roughly, on one Neoverse V1 core.
constexpr double kNormNs = 0.4;
constexpr double kRopeNs = 0.3;
constexpr double kSiluMulNs = 2.5;
constexpr double kAddNs = 0.15;
constexpr double kRouteNs = 5.0;
// Work per parallel cell: twice what running the pool costs. Less stays on the calling thread, so
// the one token of a decode step does not wait for another thread to wake.
constexpr double kCellNs = 10000.0;

// Calls fn(begin, end) over [0, num_rows) in cells. A row is never cut.
template <class Fn>
void ForRows(int64_t num_rows, double row_ns, Executor& executor, Fn fn) {
  const int64_t rows_per_cell = static_cast<int64_t>(kCellNs / std::max(row_ns, 1.0)) + 1;
  executor.Run(CeilDiv(num_rows, rows_per_cell), [&](int64_t cell) {
    const int64_t begin = cell * rows_per_cell;
    fn(begin, std::min(num_rows, begin + rows_per_cell));
  });
}

}  // namespace

void RequireF32(const char* name, const ConstTensorView& view) {
  Require(view.dtype() == DType::kF32, "{}: expected f32, got {}", name, DTypeName(view.dtype()));
}

void RmsNorm(const RmsNormArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("rms_norm.x", args.x);
  RequireF32("rms_norm.y", args.y);
  ForRows(args.y.dim(0), kNormNs * static_cast<double>(args.y.dim(1)), executor,
          [&](int64_t begin, int64_t end) {
            HWY_DYNAMIC_DISPATCH(RmsNormRows)
            (args, begin, end);
          });
}

void LayerNorm(const LayerNormArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("layer_norm.x", args.x);
  RequireF32("layer_norm.y", args.y);
  ForRows(args.y.dim(0), kNormNs * static_cast<double>(args.y.dim(1)), executor,
          [&](int64_t begin, int64_t end) {
            HWY_DYNAMIC_DISPATCH(LayerNormRows)
            (args, begin, end);
          });
}

void Rope(const RopeArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("rope.x", args.x);
  RequireF32("rope.y", args.y);
  ForRows(args.x.dim(0), kRopeNs * static_cast<double>(args.x.dim(1) * args.x.dim(2)), executor,
          [&](int64_t begin, int64_t end) {
            HWY_DYNAMIC_DISPATCH(RopeRows)
            (args, begin, end);
          });
}

void SiluMul(const SiluMulArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("silu_mul.gate_up", args.gate_up);
  RequireF32("silu_mul.y", args.y);
  ForRows(args.y.dim(0), kSiluMulNs * static_cast<double>(args.y.dim(1)), executor,
          [&](int64_t begin, int64_t end) {
            HWY_DYNAMIC_DISPATCH(SiluMulRows)
            (args, begin, end);
          });
}

void AddScaled(const AddScaledArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("add_scaled.x", args.x);
  ForRows(args.y.dim(0), kAddNs * static_cast<double>(args.y.dim(1)), executor,
          [&](int64_t begin, int64_t end) {
            HWY_DYNAMIC_DISPATCH(AddScaledRows)(args, begin, end);
          });
}

void CopyRows(const CopyRowsArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("copy_rows.x", args.x);
  RequireF32("copy_rows.y", args.y);
  ForRows(args.y.dim(0), kAddNs * static_cast<double>(args.y.dim(1)), executor,
          [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
              std::copy_n(args.x.Row<float>(t), args.x.dim(1), args.y.Row<float>(t));
            }
          });
}

void Route(const RouteArgs& args, Executor& executor) {
  Validate(args);
  ForRows(args.logits.dim(0), kRouteNs * args.shape.num_experts, executor,
          [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) RouteRow(args, t);
          });
}

void Combine(const CombineArgs& args, Executor& executor) {
  Validate(args);
  RequireF32("combine.rows", args.rows);
  RequireF32("combine.y", args.y);
  for (const int32_t row : args.row_of) {
    Require(row >= 0 && row < args.rows.dim(0), "combine.row_of: expected 0..{}, got {}",
            args.rows.dim(0) - 1, row);
  }
  const int64_t num_tokens = args.y.dim(0);
  if (num_tokens == 0) return;
  const double adds = static_cast<double>(std::ssize(args.row_of) / num_tokens * args.y.dim(1));
  ForRows(num_tokens, kAddNs * adds, executor, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(CombineRows)(args, begin, end);
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
