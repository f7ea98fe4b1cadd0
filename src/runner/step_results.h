// From a step's batch to what is sampled of it, and back: the part of a runner that is the same
// wherever logits are computed.
#ifndef QUIRE_RUNNER_STEP_RESULTS_H_
#define QUIRE_RUNNER_STEP_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "decode/sample_items.h"
#include "device/arena.h"
#include "runner/logit_rows.h"
#include "step/step.h"

namespace quire {

// Of the tokens to draw in a step and the rows only to be looked at, and of kLogitBlock rows of
// scores.
SampleCapacity NextCapacity(const RunnerLimits& limits);
SampleCapacity ScoreCapacity(const RunnerLimits& limits);
// Of the rows of a pass of the draft layer, of which the most likely tokens are wanted.
SampleCapacity DraftCapacity(const RunnerLimits& limits, int32_t num_rows);
// Blocks that the scores of one step can need.
int64_t MaxScoreBlocks(const RunnerLimits& limits);

// Rows whose logits are sampled together.
struct SampledRows {
  std::span<int32_t> rows = {};  // of the hidden state; those that are not in use are row 0
  SamplePacker packer;           // of what is wanted of them
};

// Invariants, between Pick and Fill: the items of `next`, and those of `scores` one block behind the
// other, are in the order of logit_rows_, a row of num_samples tokens having as many.
class StepResults {
 public:
  StepResults() = default;
  // Sizes, or takes, the memory of the results of steps within these limits.
  StepResults(const RunnerLimits& limits, Carver& carver);

  // Picks the rows that need logits, and adds what is wanted of them: tokens to draw, and rows only
  // to be looked at, to `next`, of NextCapacity, and scores to `scores`, MaxScoreBlocks of
  // ScoreCapacity. The batch stays as it is
  // until Fill. Throws as SamplePacker does; then there is nothing to fill.
  void Pick(const StepBatch& batch, SampledRows& next, std::span<SampledRows> scores);

  // The batch's masks, as they are now, for the tokens to draw of `next`, as Pick left it.
  void TakeMasks(SampledRows& next) const;

  // What was picked.
  int32_t num_rows() const { return num_next_rows_ + num_score_rows_; }
  bool has_masks() const { return has_masks_; }
  size_t num_score_blocks() const;

  // The batch's result, from those of its items: `scores` are of one block each. It refers to their
  // memory. A sequence of which a log-probability is NaN has a fault and no answers.
  const StepResult& Fill(const SampleResults& next, std::span<const SampleResults> scores);

 private:
  void AddNext(const LogitRow& row, SampledRows& next);
  std::span<const int32_t> PathTo(const StepSequence& seq, int32_t token) const;
  void AddScore(const LogitRow& row, std::span<SampledRows> scores);

  std::span<LogitRow> logit_rows_ = {};           // [max_step_tokens]
  std::span<int32_t> path_ = {};                  // [max_tree_nodes]
  std::span<StepToken> tokens_ = {};              // [MaxResults]
  std::span<StepAnswer> answers_ = {};            // [MaxAnswers]
  std::span<StepSequenceResult> sequences_ = {};  // [max_seqs]
  StepBatch batch_;
  int32_t num_next_rows_ = 0;
  int32_t num_score_rows_ = 0;
  bool has_masks_ = false;
  StepResult result_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_RESULTS_H_
