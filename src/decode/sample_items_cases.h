// What items come to, for every backend that samples them: typed tests, over a Backend that is a test
// fixture and has
//   std::vector<Sampled> Run(const SampleCapacity&, FunctionRef<void(SamplePacker&)> pack,
//                            const std::vector<float>& logits)
//                          what the items come to that `pack` adds. `logits` are [rows, vocab];
//                          rows of the capacity that they leave out are NaN, and must not matter;
//   kMostOtherDraws        how many of 400 draws, and of 70 over a large vocabulary, may be other
//                          tokens than Sample's, next to the edge of two tokens;
//   kSumError              by how much LogSumExp may err beyond its bound on the CPU;
//   ExpectNoReport()       that nothing was reported as out of bounds.
#ifndef QUIRE_DECODE_SAMPLE_ITEMS_CASES_H_
#define QUIRE_DECODE_SAMPLE_ITEMS_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "base/executor.h"
#include "decode/sample_items.h"
#include "decode/sampling.h"
#include "decode/sampling_cases.h"

namespace quire::testing {

// What an item came to.
struct Sampled {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

// The token that Sample draws.
inline int32_t SampleAlone(SampleArgs args) {
  const auto bytes = static_cast<size_t>(SamplerWorkspace(std::ssize(args.logits)).raw());
  std::vector<float> workspace(bytes / 4 + 4);
  const auto at = (reinterpret_cast<uintptr_t>(workspace.data()) + 15) / 16 * 16;
  args.workspace = {reinterpret_cast<std::byte*>(at), bytes};
  return Sample(args);
}

inline void SetMask(std::span<const int32_t> allowed, std::span<uint32_t> mask) {
  std::ranges::fill(mask, 0u);
  for (const int32_t token : allowed) mask[static_cast<size_t>(token / 32)] |= 1u << (token % 32);
}

template <class Backend>
class SampleItemsTest : public Backend {
 protected:
  Sampled One(const std::vector<float>& logits, const SamplePacker::Samples& samples) {
    const SampleCapacity capacity = {.vocab_size = std::ssize(logits),
                                     .rows = 1,
                                     .items = 1,
                                     .adjusted = 1,
                                     .biases = 16,
                                     .text = 64,
                                     .masks = 1};
    const auto pack = [&](SamplePacker& packer) {
      packer.Begin(1);
      packer.Add(samples);
    };
    return this->Run(capacity, pack, logits)[0];
  }

  // The same, where only these tokens may be drawn.
  Sampled OneOf(const std::vector<int32_t>& allowed, const std::vector<float>& logits,
                SamplePacker::Samples samples) {
    const SampleCapacity capacity = {.vocab_size = std::ssize(logits),
                                     .rows = 1,
                                     .items = 1,
                                     .adjusted = 1,
                                     .biases = 16,
                                     .text = 64,
                                     .masks = 1};
    samples.masked = true;
    const auto pack = [&](SamplePacker& packer) {
      packer.Begin(1);
      packer.Add(samples);
      SetMask(allowed, packer.Mask(0));
    };
    return this->Run(capacity, pack, logits)[0];
  }

  int32_t Greedy(const std::vector<float>& logits, SamplingParams params = {},
                 std::span<const int32_t> prompt = {}, std::span<const int32_t> output = {}) {
    params.temperature = 0;
    return One(logits, {.params = params, .prompt = prompt, .output = output}).chosen.token;
  }

  Sampled Score(const std::vector<float>& logits, int32_t given, int32_t num_top) {
    const auto pack = [&](SamplePacker& packer) {
      packer.Begin(1);
      packer.AddScore(0, given, num_top);
    };
    return this->Run({.vocab_size = std::ssize(logits), .rows = 1, .items = 1}, pack, logits)[0];
  }
};

TYPED_TEST_SUITE_P(SampleItemsTest);

inline void ExpectSame(const Sampled& a, const Sampled& b) {
  EXPECT_EQ(a.chosen.token, b.chosen.token);
  EXPECT_EQ(a.chosen.logprob, b.chosen.logprob);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token) << i;
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob) << i;
  }
}

// ---- Greedy ----

