#include "decode/cuda/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "decode/sampling.h"
#include "decode/sampling_cases.h"
#include "kernels/cuda/test_rows.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::ChiSquare;
using testing::ErrorMessage;
using testing::LogsOf;
using testing::RandomCase;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMaxFloat = std::numeric_limits<float>::max();

struct Token {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

// Inputs, scratch and results of one capacity, and a way through the device.
class Sampler {
 public:
  explicit Sampler(const SampleCapacity& capacity)
      : capacity_(capacity),
        host_inputs_("inputs", Size(LayOutSampleInputs)),
        inputs_("inputs", Size(LayOutSampleInputs)),
        scratch_("scratch", Size(LayOutSampleScratch)),
        results_("results", Size(LayOutSampleResults)),
        host_(HostInputs()),
        packer_(capacity, host_) {}

  SamplePacker& packer() { return packer_; }

  // `logits`: [rows, vocab]. Rows lie apart, with NaN between.
  std::vector<Token> Run(const std::vector<float>& logits, StatusWord status, const Stream& stream,
                         SampleWork work = SampleWork::kAll) {
    const int64_t vocab = capacity_.vocab_size;
    TestRows<float> rows(Filled(logits), vocab, Lie::kCrooked);
    CopyAndWait(inputs_.data(), host_inputs_.data(), host_inputs_.bytes().size(), "inputs");
    std::vector<std::byte> bytes(results_.bytes().size(), std::byte{0xA5});
    CopyAndWait(results_.data(), bytes.data(), bytes.size(), "results");
    Carver inputs = DeviceCarver(inputs_), scratch = DeviceCarver(scratch_),
           results = DeviceCarver(results_);
    Sample({.capacity = capacity_,
            .logits = rows.view(),
            .inputs = LayOutSampleInputs(capacity_, inputs),
            .scratch = LayOutSampleScratch(capacity_, scratch),
            .results = LayOutSampleResults(capacity_, results),
            .work = work,
            .status = status},
           stream);
    rows.Values(stream);
    EXPECT_EQ(rows.Damage(), "");
    CopyAndWait(bytes.data(), results_.data(), bytes.size(), "results");
    const auto* chosen = reinterpret_cast<const TokenLogprob*>(bytes.data());
    const int64_t behind = (capacity_.items * int64_t{sizeof(TokenLogprob)} + 63) / 64 * 64;
    const auto* top = reinterpret_cast<const TokenLogprob*>(bytes.data() + behind);
    std::vector<Token> tokens;
    for (int32_t i = 0; i < packer_.num_items(); ++i) {
      const auto* first = top + int64_t{i} * kMaxTopLogprobs;
      const int32_t num_top = Items()[static_cast<size_t>(i)].num_top;
      tokens.push_back({.chosen = chosen[i], .top = {first, first + num_top}});
    }
    return tokens;
  }

  std::span<const SampleItem> Items() const { return host_.items; }

 private:
  template <class LayOut>
  ByteOffset Size(LayOut lay_out) const {
    Carver carver;
    (void)lay_out(capacity_, carver);
    return carver.used();
  }
  // Makes every entry anew: to be called once.
  SampleInputs HostInputs() const {
    Carver carver(host_inputs_.bytes());
    return LayOutSampleInputs(capacity_, carver);
  }
  // As many rows as the capacity has; those that are not given are NaN and must not matter.
  std::vector<float> Filled(std::vector<float> logits) const {
    logits.resize(static_cast<size_t>(capacity_.rows * capacity_.vocab_size), kNaN);
    return logits;
  }

