#include "decode/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "decode/sampling_cases.h"
#include "testing/allocation_count.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/red_zone.h"
#include "testing/sanitized_share.h"
#include "testing/splitmix64.h"

namespace quire {
namespace {

using testing::ChiSquare;
using testing::ErrorMessage;
using testing::kInfinity;
using testing::kMaxFloat;
using testing::kNaN;
using testing::LogsOf;
using testing::RandomCase;
using testing::ReferenceSample;
using testing::ReferenceToken;

// Samples with a workspace of exactly the size promised, dirty from the calls before.
class Sampler {
 public:
  explicit Sampler(size_t vocab_size)
      : workspace_(static_cast<size_t>(SamplerWorkspace(static_cast<int64_t>(vocab_size)).raw())) {}
  ~Sampler() { EXPECT_EQ(workspace_.Damage(), ""); }

  int32_t operator()(SampleArgs args) {
    args.workspace = workspace_.span();
    return Sample(args);
  }

 private:
  testing::RedZone<std::byte> workspace_;
};

// How often each token comes at positions 0 .. draws - 1.
std::vector<int> Counts(SampleArgs args, int draws) {
  Sampler sample(args.logits.size());
  std::vector<int> counts(args.logits.size());
  for (int i = 0; i < draws; ++i) {
    args.position = TokenCount(i);
    ++counts[static_cast<size_t>(sample(args))];
  }
  return counts;
}

// The tokens that come at all in 2000 draws.
std::set<int32_t> Drawn(const SampleArgs& args) {
  const std::vector<int> counts = Counts(args, 2000);
  std::set<int32_t> tokens;
  for (size_t token = 0; token < counts.size(); ++token) {
    if (counts[token] > 0) tokens.insert(static_cast<int32_t>(token));
  }
  return tokens;
}

int32_t Greedy(std::span<const float> logits, SamplingParams params = {},
               std::span<const int32_t> prompt = {}, std::span<const int32_t> output = {}) {
  params.temperature = 0;
  Sampler sample(logits.size());
  return sample({.logits = logits, .params = params, .prompt = prompt, .output = output});
}

// ---- Greedy ----

TEST(SamplingTest, TemperatureZeroTakesTheHighestAndTheLowerOfEquals) {
  EXPECT_EQ(Greedy(std::vector<float>{1, 3, 2}), 1);
  EXPECT_EQ(Greedy(std::vector<float>{1, 3, 2, 3}), 1);
  EXPECT_EQ(Greedy(std::vector<float>{-5}), 0);
  EXPECT_EQ(Greedy(std::vector<float>{-kInfinity, -kMaxFloat}), 1);
  EXPECT_EQ(Greedy(std::vector<float>{0, kMaxFloat, kInfinity}), 1);
}

TEST(SamplingTest, TheHighestIsFoundInEveryPlace) {
  for (size_t vocab_size : {1, 31, 32, 33, 100}) {
    for (size_t place = 0; place < vocab_size; ++place) {
      std::vector<float> logits(vocab_size, -2.0f);
      logits[place] = -1.0f;
      EXPECT_EQ(Greedy(logits), static_cast<int32_t>(place)) << "of " << vocab_size;
    }
  }
}

TEST(SamplingTest, ATopKOfOneIsGreedyAtAnyTemperature) {
  const std::vector<float> logits = {1, 1.5f, 1.5f, 0};
  EXPECT_EQ(Drawn({.logits = logits, .params = {.temperature = 5, .top_k = 1}}),
            (std::set<int32_t>{1}));
}

// ---- Bias and penalties, by hand ----

TEST(SamplingTest, BiasIsAddedAndRepeatedBiasesAddUp) {
  const std::vector<float> logits = {1, 3, 2};
  const std::vector<LogitBias> biases = {{0, 1.5f}, {2, 0.75f}, {0, 1}, {2, 0.5f}};
  EXPECT_EQ(Greedy(logits, {.logit_bias = biases}), 0);                        // 3.5 3 3.25
  EXPECT_EQ(Greedy(logits, {.logit_bias = std::span(biases).subspan(1)}), 2);  // 2 3 3.25
}

TEST(SamplingTest, BiasesCannotOverflowNorBringBackATokenRuledOut) {
  const std::vector<LogitBias> biases = {{0, kMaxFloat}, {0, kMaxFloat}, {1, kMaxFloat}};
  EXPECT_EQ(Greedy(std::vector<float>{0, -kInfinity, 5}, {.logit_bias = biases}), 0);
  EXPECT_EQ(Greedy(std::vector<float>{-kInfinity, -kInfinity, 5}, {.logit_bias = biases}), 2);
}

TEST(SamplingTest, RepetitionDividesPositiveLogitsAndMultipliesNegativeOnes) {
  const std::vector<int32_t> zero = {0}, one = {1};
  const SamplingParams twice = {.repetition_penalty = 2};
  EXPECT_EQ(Greedy(std::vector<float>{3, 2}, twice, zero, {}), 1);     // 1.5 2
  EXPECT_EQ(Greedy(std::vector<float>{3, 2}, twice, {}, zero), 1);     // the same from the output
  EXPECT_EQ(Greedy(std::vector<float>{3, 1.4f}, twice, zero, {}), 0);  // 1.5 1.4
  EXPECT_EQ(Greedy(std::vector<float>{-2, -3}, twice, zero, {}), 1);   // -4 -3
  EXPECT_EQ(Greedy(std::vector<float>{-2, -5}, twice, zero, {}), 0);   // -4 -5
  // Once, however often the token is there and in both texts: 2 and not 1.
  EXPECT_EQ(Greedy(std::vector<float>{4, 1.5f}, twice, std::vector<int32_t>{0, 0}, zero), 0);
  // Below 1 it rewards.
  EXPECT_EQ(Greedy(std::vector<float>{3, 2}, {.repetition_penalty = 0.5f}, {}, one), 1);  // 3 4
}

TEST(SamplingTest, ExtremeRepetitionPenaltiesRuleNothingOut) {
  const std::vector<int32_t> both = {0, 1};
  const SamplingParams tiny = {.repetition_penalty = std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(Greedy(std::vector<float>{-1, 7}, tiny, both), 1);
  const SamplingParams huge = {.repetition_penalty = kMaxFloat};
  EXPECT_EQ(Greedy(std::vector<float>{-7, -kInfinity}, huge, both), 0);
}

TEST(SamplingTest, FrequencyCountsTheOutputAndPresenceOnlyAsksForIt) {
  const std::vector<float> logits = {3, 2};
  const std::vector<int32_t> twice = {0, 0}, three_times = {0, 0, 0};
  EXPECT_EQ(Greedy(logits, {.frequency_penalty = 0.375f}, {}, twice), 0);        // 2.25 2
  EXPECT_EQ(Greedy(logits, {.frequency_penalty = 0.375f}, {}, three_times), 1);  // 1.875 2
  EXPECT_EQ(Greedy(logits, {.presence_penalty = 0.75f}, {}, three_times), 0);    // 2.25 2
  EXPECT_EQ(Greedy(logits, {.presence_penalty = 1.25f}, {}, twice), 1);          // 1.75 2
  // The prompt does not count.
  EXPECT_EQ(Greedy(logits, {.frequency_penalty = 2, .presence_penalty = 2}, three_times, {}), 0);
}

TEST(SamplingTest, BiasComesBeforeTheRepetitionPenaltyAndThatBeforeTheOthers) {
  const std::vector<int32_t> zero = {0};
  const std::vector<LogitBias> biases = {{0, 4}};
  const SamplingParams params = {
      .repetition_penalty = 2, .frequency_penalty = 0.5f, .logit_bias = biases};
  // (2 + 4) / 2 - 0.5 = 2.5; bias last would be 4.5, frequency before repetition 2.75.
  EXPECT_EQ(Greedy(std::vector<float>{2, 2.625f}, params, {}, zero), 1);
  EXPECT_EQ(Greedy(std::vector<float>{2, 2.375f}, params, {}, zero), 0);
}

TEST(SamplingTest, WithoutPenaltiesTheTextIsNotRead) {
  const std::vector<int32_t> wild = {-1, 1 << 30};
  EXPECT_EQ(Greedy(std::vector<float>{1, 2}, {}, wild, wild), 1);
}

// ---- Filters, by hand ----

TEST(SamplingTest, TopKKeepsTheHighestAndOfEqualsTheLower) {
  const std::vector<float> logits = {1, 2, 3, 2, 2};
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_k = 3}}), (std::set<int32_t>{1, 2, 3}));
  for (int32_t top_k : {0, 5, 6, 1 << 30}) {
    EXPECT_EQ(Drawn({.logits = logits, .params = {.top_k = top_k}}).size(), 5u) << top_k;
  }
}

