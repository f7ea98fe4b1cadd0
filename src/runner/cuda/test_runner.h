// What the tests of this folder share: runners on the device.
#ifndef QUIRE_RUNNER_CUDA_TEST_RUNNER_H_
#define QUIRE_RUNNER_CUDA_TEST_RUNNER_H_

#include <filesystem>
#include <memory>

#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/cuda_runner.h"
#include "runner/cuda/memory_plan.h"
#include "runner/runner_options.h"
#include "testing/step_jobs.h"

namespace quire::cuda {

inline const std::filesystem::path kTestData(QUIRE_RUNNER_TESTDATA);

inline std::unique_ptr<CudaRunner> MakeDeviceRunner(const ModelConfig& config, WeightSource& source,
                                                    const RunnerOptions& options) {
  const MemoryPlan plan = cuda::MakeMemoryPlan(config, source, options);
  return std::make_unique<CudaRunner>(config, source, options, plan);
}

inline std::unique_ptr<CudaRunner> MakeDeviceRunner(
    const std::filesystem::path& folder, const RunnerOptions& options,
    testing::Weights weights = testing::Weights::kFiles) {
  const ModelConfig config = ReadModelConfig(folder);
  const std::unique_ptr<WeightSource> source = weights == testing::Weights::kFiles
                                                   ? OpenWeightFiles(folder, config)
                                                   : MakeDummyWeights(config);
  return MakeDeviceRunner(config, *source, options);
}

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_TEST_RUNNER_H_