  SampleCapacity capacity_;
  PinnedBuffer host_inputs_;
  DeviceBuffer inputs_, scratch_, results_;
  SampleInputs host_;
  SamplePacker packer_;
};

class CudaSamplingTest : public StreamTest {
 protected:
  Token One(const std::vector<float>& logits, const SamplePacker::Samples& samples) {
    Sampler sampler({.vocab_size = std::ssize(logits),
                     .rows = 1,
                     .items = 1,
                     .adjusted = 1,
                     .biases = 16,
                     .text = 64});
    sampler.packer().Begin(1);
    sampler.packer().Add(samples);
    return sampler.Run(logits, status(), stream())[0];
  }
  int32_t Greedy(const std::vector<float>& logits, SamplingParams params = {},
                 std::span<const int32_t> prompt = {}, std::span<const int32_t> output = {}) {
    params.temperature = 0;
    return One(logits, {.params = params, .prompt = prompt, .output = output}).chosen.token;
  }
};

int32_t OnCpu(const quire::SampleArgs& given) {
  quire::SampleArgs args = given;
  const auto bytes = static_cast<size_t>(SamplerWorkspace(std::ssize(args.logits)).raw());
  std::vector<float> workspace(bytes / 4 + 4);
  const auto at = (reinterpret_cast<uintptr_t>(workspace.data()) + 15) / 16 * 16;
  args.workspace = {reinterpret_cast<std::byte*>(at), bytes};
  return quire::Sample(args);
}

// ---- Greedy ----

TEST_F(CudaSamplingTest, TheHighestAndTheLowerOfEquals) {
  EXPECT_EQ(Greedy({1, 3, 2}), 1);
  EXPECT_EQ(Greedy({1, 3, 2, 3}), 1);
  EXPECT_EQ(Greedy({-5}), 0);
  EXPECT_EQ(Greedy({-kInfinity, -kMaxFloat}), 1);
  EXPECT_EQ(Greedy({0, kMaxFloat, kInfinity}), 1);
  EXPECT_EQ(Greedy({-0.0f, 0.0f}), 0);
  EXPECT_EQ(Greedy({-1, -0.0f, 0.0f}), 1);
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaSamplingTest, TheHighestIsFoundInEveryPlaceOfEveryChunk) {
  for (int64_t vocab_size : {1, 255, 4096, 4097, 129280}) {
    for (int64_t place : {int64_t{0}, vocab_size / 3, vocab_size - 1}) {
      std::vector<float> logits(static_cast<size_t>(vocab_size), -2.0f);
      logits[static_cast<size_t>(place)] = -1.0f;
      EXPECT_EQ(Greedy(logits), place) << "of " << vocab_size;
    }
  }
}

// ---- Bias and penalties: the CPU's examples ----

TEST_F(CudaSamplingTest, BiasAndPenaltiesByHand) {
  const std::vector<LogitBias> biases = {{0, 1.5f}, {2, 0.75f}, {0, 1}, {2, 0.5f}};
  EXPECT_EQ(Greedy({1, 3, 2}, {.logit_bias = biases}), 0);                        // 3.5 3 3.25
  EXPECT_EQ(Greedy({1, 3, 2}, {.logit_bias = std::span(biases).subspan(1)}), 2);  // 2 3 3.25
  const std::vector<LogitBias> huge = {{0, kMaxFloat}, {0, kMaxFloat}, {1, kMaxFloat}};
  EXPECT_EQ(Greedy({0, -kInfinity, 5}, {.logit_bias = huge}), 0);
  EXPECT_EQ(Greedy({-kInfinity, -kInfinity, 5}, {.logit_bias = huge}), 2);
  const std::vector<int32_t> zero = {0}, twice = {0, 0}, three_times = {0, 0, 0};
  EXPECT_EQ(Greedy({3, 2}, {.repetition_penalty = 2}, zero, {}), 1);             // 1.5 2
  EXPECT_EQ(Greedy({3, 1.4f}, {.repetition_penalty = 2}, zero, {}), 0);          // 1.5 1.4
  EXPECT_EQ(Greedy({-2, -3}, {.repetition_penalty = 2}, {}, zero), 1);           // -4 -3
  EXPECT_EQ(Greedy({4, 1.5f}, {.repetition_penalty = 2}, twice, zero), 0);       // once: 2
  EXPECT_EQ(Greedy({3, 2}, {.frequency_penalty = 0.375f}, {}, twice), 0);        // 2.25 2
  EXPECT_EQ(Greedy({3, 2}, {.frequency_penalty = 0.375f}, {}, three_times), 1);  // 1.875 2
  EXPECT_EQ(Greedy({3, 2}, {.presence_penalty = 0.75f}, {}, three_times), 0);    // 2.25 2
  // The prompt does not count for these.
  EXPECT_EQ(Greedy({3, 2}, {.frequency_penalty = 2, .presence_penalty = 2}, three_times, {}), 0);
  const std::vector<LogitBias> four = {{0, 4}};
  const SamplingParams order = {
      .repetition_penalty = 2, .frequency_penalty = 0.5f, .logit_bias = four};
  EXPECT_EQ(Greedy({2, 2.625f}, order, {}, zero), 1);  // (2 + 4) / 2 - 0.5
  EXPECT_EQ(Greedy({2, 2.375f}, order, {}, zero), 0);
  EXPECT_EQ(Reported(), kNothing);
}

// ---- Against the CPU ----

TEST_F(CudaSamplingTest, RandomParametersDrawTheCpusToken) {
  constexpr uint32_t kTrials = 400;
  uint32_t different = 0;
  for (uint32_t seed = 0; seed < kTrials; ++seed) {
    RandomCase random_case(seed);
    const quire::SampleArgs args = random_case.Args();
    const Token token = One(random_case.logits, {.params = args.params,
                                                 .prompt = args.prompt,
                                                 .output = args.output,
                                                 .position = args.position,
                                                 .first_sample = args.sample});
    const int32_t expected = OnCpu(args);
    if (token.chosen.token == expected) continue;
    ++different;
    // Sums differ by 3000 * 2^-45: only what lies that near the edge of two tokens may differ.
    EXPECT_LT(testing::ReferenceSample(args).margin, 6e-6) << "seed " << seed;
  }
  EXPECT_LE(different, 2u);
}

TEST_F(CudaSamplingTest, ALargeVocabularyIsSelectedFromAsTheCpuDoes) {
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
  Sampler sampler({.vocab_size = 50000, .rows = 1, .items = 70});
  sampler.packer().Begin(1);
  std::vector<int32_t> expected;
  for (const SamplingParams& params : kinds) {
    for (int i = 0; i < 10; ++i) {
      sampler.packer().Add({.params = params, .position = TokenCount(i)});
      expected.push_back(OnCpu({.logits = logits, .params = params, .position = TokenCount(i)}));
    }
  }
  const std::vector<Token> tokens = sampler.Run(logits, status(), stream());
  int same = 0;
  for (size_t i = 0; i < tokens.size(); ++i) same += tokens[i].chosen.token == expected[i] ? 1 : 0;
  EXPECT_GE(same, 69);  // one in a hundred thousand may differ
}

TEST_F(CudaSamplingTest, ExtremeTemperaturesAndInfinitiesAreTheCpus) {
  const std::vector<std::vector<float>> rows = {{100, -kMaxFloat, 101, kMaxFloat / 2, -kInfinity},
                                                {100, -50, 101, -kInfinity},
                                                {0, kInfinity, kMaxFloat, 5},
                                                {-3}};
  for (const std::vector<float>& logits : rows) {
    for (float temperature : {std::numeric_limits<float>::denorm_min(), 1e-6f, 1.0f, kMaxFloat}) {
      for (int position = 0; position < 5; ++position) {
        for (int32_t top_k : {0, 3}) {
          const SamplingParams params = {.temperature = temperature, .top_k = top_k};
          const Token token = One(logits, {.params = params, .position = TokenCount(position)});
          EXPECT_EQ(token.chosen.token,
                    OnCpu({.logits = logits, .params = params, .position = TokenCount(position)}));
        }
      }
    }
  }
}

TEST_F(CudaSamplingTest, TokensComeAsOftenAsTheirProbabilitiesSay) {
  constexpr int32_t kDraws = 5000;
  const std::vector<double> p = {0.3, 0.02, 0.05, 0.2, 0.08, 0.15, 0.1, 0.04, 0.05, 0.01};
  Sampler sampler({.vocab_size = 10, .rows = 1, .items = kDraws});
  sampler.packer().Begin(1);
  sampler.packer().Add({.params = {.seed = 1}, .num_samples = kDraws});
  std::vector<int> counts(10);
  for (const Token& token : sampler.Run(LogsOf(p), status(), stream())) {
    ++counts[static_cast<size_t>(token.chosen.token)];
  }
  EXPECT_LT(ChiSquare(counts, p), 27.9);  // nine degrees of freedom, one in a thousand
}

// ---- The batch ----

TEST_F(CudaSamplingTest, ATokenAndItsLogprobsDependOnItsRowAlone) {
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
  const auto add = [&](int32_t row, int32_t kind, SamplePacker& packer) {
    packer.Add({.row = row,
                .params = kinds[static_cast<size_t>(kind)],
                .prompt = text,
                .output = text,
                .position = TokenCount(kind)});
  };
  const SampleCapacity capacity = {
      .vocab_size = kVocab, .rows = kRows, .items = 40, .adjusted = 20, .biases = 8, .text = 400};
  Sampler batch(capacity), alone(capacity);
  batch.packer().Begin(kRows);
  for (int32_t i = 0; i < kRows; ++i) add(kRows - 1 - i, i, batch.packer());
  const std::vector<Token> together = batch.Run(logits, status(), stream());
  for (int32_t i = 0; i < kRows; ++i) {
    alone.packer().Begin(1);
    add(0, i, alone.packer());
    const auto row = logits.begin() + (kRows - 1 - i) * kVocab;
    const Token single = alone.Run({row, row + kVocab}, status(), stream())[0];
    const Token& among = together[static_cast<size_t>(i)];
    EXPECT_EQ(single.chosen.token, among.chosen.token) << i;
    EXPECT_EQ(single.chosen.logprob, among.chosen.logprob) << i;
    for (size_t j = 0; j < single.top.size(); ++j) {
      EXPECT_EQ(single.top[j].token, among.top[j].token);
      EXPECT_EQ(single.top[j].logprob, among.top[j].logprob);
    }
  }
  EXPECT_EQ(Reported(), kNothing);
}

// ---- Log-probabilities ----

TEST_F(CudaSamplingTest, LogprobsAreTheReferencesWithinTheBound) {
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
      Sampler sampler({.vocab_size = vocab_size, .rows = 1, .items = 1});
      sampler.packer().Begin(1);
      sampler.packer().AddScore(0, static_cast<int32_t>(vocab_size - 1), 0);
      const Token token = sampler.Run(logits, status(), stream(), SampleWork::kScan)[0];
      // LogSumExp's, 2^-32, and the last subtraction's.
      const double bound = std::ldexp(1, -23) + std::ldexp(std::log(vocab_size), -24) +
                           std::ldexp(std::abs(log_sum_exp), -24) + std::ldexp(1, -32) +
                           std::ldexp(std::abs(logits.back() - log_sum_exp), -24);
      EXPECT_NEAR(token.chosen.logprob, logits.back() - log_sum_exp, bound)
          << vocab_size << " " << spread;
    }
  }
}

