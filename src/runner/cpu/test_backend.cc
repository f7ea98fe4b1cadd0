#include "runner/test_backend.h"

#include "runner/cpu/group_runners.h"
#include "runner/cpu_runner.h"

namespace quire::testing {

std::unique_ptr<MeteredRunner> MakeBackendRunner(const ModelConfig& config, WeightSource& source,
                                                 RunnerOptions options) {
  const MemoryPlan plan = MakeMemoryPlan(config, source, options);
  return std::make_unique<CpuRunner>(config, source, options, plan);
}

MemoryPlan PlanOfBackend(const ModelConfig& config, WeightSource& source, RunnerOptions options) {
  return MakeMemoryPlan(config, source, options);
}

std::vector<std::unique_ptr<ModelRunner>> MakeBackendGroups(
    const ModelConfig& config, WeightSource& source, RunnerOptions options,
    std::span<const std::shared_ptr<Collective>> ranks) {
  const MemoryPlan plan = MakeMemoryPlan(config, source, options);
  return MakeGroupRunners(config, source, options, plan, {}, ranks);
}

std::chrono::milliseconds ShortPatience() { return std::chrono::milliseconds(50); }

}  // namespace quire::testing
