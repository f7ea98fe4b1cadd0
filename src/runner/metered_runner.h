// A runner as commands and benchmarks know it: with its memory plan, and with what its steps were
// like.
#ifndef QUIRE_RUNNER_METERED_RUNNER_H_
#define QUIRE_RUNNER_METERED_RUNNER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/units.h"
#include "kernels/ops.h"
#include "runner/draft_runner.h"
#include "runner/memory_plan.h"
#include "step/step.h"

namespace quire {

// What the last step was like, for tests, benchmarks and metrics.
struct StepStats {
  size_t bucket = 0;
  int32_t padded_rows = 0;
  TokenCount padded_tokens{0};
  TokenCount expanded_tokens{0};  // that attended in multi-head form
  int32_t logit_rows = 0;
  int32_t copied_pages = 0;
  PageCount pages_looked_at{0};  // of sequences, on the host: those that were not kept
  // Experts that had rows: of the layer with the fewest of all that have experts, and of all layers together; 0 where
  // nobody counts them.
  int32_t fewest_experts = 0;
  int64_t experts_with_rows = 0;
};

// Where the time of steps goes.
enum class StepPart {
  kEmbedding,
  kProjections,
  kAttention,
  kMlp,
  kHead,
  kPlan,      // packing, page copies and the plan
  kSampling,  // from logits to tokens
  kOther,     // what nobody accounts for
};
inline constexpr size_t kNumStepParts = 8;
const char* StepPartName(StepPart part);
StepPart StepPartOf(ForwardPart part);

// Seconds of every part.
class StepTimes {
 public:
  double& operator[](StepPart part) { return seconds_[static_cast<size_t>(part)]; }
  double operator[](StepPart part) const { return seconds_[static_cast<size_t>(part)]; }
  double Sum() const;
  StepTimes& operator+=(const StepTimes& more);

 private:
  std::array<double, kNumStepParts> seconds_{};
};

class MeteredRunner : public Runner {
 public:
  virtual const MemoryPlan& memory_plan() const = 0;
  // Weights that a step of `num_tokens` tokens reads, as they lie in memory, if so many experts of all layers together
  // have rows; of 0 as many as the tokens can choose.
  virtual ByteOffset WeightBytesPerStep(int64_t num_tokens, int64_t experts_with_rows) const = 0;

  // Between Collect and the next Submit:
  virtual const StepStats& last_step() const = 0;
  // Of the last step, if it ran after TakeTimes(true).
  virtual const StepTimes& times() const = 0;
  // Whether steps are timed from now on. On a device that makes them slower.
  virtual void TakeTimes(bool on) = 0;
  virtual bool TimingSlowsSteps() const = 0;

  // What runs its model's draft layer, where one was loaded to draft; else null.
  virtual DraftRunner* draft_runner() { return nullptr; }
};

// One that steps by another, and is like it but for that.
class RunnerOver : public MeteredRunner {
 public:
  explicit RunnerOver(std::unique_ptr<MeteredRunner> target) : target_(std::move(target)) {}

  const MemoryPlan& memory_plan() const override { return target_->memory_plan(); }
  ByteOffset WeightBytesPerStep(int64_t num_tokens, int64_t experts_with_rows) const override {
    return target_->WeightBytesPerStep(num_tokens, experts_with_rows);
  }
  const StepStats& last_step() const override { return target_->last_step(); }
  const StepTimes& times() const override { return target_->times(); }
  void TakeTimes(bool on) override { target_->TakeTimes(on); }
  bool TimingSlowsSteps() const override { return target_->TimingSlowsSteps(); }

 protected:
  const std::unique_ptr<MeteredRunner> target_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_METERED_RUNNER_H_
