// Runners where a test of drafts wants them: on the CPU or on a device. Two binaries run the same tests;
// each links one maker.
#ifndef QUIRE_RUNNER_TEST_BACKEND_H_
#define QUIRE_RUNNER_TEST_BACKEND_H_

#include <filesystem>
#include <memory>

#include "model/config.h"
#include "model/weight_source.h"
#include "runner/metered_runner.h"
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

}  // namespace quire::testing

#endif  // QUIRE_RUNNER_TEST_BACKEND_H_
