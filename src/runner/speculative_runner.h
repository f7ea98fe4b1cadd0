// A runner that guesses ahead: a Drafter proposes tokens behind the last one of a sequence, one step of
// the runner below computes all of them, and those that it would have drawn itself are the answer.
//
// At every node of a draft the target draws its token as a step of its own would draw it there: greedy,
// or with the draw of that position, after the penalties of that path. The child with this token is
// accepted, and the walk goes on behind it. So tokens, log-probabilities and alternatives are those of
// plain steps, whatever was drafted. Accepted rows of other branches than the first are moved to the
// slots of their places with the next step, before anything reads them.
//
// The drafter hears what became of every sequence of a step before the next one: a draft layer's rows
// are written then, behind the target's.
//
// Where the target is one of several groups, the experts of a draft layer are all groups': a group drafts in
// Submit and in Collect, and leaves neither before all groups have drafted (DraftRunner::EndPasses). How many
// passes each of them has is its own affair.
//
// A sequence with a lookahead is drafted for if it gives one token behind its output, draws one sample
// and has no mask; with a lookahead of n, by n nodes at most. It allocates nothing in a step.
#ifndef QUIRE_RUNNER_SPECULATIVE_RUNNER_H_
#define QUIRE_RUNNER_SPECULATIVE_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "decode/drafter.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"
#include "step/step.h"

namespace quire {

class DraftRunner;
class TreeGrower;

// The most that a draft can have, its root among the nodes.
inline constexpr int64_t kMaxDraftNodes = 64;

// What drafts take at most, of each sequence.
struct DraftRoom {
  // Of drafts that take no slots and rows but those of their nodes.
  static DraftRoom OfNodes(int64_t nodes) {
    return {.nodes = nodes, .slots = nodes, .rows = nodes};
  }

  int64_t nodes = 2;  // of a draft, its root among them: 2..kMaxDraftNodes
  int64_t slots = 2;  // behind the tokens before the root, written by drafting or drafts
  int64_t rows = 2;   // that are computed at once
};

// `options` of a runner to speculate on with such drafts: steps have room for those of all sequences
// besides. Throws Error(kInvalidArgument) for nodes out of range.
RunnerOptions TargetOptions(const RunnerOptions& options, const DraftRoom& room);

// Not for two threads at once.
class SpeculativeRunner final : public RunnerOver {
 public:
  // `target` was made with TargetOptions of `room`.
  SpeculativeRunner(std::unique_ptr<MeteredRunner> target, std::unique_ptr<Drafter> drafter,
                    const DraftRoom& room);

  const RunnerLimits& limits() const override { return limits_; }
  void Submit(const StepBatch& batch) override;
  const StepResult& Collect() override;

 private:
  void MakeDrafts(const StepBatch& batch);
  void Expand(const Draft& draft);
  StepSequenceResult Accept(const Draft& draft, const StepSequenceResult& result,
                            std::span<int32_t> room_of_path, StepOutcome& outcome);
  void ReportOutcomes();

  const std::unique_ptr<Drafter> drafter_;  // may use the target
  const size_t num_nodes_;
  DraftRunner* const draft_runner_;  // the target's, or null
  TreeGrower* const grower_;         // its own, or null
  RunnerLimits limits_;

  // The step at hand. Each is as long as it can be, or reserved.
  std::vector<StepSequence> sequences_;  // as the target takes them
  std::vector<Draft> drafts_;            // in their order
  std::vector<int32_t> tokens_;          // [max_seqs, num_nodes] of drafts
  std::vector<int32_t> parents_;
  std::vector<StepSlotMove> moves_;  // to be done by the next step

  std::vector<int32_t> drawn_;         // [num_nodes] of the draft at hand
  std::vector<int32_t> paths_;         // [max_seqs, num_nodes] of drafts
  std::vector<StepOutcome> outcomes_;  // of all sequences, then of those that the drafter hears of
  std::vector<StepToken> accepted_;    // of all drafts
  std::vector<StepAnswer> answers_;    // of each draft
  std::vector<StepSequenceResult> results_;
  StepResult result_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_SPECULATIVE_RUNNER_H_
