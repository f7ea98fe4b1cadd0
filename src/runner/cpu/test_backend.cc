#include "runner/test_backend.h"

#include "runner/cpu_runner.h"

namespace quire::testing {

std::unique_ptr<MeteredRunner> MakeBackendRunner(const ModelConfig& config, WeightSource& source,
                                                 RunnerOptions options) {
  const MemoryPlan plan = MakeMemoryPlan(config, source, options);
  return std::make_unique<CpuRunner>(config, source, options, plan);
}

}  // namespace quire::testing
