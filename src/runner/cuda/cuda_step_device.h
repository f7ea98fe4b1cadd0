// Steps on a Hopper GPU: two copies there, one graph, sampling, two copies back, and one wait.
//
// Owns the weights, the KV stores and every buffer, in one arena of device memory that the memory plan
// lists, and pinned memory for what goes there and back. A step takes no memory and waits once, in
// Wait. Steps are padded to buckets whose addresses never change: StepMode::kGraph records the work of
// every bucket once and launches it as one, kEager launches the same work piece by piece.
//
// Of several ranks each has such a device, and rank 0's tells the others what to do, as on the CPU
// (runner/step_orders.h); or each has tokens of its own, and all run the same bucket. Whatever fails then ends
// all of them for good.
#ifndef QUIRE_RUNNER_CUDA_CUDA_STEP_DEVICE_H_
#define QUIRE_RUNNER_CUDA_CUDA_STEP_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/cuda/plan.h"
#include "attn/kv_store.h"
#include "base/error.h"
#include "base/units.h"
#include "decode/cuda/sampling.h"
#include "decode/cuda/tree_growth.h"
#include "device/arena.h"
#include "device/collective.h"
#include "device/cuda/cuda.h"
#include "device/cuda/deliveries.h"
#include "device/cuda/device_ranks.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gemm/gemm_planner.h"
#include "kernels/cuda/part_marks.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/eagle.h"
#include "model/forward.h"
#include "model/weight_source.h"
#include "runner/cuda/cuda_step_layout.h"
#include "runner/draft_pass.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"
#include "runner/step_device.h"
#include "runner/step_memory.h"
#include "runner/step_orders.h"

namespace quire::cuda {

// One rank's ends of its group: of the hosts, and of the devices. Both or none.
struct CudaRank {
  std::shared_ptr<Collective> host = nullptr;
  std::shared_ptr<DeviceRank> device = nullptr;
};

// On the device that is current for the calling thread; Enter makes it that of another one.
class CudaStepDevice : public StepDevice, private StepFollower {
 public:
  CudaStepDevice(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
                 const MemoryPlan& plan, const LoadProgress& progress, CudaRank rank = {});
  ~CudaStepDevice() override;

  // Does what rank 0 says, until a rank fails or rank 0's runner ends.
  void Follow() noexcept;

  const Model& model() const override { return model_; }
  StepMemory& memory() override { return memory_; }
  bool pads() const override { return true; }
  PageCount max_new_pages() const override { return kNewPages; }

  void Prepare(const StepWork& work) override;
  void Ready(MemoryPlan& plan) override;
  void Enter() override;
  void MeetRanks(std::span<uint32_t> words) override;
  bool steps_alike() const override { return config_.shard.tokens == RankTokens::kOwn; }

  // Waits for the copy of the one before: they share the bucket's pinned memory.
  void BringPages(size_t bucket, std::span<const SequenceStep> seqs,
                  std::span<const RowUse> uses) override;
  void Bring(const StepWork& work) override;
  void Run(const StepWork& work) override;
  void Sample(const StepWork& work) override;
  void Wait() override;
  void Draft(const StepWork& work, const DraftWork& draft) override;
  std::span<const int32_t> draft_token_ids() const override {
    return head_ ? head_->token_ids() : std::span<const int32_t>();
  }
  void CopyState(int32_t from, int32_t to) override;
  bool grows_trees() const override { return GrowsTrees(options_); }
  void Grow(const StepWork& work, const DraftWork& draft, const GrowthWork& growth) override;
  void Abandon(const std::exception_ptr& why) noexcept override;

  void TakeTimes(bool on) override;
  bool TimingSlowsSteps() const override { return true; }
  StepTimes times() const override;

 private:
  // A bucket's launches.
  struct BucketWork {
    std::unique_ptr<CudaOps> ops;
    std::unique_ptr<CudaOps> head_ops;  // of an EAGLE-3 head, where one drafts in the bucket
    std::optional<Graph> graph;
    std::optional<Graph> draft_graph;  // of a pass of the draft layer
    // The same with marks, made when times are first asked for.
    std::optional<Graph> timed_graph;
    bool is_timed_recorded = false;
    PartMarks marks;
  };
  // Points of a step between which its time is divided, beside those of the bucket's pass.
  struct Timing {
    Event begin{true}, planned{true}, computed{true}, sampled{true};
    size_t bucket = 0;
  };

