// What the tests of ranks and of groups on one GPU share: runners that are held to bits, and a model whose sums
// are cut.
#ifndef QUIRE_RUNNER_CUDA_TEST_RANKS_H_
#define QUIRE_RUNNER_CUDA_TEST_RANKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "device/cuda/cuda.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/cuda_runner.h"
#include "runner/cuda/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/rank_cases.h"
#include "runner/runner_options.h"
#include "runner/test_models.h"

namespace quire::cuda {

inline RunnerOptions ExactOptions(int32_t tp_size, int32_t ep_size, StepMode mode) {
  RunnerOptions options = OptionsOfRanks(tp_size, ep_size);
  options.mode = mode;
  options.deterministic = true;
  return options;
}

inline std::unique_ptr<ModelRunner> RunnerOf(const ModelConfig& config, WeightSource& source,
                                             const RunnerOptions& options) {
  return std::make_unique<CudaRunner>(config, source, options,
                                      cuda::MakeMemoryPlan(config, source, options));
}

class CudaRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

// Matrices so large that sums are cut, as many times as the whole matrix says and not a rank's part of it.
inline ModelConfig WideConfig() {
  ModelConfig config = ReadModelConfig(kTrueGeometry);
  config.hidden_size = 2048;
  config.num_heads = 16;
  config.q_lora_rank = 1536;
  config.dense_width = 4096;
  config.moe.expert_width = 1024;
  config.moe.shared_width = 1024;
  config.vocab_size = 16384;
  return config;
}

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_TEST_RANKS_H_
