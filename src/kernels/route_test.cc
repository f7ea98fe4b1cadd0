// Route: which experts a token goes to, and with what weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/row_ops.h"
#include "kernels/row_ops_cases.h"
#include "kernels/row_ops_testing.h"
#include "testing/compare.h"
#include "testing/paged_batch.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using namespace testing;  // the cases
using testing::MadeUpValues;

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

// ---- Refusals ----

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

}  // namespace
}  // namespace quire
