// The cases of the sampling tests, and what they expect: in double, sorting everything. Every backend
// is held against these.
#ifndef QUIRE_DECODE_SAMPLING_CASES_H_
#define QUIRE_DECODE_SAMPLING_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "decode/sampling.h"

namespace quire::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kMaxFloat = std::numeric_limits<float>::max();

inline std::vector<float> LogsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

inline double ChiSquare(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " has no probability";
    } else {
      sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  return sum;
}

// ---- The reference ----

inline std::vector<double> ReferenceAdjusted(const SampleArgs& args) {
  std::vector<double> logits(args.logits.begin(), args.logits.end());
  const SamplingParams& params = args.params;
  for (const LogitBias& bias : params.logit_bias) {
    logits[static_cast<size_t>(bias.token)] += double{bias.bias};
  }
  for (size_t token = 0; token < logits.size(); ++token) {
    const auto count = [&](std::span<const int32_t> text) {
      return std::count(text.begin(), text.end(), static_cast<int32_t>(token));
    };
    const auto in_output = count(args.output);
    double& logit = logits[token];
    if (in_output > 0 || count(args.prompt) > 0) {
      const double penalty = double{params.repetition_penalty};
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
    logit -= static_cast<double>(in_output) * double{params.frequency_penalty};
    if (in_output > 0) logit -= double{params.presence_penalty};
  }
  return logits;
}

struct ReferenceToken {
  int32_t token = 0;
  // The least difference, in probability, between a decision on the way and its opposite.
  double margin = 1;
};

inline ReferenceToken ReferenceSample(const SampleArgs& args) {
  const SamplingParams& params = args.params;
  const std::vector<double> logits = ReferenceAdjusted(args);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (params.temperature == 0) return {.token = order[0]};
  if (params.top_k > 0 && std::cmp_less(params.top_k, order.size())) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  std::vector<double> weights;
  for (int32_t token : order) {
    weights.push_back(std::exp((logit(token) - logit(order[0])) / double{params.temperature}));
  }

  ReferenceToken result;
  // How many it takes to reach this part of the weights.
  const auto count_to = [&](double part) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = 0;
    size_t reached = weights.size();
    for (size_t i = 0; i < weights.size(); ++i) {
      sum += weights[i] / total;
      result.margin = std::min(result.margin, std::abs(sum - part));
      if (sum >= part && reached == weights.size()) reached = i + 1;
    }
    return reached;
  };
  if (params.top_p < 1) weights.resize(count_to(double{params.top_p}));
  if (params.min_p > 0) {
    for (double weight : weights) {
      result.margin = std::min(result.margin, std::abs(weight - double{params.min_p}));
    }
    std::erase_if(weights, [&](double weight) { return weight < double{params.min_p}; });
  }
  const double draw = UniformDraw(params.seed, args.sample, args.position);
  result.token = order[count_to(draw) - 1];
  return result;
}

// ---- Random rows ----

// A row and parameters of every kind. Logits are multiples of 1/8, and bias and penalties keep them
// exact: many ties, and the same ones in double.
struct RandomCase {
  explicit RandomCase(uint32_t seed) : random(seed) {
    logits.resize(seed % 10 == 0 ? 3000 : 1 + static_cast<size_t>(Below(200)));
    const int32_t spread = 1 << Below(8);
    for (float& logit : logits) logit = Eighths(spread);
    biases.resize(static_cast<size_t>(Below(3)));
    for (LogitBias& bias : biases) bias = {Below(vocab_size()), Eighths(100)};
    for (std::vector<int32_t>* text : {&prompt, &output}) {
      text->resize(static_cast<size_t>(Below(30)));
      for (int32_t& token : *text) token = Below(vocab_size());
    }
  }

  SampleArgs Args() {
    return {.logits = logits,
            .params = Params(),
            .prompt = prompt,
            .output = output,
            .position = TokenCount(Below(100000)),
            .sample = Below(8)};
  }

  SamplingParams Params() {
    SamplingParams params = {.seed = random()};
    params.temperature = Below(8) == 0 ? 0.0f : 2 * Part();
    if (Below(2) == 0) params.top_k = Below(2 * vocab_size());
    if (Below(2) == 0) params.top_p = Part();
    if (Below(3) == 0) params.min_p = Part() * Part();
    if (Below(2) == 0) params.repetition_penalty = std::exp2(static_cast<float>(Below(5) - 2));
    if (Below(2) == 0) params.frequency_penalty = Eighths(16);
    if (Below(2) == 0) params.presence_penalty = Eighths(16);
    if (Below(2) == 0) params.logit_bias = biases;
    return params;
  }

  int32_t vocab_size() const { return static_cast<int32_t>(logits.size()); }
  int32_t Below(int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); }
  float Part() { return static_cast<float>(Below(10000) + 1) / 10000; }
  float Eighths(int32_t n) { return static_cast<float>(Below(n + 1) - Below(n + 1)) / 8; }

  std::mt19937 random;
  std::vector<float> logits;
  std::vector<LogitBias> biases;
  std::vector<int32_t> prompt, output;
};

}  // namespace quire::testing

#endif  // QUIRE_DECODE_SAMPLING_CASES_H_
