// What computes a runner's steps: the CPU's threads, or a GPU.
//
// A step is Bring, Run, Sample, in this order, and Wait. The first three may return before anything is
// done; what they were given stays as it is until Wait has returned. For one thread at a time.
#ifndef QUIRE_RUNNER_STEP_DEVICE_H_
#define QUIRE_RUNNER_STEP_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

#include "attn/sequence_step.h"
#include "attn/step_pack.h"
#include "base/units.h"
#include "decode/tree_growth.h"
#include "model/forward.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/step_memory.h"

namespace quire {

// A step as the runner has packed it: its inputs are in the bucket's host memory.
struct StepWork {
  size_t bucket = 0;
  size_t num_tokens = 0;                    // of the inputs in use, padding included
  std::span<const SequenceStep> seqs = {};  // those of the batch, and padded rows
  std::span<const RowUse> uses = {};        // as many
  size_t num_moves = 0;                     // rows to move first, of RareInputs
  size_t num_copies = 0;                    // rows to copy then, of RareInputs
  size_t num_score_blocks = 0;
  std::span<const GrownTree> trees = {};  // whose nodes the device knows
};

// A pass of the draft layer as the runner has packed it: its rows are those of a StepWork, and the rest
// is in the host's DraftInputs.
struct DraftWork {
  size_t num_rows = 0;    // wanted, padding included
  size_t num_wanted = 0;  // of those, the first ones: the others' states and tokens nobody reads
};

// What a pass of the draft layer does for trees that grow.
struct GrowthWork {
  std::span<const GrowingRows> rows = {};
  std::span<const KeptDraft> kept = {};  // behind it
  int32_t branches = 1;                  // tokens that are wanted of a row
  bool forgets_parents = false;
};

class StepDevice {
 public:
  virtual ~StepDevice() = default;

  virtual const Model& model() const = 0;
  virtual StepMemory& memory() = 0;
  // Whether steps are padded to their bucket's size.
  virtual bool pads() const = 0;
  // New pages that one step brings; more come by BringPages before it.
  virtual PageCount max_new_pages() const = 0;

  // Before the first step, for every bucket, the largest first: `work` is a step of nothing but
  // padding. Then Ready, once, which may add to the plan what was taken besides.
  virtual void Prepare(const StepWork&) {}
  virtual void Ready(MemoryPlan&) {}

  // What a call of the runner begins with, on the thread that all of the following is then called on. Throws why
  // no step can run any more.
  virtual void Enter() {}

  // Brings new pages of sequences to their rows; nothing is computed.
  virtual void BringPages(size_t bucket, std::span<const SequenceStep> seqs,
                          std::span<const RowUse> uses) = 0;
  // Moves and copies rows, brings inputs and new pages, and makes the plan.
  virtual void Bring(const StepWork& work) = 0;
  // The forward pass.
  virtual void Run(const StepWork& work) = 0;
  // Logits, tokens drawn of them, and scores.
  virtual void Sample(const StepWork& work) = 0;
  // Returns when all is done and memory().host_outputs hold what came of it. Throws what stopped it.
  virtual void Wait() = 0;
  // A pass of the draft layer, between steps. When it returns, it is done, and memory().host_tops hold
  // what came of it.
  virtual void Draft(const StepWork& work, const DraftWork& draft) = 0;
  // Of ranks with tokens of their own: every word becomes the OR of all ranks', between steps. Of one rank, and of
  // ranks with the same tokens, they are as they should be.
  virtual void MeetRanks(std::span<uint32_t>) {}
  // Whether steps and passes of such ranks have to be of one bucket.
  virtual bool steps_alike() const { return false; }
  // Whether trees grow on the device. Then Draft may be Grow, which returns before anything is done and
  // brings nothing to the host, and without rows only keeps drafts.
  virtual bool grows_trees() const { return false; }
  virtual void Grow(const StepWork&, const DraftWork&, const GrowthWork&) {}
  // Which of the model's tokens each of the layer's is, where these are others: an EAGLE-3 head's.
  virtual std::span<const int32_t> draft_token_ids() const { return {}; }
  // Of memory().states; behind the passes before it.
  virtual void CopyState(int32_t from, int32_t to) = 0;
  // After any of the above has thrown `why`: returns when nothing is under way any more.
  virtual void Abandon(const std::exception_ptr& why) noexcept = 0;

  virtual void TakeTimes(bool) {}
  virtual bool TimingSlowsSteps() const { return false; }
  // Of the step that was waited for, if times were taken.
  virtual StepTimes times() const = 0;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_DEVICE_H_