TYPED_TEST_P(SampleItemsTest, TheHighestAndTheLowerOfEquals) {
  EXPECT_EQ(this->Greedy({1, 3, 2}), 1);
  EXPECT_EQ(this->Greedy({1, 3, 2, 3}), 1);
  EXPECT_EQ(this->Greedy({-5}), 0);
  EXPECT_EQ(this->Greedy({-kInfinity, -kMaxFloat}), 1);
  EXPECT_EQ(this->Greedy({0, kMaxFloat, kInfinity}), 1);
  EXPECT_EQ(this->Greedy({-0.0f, 0.0f}), 0);
  EXPECT_EQ(this->Greedy({-1, -0.0f, 0.0f}), 1);
  this->ExpectNoReport();
}

TYPED_TEST_P(SampleItemsTest, TheHighestIsFoundInEveryPlace) {
  for (int64_t vocab_size : {1, 33, 255, 4096, 4097, 129280}) {
    for (int64_t place : {int64_t{0}, vocab_size / 3, vocab_size - 1}) {
      std::vector<float> logits(static_cast<size_t>(vocab_size), -2.0f);
      logits[static_cast<size_t>(place)] = -1.0f;
      EXPECT_EQ(this->Greedy(logits), place) << "of " << vocab_size;
    }
  }
}

// ---- Bias and penalties ----

TYPED_TEST_P(SampleItemsTest, BiasAndPenaltiesByHand) {
  const std::vector<LogitBias> biases = {{0, 1.5f}, {2, 0.75f}, {0, 1}, {2, 0.5f}};
  EXPECT_EQ(this->Greedy({1, 3, 2}, {.logit_bias = biases}), 0);  // 3.5 3 3.25
  EXPECT_EQ(this->Greedy({1, 3, 2}, {.logit_bias = std::span(biases).subspan(1)}), 2);  // 2 3 3.25
  const std::vector<LogitBias> huge = {{0, kMaxFloat}, {0, kMaxFloat}, {1, kMaxFloat}};
  EXPECT_EQ(this->Greedy({0, -kInfinity, 5}, {.logit_bias = huge}), 0);
  EXPECT_EQ(this->Greedy({-kInfinity, -kInfinity, 5}, {.logit_bias = huge}), 2);
  const std::vector<int32_t> zero = {0}, twice = {0, 0}, three_times = {0, 0, 0};
  EXPECT_EQ(this->Greedy({3, 2}, {.repetition_penalty = 2}, zero, {}), 1);             // 1.5 2
  EXPECT_EQ(this->Greedy({3, 1.4f}, {.repetition_penalty = 2}, zero, {}), 0);          // 1.5 1.4
  EXPECT_EQ(this->Greedy({-2, -3}, {.repetition_penalty = 2}, {}, zero), 1);           // -4 -3
  EXPECT_EQ(this->Greedy({4, 1.5f}, {.repetition_penalty = 2}, twice, zero), 0);       // once: 2
  EXPECT_EQ(this->Greedy({3, 2}, {.frequency_penalty = 0.375f}, {}, twice), 0);        // 2.25 2
  EXPECT_EQ(this->Greedy({3, 2}, {.frequency_penalty = 0.375f}, {}, three_times), 1);  // 1.875 2
  EXPECT_EQ(this->Greedy({3, 2}, {.presence_penalty = 0.75f}, {}, three_times), 0);    // 2.25 2
  // The prompt does not count for these.
  EXPECT_EQ(this->Greedy({3, 2}, {.frequency_penalty = 2, .presence_penalty = 2}, three_times, {}),
            0);
  const std::vector<LogitBias> four = {{0, 4}};
  const SamplingParams order = {
      .repetition_penalty = 2, .frequency_penalty = 0.5f, .logit_bias = four};
  EXPECT_EQ(this->Greedy({2, 2.625f}, order, {}, zero), 1);  // (2 + 4) / 2 - 0.5
  EXPECT_EQ(this->Greedy({2, 2.375f}, order, {}, zero), 0);
  this->ExpectNoReport();
}

// ---- Masks ----