TEST(SamplingTest, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = LogsOf({0.1, 0.5, 0.1, 0.3});
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 0.49f}}), (std::set<int32_t>{1}));
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 0.51f}}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 0.81f}}), (std::set<int32_t>{0, 1, 3}));
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 0.91f}}).size(), 4u);
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 1e-30f}}), (std::set<int32_t>{1}));
}

TEST(SamplingTest, TopPIsAPartOfWhatTopKLeaves) {
  const std::vector<float> logits = LogsOf({0.4, 0.3, 0.2, 0.1});
  // Of the first two, token 0 has 0.57; of all, 0.4.
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_k = 2, .top_p = 0.5f}}),
            (std::set<int32_t>{0}));
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 0.5f}}), (std::set<int32_t>{0, 1}));
}

TEST(SamplingTest, MinPIsAPartOfTheHighestProbability) {
  const std::vector<float> logits = LogsOf({0.1, 0.5, 0.15, 0.25});
  EXPECT_EQ(Drawn({.logits = logits, .params = {.min_p = 0.19f}}).size(), 4u);
  EXPECT_EQ(Drawn({.logits = logits, .params = {.min_p = 0.21f}}), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Drawn({.logits = logits, .params = {.min_p = 0.51f}}), (std::set<int32_t>{1}));
  // At temperature 0.5 probabilities go as their squares: 0.3 * 0.3 of the highest is 0.09.
  EXPECT_EQ(Drawn({.logits = logits, .params = {.temperature = 0.5f, .min_p = 0.1f}}),
            (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Drawn({.logits = std::vector<float>{1, 2, 2, 0}, .params = {.min_p = 1}}),
            (std::set<int32_t>{1, 2}));
}

TEST(SamplingTest, MinPDoesNotChangeWhatTopPIsAPartOf) {
  const std::vector<float> logits = LogsOf({0.5, 0.2, 0.1, 0.1, 0.1});
  // 0.6 of all takes two; of the two that min-p leaves, one would do.
  const SamplingParams params = {.top_p = 0.6f, .min_p = 0.3f};
  EXPECT_EQ(Drawn({.logits = logits, .params = params}), (std::set<int32_t>{0, 1}));
}

// ---- Temperature ----

TEST(SamplingTest, ExtremeTemperaturesNeitherOverflowNorLoseTokens) {
  const std::vector<float> logits = {100, -kMaxFloat, 101, kMaxFloat / 2, -kInfinity};
  for (float tiny : {std::numeric_limits<float>::denorm_min(), 1e-30f, 1e-6f}) {
    EXPECT_EQ(Drawn({.logits = logits, .params = {.temperature = tiny}}), (std::set<int32_t>{3}));
  }
  const std::vector<float> usual = {100, -50, 101, -kInfinity};
  EXPECT_EQ(Drawn({.logits = usual, .params = {.temperature = kMaxFloat}}),
            (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(Drawn({.logits = usual, .params = {.temperature = kMaxFloat, .top_k = 3}}),
            (std::set<int32_t>{0, 1, 2}));
}

TEST(SamplingTest, PlusInfinityCountsAsTheLargestNumber) {
  const std::vector<float> logits = {0, kInfinity, kMaxFloat, 5};
  const std::set<int32_t> ties = {1, 2};
  EXPECT_EQ(Drawn({.logits = logits}), ties);
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_k = 3}}), ties);
  EXPECT_EQ(Drawn({.logits = logits, .params = {.top_p = 0.9f}}), ties);
}