  void FollowStep(StepOrder order, const StepWork& work) override;
  void FollowReady() override { ReadyNow(); }
  void FollowLogits(size_t bucket, size_t list, std::span<const int32_t> rows) override;
  void FollowDraft(const StepWork& work, const DraftWork& draft) override;
  void FollowCopyState(int32_t from, int32_t to) override { CopyState(from, to); }
  void AwaitLastOrder() override;

  DraftModel Drafting() const { return {model_, head_ ? &*head_ : nullptr}; }
  // Of passes that draft in a bucket: the bucket's own, or the head's there.
  PlanStorage& DraftPlan(size_t bucket) const;
  CudaOps& DraftOps(size_t bucket) const;

  std::unique_ptr<CudaOps> MakeOps(size_t bucket, const OpScratch& scratch);
  void UploadTokenIds();
  void PlanProducts();
  void PrepareNow(const StepWork& work);
  void ReadyNow();
  void BringPagesNow(size_t bucket, std::span<const SequenceStep> seqs,
                     std::span<const RowUse> uses);
  void BringNow(const StepWork& work);
  void RunNow(size_t bucket, bool is_timed);
  void DraftNow(const StepWork& work);
  void BringDraft(const StepWork& work);
  void RunDraftNow(size_t bucket);
  void PlaceTrees(const StepWork& work);
  // Waits for what the stream was given, or for done_.
  void AwaitStream();
  void AwaitDone() const;
  std::optional<Graph> Record(FunctionRef<void()> work);
  void Launch(const std::optional<Graph>& graph);
  void LaunchAllOnce();
  void GrowNothing();
  void MoveRows(std::span<const KvStore> stores, size_t num_rows, std::span<Slot> RareInputs::*from,
                std::span<Slot> RareInputs::*to);
  void Poison();
  void BringPlan(PlanStorage& plan);
  void Upload(const Bucket& bucket);
  void UploadMasks(const Bucket& bucket);
  void LaunchBucket(size_t number, PartMarks* marks = nullptr);
  void LaunchTimed(size_t number);
  void LaunchDraft(size_t number);
  void PlanStep(size_t number, const PlanStorage& plan);
  // Behind the forward pass: what a head takes of it.
  void FuseStates(size_t number, Ops& ops) const;
  void SampleTops(size_t num_wanted);
  void DownloadTops(size_t num_wanted);
  void SampleNext(const Bucket& bucket);
  void SampleScores(const StepWork& work);
  void Download(size_t num_score_blocks);

  GrowRowsArgs RowsOf(size_t bucket, std::span<const GrowingRows> rows,
                      const GrowthWork& growth) const;
  ForwardArgs ForwardOf(size_t number) const;
  ForwardArgs DraftOf(size_t number) const;
  LogitsArgs LogitsOf(const Bucket& bucket, std::span<const int32_t> rows) const;
  SampleArgs SampleOf(const SampleCapacity& capacity, const SampleInputs& inputs,
                      const SampleResults& results, SampleWork work) const;

  const RunnerOptions options_;
  const ModelConfig config_;  // as the options have it run
  const RunnerLimits limits_;
  const int32_t device_;  // the number of the calling thread's
  const DeviceProperties properties_;
  const GemmBackend gemm_backend_;
  const CudaRank rank_;
  DeviceBuffer arena_;
  PinnedBuffer pinned_;
  Stream stream_;
  Branch branch_;  // off it, within the forward pass
  Status status_;
  Carver carver_;  // over the arena: weights, angles, KV, steps
  Model model_;
  std::optional<EagleHead> head_;  // that drafts in place of the model's own layer
  std::vector<KvStore> stores_;    // of StoreLayouts
  CudaStepParts parts_;
  StepMemory memory_;
  StepOrders orders_;
  GemmPlanner gemms_;
  std::vector<BucketWork> work_;  // of each bucket
  Deliveries deliveries_;         // with room where trees grow

  Event done_;
  std::optional<Timing> timing_;     // while times are taken
  std::optional<DeviceError> lost_;  // why the device cannot be used any more
};

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_CUDA_STEP_DEVICE_H_