TYPED_TEST_P(SampleItemsTest, AMaskRulesOutWhatItDoesNotNameWhateverItsBias) {
  const auto greedy = [&](const std::vector<int32_t>& allowed, const std::vector<float>& logits,
                          SamplingParams params = {}) {
    params.temperature = 0;
    return this->OneOf(allowed, logits, {.params = params}).chosen.token;
  };
  EXPECT_EQ(greedy({0, 2}, {1, 3, 2}), 2);
  EXPECT_EQ(greedy({0}, {1, 3, 2}), 0);
  EXPECT_EQ(greedy({1, 2}, {9, -kMaxFloat, -kInfinity}), 1);
  const std::vector<LogitBias> biases = {{1, 100}, {0, 5}};
  EXPECT_EQ(greedy({0, 2}, {1, 3, 2}, {.logit_bias = biases}), 0);
  // The log-probability is the model's own.
  const std::vector<float> logits = {1, 3, 2};
  EXPECT_EQ(this->OneOf({2}, logits, {}).chosen.logprob, this->Score(logits, 2, 0).chosen.logprob);
  std::vector<float> wide(129280, 0.0f);
  wide[7] = 5;
  for (const int32_t token : {0, 31, 32, 4095, 4096, 129279})
    EXPECT_EQ(greedy({token}, wide), token);
  this->ExpectNoReport();
}

TYPED_TEST_P(SampleItemsTest, AMaskThatLeavesNothingIsTheRowsFault) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (const std::vector<int32_t>& allowed : {std::vector<int32_t>{}, std::vector<int32_t>{2}}) {
      const TokenLogprob chosen =
          this->OneOf(allowed, {1, 3, -kInfinity}, {.params = {.temperature = temperature}}).chosen;
      EXPECT_EQ(chosen.token, kNoToken);
      EXPECT_TRUE(std::isnan(chosen.logprob));
    }
  }
  this->ExpectNoReport();
}

TYPED_TEST_P(SampleItemsTest, MaskedDrawsAreThoseOfRowsWithoutTheOtherTokens) {
  int different = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomCase random_case(seed);
    SampleArgs args = random_case.Args();
    std::mt19937 random(seed);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < std::ssize(random_case.logits); ++token) {
      if (random() % 3 == 0 && random_case.logits[static_cast<size_t>(token)] > -kInfinity) {
        allowed.push_back(token);
      }
    }
    if (allowed.empty()) continue;
    const Sampled sampled = this->OneOf(allowed, random_case.logits,
                                        {.params = args.params,
                                         .prompt = args.prompt,
                                         .output = args.output,
                                         .position = args.position,
                                         .first_sample = args.sample});
    EXPECT_NE(std::ranges::find(allowed, sampled.chosen.token), allowed.end()) << "seed " << seed;
    std::vector<float> left(random_case.logits.size(), -kInfinity);
    for (const int32_t token : allowed) {
      left[static_cast<size_t>(token)] = random_case.logits[static_cast<size_t>(token)];
    }
    args.logits = left;
    different += sampled.chosen.token == SampleAlone(args) ? 0 : 1;
  }
  EXPECT_LE(different, this->kMostOtherDraws);
  this->ExpectNoReport();
}

TYPED_TEST_P(SampleItemsTest, EveryRowHasItsOwnMaskAndSamplesOfOneRowShareIt) {
  constexpr int64_t kVocab = 70;
  const std::vector<float> logits(3 * kVocab, 1.0f);
  const auto pack = [&](SamplePacker& packer) {
    packer.Begin(3);
    packer.Add({.row = 0, .num_samples = 2, .masked = true});
    packer.Add({.row = 1});
    packer.Add({.row = 2, .masked = true});
    ASSERT_EQ(packer.num_masks(), 2);
    SetMask(std::vector<int32_t>{69}, packer.Mask(0));
    SetMask(std::vector<int32_t>{3}, packer.Mask(1));
  };
  const std::vector<Sampled> sampled = this->Run(
      {.vocab_size = kVocab, .rows = 3, .items = 4, .adjusted = 3, .masks = 2}, pack, logits);
  EXPECT_EQ(sampled[0].chosen.token, 69);
  EXPECT_EQ(sampled[1].chosen.token, 69);
  EXPECT_EQ(sampled[3].chosen.token, 3);
  this->ExpectNoReport();
}

// ---- Draws ----

