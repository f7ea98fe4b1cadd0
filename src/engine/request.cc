#include "engine/request.h"

#include <cstddef>
#include <iterator>

#include "base/error.h"

namespace quire {

void CheckRequest(const Request& request, const RunnerLimits& limits, int32_t max_priority) {
  const TokenCount prompt(request.prompt.size());
  Require(prompt >= TokenCount(1), "prompt: expected at least one token, got none");
  Require(prompt < limits.context,
          "prompt: {} tokens leave no room for an answer in the context length of {}", prompt,
          limits.context);
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    Require(request.prompt[i] >= 0 && request.prompt[i] < limits.vocab_size,
            "prompt: token {}: expected 0..{}, got {}", i, limits.vocab_size - 1,
            request.prompt[i]);
  }
  Require(request.num_samples >= 1 && request.num_samples <= limits.max_seqs,
          "n: expected 1..{}, got {}", limits.max_seqs, request.num_samples);
  Require(request.max_tokens >= 1, "max_tokens: expected at least 1, got {}", request.max_tokens);
  Require(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens,
          "min_tokens: expected 0..{} (max_tokens), got {}", request.max_tokens,
          request.min_tokens);
  const int64_t priority = request.priority;
  Require(priority >= -max_priority && priority <= max_priority,
          "priority: expected {}..{}, got {}", -max_priority, max_priority, priority);
  // Together they are biases of one step until there are min_tokens, and must fit there.
  Require(std::ssize(request.logit_bias) <= kMaxRequestBiases,
          "logit_bias: expected at most {} biases, got {}", kMaxRequestBiases,
          request.logit_bias.size());
  Require(std::ssize(request.stop_tokens) <= kMaxRequestStops + kMaxModelStops,
          "stop tokens: expected at most {}, got {}", kMaxRequestStops + kMaxModelStops,
          request.stop_tokens.size());
  for (size_t i = 0; i < request.stop_tokens.size(); ++i) {
    const int32_t token = request.stop_tokens[i];
    Require(token >= 0 && token < limits.vocab_size, "stop_token_ids[{}]: expected 0..{}, got {}",
            i, limits.vocab_size - 1, token);
  }
  SamplingParams sampling = request.sampling;
  sampling.logit_bias = request.logit_bias;
  Validate(sampling, limits.vocab_size);
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kFailed:
      return "failed";
  }
  return "?";
}

}  // namespace quire
