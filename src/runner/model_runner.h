// Runs steps of a model: check -> pack -> (bring, run, sample) on a StepDevice -> results.
//
// One for every backend. A step allocates nothing. Submit returns as soon as the device has the step, so
// that a caller can prepare the next one before Collect.
#ifndef QUIRE_RUNNER_MODEL_RUNNER_H_
#define QUIRE_RUNNER_MODEL_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/units.h"
#include "decode/tree_growth.h"
#include "model/forward.h"
#include "runner/bucket.h"
#include "runner/draft_runner.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/page_row_book.h"
#include "runner/step_device.h"
#include "runner/step_inputs.h"
#include "step/step.h"

namespace quire {

// Not for two threads at once.
class ModelRunner : public MeteredRunner, private DraftRunner, private TreeGrower {
 public:
  // `plan` is the one that the device was made with.
  ModelRunner(std::unique_ptr<StepDevice> device, const MemoryPlan& plan);
  // One for each device of ranks with tokens of their own: all get ready at once, since they may wait for each
  // other in that, each on a thread of its own. If one throws, so does this.
  static std::vector<std::unique_ptr<ModelRunner>> OfGroups(
      std::vector<std::unique_ptr<StepDevice>> devices, std::span<const MemoryPlan> plans);
  ~ModelRunner() override;
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  const RunnerLimits& limits() const override { return plan_.limits; }
  // Both throw as the device does, too. Once that is lost, every later call throws why.
  void Submit(const StepBatch& batch) override;
  const StepResult& Collect() override;

  const MemoryPlan& memory_plan() const override { return plan_; }
  ByteOffset WeightBytesPerStep(int64_t num_tokens, int64_t experts_with_rows) const override;
  const Model& model() const { return device_->model(); }

  // Between Collect and the next Submit:
  std::span<const Bucket> buckets() const { return memory_.buckets; }
  const StepStats& last_step() const override { return stats_; }
  const StepTimes& times() const override { return times_; }
  void TakeTimes(bool on) override { device_->TakeTimes(on); }
  bool TimingSlowsSteps() const override { return device_->TimingSlowsSteps(); }
  DraftRunner* draft_runner() override { return memory_.num_draft_rows > 0 ? this : nullptr; }

 private:
  enum class Ready { kNow, kLater };
  ModelRunner(std::unique_ptr<StepDevice> device, const MemoryPlan& plan, Ready ready);
  void GetReady();

  int32_t num_step_states() const override { return memory_.num_step_states; }
  int32_t first_row_state() const override { return memory_.first_row_state; }
  // A pass that is padded has rows that are wanted.
  bool keys_cost_little() const override { return !device_->pads(); }
  std::span<const TokenLogprob> Draft(const DraftPass& pass) override;
  void CopyState(int32_t from, int32_t to) override { device_->CopyState(from, to); }
  void EndPasses() override;
  TreeGrower* grower() override { return device_->grows_trees() ? this : nullptr; }
  void Extend(const DraftPass& pass, std::span<const KeptDraft> kept) override;
  void Grow(const DraftPass& pass, std::span<const GrowingRows> rows,
            bool forgets_parents) override;
  void UseTrees(std::span<const quire::Draft> drafts) override;

  void PrepareBuckets();
  StepSize SizeOf(const StepBatch& batch) const;
  enum class Rows { kOwn, kOthers };  // whose are wanted of a pass, or computed by a step
  // The bucket of the next step or pass, which this rank has or takes part in; none where all ask for others'.
  std::optional<size_t> MeetForBucket(Rows rows, const StepSize& size);
  void Start(const StepBatch& batch);
  void PackBucket(size_t number);
  void PackRows(size_t number);
  // Where the most likely tokens of a pass are for: one each is the highest, and found without a search.
  enum class Tops { kHost, kDevice };
  void DropChains();
  size_t BucketOf(const DraftPass& pass);
  DraftWork RunPass(const DraftPass& pass, Tops tops, FunctionRef<void(const DraftWork&)> run);
  DraftWork RunPassIn(size_t bucket, const DraftPass& pass, Tops tops,
                      FunctionRef<void(const DraftWork&)> run);
  DraftWork PackDraft(const DraftPass& pass, Tops tops);
  void PackTrees();
  void TakeTrees();
  void TranslateTops(std::span<TokenLogprob> tops, size_t num_top) const;
  void PackExpansion(const Bucket& bucket);
  StepInputs Inputs(const Bucket& bucket) const;
  void PackCopies();
  // The first sequence of those, at the end of the batch, that would attend in multi-head form, and the
  // tokens before it.
  size_t FirstExpanded(const StepBatch& batch) const;
  TokenCount NumLatent(const StepBatch& batch) const;
  void SampleMasked();
  void AssignRows();
  void BringMany(std::span<const SequenceStep> seqs, std::span<RowUse> uses);
  void NoteRows();
  void CountExperts();

  MemoryPlan plan_;
  const std::unique_ptr<StepDevice> device_;
  StepMemory& memory_;  // the device's
  std::vector<BucketSize> bucket_sizes_;
  // Whether a rank has rows, and which buckets have no room for those of some.
  std::vector<uint32_t> meeting_;
  TokenCount expanded_keys_{0};  // of buckets that expand
  PageRowBook book_;

  // The step at hand.
  StepBatch batch_;
  StepWork work_;
  bool is_running_ = false;
  // Drafts of the next step, or of that at hand, whose trees grow on the device.
  std::span<const quire::Draft> grown_ = {};
  std::vector<GrownTree> trees_;  // theirs, as the device takes them
  double host_seconds_ = 0;

  StepStats stats_;
  StepTimes times_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_MODEL_RUNNER_H_
