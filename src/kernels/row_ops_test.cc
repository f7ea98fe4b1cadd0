#include "kernels/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/row_ops_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/paged_batch.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using namespace testing;  // the cases
using testing::MadeUpValues;

// Rows that stand apart in a wider array between guards.
class GappedRows {
 public:
  GappedRows(int64_t num_rows, int64_t width)
      : num_rows_(num_rows), width_(width), memory_(static_cast<size_t>(num_rows * stride())) {}
  GappedRows(const std::vector<float>& values, int64_t width)
      : GappedRows(std::ssize(values) / width, width) {
    for (int64_t r = 0; r < num_rows_; ++r) {
      std::copy_n(values.begin() + r * width, width, view().Row<float>(r));
    }
  }

  TensorView view() {
    return TensorView(memory_.data(), {num_rows_, stride()}).Columns(kBefore, width_);
  }
  // One head per row.
  TensorView heads() {
    return TensorView(memory_.data(), {num_rows_, 1, stride()}).Columns(kBefore, width_);
  }

  std::vector<float> values() {
    std::vector<float> values;
    for (int64_t r = 0; r < num_rows_; ++r) {
      values.insert(values.end(), view().Row<float>(r), view().Row<float>(r) + width_);
    }
    return values;
  }

  // "" if nothing but the rows was written.
  std::string Damage() {
    for (int64_t i = 0; i < num_rows_ * stride(); ++i) {
      const int64_t column = i % stride();
      if (column >= kBefore && column < kBefore + width_) continue;
      const float* at = memory_.data() + i;
      if (std::memcmp(at, &kUntouched, sizeof(float)) != 0) {
        return fmt::format("row {} written at column {}", i / stride(), column - kBefore);
      }
    }
    return memory_.Damage();
  }

 private:
  static constexpr int64_t kBefore = 3;
  static constexpr int64_t kBehind = 2;
  static constexpr uint32_t kUntouched = 0x01010101u * RedZone<float>::kFill;
  int64_t stride() const { return kBefore + width_ + kBehind; }

  int64_t num_rows_;
  int64_t width_;
  RedZone<float> memory_;
};

#define EXPECT_NEAR_REFERENCE(rows, reference)                                      \
  EXPECT_EQ(Mismatch((rows).values(), (reference).values, (reference).bounds), ""); \
  EXPECT_EQ((rows).Damage(), "")

// ---- Against double precision, with the bounds of docs/numerics.md ----

TEST(RowOpsTest, RmsNormIsNearTheReferenceAlsoInPlace) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> values = MadeUpRows(1, 5, width);
    const std::vector<float> weight = MadeUpValues(2, 0, width);
    const Reference reference =
        ReferenceRmsNorm(values, weight, 1e-5f, static_cast<double>(width / 16) + 7);
    GappedRows x(values, width);
    GappedRows y(5, width);
    cpu::RmsNorm({.x = x.view(), .weight = weight, .eps = 1e-5f, .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    cpu::RmsNorm({.x = x.view(), .weight = weight, .eps = 1e-5f, .y = x.view()}, executor);
    EXPECT_EQ(BitMismatch(x.values(), y.values()), "");
    EXPECT_EQ(x.Damage(), "");
  }
}

TEST(RowOpsTest, RmsNormOfZerosIsZero) {
  SerialExecutor executor;
  std::vector<float> x(20, 0.0f);
  const std::vector<float> weight(20, 3.0f);
  cpu::RmsNorm({.x = ConstTensorView(x.data(), {1, 20}),
                .weight = weight,
                .y = TensorView(x.data(), {1, 20})},
               executor);
  EXPECT_EQ(x, std::vector<float>(20, 0.0f));
}

TEST(RowOpsTest, LayerNormIsNearTheReferenceAlsoInPlace) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    std::vector<float> values = MadeUpRows(1, 5, width);
    for (float& value : values) value += 3.0f;  // a mean that is far from 0
    const std::vector<float> weight = MadeUpValues(2, 0, width);
    const std::vector<float> bias = MadeUpValues(3, 0, width);
    const Reference reference = ReferenceLayerNorm(values, weight, bias, 1e-6f);
    GappedRows x(values, width);
    GappedRows y(5, width);
    cpu::LayerNorm({.x = x.view(), .weight = weight, .bias = bias, .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    cpu::LayerNorm({.x = x.view(), .weight = weight, .bias = bias, .y = x.view()}, executor);
    EXPECT_EQ(BitMismatch(x.values(), y.values()), "");
    EXPECT_EQ(x.Damage(), "");
  }
}