TYPED_TEST_P(SampleItemsTest, RandomParametersDrawTheTokenOfSample) {
  int different = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    RandomCase random_case(seed);
    const SampleArgs args = random_case.Args();
    const Sampled sampled = this->One(random_case.logits, {.params = args.params,
                                                           .prompt = args.prompt,
                                                           .output = args.output,
                                                           .position = args.position,
                                                           .first_sample = args.sample});
    if (sampled.chosen.token == SampleAlone(args)) continue;
    ++different;
    // Sums differ by 3000 * 2^-45: only what lies that near the edge of two tokens may differ.
    EXPECT_LT(ReferenceSample(args).margin, 6e-6) << "seed " << seed;
  }
  EXPECT_LE(different, this->kMostOtherDraws);
}

TYPED_TEST_P(SampleItemsTest, ALargeVocabularyIsSelectedFromAsSampleDoes) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(50000);
  for (float& logit : logits) logit = normal(random);
  const std::vector<SamplingParams> kinds = {{},
                                             {.top_p = 0.9f},
                                             {.top_p = 0.999f},
                                             {.top_k = 50},
                                             {.top_k = 30000, .top_p = 0.5f},
                                             {.min_p = 0.01f},
                                             {.temperature = 100}};
  std::vector<int32_t> expected;
  const auto pack = [&](SamplePacker& packer) {
    packer.Begin(1);
    for (const SamplingParams& params : kinds) {
      for (int i = 0; i < 10; ++i) {
        packer.Add({.params = params, .position = TokenCount(i)});
        expected.push_back(
            SampleAlone({.logits = logits, .params = params, .position = TokenCount(i)}));
      }
    }
  };
  const std::vector<Sampled> sampled =
      this->Run({.vocab_size = 50000, .rows = 1, .items = 70}, pack, logits);
  int different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    different += sampled[i].chosen.token != expected[i] ? 1 : 0;
  }
  EXPECT_LE(different, std::min(this->kMostOtherDraws, 1));  // one in a hundred thousand may
}

TYPED_TEST_P(SampleItemsTest, ExtremeTemperaturesAndInfinitiesAreSamples) {
  const std::vector<std::vector<float>> rows = {{100, -kMaxFloat, 101, kMaxFloat / 2, -kInfinity},
                                                {100, -50, 101, -kInfinity},
                                                {0, kInfinity, kMaxFloat, 5},
                                                {-3}};
  for (const std::vector<float>& logits : rows) {
    for (float temperature : {std::numeric_limits<float>::denorm_min(), 1e-6f, 1.0f, kMaxFloat}) {
      for (int position = 0; position < 5; ++position) {
        for (int32_t top_k : {0, 3}) {
          const SamplingParams params = {.temperature = temperature, .top_k = top_k};
          const Sampled sampled =
              this->One(logits, {.params = params, .position = TokenCount(position)});
          EXPECT_EQ(
              sampled.chosen.token,
              SampleAlone({.logits = logits, .params = params, .position = TokenCount(position)}));
        }
      }
    }
  }
}

TYPED_TEST_P(SampleItemsTest, SamplesOfOneRowComeAsOftenAsTheirProbabilitiesSay) {
  constexpr int32_t kDraws = 5000;
  const std::vector<double> p = {0.3, 0.02, 0.05, 0.2, 0.08, 0.15, 0.1, 0.04, 0.05, 0.01};
  const auto pack = [&](SamplePacker& packer) {
    packer.Begin(1);
    packer.Add({.params = {.seed = 1}, .num_samples = kDraws});
  };
  std::vector<int> counts(10);
  for (const Sampled& sampled :
       this->Run({.vocab_size = 10, .rows = 1, .items = kDraws}, pack, LogsOf(p))) {
    ++counts[static_cast<size_t>(sampled.chosen.token)];
  }
  EXPECT_LT(ChiSquare(counts, p), 27.9);  // nine degrees of freedom, one in a thousand
}

// ---- The batch ----