TEST(SamplingTest, AVocabularyOfOneIsDrawn) {
  for (float top_p : {0.01f, 1.0f}) {
    EXPECT_EQ(Drawn({.logits = std::vector<float>{-3}, .params = {.top_p = top_p}}),
              (std::set<int32_t>{0}));
  }
}

// ---- Distribution ----

TEST(SamplingTest, TokensComeAsOftenAsTheirProbabilitiesSay) {
  const std::vector<double> p = {0.3, 0.02, 0.05, 0.2, 0.08, 0.15, 0.1, 0.04, 0.05, 0.01};
  const std::vector<float> logits = LogsOf(p);
  const auto renormalised = [&](std::set<size_t> kept, double power) {
    std::vector<double> result(p.size());
    double sum = 0;
    for (size_t i : kept) sum += result[i] = std::pow(p[i], power);
    for (double& value : result) value /= sum;
    return result;
  };
  const std::set<size_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  struct Case {
    const char* name;
    SamplingParams params;
    std::vector<double> expected;
  };
  for (const Case& c : {
           Case{"plain", {.seed = 1}, p},
           Case{"cold", {.temperature = 0.5f, .seed = 2}, renormalised(all, 2)},
           Case{"hot", {.temperature = 2, .seed = 3}, renormalised(all, 0.5)},
           Case{"top_k", {.top_k = 4, .seed = 4}, renormalised({0, 3, 5, 6}, 1)},
           Case{"top_p", {.top_p = 0.8f, .seed = 5}, renormalised({0, 3, 5, 6, 4}, 1)},
           Case{"min_p", {.min_p = 0.3f, .seed = 6}, renormalised({0, 3, 5, 6}, 1)},
           Case{"all",
                {.temperature = 2, .top_k = 6, .top_p = 0.7f, .min_p = 0.1f, .seed = 7},
                renormalised({0, 3, 5, 6}, 0.5)},
       }) {
    // Nine degrees of freedom or fewer: one in a thousand seeds exceeds 27.9.
    EXPECT_LT(ChiSquare(Counts({.logits = logits, .params = c.params}, 20000), c.expected), 27.9)
        << c.name;
  }
}