TEST(RowOpsTest, LayerNormOfEqualValuesIsTheBias) {
  SerialExecutor executor;
  std::vector<float> x(20, 3.0f);
  const std::vector<float> weight(20, 2.0f), bias(20, 0.25f);
  cpu::LayerNorm({.x = ConstTensorView(x.data(), {1, 20}),
                  .weight = weight,
                  .bias = bias,
                  .y = TensorView(x.data(), {1, 20})},
                 executor);
  EXPECT_EQ(x, bias);
}

TEST(RowOpsTest, RopeRotatesTheLastValuesOfEveryHead) {
  SerialExecutor executor;
  constexpr int64_t kTokens = 3, kHeads = 5, kNope = 4;
  GappedRows cos_rows(MadeUpRows(4, kTokens, 40), 40);
  GappedRows sin_rows(MadeUpRows(5, kTokens, 40), 40);
  for (RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalves}) {
    for (int64_t rope_dim : {0, 2, 14, 32, 64, 66}) {
      SCOPED_TRACE(rope_dim);
      const int64_t head_dim = kNope + rope_dim;
      const ConstTensorView cos = cos_rows.view().Columns(1, rope_dim / 2);
      const ConstTensorView sin = sin_rows.view().Columns(2, rope_dim / 2);
      const std::vector<float> before = MadeUpRows(3, kTokens * kHeads, head_dim);
      RedZone<float> x(before.size());
      std::copy(before.begin(), before.end(), x.span().begin());
      const TensorView heads(x.data(), {kTokens, kHeads, head_dim});
      cpu::Rope({.x = heads.Columns(kNope, rope_dim),
                 .cos = cos,
                 .sin = sin,
                 .pairs = pairs,
                 .y = heads.Columns(kNope, rope_dim)},
                executor);
      const Reference reference = ReferenceRope(before, head_dim, kHeads, pairs, cos, sin);
      EXPECT_EQ(Mismatch(x.values(), reference.values, reference.bounds), "");
      EXPECT_EQ(x.Damage(), "");
    }
  }
}

TEST(RowOpsTest, RopeGivesAPairTheSameBitsHoweverPairsLie) {
  SerialExecutor executor;
  constexpr int64_t kDim = 22;
  const std::vector<float> cos = MadeUpValues(6, 0, kDim / 2), sin = MadeUpValues(6, 1, kDim / 2);
  std::vector<float> neighbours = MadeUpValues(6, 2, kDim);
  std::vector<float> halves(kDim);
  for (size_t i = 0; i < kDim; ++i) halves[i / 2 + i % 2 * (kDim / 2)] = neighbours[i];
  const ConstTensorView cos_view(cos.data(), {1, kDim / 2}), sin_view(sin.data(), {1, kDim / 2});
  cpu::Rope({.x = TensorView(neighbours.data(), {1, 1, kDim}),
             .cos = cos_view,
             .sin = sin_view,
             .pairs = RopePairs::kInterleaved,
             .y = TensorView(neighbours.data(), {1, 1, kDim})},
            executor);
  cpu::Rope({.x = TensorView(halves.data(), {1, 1, kDim}),
             .cos = cos_view,
             .sin = sin_view,
             .pairs = RopePairs::kHalves,
             .y = TensorView(halves.data(), {1, 1, kDim})},
            executor);
  for (size_t i = 0; i < kDim; ++i) {
    EXPECT_EQ(halves[i / 2 + i % 2 * (kDim / 2)], neighbours[i]) << i;
  }
}

TEST(RowOpsTest, SiluMulIsNearTheReferenceAlsoInPlace) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    std::vector<float> values = MadeUpRows(7, 4, 2 * width);
    for (float& value : values) value *= 20.0f;  // up to +-40
    Reference reference;
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const float* gate = values.data() + row * 2 * width + i;
        const double y = ReferenceSilu(*gate) * gate[width];
        reference.Add(y, 8 * kU * std::abs(y));
      }
    }
    GappedRows gate_up(values, 2 * width);
    GappedRows y(4, width);
    cpu::SiluMul({.gate_up = gate_up.view(), .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    for (int64_t half : {0, 1}) {
      GappedRows again(values, 2 * width);
      const TensorView in_place = again.view().Columns(half * width, width);
      cpu::SiluMul({.gate_up = again.view(), .y = in_place}, executor);
      for (int64_t row = 0; row < 4; ++row) {
        EXPECT_EQ(BitMismatch({in_place.Row<float>(row), static_cast<size_t>(width)},
                              {y.view().Row<float>(row), static_cast<size_t>(width)}),
                  "");
      }
      EXPECT_EQ(again.Damage(), "");
    }
  }
}