TYPED_TEST_P(SampleItemsTest, ATokenAndItsLogprobsDependOnItsRowAlone) {
  constexpr int32_t kRows = 6, kVocab = 9000;
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kRows * kVocab);
  for (float& logit : logits) logit = normal(random);
  const std::vector<int32_t> text = {1, 2, 3, 2};
  const std::vector<SamplingParams> kinds = {{.top_logprobs = 20},
                                             {.temperature = 0},
                                             {.top_k = 40, .top_p = 0.9f},
                                             {.top_p = 0.95f, .repetition_penalty = 1.5f},
                                             {.min_p = 0.05f, .top_logprobs = 3},
                                             {.temperature = 0, .presence_penalty = 1}};
  // Each kind's samples are two, so that rows have several items.
  const auto add = [&](int32_t row, int32_t kind, SamplePacker& packer) {
    packer.Add({.row = row,
                .params = kinds[static_cast<size_t>(kind)],
                .prompt = text,
                .output = text,
                .position = TokenCount(kind),
                .num_samples = 2});
  };
  const SampleCapacity capacity = {
      .vocab_size = kVocab, .rows = kRows, .items = 40, .adjusted = 20, .biases = 8, .text = 400};
  const std::vector<Sampled> together = this->Run(
      capacity,
      [&](SamplePacker& packer) {
        packer.Begin(kRows);
        for (int32_t i = 0; i < kRows; ++i) add(kRows - 1 - i, i, packer);
      },
      logits);
  for (int32_t i = 0; i < kRows; ++i) {
    const auto row = logits.begin() + (kRows - 1 - i) * kVocab;
    const std::vector<Sampled> alone = this->Run(capacity,
                                                 [&](SamplePacker& packer) {
                                                   packer.Begin(1);
                                                   add(0, i, packer);
                                                 },
                                                 {row, row + kVocab});
    for (size_t k : {0, 1}) ExpectSame(alone[k], together[static_cast<size_t>(2 * i) + k]);
  }
  this->ExpectNoReport();
}

// ---- Log-probabilities ----

TYPED_TEST_P(SampleItemsTest, LogprobsAreTheReferencesWithinTheBound) {
  std::mt19937 random(3);
  for (int64_t vocab_size : {1, 33, 4096, 4097, 129280}) {
    for (float spread : {0.0f, 1.0f, 10.0f, 1000.0f}) {
      std::normal_distribution<float> normal(-3, 1);
      std::vector<float> logits(static_cast<size_t>(vocab_size));
      for (float& logit : logits) logit = spread * normal(random);
      const double highest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (float logit : logits) sum += std::exp(double{logit} - highest);
      const double log_sum_exp = highest + std::log(sum);
      const Sampled sampled = this->Score(logits, static_cast<int32_t>(vocab_size - 1), 0);
      // LogSumExp's, the backend's, and the last subtraction's.
      const double bound = std::ldexp(1, -23) + std::ldexp(std::log(vocab_size), -24) +
                           std::ldexp(std::abs(log_sum_exp), -24) + this->kSumError +
                           std::ldexp(std::abs(logits.back() - log_sum_exp), -24);
      EXPECT_EQ(sampled.chosen.token, vocab_size - 1);
      EXPECT_NEAR(sampled.chosen.logprob, logits.back() - log_sum_exp, bound)
          << vocab_size << " " << spread;
    }
  }
}

TYPED_TEST_P(SampleItemsTest, AlternativesAreThoseOfTopLogprobsAndScoresNeedNoToken) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    std::vector<float> logits(1 + random() % 500);
    const auto values = 1 + random() % 1000;
    for (float& logit : logits) logit = static_cast<float>(random() % values) - 50;
    if (seed % 7 == 0) logits[random() % logits.size()] = kInfinity;
    if (seed % 5 == 0) logits[random() % logits.size()] = -kInfinity;
    if (seed % 11 == 0) logits[random() % logits.size()] = kNaN;
    const auto most = std::min<size_t>(kMaxTopLogprobs, logits.size());
    const auto count = static_cast<int32_t>(random() % most + 1);
    const Sampled sampled = this->Score(logits, kNoToken, count);
    EXPECT_EQ(sampled.chosen.token, kNoToken);
    const float log_sum_exp = LogSumExp(logits);
    EXPECT_EQ(sampled.chosen.logprob == 0.0f, !std::isnan(log_sum_exp));
    EXPECT_EQ(std::isnan(sampled.chosen.logprob), std::isnan(log_sum_exp));
    std::vector<TokenLogprob> expected(static_cast<size_t>(count));
    TopLogprobs(logits, log_sum_exp, expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(sampled.top[i].token, expected[i].token) << "seed " << seed << ", " << i;
      if (!std::isfinite(expected[i].logprob)) {
        EXPECT_EQ(std::isnan(sampled.top[i].logprob), std::isnan(expected[i].logprob));
      } else if (this->kSumError == 0) {
        EXPECT_EQ(sampled.top[i].logprob, expected[i].logprob);
      } else {
        EXPECT_NEAR(sampled.top[i].logprob, expected[i].logprob,
                    4e-7 + 2e-7 * std::abs(double{log_sum_exp}));
      }
    }
  }
  this->ExpectNoReport();  // scores of NaN are NaN
}