TEST(SamplingTest, RandomParametersDrawTheTokenOfTheReference) {
  constexpr uint32_t kTrials = testing::SampledShare(uint32_t{4000});
  uint32_t near_a_boundary = 0;
  for (uint32_t seed = 0; seed < kTrials; ++seed) {
    RandomCase random_case(seed);
    const SampleArgs args = random_case.Args();
    const ReferenceToken expected = ReferenceSample(args);
    const int32_t actual = Sampler(args.logits.size())(args);
    // Weights err by 2^-22, and by what the rounding of their exponents makes of it: 87 * 2^-24.
    if (actual != expected.token && expected.margin < 6e-6) {
      ++near_a_boundary;
      continue;
    }
    EXPECT_EQ(actual, expected.token) << "seed " << seed << ", margin " << expected.margin;
  }
  EXPECT_LE(near_a_boundary, kTrials / 200);
}

TEST(SamplingTest, ALargeVocabularyIsSelectedFromAsTheReferenceDoes) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(50000);
  for (float& logit : logits) logit = normal(random);
  Sampler sample(logits.size());
  constexpr int kDraws = testing::SampledShare(10);
  int same = 0;
  const std::vector<SamplingParams> kinds = {{},
                                             {.top_p = 0.9f},
                                             {.top_p = 0.999f},
                                             {.top_k = 50},
                                             {.top_k = 30000, .top_p = 0.5f},
                                             {.min_p = 0.01f}};
  for (const SamplingParams& params : kinds) {
    for (int i = 0; i < kDraws; ++i) {
      const SampleArgs args = {.logits = logits, .params = params, .position = TokenCount(i)};
      const ReferenceToken expected = ReferenceSample(args);
      const int32_t actual = sample(args);
      same += actual == expected.token ? 1 : 0;
      EXPECT_TRUE(actual == expected.token || expected.margin < 1e-6) << actual;
    }
  }
  // Of 60, rounding excuses a few, where neighbours differ by 1e-5.
  EXPECT_GE(same, kDraws * static_cast<int>(kinds.size()) * 11 / 12);
}