TEST(RowOpsTest, SiluIsRightFarFromZero) {
  SerialExecutor executor;
  const std::vector<float>& gate = FarGates();
  std::vector<float> row = gate;
  row.insert(row.end(), gate.size(), 1.0f);
  const int64_t width = std::ssize(gate);
  std::vector<float> y(gate.size());
  cpu::SiluMul({.gate_up = ConstTensorView(row.data(), {1, 2 * width}),
                .y = TensorView(y.data(), {1, width})},
               executor);
  const Reference reference = ReferenceFarSilu();
  EXPECT_EQ(Mismatch(y, reference.values, reference.bounds), "");
}

TEST(RowOpsTest, AddScaledIsNearTheReference) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> x_values = MadeUpRows(8, 4, width);
    const std::vector<float> y_values = MadeUpRows(9, 4, width);
    Reference reference;
    for (size_t i = 0; i < x_values.size(); ++i) {
      const double product = double{0.3f} * x_values[i];
      const double sum = y_values[i] + product;
      reference.Add(sum, kU * (std::abs(sum) + std::abs(product)));
    }
    GappedRows x(x_values, width);
    GappedRows y(y_values, width);
    cpu::AddScaled({.x = x.view(), .scale = 0.3f, .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    EXPECT_EQ(BitMismatch(x.values(), x_values), "");
  }
}

TEST(RowOpsTest, CopiedRowsAreTheSame) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    const std::vector<float> values = MadeUpRows(8, 4, width);
    GappedRows x(values, width);
    GappedRows y(4, width);
    cpu::CopyRows({.x = x.view(), .y = y.view()}, executor);
    EXPECT_EQ(BitMismatch(y.values(), values), "") << width;
  }
}

TEST(RowOpsTest, CombineIsNearTheReference) {
  SerialExecutor executor;
  constexpr int64_t kTokens = 4, kRows = 7;  // some rows are nobody's
  for (int64_t width : kWidths) {
    for (int64_t top_k : {1, 2, 8}) {
      SCOPED_TRACE(fmt::format("width {}, top_k {}", width, top_k));
      const std::vector<float> row_values = MadeUpRows(10, kRows * top_k, width);
      const std::vector<float> weights = MadeUpValues(11, 0, kTokens * top_k);
      std::vector<int32_t> row_of(static_cast<size_t>(kRows * top_k));
      std::iota(row_of.begin(), row_of.end(), 0);
      std::shuffle(row_of.begin(), row_of.end(), std::mt19937_64(12));
      row_of.resize(static_cast<size_t>(kTokens * top_k));
      Reference reference;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          double sum = 0, size = 0;
          for (int64_t j = 0; j < top_k; ++j) {
            const size_t at = static_cast<size_t>(t * top_k + j);
            const double term =
                double{weights[at]} * row_values[static_cast<size_t>(row_of[at] * width + i)];
            sum += term;
            size += std::abs(term);
          }
          reference.Add(sum, kU * static_cast<double>(top_k + 1) * size);
        }
      }
      GappedRows rows(row_values, width);
      GappedRows y(kTokens, width);
      cpu::Combine({.rows = rows.view(), .row_of = row_of, .weights = weights, .y = y.view()},
                   executor);
      EXPECT_NEAR_REFERENCE(y, reference);
    }
  }
}

// ---- Route ----

