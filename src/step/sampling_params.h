// SamplingParams say how a request wants its tokens drawn, and what it wants to know of them.
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

// What one request may bring, and one model. The API refuses more, so does the engine, and a runner
// that keeps biases in a buffer sizes it by their sum.
inline constexpr int64_t kMaxRequestBiases = 1024;  // OpenAI's limit
inline constexpr int64_t kMaxRequestStops = 1024;  // tokens of the request's own that end an answer
inline constexpr int64_t kMaxModelStops = 64;      // tokens of the model's own that do

// The most biases that a sequence has in one step: those of its request, and before min_tokens one
// for each token that would end the answer, to hold it down.
inline constexpr int64_t kMaxStepBiases = kMaxRequestBiases + kMaxRequestStops + kMaxModelStops;

struct SamplingParams {
  float temperature = 1.0f;  // 0: the highest logit, ties to the lower token
  int32_t top_k = 0;         // 0: all tokens
  float top_p = 1.0f;        // the fewest tokens with at least this probability together
  float min_p = 0.0f;        // only tokens with at least this part of the highest probability
  float repetition_penalty = 1.0f;  // of tokens in prompt or output: divides positive logits
  float frequency_penalty = 0.0f;   // times how often a token is in the output, subtracted
  float presence_penalty = 0.0f;    // subtracted if a token is in the output
  // Added, those of one token all; finite, kMaxStepBiases at most. Borrowed.
  std::span<const LogitBias> logit_bias = {};
  uint64_t seed = 0;         // draws depend on it, the sample's number and the position only
  int32_t top_logprobs = 0;  // alternatives to report: 0..min(kMaxTopLogprobs, vocabulary)
};

// Throws Error(kInvalidArgument) naming the field, its range and its value.
void Validate(const SamplingParams& params, int64_t vocab_size);

// Whether logits depend on the tokens of the text so far.
bool HasPenalties(const SamplingParams& params);

}  // namespace quire

#endif  // QUIRE_STEP_SAMPLING_PARAMS_H_
