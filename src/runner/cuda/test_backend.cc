#include "runner/test_backend.h"

#include "runner/cuda/group_runners.h"
#include "runner/cuda/local_ranks_device.h"
#include "runner/cuda/needs_device.h"
#include "runner/cuda/test_runner.h"

namespace quire::testing {

std::unique_ptr<MeteredRunner> MakeBackendRunner(const ModelConfig& config, WeightSource& source,
                                                 RunnerOptions options) {
  options.deterministic = true;
  return cuda::MakeDeviceRunner(config, source, options);
}

MemoryPlan PlanOfBackend(const ModelConfig& config, WeightSource& source, RunnerOptions options) {
  options.deterministic = true;
  return cuda::MakeMemoryPlan(config, source, options);
}

std::vector<std::unique_ptr<ModelRunner>> MakeBackendGroups(
    const ModelConfig& config, WeightSource& source, RunnerOptions options,
    std::span<const std::shared_ptr<Collective>> ranks) {
  options.deterministic = true;
  const MemoryPlan plan = cuda::MakeMemoryPlan(config, source, options);
  return cuda::MakeGroupRunners(config, source, options, plan, {}, cuda::ShareDevice(ranks));
}

// Kernels are loaded as they are first launched, and buckets recorded.
std::chrono::milliseconds ShortPatience() { return std::chrono::milliseconds(3000); }

}  // namespace quire::testing