struct Routes {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routes RunRoute(const RouteShape& shape, const std::vector<float>& logits,
                const std::vector<float>& bias, Executor& executor) {
  const int64_t num_tokens = std::ssize(logits) / shape.num_experts;
  GappedRows rows(logits, shape.num_experts);
  RedZone<int32_t> experts(static_cast<size_t>(num_tokens * shape.top_k));
  RedZone<float> weights(static_cast<size_t>(num_tokens * shape.top_k));
  cpu::Route({.shape = shape,
              .logits = rows.view(),
              .bias = bias,
              .experts = experts.span(),
              .weights = weights.span()},
             executor);
  EXPECT_EQ(experts.Damage(), "");
  EXPECT_EQ(weights.Damage(), "");
  return {.experts = experts.values(), .weights = weights.values()};
}

Routes RunRoute(const RouteShape& shape, const std::vector<float>& logits,
                const std::vector<float>& bias = {}) {
  SerialExecutor executor;
  return RunRoute(shape, logits, bias, executor);
}

TEST(RouteTest, WorkedExampleWithBiasAndGroups) {
  const float ln3 = std::log(3.0f);  // sigmoid(ln 3) = 0.75, of its negative 0.25
  const Routes routes = RunRoute({.num_experts = 8,
                                  .top_k = 3,
                                  .num_groups = 4,
                                  .top_groups = 2,
                                  .score = ScoreFunction::kSigmoid,
                                  .selection = ExpertSelection::kGroupTopTwo,
                                  .normalize = true,
                                  .scale = 2.5f},
                                 // scores: 0.5 0.5 | 0.75 0.25 | 0.5 0.75 | 0.25 0.25
                                 {0, 0, ln3, -ln3, 0, ln3, -ln3, -ln3},
                                 {0, 0, 0, -0.125f, 0.125f, 0, 0.625f, 0.3125f});
  // Biased: 0.5 0.5 | 0.75 0.125 | 0.625 0.75 | 0.875 0.5625. Groups: 1, 0.875, 1.375, 1.4375; the
  // last two are kept, so 4 is chosen and 2 is not, though it has more. Weights are of 1.5.
  EXPECT_EQ(routes.experts, (std::vector<int32_t>{6, 5, 4}));
  EXPECT_FLOAT_EQ(routes.weights[0], 2.5f * 0.25f / 1.5f);
  EXPECT_FLOAT_EQ(routes.weights[1], 2.5f * 0.75f / 1.5f);
  EXPECT_FLOAT_EQ(routes.weights[2], 2.5f * 0.5f / 1.5f);
}

TEST(RouteTest, WorkedExampleOfSoftmaxAndTheGroupsMaximum) {
  const RouteShape shape = {.num_experts = 6,
                            .top_k = 2,
                            .num_groups = 3,
                            .top_groups = 1,
                            .selection = ExpertSelection::kGroupMax,
                            .scale = 16.0f};
  // Shares of 20: 5 5 | 7 1 | 0.5 1.5. The second group has the maximum, not the largest sum.
  const std::vector<float> shares = {5.0f, 5.0f, 7.0f, 1.0f, 0.5f, 1.5f};
  std::vector<float> logits;
  for (float share : shares) logits.push_back(std::log(share) + 3.0f);
  const Routes grouped = RunRoute(shape, logits);
  EXPECT_EQ(grouped.experts, (std::vector<int32_t>{2, 3}));
  EXPECT_FLOAT_EQ(grouped.weights[0], 16 * 7.0f / 20);
  EXPECT_FLOAT_EQ(grouped.weights[1], 16 * 1.0f / 20);
  RouteShape greedy = shape;
  greedy.selection = ExpertSelection::kGreedy;
  EXPECT_EQ(RunRoute(greedy, logits).experts, (std::vector<int32_t>{2, 0}));
}

// Every expert's score, as the op computes it: a bias brings 64 after 64 to the top.
std::vector<float> AllScores(ScoreFunction function, const std::vector<float>& logits) {
  const int32_t num_experts = static_cast<int32_t>(logits.size());
  std::vector<float> scores(logits.size());
  for (int32_t first = 0; first < num_experts; first += kMaxTopK) {
    const int32_t count = std::min(kMaxTopK, num_experts - first);
    std::vector<float> bias(logits.size(), -kInf);
    std::fill_n(bias.begin() + first, count, 0.0f);
    const Routes routes =
        RunRoute({.num_experts = num_experts, .top_k = count, .score = function}, logits, bias);
    for (size_t j = 0; j < routes.experts.size(); ++j) {
      scores[static_cast<size_t>(routes.experts[j])] = routes.weights[j];
    }
  }
  return scores;
}

TEST(RouteTest, ScoresAreNearTheReference) {
  for (int64_t num_experts : {1, 7, 64, 256, 384, 1024}) {
    SCOPED_TRACE(num_experts);
    std::vector<float> logits = MadeUpValues(13, 0, num_experts);
    for (float& logit : logits) logit *= 10.0f;  // up to +-20
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit - top);
    Reference softmax, sigmoid;
    for (float logit : logits) {
      const double share = std::exp(logit - top) / sum;
      const double roundings = 2 * (2 + 40) + static_cast<double>(num_experts / 16) + 6;
      softmax.Add(share, kU * roundings * share);
      const double value = 1 / (1 + std::exp(-double{logit}));
      sigmoid.Add(value, 6 * kU * value);
    }
    EXPECT_EQ(Mismatch(AllScores(ScoreFunction::kSoftmax, logits), softmax.values, softmax.bounds),
              "");
    EXPECT_EQ(Mismatch(AllScores(ScoreFunction::kSigmoid, logits), sigmoid.values, sigmoid.bounds),
              "");
  }
}

