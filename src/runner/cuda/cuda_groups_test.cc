// Ranks with tokens of their own that share a GPU, or have one each: what group_runners_test, which runs on
// the CPU too, does not have.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda/cuda.h"
#include "device/cuda/nccl_ranks.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/group_runners.h"
#include "runner/cuda/local_ranks_device.h"
#include "runner/cuda/memory_plan.h"
#include "runner/cuda/test_ranks.h"
#include "runner/model_runner.h"
#include "runner/rank_cases.h"
#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/step_jobs.h"

namespace quire::cuda {
namespace {

using testing::JobReport;

std::vector<std::unique_ptr<ModelRunner>> GroupsOf(const ModelConfig& config, WeightSource& source,
                                                   const RunnerOptions& options,
                                                   const std::vector<CudaRank>& ranks) {
  return MakeGroupRunners(config, source, options, cuda::MakeMemoryPlan(config, source, options),
                          LoadProgress(), ranks);
}

RunnerOptions ExactGroups(int32_t dp_size, StepMode mode) {
  RunnerOptions options = ExactOptions(1, 1, mode);
  options.dp_size = dp_size;
  return options;
}

TEST_F(CudaRanks, GroupsChangeNoBitOfMatricesWhoseSumsAreCutNorOfE4m3Weights) {
  for (const bool is_e4m3 : {false, true}) {
    ModelConfig config = WideConfig();
    if (is_e4m3) config.fp8_blocks.emplace();
    const auto source = MakeDummyWeights(config);
    const std::vector<JobReport> alone =
        RunTwo(*RunnerOf(config, *source, ExactOptions(1, 1, StepMode::kEager)));
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      const auto groups =
          GroupsOf(config, *source, ExactGroups(4, mode), ShareDevice(MakeHostRanks(4)));
      for (const Others others : {Others::kNothing, Others::kTheSame}) {
        OneOfGroups one(PointersTo(groups), 3, others);
        ExpectSame(RunTwo(one), alone, is_e4m3 ? "e4m3" : "bf16");
      }
    }
  }
}

// More choices than one CTA sorts.
TEST_F(CudaRanks, GroupsChangeNoBitOfLongPrompts) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const auto source = MakeDummyWeights(config);
  const auto options = [](int32_t dp_size) {
    RunnerOptions each = ExactGroups(dp_size, StepMode::kGraph);
    each.page_size = PageSize(64);
    each.context = TokenCount(4096);
    each.max_step_tokens = TokenCount(4096);
    return each;
  };
  const auto run = [](Runner& runner) {
    std::vector<testing::Job> jobs = {MakeJob(runner, 1, 3000, kWholePrompt)};
    return testing::RunJobs(runner, jobs, 3);
  };
  const std::vector<JobReport> alone = run(*RunnerOf(config, *source, options(1)));
  const auto groups = GroupsOf(config, *source, options(2), ShareDevice(MakeHostRanks(2)));
  for (const Others others : {Others::kNothing, Others::kTheSame}) {
    OneOfGroups one(PointersTo(groups), 1, others);
    ExpectSame(run(one), alone, "2 groups");
  }
}

TEST_F(CudaRanks, GroupsReadMasksInCollect) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  RunnerOptions options = ExactGroups(2, StepMode::kGraph);
  options.max_seqs = 4;
  options.page_size = PageSize(16);
  options.max_step_tokens = TokenCount(64);
  const auto groups = GroupsOf(config, *source, options, ShareDevice(MakeHostRanks(2)));
  OneOfGroups one(PointersTo(groups), 1, Others::kNothing);
  ExpectMasksAreReadByCollect(one);
}

// Which experts are chosen may differ there, and so may what is drawn.
TEST_F(CudaRanks, GroupsRunInDefaultMode) {
  const ModelConfig config = WideConfig();
  const auto source = MakeDummyWeights(config);
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = ExactGroups(4, mode);
    options.deterministic = false;
    const auto groups = GroupsOf(config, *source, options, ShareDevice(MakeHostRanks(4)));
    OneOfGroups one(PointersTo(groups), 2, Others::kTheSame);
    for (const JobReport& report : RunTwo(one)) {
      for (const auto& token : report.tokens) EXPECT_TRUE(std::isfinite(token.chosen.logprob));
    }
  }
}

// Where there are as many GPUs.
TEST_F(CudaRanks, GroupsOfNcclChangeNoBit) {
  if (!NcclProblem().empty()) GTEST_SKIP() << NcclProblem();
  if (NumDevices() < 2) GTEST_SKIP() << "one GPU: several groups of NCCL were not run";
  const ModelConfig config = WideConfig();
  const auto source = MakeDummyWeights(config);
  const std::vector<JobReport> alone =
      RunTwo(*RunnerOf(config, *source, ExactOptions(1, 1, StepMode::kGraph)));
  for (const int32_t size : {2, 4, 8}) {
    if (size > NumDevices() || config.moe.route.num_experts % size != 0) break;
    const auto groups = GroupsOf(config, *source, ExactGroups(size, StepMode::kGraph),
                                 JoinByNccl(MakeHostRanks(size)));
    for (const Others others : {Others::kNothing, Others::kTheSame}) {
      OneOfGroups one(PointersTo(groups), 1, others);
      ExpectSame(RunTwo(one), alone, fmt::format("{} groups", size));
    }
  }
}

}  // namespace
}  // namespace quire::cuda
