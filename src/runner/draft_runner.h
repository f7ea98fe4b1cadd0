// Runs a model's draft layer, between the steps of the runner that has the model.
#ifndef QUIRE_RUNNER_DRAFT_RUNNER_H_
#define QUIRE_RUNNER_DRAFT_RUNNER_H_

#include <cstdint>
#include <span>

#include "decode/drafter.h"
#include "decode/tree_growth.h"
#include "step/step.h"

namespace quire {

// One pass of the draft layer over rows of several sequences.
struct DraftPass {
  // As those of a step, in which row p takes the place of the token at p: it goes to the slot of p, and
  // `tokens` are those behind the rows. What a step gives back is not asked for.
  std::span<const StepSequence> sequences = {};
  std::span<const int32_t> state_of = {};  // [rows]: which state each takes
  std::span<const int32_t> wanted = {};    // rows of which states and most likely tokens are wanted
  int32_t num_top = 1;                     // tokens, 1..kMaxTopLogprobs
};

// Grows trees between passes that the host does not wait for (decode/tree_growth.h): what comes of them
// stays on the device. Errors are thrown by the next Collect.
class TreeGrower {
 public:
  virtual ~TreeGrower() = default;

  // A pass without rows, or as DraftRunner::Draft; then states and tokens are kept. `kept` and what else
  // is given may go when it returns.
  virtual void Extend(const DraftPass& pass, std::span<const KeptDraft> kept) = 0;
  // A pass of rows of growing trees, num_top of each draft, all of which are wanted: their tokens, states
  // and parents are placeholders. With `forgets_parents` (a fault) they see no row but themselves.
  virtual void Grow(const DraftPass& pass, std::span<const GrowingRows> rows,
                    bool forgets_parents) = 0;
  // Which drafts of the next step, of its sequences, have grown; the step's Collect writes their tokens
  // and parents.
  virtual void UseTrees(std::span<const Draft> drafts) = 0;
};

// States (model/draft.h) are numbered: the first num_step_states() are those that the last step left of
// its tokens, in their order; as many as there may be sequences are the drafter's, to keep; and from
// first_row_state() on lie those of the rows that the last pass was asked for, one behind the other. Nothing
// here allocates. Calls come between Collect and Submit.
class DraftRunner {
 public:
  virtual ~DraftRunner() = default;

  virtual int32_t num_step_states() const = 0;
  virtual int32_t first_row_state() const = 0;
  // Whether a pass of which nothing is wanted costs little: the layer's rows are computed, and nothing that
  // comes of them. Then rows that are only seen by others are best given in a pass of their own.
  virtual bool keys_cost_little() const { return false; }
  // Returns [wanted, kMaxTopLogprobs], of which num_top are written, the most likely first; all of a row
  // whose logits are not finite have a log-probability that is NaN or -inf. Valid until the next call.
  virtual std::span<const TokenLogprob> Draft(const DraftPass& pass) = 0;
  virtual void CopyState(int32_t from, int32_t to) = 0;
  // Of runners that take part in each other's steps: this one has no pass for now, neither before the next
  // step nor behind the last one. Returns when none has, and takes part in those of the others meanwhile: what
  // the last pass has left is gone.
  virtual void EndPasses() {}
  // Null where trees grow on the host, by Draft and CopyState.
  virtual TreeGrower* grower() { return nullptr; }
};

}  // namespace quire

#endif  // QUIRE_RUNNER_DRAFT_RUNNER_H_