// The numbers 0 .. values.size() - 1 by value, highest first; equal ones, and -inf and NaN, in
// order.
std::vector<int32_t> Ranking(std::vector<float> values) {
  for (float& value : values) value = std::isnan(value) ? -kInf : value;
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

// Which groups are kept, by sorting everything.
std::vector<bool> ReferenceGroups(const RouteShape& shape, const std::vector<float>& biased) {
  const int32_t group_size = shape.num_experts / shape.num_groups;
  std::vector<float> group_scores;
  for (auto first = biased.begin(); first != biased.end(); first += group_size) {
    std::vector<float> group(first, first + group_size);
    std::vector<float> sorted;
    for (int32_t e : Ranking(group)) sorted.push_back(group[static_cast<size_t>(e)]);
    group_scores.push_back(shape.selection == ExpertSelection::kGroupMax ? sorted[0]
                                                                         : sorted[0] + sorted[1]);
  }
  const std::vector<int32_t> order = Ranking(group_scores);
  std::vector<bool> kept(group_scores.size(), false);
  for (int32_t i = 0; i < shape.top_groups; ++i) {
    kept[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
  }
  return kept;
}

Routes ReferenceRoute(const RouteShape& shape, const std::vector<float>& scores,
                      const std::vector<float>& bias) {
  std::vector<float> biased = scores;
  for (size_t e = 0; e < bias.size(); ++e) biased[e] += bias[e];
  const bool grouped = shape.selection != ExpertSelection::kGreedy;
  const std::vector<bool> kept =
      grouped ? ReferenceGroups(shape, biased) : std::vector<bool>(1, true);
  const int32_t group_size = grouped ? shape.num_experts / shape.num_groups : shape.num_experts;
  Routes routes;
  float sum = 0;
  for (int32_t e : Ranking(biased)) {
    if (!kept[static_cast<size_t>(e / group_size)]) continue;
    if (std::ssize(routes.experts) == shape.top_k) break;
    routes.experts.push_back(e);
    routes.weights.push_back(scores[static_cast<size_t>(e)]);
    sum += routes.weights.back();
  }
  for (float& weight : routes.weights) {
    if (shape.normalize) weight /= sum + 1e-20f;
    weight *= shape.scale;
  }
  return routes;
}

TEST(RouteTest, RandomShapesAndTieStormsMatchTheSortedReference) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const RouteShape shape = RandomRouteShape(random);
    const bool ties = seed % 3 != 0;
    const std::vector<float> logits = ties ? TieStorm(random, shape.num_experts, 1 + seed % 5)
                                           : MadeUpValues(seed, 0, shape.num_experts);
    std::vector<float> bias;
    if (seed % 2 == 0) bias = TieStorm(random, shape.num_experts, 1 + seed % 3);
    const Routes routes = RunRoute(shape, logits, bias);
    const Routes expected = ReferenceRoute(shape, AllScores(shape.score, logits), bias);
    ASSERT_EQ(routes.experts, expected.experts);
    ASSERT_EQ(BitMismatch(routes.weights, expected.weights), "");
  }
}

// Groups that were not kept are left out even where what is kept scores lower than 0, which a mask
// of 0 would let through.
TEST(RouteTest, NegativeBiasedScoresDoNotLetOtherGroupsIn) {
  const Routes routes = RunRoute({.num_experts = 4,
                                  .top_k = 2,
                                  .num_groups = 2,
                                  .top_groups = 1,
                                  .score = ScoreFunction::kSigmoid,
                                  .selection = ExpertSelection::kGroupTopTwo},
                                 {0, 0, 0, 0}, {-3, -3, -2, -2});
  EXPECT_EQ(routes.experts, (std::vector<int32_t>{2, 3}));
}