// ---- Draws ----

TEST(SamplingTest, ATokenDependsOnSeedSampleAndPositionAlone) {
  std::mt19937 random(9);
  std::vector<float> logits(500), other(500);
  for (float& logit : logits) logit = static_cast<float>(random() % 1000) / 500;
  for (float& logit : other) logit = static_cast<float>(random() % 1000) / 100;
  const auto args = [&](int32_t sample, int position) {
    return SampleArgs{.logits = logits,
                      .params = {.top_p = 0.95f, .seed = 77},
                      .position = TokenCount(position),
                      .sample = sample};
  };
  Sampler sampler(500);
  std::vector<int32_t> first;
  for (int i = 0; i < 200; ++i) first.push_back(sampler(args(i % 4, i)));
  // Backwards, other rows in between.
  for (int i = 199; i >= 0; --i) {
    (void)sampler({.logits = other, .params = {.seed = static_cast<uint64_t>(i)}});
    EXPECT_EQ(sampler(args(i % 4, i)), first[static_cast<size_t>(i)]);
  }
  std::set<int32_t> of_samples;
  for (int32_t sample = 0; sample < 50; ++sample) of_samples.insert(sampler(args(sample, 3)));
  EXPECT_GT(of_samples.size(), 30u);
}

TEST(UniformDrawTest, IsThreeRoundsOfSplitMix64) {
  using testing::SplitMix64;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    const uint64_t bits = SplitMix64(SplitMix64(SplitMix64(seed) ^ 5) ^ 1000000);
    EXPECT_EQ(UniformDraw(seed, 5, TokenCount(1000000)), std::ldexp(bits >> 11, -53));
  }
}

TEST(UniformDrawTest, IsUniformAlongEveryArgument) {
  constexpr int kDraws = 20000;
  const std::vector<double> equal(100, 0.01);
  for (int axis = 0; axis < 3; ++axis) {
    std::vector<int> counts(100);
    double sum = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double draw = UniformDraw(static_cast<uint64_t>(axis == 0 ? i : 3), axis == 1 ? i : 2,
                                      TokenCount(axis == 2 ? i : 1));
      ASSERT_TRUE(draw >= 0 && draw < 1) << draw;
      ++counts[static_cast<size_t>(draw * 100)];
      sum += draw;
    }
    EXPECT_LT(ChiSquare(counts, equal), 149) << axis;  // 99 degrees of freedom, one in a thousand
    EXPECT_NEAR(sum / kDraws, 0.5, 4 * 0.2887 / std::sqrt(kDraws)) << axis;
  }
}

TEST(UniformDrawTest, NeighboursInAnyArgumentAreUnrelated) {
  constexpr int kDraws = 20000;
  const std::vector<double> equal(256, 1.0 / 256);
  for (int axis = 0; axis < 3; ++axis) {
    std::vector<int> counts(256);  // of pairs, 16 by 16
    double products = 0;
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t seed = static_cast<uint64_t>(i / 100);
      const int32_t sample = i % 10;
      const int position = i / 10 % 10;
      const double a = UniformDraw(seed, sample, TokenCount(position));
      const double b = UniformDraw(seed + (axis == 0 ? 1 : 0), sample + (axis == 1 ? 1 : 0),
                                   TokenCount(position + (axis == 2 ? 1 : 0)));
      ++counts[static_cast<size_t>(a * 16) * 16 + static_cast<size_t>(b * 16)];
      products += (a - 0.5) * (b - 0.5);
    }
    EXPECT_LT(ChiSquare(counts, equal), 330) << axis;  // 255 degrees of freedom, one in a thousand
    EXPECT_LT(std::abs(products / kDraws * 12), 4 / std::sqrt(kDraws)) << axis;
  }
}

// ---- Log-probabilities ----

