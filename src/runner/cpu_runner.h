// Runs steps of a model on the CPU: pack -> plan -> forward -> sample.
//
// Owns the weights, the KV stores and every buffer, in one arena that its memory plan lists. A step
// allocates nothing. Steps run on a thread of their own, so that a caller can prepare the next one
// between Submit and Collect.
#ifndef QUIRE_RUNNER_CPU_RUNNER_H_
#define QUIRE_RUNNER_CPU_RUNNER_H_

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "attn/kv_store.h"
#include "base/units.h"
#include "device/buffer.h"
#include "device/thread_pool.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/page_row_book.h"
#include "runner/runner_options.h"
#include "runner/step_memory.h"
#include "step/step.h"

namespace quire {

class CpuRunner final : public MeteredRunner {
 public:
  // Takes plan.total() bytes, all of them at once, and loads the weights; `plan` is
  // MakeMemoryPlan's for the same arguments. Throws as it does.
  CpuRunner(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
            const MemoryPlan& plan, const LoadProgress& progress = {});
  ~CpuRunner() override;
  CpuRunner(const CpuRunner&) = delete;
  CpuRunner& operator=(const CpuRunner&) = delete;

  const RunnerLimits& limits() const override { return plan_.limits; }
  void Submit(const StepBatch& batch) override;
  const StepResult& Collect() override;

  const MemoryPlan& memory_plan() const override { return plan_; }
  ByteOffset WeightBytesPerStep(int64_t num_tokens) const override;
  const Model& model() const { return model_; }
  Executor& executor() { return pool_; }

  // Between Collect and the next Submit:
  std::span<const Bucket> buckets() const { return memory_.buckets; }
  const StepStats& last_step() const override { return stats_; }
  const StepTimes& times() const override { return times_; }
  void TakeTimes(bool) override {}  // they always are
  bool TimingSlowsSteps() const override { return false; }

 private:
  void ThreadMain();
  void RunStep();
  void CopyPages();
  const Plan& MakePlan(Bucket& bucket, std::span<const SequenceStep> seqs);
  void SampleAll(ConstTensorView hidden, const SampledRows& sampled, const SampleResults& results);
  void ComputeLogits(ConstTensorView hidden, std::span<const int32_t> rows);

  const RunnerOptions options_;
  const MemoryPlan plan_;
  ThreadPool pool_;
  Buffer arena_;
  Carver carver_;  // over the arena: weights, angles, KV, steps
  Model model_;
  std::vector<KvStore> stores_;  // one per layer
  StepMemory memory_;
  std::vector<BucketSize> bucket_sizes_;
  std::vector<cpu::CpuOps> ops_;  // of each bucket
  PageRowBook book_;
  std::vector<RowUse> uses_;  // [rows of the largest bucket]

  StepBatch batch_;
  const StepResult* result_ = nullptr;
  StepStats stats_;
  StepTimes times_;
  cpu::PartClock clock_;

  // Invariants, under mutex_: kIdle -> (Submit) kRunning -> (the thread) kDone -> (Collect) kIdle.
  // The thread touches the members above while kRunning only, the caller at any other time.
  enum class State { kIdle, kRunning, kDone, kStopping };
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_RUNNER_H_
