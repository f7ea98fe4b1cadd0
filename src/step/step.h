// This is the seam between the engine and whatever computes: a step's batch, its result, the Runner.
//
// Plain data goes both ways. A step is data, not a mode: decode is one token of a sequence, a prefill
// chunk is several, and a sequence may ask for nothing, for its next token, or for the scores of the
// tokens it gave.
#ifndef QUIRE_STEP_STEP_H_
#define QUIRE_STEP_STEP_H_

#include <cstdint>
#include <span>

#include "base/units.h"
#include "step/sampling_params.h"

namespace quire {

// Rows to copy, in every payload, before anything is written: `count` tokens from the start of page
// `from` to the start of page `to`.
struct StepPageCopy {
  PageId from;
  PageId to;
  int32_t count = 0;
};

enum class Want {
  kNothing,    // a prefill chunk that is not the last
  kNextToken,  // what follows the last token
  kScores,     // what follows every token: the log-probability of the next one given
};

struct StepSequence {
  uint64_t id = 0;  // the same in all steps of a sequence, and no other's; 0: unknown
  // The tokens to compute; the first stands at `position`, and all before it are in the cache.
  std::span<const int32_t> tokens = {};
  TokenCount position = {};
  // Pages that hold at least position + tokens.size() tokens.
  std::span<const PageId> pages = {};

  Want want = Want::kNothing;
  SamplingParams sampling = {};
  // kNextToken: how many tokens to draw from the one distribution, as samples number first_sample,
  // first_sample + 1, ...
  int32_t num_samples = 1;
  int32_t first_sample = 0;
  // kNextToken with penalties: prompt and output so far, `tokens` included.
  std::span<const int32_t> prompt = {};
  std::span<const int32_t> output = {};
  // kScores: the token behind the last one, or kNoToken if only its alternatives are wanted.
  int32_t next_token = -1;
};

inline constexpr int32_t kNoToken = -1;

struct StepBatch {
  std::span<const StepPageCopy> copies = {};
  std::span<const StepSequence> sequences = {};
};

struct TokenLogprob {
  int32_t token = kNoToken;
  float logprob = 0;  // of the model's own distribution: before penalties, bias and temperature
};

// What came back for one token asked for: a sample, or a position scored.
struct StepToken {
  TokenLogprob chosen = {};
  std::span<const TokenLogprob> top =
      {};  // the most likely, highest first, ties to the lower token
};

struct StepSequenceResult {
  // kNextToken: num_samples; kScores: one per token given, `chosen` of the last may be kNoToken.
  std::span<const StepToken> tokens = {};
};

// Results stand in the order of the batch, and are valid until the next Submit.
struct StepResult {
  std::span<const StepSequenceResult> sequences = {};
};

// The limits that every batch must keep to.
struct RunnerLimits {
  PageSize page_size{64};
  PageCount pool_pages{1};  // the scratch page included
  TokenCount context{1};    // of one sequence
  int32_t max_seqs = 1;
  TokenCount max_step_tokens{1};  // of all sequences of a step
  int32_t max_samples = 1;        // of all sequences of a step
  int64_t vocab_size = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual const RunnerLimits& limits() const = 0;

  // Starts a step. The batch and all it borrows must stay as they are until Collect returns. Throws
  // Error(kInvalidArgument) or Error(kCapacityExceeded), naming the sequence, if the batch breaks a
  // limit; then nothing was started or written.
  virtual void Submit(const StepBatch& batch) = 0;
  // Waits for the step that was submitted. Throws what stopped it.
  virtual const StepResult& Collect() = 0;

  const StepResult& Step(const StepBatch& batch) {
    Submit(batch);
    return Collect();
  }
};

}  // namespace quire

#endif  // QUIRE_STEP_STEP_H_