TEST_F(CudaSamplingTest, AlternativesAreTheCpusAndScoresNeedNoToken) {
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
    Sampler sampler({.vocab_size = std::ssize(logits), .rows = 1, .items = 1});
    sampler.packer().Begin(1);
    sampler.packer().AddScore(0, kNoToken, count);
    const Token token = sampler.Run(logits, status(), stream())[0];
    EXPECT_EQ(token.chosen.token, kNoToken);
    const float log_sum_exp = LogSumExp(logits);
    EXPECT_EQ(token.chosen.logprob == 0.0f, !std::isnan(log_sum_exp));
    EXPECT_EQ(std::isnan(token.chosen.logprob), std::isnan(log_sum_exp));
    std::vector<TokenLogprob> expected(static_cast<size_t>(count));
    TopLogprobs(logits, log_sum_exp, expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(token.top[i].token, expected[i].token) << "seed " << seed << ", " << i;
      if (std::isfinite(expected[i].logprob)) {
        EXPECT_NEAR(token.top[i].logprob, expected[i].logprob,
                    4e-7 + 2e-7 * std::abs(double{log_sum_exp}));
      } else {
        EXPECT_EQ(std::isnan(token.top[i].logprob), std::isnan(expected[i].logprob));
      }
    }
  }
  EXPECT_EQ(Reported(), kNothing);  // scores of NaN are NaN, as on the CPU
}