TEST(RouteTest, WeightsOfNothingAreZeroAndNotNaN) {
  const Routes routes =
      RunRoute({.num_experts = 4, .top_k = 2, .score = ScoreFunction::kSigmoid, .normalize = true},
               {-1e4f, -1e4f, -kInf, -1e4f});
  EXPECT_EQ(routes.experts, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(routes.weights, (std::vector<float>{0, 0}));
}

TEST(RouteTest, ANaNLogitRanksLastUnderTheSigmoid) {
  const RouteShape shape = {
      .num_experts = 4, .top_k = 3, .score = ScoreFunction::kSigmoid, .normalize = false};
  const Routes routes = RunRoute(shape, {kNaN, -5, 5, kInf});
  EXPECT_EQ(routes.experts, (std::vector<int32_t>{3, 2, 1}));
  EXPECT_EQ(routes.weights[0], 1.0f);
  EXPECT_TRUE(std::isfinite(routes.weights[1]) && std::isfinite(routes.weights[2]));
}

TEST(RouteTest, ChoicesOfRowsFullOfNaNAreDistinctAndInRange) {
  for (ExpertSelection selection :
       {ExpertSelection::kGreedy, ExpertSelection::kGroupMax, ExpertSelection::kGroupTopTwo}) {
    for (ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
      const Routes routes = RunRoute({.num_experts = 8,
                                      .top_k = 4,
                                      .num_groups = 4,
                                      .top_groups = 2,
                                      .score = score,
                                      .selection = selection},
                                     std::vector<float>(8, kNaN));
      EXPECT_EQ(routes.experts, (std::vector<int32_t>{0, 1, 2, 3}));
      for (float weight : routes.weights) EXPECT_TRUE(std::isnan(weight));
    }
  }
}

// ---- Bit for bit, all ops alike ----

// An op over the rows of some tokens: what comes out for each of them. What goes in depends on the
// token's number alone; a negative one has nothing but NaN.
struct Op {
  const char* name;
  std::function<std::vector<float>(std::span<const int64_t> tokens, int64_t width, Executor&)> run;
};

std::vector<float> RowsOf(uint64_t seed, std::span<const int64_t> tokens, int64_t width) {
  std::vector<float> rows;
  for (int64_t token : tokens) {
    const std::vector<float> row = token < 0 ? std::vector<float>(static_cast<size_t>(width), kNaN)
                                             : MadeUpValues(seed, token, width);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

std::vector<float> NormOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows x(RowsOf(20, tokens, width), width);
  const std::vector<float> weight = MadeUpValues(21, 0, width);
  cpu::RmsNorm({.x = x.view(), .weight = weight, .y = x.view()}, executor);
  return x.values();
}

template <RopePairs kPairs>
std::vector<float> RopeOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows x(RowsOf(22, tokens, 2 * width), 2 * width);
  GappedRows cos(RowsOf(23, tokens, width), width);
  GappedRows sin(RowsOf(24, tokens, width), width);
  cpu::Rope({.x = x.heads(), .cos = cos.view(), .sin = sin.view(), .pairs = kPairs, .y = x.heads()},
            executor);
  return x.values();
}

std::vector<float> SiluMulOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows gate_up(RowsOf(25, tokens, 2 * width), 2 * width);
  GappedRows y(std::ssize(tokens), width);
  cpu::SiluMul({.gate_up = gate_up.view(), .y = y.view()}, executor);
  return y.values();
}

std::vector<float> AddScaledOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows x(RowsOf(26, tokens, width), width);
  GappedRows y(RowsOf(27, tokens, width), width);
  cpu::AddScaled({.x = x.view(), .scale = 0.7f, .y = y.view()}, executor);
  return y.values();
}

// Experts and weights, two numbers per choice.
std::vector<float> RouteOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  const int32_t num_experts = static_cast<int32_t>(std::min<int64_t>(width, kMaxExperts));
  const Routes routes =
      RunRoute({.num_experts = num_experts, .top_k = std::min(num_experts, 8), .normalize = true},
               RowsOf(28, tokens, num_experts), {}, executor);
  std::vector<float> out;
  for (size_t i = 0; i < routes.experts.size(); ++i) {
    out.push_back(static_cast<float>(routes.experts[i]));
    out.push_back(routes.weights[i]);
  }
  return out;
}

// Two rows per token, those of the second choice after all of the first.
std::vector<float> CombineOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  std::vector<float> rows = RowsOf(29, tokens, width);
  const std::vector<float> second = RowsOf(30, tokens, width);
  rows.insert(rows.end(), second.begin(), second.end());
  const int32_t num_tokens = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> row_of;
  for (int32_t t = 0; t < num_tokens; ++t) row_of.insert(row_of.end(), {t, num_tokens + t});
  GappedRows gapped(rows, width);
  GappedRows y(num_tokens, width);
  cpu::Combine(
      {.rows = gapped.view(), .row_of = row_of, .weights = RowsOf(31, tokens, 2), .y = y.view()},
      executor);
  return y.values();
}

const Op kOps[] = {
    {"RmsNorm", NormOp},
    {"Rope, interleaved", RopeOp<RopePairs::kInterleaved>},
    {"Rope, halves", RopeOp<RopePairs::kHalves>},
    {"SiluMul", SiluMulOp},
    {"AddScaled", AddScaledOp},
    {"Route", RouteOp},
    {"Combine", CombineOp},
};

template <class Fn>
void ForAllOps(Fn fn) {
  for (const Op& op : kOps) {
    for (int64_t width : kWidths) {
      SCOPED_TRACE(fmt::format("{}, width {}", op.name, width));
      fn(op, width);
    }
  }
}

std::span<const float> RowAt(const std::vector<float>& rows, size_t num_rows, size_t i) {
  const size_t width = rows.size() / num_rows;
  return std::span(rows).subspan(i * width, width);
}

TEST(RowOpsTest, TheBatchAndItsOrderChangeNoBit) {
  SerialExecutor executor;
  ForAllOps([&](const Op& op, int64_t width) {
    const std::vector<int64_t> tokens = {4, 0, 3, 1, 2};
    const std::vector<float> batch = op.run(tokens, width, executor);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> alone = op.run(std::span(tokens).subspan(i, 1), width, executor);
      EXPECT_EQ(BitMismatch(RowAt(batch, tokens.size(), i), alone), "") << "token " << tokens[i];
    }
  });
}

