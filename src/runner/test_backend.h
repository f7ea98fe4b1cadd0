// Runners where a test of drafts or of groups wants them: on the CPU or on a device. Two binaries run the same
// tests; each links one maker.
#ifndef QUIRE_RUNNER_TEST_BACKEND_H_
#define QUIRE_RUNNER_TEST_BACKEND_H_

#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "device/collective.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"
#include "testing/step_jobs.h"

namespace quire::testing {

// Its answers do not depend on what else it does.
std::unique_ptr<MeteredRunner> MakeBackendRunner(const ModelConfig& config, WeightSource& source,
                                                 RunnerOptions options);

inline std::unique_ptr<MeteredRunner> MakeBackendRunner(const std::filesystem::path& folder,
                                                        const RunnerOptions& options,
                                                        Weights weights = Weights::kFiles) {
  const ModelConfig config = ReadModelConfig(folder);
  const std::unique_ptr<WeightSource> source =
      weights == Weights::kFiles ? OpenWeightFiles(folder, config) : MakeDummyWeights(config);
  return MakeBackendRunner(config, *source, options);
}

// Of one of the options' ranks.
MemoryPlan PlanOfBackend(const ModelConfig& config, WeightSource& source, RunnerOptions options);

// Runners of groups, as many as `ranks`, on one device. Each is called on a thread of its own.
std::vector<std::unique_ptr<ModelRunner>> MakeBackendGroups(
    const ModelConfig& config, WeightSource& source, RunnerOptions options,
    std::span<const std::shared_ptr<Collective>> ranks);

// As short a patience as leaves time to get ready.
std::chrono::milliseconds ShortPatience();

}  // namespace quire::testing

#endif  // QUIRE_RUNNER_TEST_BACKEND_H_
