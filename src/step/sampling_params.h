// How a request wants its tokens drawn, and what it wants to know of them.
#ifndef QUIRE_STEP_SAMPLING_PARAMS_H_
#define QUIRE_STEP_SAMPLING_PARAMS_H_

#include <cstdint>
#include <span>

namespace quire {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

// The most alternatives that can be asked for with a token.
inline constexpr int32_t kMaxTopLogprobs = 20;

struct SamplingParams {
  float temperature = 1.0f;  // 0: the highest logit, ties to the lower token
  int32_t top_k = 0;         // 0: all tokens
  float top_p = 1.0f;        // the fewest tokens with at least this probability together
  float min_p = 0.0f;        // only tokens with at least this part of the highest probability
  float repetition_penalty = 1.0f;  // of tokens in prompt or output: divides positive logits
  float frequency_penalty = 0.0f;   // times how often a token is in the output, subtracted
  float presence_penalty = 0.0f;    // subtracted if a token is in the output
  std::span<const LogitBias> logit_bias = {};  // added, finite, those of one token all; borrowed
  uint64_t seed = 0;         // draws depend on it, the sample's number and the position only
  int32_t top_logprobs = 0;  // alternatives to report: 0..min(kMaxTopLogprobs, vocabulary)
};

// Throws Error(kInvalidArgument) naming the field, its range and its value.
void Validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace quire

#endif  // QUIRE_STEP_SAMPLING_PARAMS_H_
