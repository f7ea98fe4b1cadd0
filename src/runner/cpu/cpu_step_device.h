// Steps on the CPU: a thread of its own computes them, with the threads of a pool.
//
// Owns the weights, the KV stores and every buffer, in one arena that the memory plan lists. Of several
// ranks each has such a device: rank 0's is the runner's and tells the others what to do in messages,
// which they follow (Follow). Whatever fails then ends all of them for good.
#ifndef QUIRE_RUNNER_CPU_CPU_STEP_DEVICE_H_
#define QUIRE_RUNNER_CPU_CPU_STEP_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/kv_store.h"
#include "attn/plan_storage.h"
#include "base/units.h"
#include "decode/sample_rows.h"
#include "device/arena.h"
#include "device/buffer.h"
#include "device/collective.h"
#include "device/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/eagle.h"
#include "model/forward.h"
#include "model/weight_source.h"
#include "runner/cpu/step_thread.h"
#include "runner/draft_pass.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"
#include "runner/step_device.h"
#include "runner/step_memory.h"
#include "runner/step_orders.h"

namespace quire {

// What the CPU's steps have besides StepMemory.
struct CpuStepParts {
  struct BucketParts {
    std::unique_ptr<PlanStorage> plans;
    cpu::OpScratch scratch = {};
  };
  std::vector<BucketParts> buckets;   // and StepMemory's heads behind them
  SampleWorkers sample_workers = {};  // one per thread
};

// Sizes, or takes, the memory of steps on the CPU.
StepMemory LayOutCpuSteps(const ModelConfig& config, const RunnerLimits& limits,
                          const RunnerOptions& options, CpuStepParts& parts, Carver& carver);

class CpuStepDevice : public StepDevice, private StepFollower {
 public:
  // `ranks` is this rank's end of the group, or none where there is one rank.
  CpuStepDevice(const ModelConfig& model, WeightSource& source, const RunnerOptions& options,
                const MemoryPlan& plan, const LoadProgress& progress,
                std::shared_ptr<Collective> ranks = nullptr);

  // Does what rank 0 says, until a rank fails or rank 0's runner ends.
  void Follow() noexcept { orders_.Follow(*this); }

  const Model& model() const override { return model_; }
  StepMemory& memory() override { return memory_; }
  bool pads() const override { return options_.mode == StepMode::kGraph; }
  PageCount max_new_pages() const override {
    return PageCount(std::numeric_limits<int64_t>::max());
  }

  void Enter() override;
  void BringPages(size_t, std::span<const SequenceStep>, std::span<const RowUse>) override;
  void Bring(const StepWork& work) override;
  void Run(const StepWork& work) override;
  void Sample(const StepWork& work) override;
  void Wait() override { thread_.Wait(); }
  void Draft(const StepWork& work, const DraftWork& draft) override;
  void MeetRanks(std::span<uint32_t> words) override;
  // As on a device that records them, though nothing here would need it.
  bool steps_alike() const override { return pads() && config_.shard.tokens == RankTokens::kOwn; }
  std::span<const int32_t> draft_token_ids() const override {
    return head_ ? head_->token_ids() : std::span<const int32_t>();
  }
  void CopyState(int32_t from, int32_t to) override;
  void Abandon(const std::exception_ptr& why) noexcept override;
  StepTimes times() const override { return times_; }

 private:
  // On the step's thread.
  void BringNow(const StepWork& work);
  void Poison();
  void MoveRows(std::span<const KvStore> stores, std::span<const Slot> from,
                std::span<const Slot> to);
  void RunNow(const StepWork& work);
  void SampleNow(const StepWork& work);
  void FollowStep(StepOrder order, const StepWork& work) override;
  void FollowLogits(size_t bucket, size_t list, std::span<const int32_t> rows) override;
  void FollowDraft(const StepWork& work, const DraftWork& draft) override;
  void FollowCopyState(int32_t from, int32_t to) override { CopyState(from, to); }
  // sample(first, count) of every block of rows, once their logits are there.
  void LogitsOf(size_t bucket, std::span<const int32_t> rows,
                FunctionRef<void(int64_t first, int64_t count)> sample);
  void DraftNow(const StepWork& work, const DraftWork& draft,
                FunctionRef<void(int64_t first, int64_t count)> sample);
  DraftModel Drafting() const { return {model_, head_ ? &*head_ : nullptr}; }
  std::span<const KvStore> TrunkStores() const;
  void SampleAll(const StepWork& work, const SampledRows& sampled, const SampleResults& results);

  // Whether some query of the step at hand sees more keys than it can choose.
  bool Chooses() const;

  const RunnerOptions options_;
  const ModelConfig config_;  // as the options have it run
  const std::shared_ptr<Collective> ranks_;
  ThreadPool pool_;
  Buffer arena_;
  Carver carver_;  // over the arena: weights, angles, KV, steps
  Model model_;
  std::optional<EagleHead> head_;  // that drafts in place of the model's own layer
  std::vector<KvStore> stores_;    // of StoreLayouts
  CpuStepParts parts_;
  StepMemory memory_;
  StepOrders orders_;

  const Plan* plan_ = nullptr;  // of the step at hand
  cpu::PartClock clock_;
  std::vector<cpu::CpuOps> ops_;  // of each of CpuStepParts::buckets
  StepTimes times_;
  StepThread thread_;  // last: it ends before what it works on
};

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_CPU_STEP_DEVICE_H_