// "" if LogSumExp keeps to its bound.
std::string LogSumExpMismatch(std::span<const float> logits) {
  const double highest = double{*std::max_element(logits.begin(), logits.end())};
  double sum = 0;
  for (float logit : logits) sum += std::exp(double{logit} - highest);
  const double expected[] = {highest + std::log(sum)};
  const double bound[] = {std::ldexp(1, -23) +
                          std::ldexp(std::log(static_cast<double>(logits.size())), -24) +
                          std::ldexp(std::abs(expected[0]), -24)};
  const float actual[] = {LogSumExp(logits)};
  return testing::Mismatch(actual, expected, bound);
}

TEST(LogSumExpTest, IsThatOfTheReferenceWithinItsBound) {
  std::mt19937 random(3);
  for (size_t vocab_size : {1, 2, 31, 32, 33, 1000, 129280}) {
    for (float spread : {0.0f, 1.0f, 10.0f, 1000.0f}) {
      std::normal_distribution<float> normal(-3, 1);
      std::vector<float> logits(vocab_size);
      for (float& logit : logits) logit = spread * normal(random);
      EXPECT_EQ(LogSumExpMismatch(logits), "") << vocab_size << " " << spread;
    }
  }
}

TEST(LogSumExpTest, EveryExponentIsWithinTheBound) {
  std::vector<float> logits(1000);
  for (int step = 0; step < 3000; ++step) {
    std::fill(logits.begin() + 1, logits.end(), static_cast<float>(step) * -0.0301f);
    ASSERT_EQ(LogSumExpMismatch(logits), "") << logits[1];
  }
}

TEST(LogSumExpTest, InfinitiesAndNaN) {
  EXPECT_EQ(LogSumExp(std::vector<float>{-kInfinity, -kInfinity}), -kInfinity);
  EXPECT_EQ(LogSumExp(std::vector<float>{-kInfinity, 2}), 2);
  EXPECT_EQ(LogSumExp(std::vector<float>{1, kInfinity}), kMaxFloat);
  EXPECT_EQ(LogSumExp(std::vector<float>{-kMaxFloat, kMaxFloat}), kMaxFloat);
  for (size_t place = 0; place < 40; ++place) {
    std::vector<float> logits(40, kInfinity);
    logits[place] = kNaN;
    EXPECT_TRUE(std::isnan(LogSumExp(logits))) << place;
  }
}

std::vector<TokenLogprob> Top(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> top(count);
  TopLogprobs(logits, LogSumExp(logits), top);
  return top;
}

TEST(TopLogprobsTest, AreTheHighestFirstAndOfEqualsTheLower) {
  const std::vector<float> logits = LogsOf({0.125, 0.25, 0.125, 0.5});
  const std::vector<TokenLogprob> top = Top(logits, 3);
  EXPECT_EQ(top[0].token, 3);
  EXPECT_EQ(top[1].token, 1);
  EXPECT_EQ(top[2].token, 0);
  EXPECT_NEAR(top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(top[1].logprob, std::log(0.25), 1e-6);
  EXPECT_NEAR(top[2].logprob, std::log(0.125), 1e-6);
}

TEST(TopLogprobsTest, AreThoseOfASortedRow) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<float> logits(1 + random() % 500);
    const auto values = 1 + random() % 1000;
    for (float& logit : logits) logit = static_cast<float>(random() % values);
    if (seed % 3 == 0) std::sort(logits.begin(), logits.end());  // each passes the bar
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const float log_sum_exp = LogSumExp(logits);
    const size_t count = random() % (std::min<size_t>(kMaxTopLogprobs, logits.size()) + 1);
    testing::RedZone<TokenLogprob> top(count);
    TopLogprobs(logits, log_sum_exp, top.span());
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(top.span()[i].token, order[i]) << "seed " << seed;
      EXPECT_EQ(top.span()[i].logprob, logits[static_cast<size_t>(order[i])] - log_sum_exp);
    }
    EXPECT_EQ(top.Damage(), "");
  }
}