// ---- What decides nothing ----

TYPED_TEST_P(SampleItemsTest, RowsThatDecideNothingHaveNoTokenAndALogprobOfNaN) {
  std::vector<float> logits(5000, 1.0f);
  logits[4170] = kNaN;
  const std::vector<float> nothing(40, -kInfinity);
  const std::vector<LogitBias> biases = {{17, 5}};
  for (float temperature : {0.0f, 1.0f}) {
    for (const auto& row : {logits, nothing}) {
      for (const auto& bias : {std::span<const LogitBias>(), std::span<const LogitBias>(biases)}) {
        const TokenLogprob chosen =
            this->One(row, {.params = {.temperature = temperature, .logit_bias = bias}}).chosen;
        EXPECT_EQ(chosen.token, kNoToken);
        EXPECT_TRUE(std::isnan(chosen.logprob));
        this->ExpectNoReport();
      }
    }
  }
  // A token given is scored all the same.
  const TokenLogprob given = this->Score(logits, 3, 0).chosen;
  EXPECT_EQ(given.token, 3);
  EXPECT_TRUE(std::isnan(given.logprob));
  EXPECT_EQ(this->Score(nothing, 3, 0).chosen.logprob, -kInfinity);
}

TYPED_TEST_P(SampleItemsTest, ARowWithNaNLeavesTheRowsBesideItTheirBits) {
  constexpr int64_t kVocab = 5000;
  std::mt19937 random(9);
  std::vector<float> logits(3 * kVocab);
  for (float& logit : logits) logit = static_cast<float>(random() % 1000) * 0.01f;
  for (float temperature : {0.0f, 1.0f}) {
    const auto run = [&](const std::vector<float>& rows) {
      const auto pack = [&](SamplePacker& packer) {
        packer.Begin(3);
        for (int32_t row = 0; row < 3; ++row) {
          packer.Add({.row = row, .params = {.temperature = temperature, .seed = 5}});
        }
      };
      return this->Run({.vocab_size = kVocab, .rows = 3, .items = 3}, pack, rows);
    };
    const std::vector<Sampled> well = run(logits);
    std::vector<float> ill = logits;
    ill[kVocab + 77] = kNaN;
    const std::vector<Sampled> got = run(ill);
    EXPECT_TRUE(std::isnan(got[1].chosen.logprob));
    for (const size_t row : {size_t{0}, size_t{2}}) ExpectSame(got[row], well[row]);
    this->ExpectNoReport();
  }
}

REGISTER_TYPED_TEST_SUITE_P(
    SampleItemsTest, TheHighestAndTheLowerOfEquals, TheHighestIsFoundInEveryPlace,
    BiasAndPenaltiesByHand, AMaskRulesOutWhatItDoesNotNameWhateverItsBias,
    AMaskThatLeavesNothingIsTheRowsFault, MaskedDrawsAreThoseOfRowsWithoutTheOtherTokens,
    EveryRowHasItsOwnMaskAndSamplesOfOneRowShareIt, RandomParametersDrawTheTokenOfSample,
    ALargeVocabularyIsSelectedFromAsSampleDoes, ExtremeTemperaturesAndInfinitiesAreSamples,
    SamplesOfOneRowComeAsOftenAsTheirProbabilitiesSay, ATokenAndItsLogprobsDependOnItsRowAlone,
    LogprobsAreTheReferencesWithinTheBound, AlternativesAreThoseOfTopLogprobsAndScoresNeedNoToken,
    RowsThatDecideNothingHaveNoTokenAndALogprobOfNaN, ARowWithNaNLeavesTheRowsBesideItTheirBits);

}  // namespace quire::testing

#endif  // QUIRE_DECODE_SAMPLE_ITEMS_CASES_H_