// ---- What decides nothing ----

TEST_F(CudaSamplingTest, RowsThatDecideNothingHaveNoTokenAndALogprobOfNaN) {
  std::vector<float> logits(5000, 1.0f);
  logits[4170] = kNaN;
  const std::vector<float> nothing(40, -kInfinity);
  for (float temperature : {0.0f, 1.0f}) {
    for (const auto& row : {logits, nothing}) {
      const TokenLogprob chosen = One(row, {.params = {.temperature = temperature}}).chosen;
      EXPECT_EQ(chosen.token, kNoToken);
      EXPECT_TRUE(std::isnan(chosen.logprob));
      EXPECT_EQ(Reported(), kNothing);
    }
  }
}

TEST_F(CudaSamplingTest, ARowWithNaNLeavesTheRowsBesideItTheirBits) {
  constexpr int64_t kVocab = 5000;
  std::mt19937 random(9);
  std::vector<float> logits(3 * kVocab);
  for (float& logit : logits) logit = static_cast<float>(random() % 1000) * 0.01f;
  for (float temperature : {0.0f, 1.0f}) {
    const auto run = [&](const std::vector<float>& rows) {
      Sampler sampler({.vocab_size = kVocab, .rows = 3, .items = 3});
      sampler.packer().Begin(3);
      for (int32_t row = 0; row < 3; ++row) {
        sampler.packer().Add({.row = row, .params = {.temperature = temperature, .seed = 5}});
      }
      return sampler.Run(rows, status(), stream());
    };
    const std::vector<Token> well = run(logits);
    std::vector<float> ill = logits;
    ill[kVocab + 77] = kNaN;
    const std::vector<Token> got = run(ill);
    EXPECT_TRUE(std::isnan(got[1].chosen.logprob));
    for (const size_t row : {size_t{0}, size_t{2}}) {
      EXPECT_EQ(got[row].chosen.token, well[row].chosen.token);
      EXPECT_EQ(got[row].chosen.logprob, well[row].chosen.logprob);
    }
    EXPECT_EQ(Reported(), kNothing);
  }
}

