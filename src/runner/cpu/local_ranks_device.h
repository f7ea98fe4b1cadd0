// Steps of one model on several ranks, each with threads of its own, in this process.
#ifndef QUIRE_RUNNER_CPU_LOCAL_RANKS_DEVICE_H_
#define QUIRE_RUNNER_CPU_LOCAL_RANKS_DEVICE_H_

#include <memory>
#include <vector>

#include "device/collective.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cpu/cpu_step_device.h"
#include "runner/local_ranks_device.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"
#include "runner/step_device.h"

namespace quire {

// Rank 0's device, with the others behind it.
class LocalRanksDevice final : public CpuStepDevice {
 public:
  // `plan` is rank 0's. Ranks load their weights one after the other.
  LocalRanksDevice(const ModelConfig& model, WeightSource& source, const RunnerOptions& options,
                   const MemoryPlan& plan, const LoadProgress& progress,
                   std::vector<std::unique_ptr<Collective>> ranks);
  ~LocalRanksDevice() override;

 private:
  LocalRanksDevice(const ModelConfig& model, WeightSource& source, const RunnerOptions& options,
                   const MemoryPlan& plan, const LoadProgress& progress,
                   const std::vector<std::shared_ptr<Collective>>& ranks);

  LocalFollowers<CpuStepDevice> followers_;
};

// The device of CPU ranks, or of one, that the options ask for. With `ranks`, which is rank 0's end of their
// group, the others are processes of their own.
std::unique_ptr<StepDevice> MakeCpuStepDevice(const ModelConfig& model, WeightSource& source,
                                              const RunnerOptions& options, const MemoryPlan& plan,
                                              const LoadProgress& progress,
                                              std::shared_ptr<Collective> ranks = nullptr);

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_LOCAL_RANKS_DEVICE_H_
