#include "runner/cpu/group_runners.h"

#include "base/error.h"
#include "runner/cpu/cpu_step_device.h"

namespace quire {

std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(
    const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
    const MemoryPlan& plan, const LoadProgress& progress,
    std::span<const std::shared_ptr<Collective>> ranks) {
  QUIRE_CHECK(std::ssize(ranks) == options.dp_size, "{} ranks of {}", ranks.size(),
              options.dp_size);
  const auto plan_of = [&](const RunnerOptions& each) {
    return MakeMemoryPlan(config, source, each);
  };
  const auto device_of = [&](const RunnerOptions& each, const MemoryPlan& own,
                             const LoadProgress& loaded) -> std::unique_ptr<StepDevice> {
    return std::make_unique<CpuStepDevice>(config, source, each, own, loaded,
                                           ranks[static_cast<size_t>(each.rank)]);
  };
  return MakeGroupRunners(options, plan, progress, {.plan = plan_of, .device = device_of});
}

}  // namespace quire