TEST(RowOpsTest, ThreadsChangeNoBit) {
  // Enough for several cells of even the cheapest op at width 64.
  std::vector<int64_t> tokens(2500);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (const Op& op : kOps) {
    for (int64_t width : {64, 71}) {
      SCOPED_TRACE(fmt::format("{}, width {}", op.name, width));
      SerialExecutor serial;
      const std::vector<float> expected = op.run(tokens, width, serial);
      for (int threads : {1, 2, 3}) {
        ThreadPool executor(threads);
        EXPECT_EQ(BitMismatch(op.run(tokens, width, executor), expected), "") << threads;
      }
    }
  }
}

TEST(RowOpsTest, NaNInARowTouchesNoOther) {
  SerialExecutor executor;
  ForAllOps([&](const Op& op, int64_t width) {
    const std::vector<float> clean = op.run(std::vector<int64_t>{0, 1, 2}, width, executor);
    const std::vector<float> mixed = op.run(std::vector<int64_t>{0, -1, 2}, width, executor);
    for (size_t row : {0u, 2u}) {
      EXPECT_EQ(BitMismatch(RowAt(mixed, 3, row), RowAt(clean, 3, row)), "") << row;
    }
  });
}

TEST(RowOpsTest, NoTokensAreNoWork) {
  SerialExecutor executor;
  for (const Op& op : kOps) EXPECT_TRUE(op.run({}, 64, executor).empty()) << op.name;
}

// ---- Refusals ----

template <class Fn>
std::string Refusal(Fn fn) {
  return ErrorMessage(ErrorCode::kInvalidArgument, fn);
}

TEST(RouteTest, ShapesThatCannotBeAreRefused) {
  auto refusal = [](const RouteShape& shape) { return Refusal([&] { Validate(shape); }); };
  EXPECT_EQ(refusal({.num_experts = 0}), "route.num_experts: expected 1..1024, got 0");
  EXPECT_EQ(refusal({.num_experts = 1025}), "route.num_experts: expected 1..1024, got 1025");
  EXPECT_EQ(refusal({.num_experts = 8, .top_k = 9}), "route.top_k: expected 1..8, got 9");
  EXPECT_EQ(refusal({.num_experts = 100, .top_k = 65}), "route.top_k: expected 1..64, got 65");
  EXPECT_EQ(refusal({.scale = kInf}), "route.scale: expected a finite number, got inf");
  RouteShape shape = {.num_experts = 16,
                      .top_k = 4,
                      .num_groups = 8,
                      .top_groups = 2,
                      .selection = ExpertSelection::kGroupTopTwo};
  Validate(shape);
  shape.top_k = 5;
  EXPECT_EQ(refusal(shape), "route.top_k: expected at most the 4 experts of 2 groups, got 5");
  shape.top_groups = 9;
  EXPECT_EQ(refusal(shape), "route.top_groups: expected 1..8, got 9");
  shape.num_groups = 5;
  EXPECT_EQ(refusal(shape), "route.num_groups: expected a divisor of 16 experts, got 5");
  shape.num_groups = 0;
  EXPECT_EQ(refusal(shape), "route.num_groups: expected 1..64, got 0");
  shape.num_groups = 16;
  EXPECT_EQ(refusal(shape),
            "route.num_groups: expected groups of two experts or more, got 16 groups of 1");
  shape.selection = ExpertSelection::kGroupMax;
  shape.top_k = 4;
  Validate(shape);
}

TEST(RouteTest, WrongArgumentsAreRefusedBeforeAnythingIsWritten) {
  SerialExecutor executor;
  const std::vector<float> logits(16);
  RedZone<int32_t> experts(4);
  RedZone<float> weights(4);
  const RouteArgs right = {.shape = {.num_experts = 8, .top_k = 2},
                           .logits = ConstTensorView(logits.data(), {2, 8}),
                           .experts = experts.span(),
                           .weights = weights.span()};
  auto refusal = [&](const RouteArgs& args) {
    return Refusal([&] { cpu::Route(args, executor); });
  };
  RouteArgs args = right;
  args.logits = ConstTensorView(logits.data(), {4, 4});
  EXPECT_EQ(refusal(args), "route.logits: expected shape [4, 8], got [4, 4]");
  args = right;
  args.bias = std::span(logits).first(7);
  EXPECT_EQ(refusal(args), "route.bias: expected 8 values, got 7");
  args = right;
  args.experts = experts.span().first(3);
  EXPECT_EQ(refusal(args), "route.experts: expected 4 values, got 3");
  args = right;
  args.weights = {};
  EXPECT_EQ(refusal(args), "route.weights: expected 4 values, got 0");
  EXPECT_TRUE(experts.Untouched());
  EXPECT_TRUE(weights.Untouched());
}

