// A Request is what is asked of an engine, a TokenEvent what it answers: token ids only.
#ifndef QUIRE_ENGINE_REQUEST_H_
#define QUIRE_ENGINE_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "step/sampling_params.h"
#include "step/step.h"
#include "step/token_constraint.h"

namespace quire {

using RequestId = uint64_t;
using EngineClock = std::chrono::steady_clock;

struct Request {
  std::vector<int32_t> prompt = {};
  SamplingParams sampling = {};            // its logit_bias is not read:
  std::vector<LogitBias> logit_bias = {};  // this one is
  int32_t num_samples = 1;                 // answers to draw; all share the prompt
  int64_t min_tokens = 0;                  // before this many, stop tokens do not stop
  int64_t max_tokens = 1 << 30;            // an answer also ends with the context
  std::vector<int32_t> stop_tokens = {};   // end an answer; reported, and not part of it
  bool score_prompt = false;               // log-probabilities of the prompt's own tokens too
  int32_t priority = 0;                    // higher goes first; waiting makes up for it
  std::optional<EngineClock::time_point> deadline = {};
  std::string cache_salt = {};  // prefixes are shared under one salt only
  // What the tokens of every answer are held to; empty: nothing. An answer behind which nothing can
  // follow ends as kStop, whatever min_tokens says.
  ConstraintFactory constraint = {};
};

// Throws Error(kInvalidArgument), naming the field, the expected and the actual, if no runner with these
// limits could ever compute it.
void CheckRequest(const Request& request, const RunnerLimits& limits, int32_t max_priority);

enum class FinishReason {
  kNone,       // goes on
  kStop,       // a stop token
  kLength,     // max_tokens, or the end of the context
  kCancelled,  // by the caller
  kDeadline,   // its deadline passed
  kFailed,     // a step failed; nothing of the answer is lost that was reported
};
const char* FinishReasonName(FinishReason reason);

// One token of one answer, or the end of one.
struct TokenEvent {
  RequestId request = 0;
  int32_t sample = 0;
  int32_t token = kNoToken;  // kNoToken: no token, only an end
  float logprob = 0;
  std::vector<TokenLogprob> top = {};
  FinishReason finish = FinishReason::kNone;
  bool last_of_request = false;  // all answers have ended
  std::string error = {};        // kFailed: why
  // With the first event of an answer: prompt tokens that were found in the cache.
  std::optional<TokenCount> cached_tokens = {};
  // With the first event of sample 0, if score_prompt: one for every prompt token but the first.
  struct PromptToken {
    TokenLogprob chosen;
    std::vector<TokenLogprob> top;
  };
  std::vector<PromptToken> prompt_scores = {};
};

}  // namespace quire

#endif  // QUIRE_ENGINE_REQUEST_H_