TEST(TopLogprobsTest, InfinitiesAndNaNHaveTheirPlace) {
  const std::vector<TokenLogprob> top = Top(std::vector<float>{-kInfinity, kInfinity, 3}, 3);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[0].logprob, 0);
  EXPECT_EQ(top[1].token, 2);
  EXPECT_EQ(top[2].token, 0);
  EXPECT_EQ(top[2].logprob, -kInfinity);
  std::vector<float> poisoned(100, kNaN);
  poisoned[7] = 1;
  EXPECT_EQ(Top(poisoned, 20)[0].token, 7);
  EXPECT_EQ(Logprob(-kInfinity, -kInfinity), -kInfinity);
  EXPECT_EQ(Logprob(kInfinity, kMaxFloat), 0);
}

// ---- What is refused ----

TEST(SamplingTest, LogitsThatDecideNothingAreRefusedByName) {
  std::vector<float> logits(40, 1.0f);
  logits[17] = kNaN;
  for (float temperature : {0.0f, 1.0f}) {
    const SampleArgs args = {.logits = logits, .params = {.temperature = temperature}};
    EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)Sampler(40)(args); }),
              "logits[17]: expected a number, got NaN");
  }
  const std::vector<LogitBias> biases = {{17, 5}};
  EXPECT_EQ(ErrorMessage([&] { (void)Greedy(logits, {.logit_bias = biases}); }),
            "logits[17]: expected a number, got NaN");
  const std::vector<float> nothing(40, -kInfinity);
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)Greedy(nothing); }),
            "logits: expected one of 40 above -inf, got none");
}

TEST(SamplingTest, ArgumentsThatDoNotFitAreRefused) {
  const std::vector<float> logits(40, 1.0f);
  const std::vector<int32_t> text = {3, 40};
  const SamplingParams penalty = {.presence_penalty = 1};
  EXPECT_EQ(ErrorMessage([&] { (void)Greedy(logits, penalty, text); }),
            "prompt[1]: expected a token of 0..39, got 40");
  EXPECT_EQ(ErrorMessage([&] { (void)Greedy(logits, penalty, {}, text); }),
            "output[1]: expected a token of 0..39, got 40");
  EXPECT_EQ(ErrorMessage([&] { (void)Greedy(logits, {.top_k = -1}); }),
            "top_k: expected >= 0 (0: all tokens), got -1");
  alignas(16) std::array<std::byte, 641> workspace;
  EXPECT_EQ(SamplerWorkspace(40), ByteOffset(640));
  const auto sample = [&](size_t begin, size_t bytes) {
    return ErrorMessage([&] {
      (void)Sample({.logits = logits, .workspace = std::span(workspace).subspan(begin, bytes)});
    });
  };
  EXPECT_EQ(sample(0, 640), "no error");
  EXPECT_EQ(sample(0, 639), "workspace: expected 640 bytes, got 639");
  EXPECT_EQ(sample(1, 640), "workspace: expected an address that is a multiple of 16");
  EXPECT_EQ(ErrorMessage([] { (void)SamplerWorkspace(0); }), "vocab_size: expected >= 1, got 0");
  std::vector<TokenLogprob> top(21);
  EXPECT_EQ(ErrorMessage([&] { TopLogprobs(logits, 0, top); }),
            "top: expected up to 20 tokens, got 21");
}

TEST(SamplingTest, NothingAllocates) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 5000) / 500;
  const std::vector<int32_t> text = {1, 2, 3, 2};
  const std::vector<LogitBias> biases = {{4, 1}};
  const std::vector<SamplingParams> kinds = {
      {},
      {.temperature = 0},
      {.top_k = 40},
      {.top_k = 3000},
      {.top_p = 0.9f},
      {.min_p = 0.1f},
      {.repetition_penalty = 1.1f, .presence_penalty = 1, .logit_bias = biases}};
  std::vector<TokenLogprob> top(20);
  Sampler sample(logits.size());
  const int64_t before = testing::AllocationCount();
  for (const SamplingParams& params : kinds) {
    (void)sample({.logits = logits, .params = params, .prompt = text, .output = text});
  }
  TopLogprobs(logits, LogSumExp(logits), top);
  EXPECT_EQ(testing::AllocationCount(), before);
}

}  // namespace
}  // namespace quire