TEST(RowOpsTest, WrongArgumentsAreRefusedBeforeAnythingIsWritten) {
  SerialExecutor executor;
  RedZone<float> y(12);
  const TensorView y_view(y.data(), {3, 4});
  std::vector<float> x(24);
  std::vector<Bf16> narrow(12);
  const ConstTensorView x_view(x.data(), {3, 4});
  auto norm = [&](const RmsNormArgs& args) {
    return Refusal([&] { cpu::RmsNorm(args, executor); });
  };
  const std::span<const float> weight = std::span(x).first(4);
  EXPECT_EQ(norm({.x = x_view, .y = y_view}),
            "rms_norm.weight: expected one value or more, got none");
  EXPECT_EQ(norm({.x = x_view, .weight = std::span(x).first(5), .y = y_view}),
            "rms_norm.y: expected shape [3, 5], got [3, 4]");
  EXPECT_EQ(norm({.x = {}, .weight = weight, .y = y_view}),
            "rms_norm.x: expected shape [3, 4], got []");
  EXPECT_EQ(norm({.x = ConstTensorView(narrow.data(), {3, 4}), .weight = weight, .y = y_view}),
            "rms_norm.x: expected f32, got bf16");
  EXPECT_EQ(norm({.x = x_view, .weight = weight, .eps = kNaN, .y = y_view}),
            "rms_norm.eps: expected a finite number >= 0, got nan");

  auto rope = [&](const RopeArgs& args) { return Refusal([&] { cpu::Rope(args, executor); }); };
  const TensorView heads(y.data(), {3, 1, 4});
  EXPECT_EQ(rope({.x = y_view}), "rope.x: expected shape [3, 4, 0], got [3, 4]");
  EXPECT_EQ(rope({.x = heads.Columns(0, 3)}), "rope.x: expected an even rope_dim, got 3");
  EXPECT_EQ(rope({.x = heads, .cos = x_view}), "rope.cos: expected shape [3, 2], got [3, 4]");
  EXPECT_EQ(rope({.x = heads, .cos = x_view.Columns(0, 2), .sin = x_view.Columns(0, 1)}),
            "rope.sin: expected shape [3, 2], got [3, 1]");

  EXPECT_EQ(Refusal([&] { cpu::SiluMul({.gate_up = x_view, .y = y_view}, executor); }),
            "silu_mul.gate_up: expected shape [3, 8], got [3, 4]");
  EXPECT_EQ(Refusal([&] { cpu::AddScaled({.x = x_view.Columns(0, 3), .y = y_view}, executor); }),
            "add_scaled.x: expected shape [3, 4], got [3, 3]");
  EXPECT_EQ(Refusal([&] { cpu::CopyRows({.x = x_view.Columns(0, 3), .y = y_view}, executor); }),
            "copy_rows.x: expected shape [3, 4], got [3, 3]");
  EXPECT_TRUE(y.Untouched());
}

TEST(RowOpsTest, CombineRefusesRowsThatAreNotThere) {
  SerialExecutor executor;
  const std::vector<float> rows(16), weights(4);
  RedZone<float> y(8);
  auto refusal = [&](std::vector<int32_t> row_of, size_t num_weights, int64_t num_rows) {
    return Refusal([&] {
      cpu::Combine({.rows = ConstTensorView(rows.data(), {num_rows, 4}),
                    .row_of = row_of,
                    .weights = std::span(weights).first(num_weights),
                    .y = TensorView(y.data(), {2, 4})},
                   executor);
    });
  };
  EXPECT_EQ(refusal({0, 1, 2, 4}, 4, 4), "combine.row_of: expected 0..3, got 4");
  EXPECT_EQ(refusal({0, 1, 2, -1}, 4, 4), "combine.row_of: expected 0..3, got -1");
  EXPECT_EQ(refusal({0, 1, 2}, 3, 3),
            "combine.row_of: expected as many for each of 2 tokens, got 3");
  EXPECT_EQ(refusal({}, 0, 0), "combine.row_of: expected as many for each of 2 tokens, got 0");
  EXPECT_EQ(refusal({0, 1, 2, 3}, 3, 4), "combine.weights: expected 4 values, got 3");
  EXPECT_EQ(refusal({0, 1, 2, 3}, 4, 3), "combine.rows: expected shape [4, 4], got [3, 4]");
  EXPECT_TRUE(y.Untouched());
}

}  // namespace
}  // namespace quire
