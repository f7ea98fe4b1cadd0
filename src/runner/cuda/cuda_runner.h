// Runs steps of a model on a Hopper GPU: pack -> copy there -> plan, forward pass, logits -> sample ->
// copy back.
//
// Owns the weights, the KV stores and every buffer, in one arena of device memory that its memory plan
// lists, and pinned memory for what goes there and back. A step takes no memory and waits once, in
// Collect. Steps are padded to buckets whose addresses never change: StepMode::kGraph records the work
// of every bucket once and launches it as one, kEager launches the same work piece by piece.
#ifndef QUIRE_RUNNER_CUDA_CUDA_RUNNER_H_
#define QUIRE_RUNNER_CUDA_CUDA_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm_planner.h"
#include "kernels/cuda/part_marks.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weight_source.h"
#include "model/weights.h"
#include "runner/cuda/step_memory.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/page_row_book.h"
#include "runner/runner_options.h"
#include "runner/step_inputs.h"
#include "step/step.h"

namespace quire::cuda {

// Not for two threads at once.
class CudaRunner final : public MeteredRunner {
 public:
  // Takes plan.arena() bytes of the device at once, loads the weights, and runs every bucket once;
  // with StepMode::kGraph it records them, too. `plan` is cuda::MakeMemoryPlan's for the same
  // arguments. Throws as it does, and Error(kCapacityExceeded) if the device has not that much.
  CudaRunner(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
             const MemoryPlan& plan, const LoadProgress& progress = {});
  ~CudaRunner() override;
  CudaRunner(const CudaRunner&) = delete;
  CudaRunner& operator=(const CudaRunner&) = delete;

  const RunnerLimits& limits() const override { return plan_.limits; }
  // Both throw DeviceError, too. Once one is_sticky(), every later call throws it again.
  void Submit(const StepBatch& batch) override;
  // Throws InternalError, naming the kernel, if one found something out of bounds.
  const StepResult& Collect() override;

  // `outside` is what was in use beside the arena once the runner was ready.
  const MemoryPlan& memory_plan() const override { return plan_; }
  ByteOffset WeightBytesPerStep(int64_t num_tokens) const override;

  const StepStats& last_step() const override { return stats_; }
  const StepTimes& times() const override { return times_; }
  void TakeTimes(bool on) override;
  bool TimingSlowsSteps() const override { return true; }
  std::span<const Bucket> buckets() const { return memory_.buckets; }

 private:
  using Clock = std::chrono::steady_clock;
  // Points of a step between which its time is divided, beside those of the bucket's pass.
  struct Timing {
    Event begin{true}, planned{true}, computed{true}, sampled{true};
    double host_seconds = 0;
  };

  void PlanProducts();
  void PrepareBuckets();
  void PrepareBucket(Bucket& bucket);
  void LaunchAllOnce();

  void Start(const StepBatch& batch);
  void PackBucket(Bucket& bucket);
  void PackPlan(Bucket& bucket);
  void BringPages(Bucket& bucket, std::span<const SequenceStep> seqs, std::span<RowUse> uses);
  void CopyPages();
  void Poison();
  void Upload(const Bucket& bucket);
  void LaunchBucket(const Bucket& bucket, PartMarks* marks = nullptr);
  void LaunchTimed(Bucket& bucket);
  void LaunchNext(const Bucket& bucket);
  void LaunchScores(const Bucket& bucket);
  void Download();

  ForwardArgs ForwardOf(const Bucket& bucket) const;
  LogitsArgs LogitsOf(const Bucket& bucket, std::span<const int32_t> rows) const;
  SampleArgs SampleOf(const SampleCapacity& capacity, const SampleInputs& inputs,
                      const SampleResults& results, SampleWork work) const;
  void CountExperts();
  void AddTimes();
  void ThrowIfLost() const;
  void Remember(const DeviceError& error);
  void WaitQuietly();

  const RunnerOptions options_;
  MemoryPlan plan_;
  const DeviceProperties properties_;
  DeviceBuffer arena_;
  PinnedBuffer pinned_;
  Stream stream_;
  Branch branch_;  // off it, within the forward pass
  Status status_;
  Carver carver_;  // over the arena: weights, angles, KV, steps
  Model model_;
  std::vector<KvStore> stores_;  // one per layer
  StepMemory memory_;
  GemmPlanner gemms_;
  std::vector<BucketSize> bucket_sizes_;
  PageRowBook book_;

  // The step at hand.
  StepBatch batch_;
  std::vector<SequenceStep> seqs_;      // [rows of the largest bucket]
  std::vector<RowUse> uses_;            // as many
  std::vector<SequenceStep> carriers_;  // as many: of a step that only brings pages
  std::vector<RowUse> carrier_uses_;
  Event done_;
  bool is_running_ = false;

  StepStats stats_;
  StepTimes times_;
  std::optional<Timing> timing_;     // while times are taken
  std::optional<DeviceError> lost_;  // why the device cannot be used any more
};

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_CUDA_RUNNER_H_
