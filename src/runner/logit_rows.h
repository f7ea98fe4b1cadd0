// Which rows of a step's hidden state need logits, where their results go, and the answers that the
// results make up.
#ifndef QUIRE_RUNNER_LOGIT_ROWS_H_
#define QUIRE_RUNNER_LOGIT_ROWS_H_

#include <cstdint>
#include <span>

#include "step/step.h"

namespace quire {

// A row of the hidden state whose logits are wanted, and for what.
struct LogitRow {
  int32_t seq = 0;     // of the batch
  int32_t token = 0;   // of the sequence's tokens
  int32_t row = 0;     // of the hidden state
  int32_t result = 0;  // of the first result, counted over the batch; those of the row's further
                       // samples stand TokensPerAnswer apart
  TokenCount next_position{0};  // of the token that follows
};

// Rows of logits computed at once: enough that the head's weights are read for many rows, few
// enough that a vocabulary of 160k takes 40 MiB.
inline constexpr int64_t kLogitBlock = 64;

// Results that one step can have: a token per sample, or at most one per token of the sequences that
// draw none.
int64_t MaxResults(const RunnerLimits& limits);
// Answers: one per sample, or one per sequence scored.
int64_t MaxAnswers(const RunnerLimits& limits);
// Tokens to draw and sequences that want nothing.
int64_t MaxNextItems(const RunnerLimits& limits);
// Rows of which one step can draw tokens, or only look for NaN.
int32_t MaxNextRows(const RunnerLimits& limits);

// What a sequence asks for. One that wants nothing has a result, but no answer: it says whether the
// logits of its last token are numbers.
int32_t NumAnswers(const StepSequence& seq);
int32_t TokensPerAnswer(const StepSequence& seq);
// Of what is drawn of the step, or only looked at: scores are apart.
int32_t NumNextItems(const StepSequence& seq);
int32_t NumResults(const StepSequence& seq);
// The token that a score row is the score of: the next one given.
int32_t NextGiven(const StepSequence& seq, int32_t token);

// The rows of the batch, in its order; returns how many. `rows` has room for every token.
int32_t PickLogitRows(const StepBatch& batch, std::span<LogitRow> rows);

// Cuts the batch's results into answers, and names the sequences of which a log-probability is NaN; but
// of a tree of which tokens are drawn the nodes say so themselves.
void FillAnswers(const StepBatch& batch, std::span<const StepToken> results,
                 std::span<StepAnswer> answers, std::span<StepSequenceResult> sequences);

}  // namespace quire

#endif  // QUIRE_RUNNER_LOGIT_ROWS_H_