TEST(SamplePackerTest, WhatDoesNotFitIsRefusedAndNothingIsAdded) {
  const SampleCapacity capacity = {
      .vocab_size = 40, .rows = 2, .items = 3, .adjusted = 1, .biases = 2, .text = 4};
  Carver counting;
  (void)LayOutSampleInputs(capacity, counting);
  std::vector<double> memory(static_cast<size_t>(counting.used().raw()) / 8 + 16);
  const auto at = (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64;
  Carver carver({reinterpret_cast<std::byte*>(at), static_cast<size_t>(counting.used().raw())});
  SamplePacker packer(capacity, LayOutSampleInputs(capacity, carver));
  packer.Begin(2);
  const std::vector<int32_t> text = {1, 2, 3}, wild = {1, 40};
  const auto refusal = [&](const SamplePacker::Samples& samples) {
    return ErrorMessage([&] { packer.Add(samples); });
  };
  const SamplingParams penalty = {.presence_penalty = 1};
  EXPECT_EQ(refusal({.row = 2}), "sample.row: expected 0..1, got 2");
  EXPECT_EQ(refusal({.num_samples = 4}), "sample.items: expected at most 3, got 4");
  EXPECT_EQ(refusal({.params = penalty, .num_samples = 2}),
            "sample.adjusted: expected at most 1, got 2");
  EXPECT_EQ(refusal({.params = penalty, .prompt = text, .output = text}),
            "sample.text: expected at most 4, got 6");
  EXPECT_EQ(refusal({.params = penalty, .output = wild}),
            "output[1]: expected a token of 0..39, got 40");
  EXPECT_EQ(refusal({.params = {.top_k = -1}}), "top_k: expected >= 0 (0: all tokens), got -1");
  EXPECT_EQ(packer.num_items(), 0);
  EXPECT_EQ(refusal({.params = {.temperature = 0}, .prompt = wild}), "no error");  // not read
  EXPECT_FALSE(packer.needs_search());
  EXPECT_EQ(refusal({.row = 1, .params = penalty, .prompt = text}), "no error");
  EXPECT_TRUE(packer.needs_search());
  EXPECT_EQ(packer.num_items(), 2);
  EXPECT_EQ(ErrorMessage([&] { packer.AddScore(0, 40, 0); }),
            "sample.given: expected 0..39 or none, got 40");
  EXPECT_EQ(ErrorMessage([&] { packer.AddScore(0, kNoToken, 21); }),
            "top_logprobs: expected 0..20, got 21");
}

}  // namespace
}  // namespace quire::cuda
