// The runner of another rank's process, as a runner here: every call is a message to that process, and an
// answer.
#ifndef QUIRE_RUNNER_REMOTE_RUNNER_H_
#define QUIRE_RUNNER_REMOTE_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/collective.h"
#include "runner/batch_message.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "step/step.h"

namespace quire {

// Not for two threads at once; those of several ranks may be used at the same time. Of its steps it knows no
// more than their results: nothing is timed or counted.
class RemoteRunner final : public MeteredRunner {
 public:
  // `limits` and `plan` are those of the runner that rank `rank` serves.
  RemoteRunner(std::shared_ptr<Collective> ranks, int32_t rank, const RunnerLimits& limits,
               const MemoryPlan& plan);
  // The rank serves it no longer.
  ~RemoteRunner() override;
  RemoteRunner(const RemoteRunner&) = delete;
  RemoteRunner& operator=(const RemoteRunner&) = delete;

  const RunnerLimits& limits() const override { return limits_; }
  // Both throw what the rank's runner has thrown, too: an Error, InternalError or DeviceError with its words.
  void Submit(const StepBatch& batch) override;
  const StepResult& Collect() override;

  const MemoryPlan& memory_plan() const override { return plan_; }
  ByteOffset WeightBytesPerStep(int64_t, int64_t) const override { return plan_.weights; }
  const StepStats& last_step() const override { return stats_; }
  const StepTimes& times() const override { return times_; }
  void TakeTimes(bool) override {}
  bool TimingSlowsSteps() const override { return false; }

 private:
  MessageReader Ask();

  const std::shared_ptr<Collective> ranks_;
  const int32_t rank_;
  const RunnerLimits limits_;
  const MemoryPlan plan_;
  const StepStats stats_ = {};
  const StepTimes times_ = {};
  StepBatch batch_;  // at hand
  std::vector<std::byte> message_;
  ResultReader results_;
};

// In that process: does what rank 0's RemoteRunner asks of `runner` until it is gone. Throws DeviceError if a
// rank fails.
void ServeRunner(Runner& runner, Collective& ranks);

}  // namespace quire

#endif  // QUIRE_RUNNER_REMOTE_RUNNER_H_
