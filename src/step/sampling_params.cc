#include "step/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"

namespace quire {
namespace {

// The comparisons are written so that NaN fails them.
void RequireBetween(const char* field, float low, float high, float actual) {
  Require(actual >= low && actual <= high, "{}: expected {}..{}, got {}", field, low, high, actual);
}

void RequireBiases(std::span<const LogitBias> biases, int64_t vocab_size) {
  Require(std::ssize(biases) <= kMaxStepBiases, "logit_bias: expected at most {} biases, got {}",
          kMaxStepBiases, biases.size());
  for (size_t i = 0; i < biases.size(); ++i) {
    Require(biases[i].token >= 0 && biases[i].token < vocab_size,
            "logit_bias[{}].token: expected 0..{}, got {}", i, vocab_size - 1, biases[i].token);
    Require(std::isfinite(biases[i].bias),
            "logit_bias[{}].bias: expected a finite number for token {}, got {}", i,
            biases[i].token, biases[i].bias);
  }
}

}  // namespace

void Validate(const SamplingParams& params, int64_t vocab_size) {
  Require(vocab_size >= 1, "vocab_size: expected >= 1, got {}", vocab_size);
  Require(std::isfinite(params.temperature) && params.temperature >= 0,
          "temperature: expected >= 0 and finite, got {}", params.temperature);
  Require(params.top_k >= 0, "top_k: expected >= 0 (0: all tokens), got {}", params.top_k);
  Require(params.top_p > 0 && params.top_p <= 1, "top_p: expected above 0 and up to 1, got {}",
          params.top_p);
  RequireBetween("min_p", 0, 1, params.min_p);
  Require(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0,
          "repetition_penalty: expected above 0 and finite, got {}", params.repetition_penalty);
  RequireBetween("frequency_penalty", -2, 2, params.frequency_penalty);
  RequireBetween("presence_penalty", -2, 2, params.presence_penalty);
  RequireBiases(params.logit_bias, vocab_size);
  const int64_t most = std::min<int64_t>(kMaxTopLogprobs, vocab_size);
  Require(params.top_logprobs >= 0 && params.top_logprobs <= most,
          "top_logprobs: expected 0..{}, got {}", most, params.top_logprobs);
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
         params.presence_penalty != 0;
}

}  // namespace quire
