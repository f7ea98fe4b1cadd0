// One model on several ranks that share a GPU: with `deterministic` the bits are those of one rank, in eager
// steps and in graphs; without it the results are close.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/nccl_ranks.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/cuda_runner.h"
#include "runner/cuda/local_ranks_device.h"
#include "runner/cuda/memory_plan.h"
#include "runner/cuda/test_call_count.h"
#include "runner/cuda/test_ranks.h"
#include "runner/draft_cases.h"
#include "runner/layer_drafter.h"
#include "runner/model_runner.h"
#include "runner/rank_cases.h"
#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/step_jobs.h"

namespace quire::cuda {
namespace {

using testing::JobReport;

std::string Of(const RunnerOptions& options) {
  return fmt::format("tp {}, ep {}, {}{}", options.tp_size, options.ep_size,
                     options.mode == StepMode::kGraph ? "graph" : "eager",
                     options.checks == StepChecks::kPoison ? ", poisoned" : "");
}

// E4m3 weights are cut between blocks of scales alone.
bool CanCut(const ModelConfig& config, int32_t size) {
  try {
    CudaConfigFor(config, OptionsOfRanks(size));
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(config.fp8_blocks.has_value()) << error.what();
    return false;
  }
}

// Sizes that the heads allow in graphs, and eager steps and experts of their own with the most ranks.
void ExpectNoBitChanges(const ModelConfig& config, WeightSource& source) {
  const std::vector<JobReport> alone =
      RunTwo(*RunnerOf(config, source, ExactOptions(1, 1, StepMode::kEager)));
  const auto expect_same = [&](const RunnerOptions& options) {
    ExpectSame(RunTwo(*RunnerOf(config, source, options)), alone, Of(options));
  };
  int32_t most = 1;
  for (const int32_t size : {2, 4, 5, 8}) {
    if (config.num_heads % size != 0 || !CanCut(config, size)) continue;
    expect_same(ExactOptions(size, 1, StepMode::kGraph));
    most = size;
  }
  if (most == 1 && config.fp8_blocks) GTEST_SKIP() << "blocks of scales are too few to share out";
  ASSERT_GT(most, 1) << config.num_heads << " heads";
  RunnerOptions poisoned = ExactOptions(most, 1, StepMode::kEager);
  poisoned.checks = StepChecks::kPoison;
  expect_same(poisoned);
  if (config.moe.expert_width == 0 || config.moe.route.num_experts % most != 0) return;
  expect_same(ExactOptions(most, most, StepMode::kEager));
  expect_same(ExactOptions(most, most, StepMode::kGraph));
}

class CudaRanksTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

TEST_P(CudaRanksTest, ChangeNoBitOfAFixture) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / GetParam());
  const auto source = OpenWeightFiles(kHfFixtures / GetParam(), config);
  ExpectNoBitChanges(config, *source);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaRanksTest, ::testing::ValuesIn(FixtureNames()),
                         [](const auto& name) { return name.param; });

TEST_F(CudaRanks, ChangeNoBitOfMatricesWhoseSumsAreCut) {
  const ModelConfig config = WideConfig();
  ExpectNoBitChanges(config, *MakeDummyWeights(config));
}

// Inputs of all buckets lie in one place: where a rank that follows reads a decode's, a prompt's tokens were.
TEST_F(CudaRanks, TakeNoPromptForADecode) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const auto source = MakeDummyWeights(config);
  const auto run = [&](int32_t tp_size) {
    RunnerOptions options = ExactOptions(tp_size, 1, StepMode::kGraph);
    options.page_size = PageSize(64);
    options.context = TokenCount(2048);
    options.max_step_tokens = TokenCount(2048);
    const std::unique_ptr<ModelRunner> runner = RunnerOf(config, *source, options);
    std::vector<testing::Job> jobs = {MakeJob(*runner, 1, 1900, kWholePrompt)};
    return testing::RunJobs(*runner, jobs, 3);
  };
  ExpectSame(run(2), run(1), "2 ranks");
}

TEST_F(CudaRanks, ChangeNoBitOfE4m3Weights) {
  ModelConfig config = WideConfig();
  config.fp8_blocks.emplace();
  ExpectNoBitChanges(config, *MakeDummyWeights(config));
}

TEST_F(CudaRanks, ChangeNoBitOfSparseAttention) {
  const ModelConfig config = ReadModelConfig(kSparse);
  ExpectNoBitChanges(config, *MakeDummyWeights(config));
}

// Drafts grow on the host where ranks are several, and on the device of one.
TEST_F(CudaRanks, GuessAheadWithTheBitsOfOneThatDoesNot) {
  ModelConfig wide = WideConfig();
  wide.num_draft_layers = 1;
  const ModelConfig fixture = ReadModelConfig(DraftFixture("v3_mtp"));
  const auto wide_source = MakeDummyWeights(wide);
  const auto fixture_source = OpenWeightFiles(DraftFixture("v3_mtp"), fixture);
  for (const bool is_wide : {false, true}) {
    const auto make = [&](int32_t size, RunnerOptions options) -> std::unique_ptr<MeteredRunner> {
      options.tp_size = size;
      options.deterministic = true;
      options.kv_format = KvFormat::kLatentBf16;
      return RunnerOf(is_wide ? wide : fixture, is_wide ? *wide_source : *fixture_source, options);
    };
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      const RunnerOptions options = DraftOptions(16, mode);
      SCOPED_TRACE(Of(options) + (is_wide ? ", wide" : ""));
      ExpectRanksDraftAsOne(2, {.steps = 3, .nodes = 4}, options, make);
      ExpectRanksDraftAsOne(4, {.steps = 3, .branches = 4, .nodes = 8}, options, make);
      ExpectRanksGuessByTheTextAsOne(4, options, make);
    }
  }
}

TEST_F(CudaRanks, ADraftLayerIsSharedOut) {
  ModelConfig config = WideConfig();
  config.num_draft_layers = 1;
  const auto source = MakeDummyWeights(config);
  const TreeShape shape{.steps = 3, .nodes = 4};
  const auto weights = [&](int32_t size, bool drafts) {
    RunnerOptions options = ExactOptions(size, 1, StepMode::kGraph);
    if (drafts) options = LayerTargetOptions(options, shape);
    return cuda::MakeMemoryPlan(config, *source, options).weights.raw();
  };
  const auto layer = [&](int32_t size) { return weights(size, true) - weights(size, false); };
  EXPECT_GT(layer(4), 0);
  EXPECT_LT(layer(4), layer(1) / 2);
}

// Without experts: where two of them tie, rounding decides.
TEST_F(CudaRanks, AreCloseToOneInDefaultMode) {
  ModelConfig config = WideConfig();
  std::ranges::fill(config.layers, LayerKind::kDense);
  const auto source = MakeDummyWeights(config);
  const std::vector<JobReport> alone =
      RunTwo(*RunnerOf(config, *source, ExactOptions(1, 1, StepMode::kEager)));
  for (const int32_t size : {1, 2, 4, 8}) {
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      RunnerOptions options = ExactOptions(size, 1, mode);
      options.deterministic = false;
      const std::vector<JobReport> reports = RunTwo(*RunnerOf(config, *source, options));
      double most = 0;
      for (size_t job = 0; job < reports.size(); ++job) {
        const size_t prompt = job == 0 ? 24 : 10;  // what is drawn may differ
        for (size_t i = 0; i < prompt; ++i) {
          const float expected = alone[job].tokens[i].chosen.logprob;
          most = std::max<double>(most, std::abs(reports[job].tokens[i].chosen.logprob - expected));
        }
      }
      EXPECT_LT(most, 0.05) << Of(options);
    }
  }
}

TEST_F(CudaRanks, ReadMasksInCollect) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = ExactOptions(2, 1, mode);
    options.max_seqs = 4;
    options.page_size = PageSize(16);
    options.max_step_tokens = TokenCount(64);
    ExpectMasksAreReadByCollect(*RunnerOf(config, *source, options));
  }
}

// Times of steps are rank 0's; the others record what it records.
TEST_F(CudaRanks, TakeTimesWithTheSameBits) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  const std::vector<JobReport> alone =
      RunTwo(*RunnerOf(config, *source, ExactOptions(1, 1, StepMode::kEager)));
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    const auto runner = RunnerOf(config, *source, ExactOptions(4, 1, mode));
    runner->TakeTimes(true);
    ExpectSame(RunTwo(*runner), alone, "timed");
    EXPECT_GT(runner->times()[StepPart::kMlp], 0.0);
  }
}

// More pages than one step brings, twice over.
TEST_F(CudaRanks, BringManyPages) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const auto source = MakeDummyWeights(config);
  float logprobs[2] = {};
  for (const int32_t size : {1, 2}) {
    RunnerOptions options = ExactOptions(size, 1, StepMode::kGraph);
    options.page_size = PageSize(1);
    options.context = TokenCount(4096);
    options.max_seqs = 3;
    options.max_step_tokens = TokenCount(32);
    options.pool_tokens = TokenCount(13000);
    const auto runner = RunnerOf(config, *source, options);
    const std::vector<int32_t> tokens = testing::RandomTokens(4, runner->limits().vocab_size, 1);
    const std::vector<PageId> pages = FirstPages(12288);
    std::vector<StepSequence> seqs;
    for (size_t i = 0; i < 3; ++i) {
      seqs.push_back({.id = i + 1,
                      .tokens = tokens,
                      .position = TokenCount(4092),
                      .pages = std::span(pages).subspan(i * 4096, 4096),
                      .want = Want::kNextToken,
                      .sampling = {.temperature = 0}});
    }
    logprobs[size - 1] =
        runner->Step({.sequences = seqs}).sequences[2].answers[0].tokens[0].chosen.logprob;
  }
  EXPECT_EQ(logprobs[0], logprobs[1]);
}

std::vector<MemoryPlan> PlansOf(const ModelConfig& config, WeightSource& source,
                                const RunnerOptions& options) {
  return PlansOfEach(options, [&](const RunnerOptions& each) {
    return cuda::MakeMemoryPlan(config, source, each);
  });
}

// Each rank takes its plan's bytes at once, a status word, and nothing else, neither then nor in steps.
void ExpectTheMemoryOfTheirPlans(const ModelConfig& config, WeightSource& source,
                                 const RunnerOptions& options) {
  SCOPED_TRACE(Of(options) + (options.deterministic ? "" : ", default") +
               (options.draft_layer ? ", drafting" : ""));
  constexpr ByteOffset kStatusWord{8};
  std::vector<ByteOffset> planned;
  for (const ByteOffset arena : ArenasOf(PlansOf(config, source, options))) {
    planned.insert(planned.end(), {arena, kStatusWord});
  }
  TakeDeviceSizes();
  const std::unique_ptr<ModelRunner> runner = RunnerOf(config, source, options);
  EXPECT_EQ(TakeDeviceSizes(), planned);
  RunTwo(*runner);
  EXPECT_EQ(TakeDeviceSizes(), std::vector<ByteOffset>()) << "in steps";
}

// With experts cut and shared out where there are some.
void ExpectTheMemoryOfTheirPlansWithExperts(const ModelConfig& config, WeightSource& source,
                                            const RunnerOptions& options) {
  ExpectTheMemoryOfTheirPlans(config, source, options);
  if (config.moe.route.num_experts % options.tp_size != 0) return;
  RunnerOptions whole = options;
  whole.ep_size = options.tp_size;
  ExpectTheMemoryOfTheirPlans(config, source, whole);
}

TEST_F(CudaRanks, TakeTheMemoryOfTheirPlans) {
  const ModelConfig config = WideConfig();
  const auto source = MakeDummyWeights(config);
  const MemoryPlan alone =
      cuda::MakeMemoryPlan(config, *source, ExactOptions(1, 1, StepMode::kGraph));
  for (const int32_t size : {2, 8}) {
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      RunnerOptions options = ExactOptions(size, 1, mode);
      for (const MemoryPlan& plan : PlansOf(config, *source, options)) {
        EXPECT_EQ(plan.num_ranks, size);
        EXPECT_LT(plan.weights, alone.weights);
      }
      ExpectTheMemoryOfTheirPlansWithExperts(config, *source, options);
      options.deterministic = false;
      ExpectTheMemoryOfTheirPlansWithExperts(config, *source, options);
    }
  }
}

TEST_F(CudaRanks, TakeTheMemoryOfTheirPlansWithE4m3WeightsAndSparseAttention) {
  ModelConfig narrow = WideConfig();
  narrow.fp8_blocks.emplace();
  for (const ModelConfig& config : {narrow, ReadModelConfig(kSparse)}) {
    const auto source = MakeDummyWeights(config);
    for (const int32_t size : {2, 4}) {
      if (config.num_heads % size != 0 || !CanCut(config, size)) continue;
      ExpectTheMemoryOfTheirPlansWithExperts(config, *source,
                                             ExactOptions(size, 1, StepMode::kEager));
    }
  }
}

TEST_F(CudaRanks, TakeTheMemoryOfTheirPlansWithADraftLayer) {
  ModelConfig wide = WideConfig();
  wide.num_draft_layers = 1;
  ModelConfig sparse = ReadModelConfig(kSparse);
  sparse.num_draft_layers = 1;
  for (const ModelConfig& config : {wide, sparse}) {
    const auto source = MakeDummyWeights(config);
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      ExpectTheMemoryOfTheirPlansWithExperts(
          config, *source,
          LayerTargetOptions(ExactOptions(2, 1, mode), {.steps = 3, .branches = 4, .nodes = 8}));
    }
  }
}

// The driver gives memory in granules of 2 MiB. Beside the ranks' arenas it has what the runner says is outside
// of them: the context and its kernels, which a runner before has brought, and recorded graphs.
TEST_F(CudaRanks, TakeTheMemoryOfTheirPlansFromTheDriver) {
  constexpr int64_t kGranule = int64_t{2} << 20;
  const ModelConfig config = WideConfig();
  const auto source = MakeDummyWeights(config);
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    for (const int32_t size : {2, 8}) {
      RunnerOptions options = ExactOptions(size, 1, mode);
      options.pool_tokens = TokenCount(1'000'000);
      RunTwo(*RunnerOf(config, *source, options));
      const std::vector<MemoryPlan> plans = PlansOf(config, *source, options);
      const ByteOffset before = FreeDeviceMemory();
      const std::unique_ptr<ModelRunner> runner = RunnerOf(config, *source, options);
      RunTwo(*runner);
      const ByteOffset after = FreeDeviceMemory();
      const ByteOffset arenas = plans[0].arena_of_all();
      const int64_t beside = (before - after - arenas).raw();
      fmt::print("{}: {} MiB planned, {:.2f} MiB beside\n", Of(options), arenas.raw() >> 20,
                 static_cast<double>(beside) / (1 << 20));
      EXPECT_GE(beside, 0) << Of(options);
      // Of each rank the end of its arena's last granule, and one granule for the words of all.
      const int64_t rounding = kGranule * (size + 1);
      const double graphs = mode == StepMode::kGraph ? 0.03 : 0.0;
      EXPECT_LE(static_cast<double>(beside - rounding), graphs * static_cast<double>(arenas.raw()))
          << Of(options);
      // Steps took nothing since the runner was ready.
      const ByteOffset used = QueryDevice().memory - after;
      EXPECT_NEAR(static_cast<double>((used - arenas).raw()),
                  static_cast<double>(runner->memory_plan().outside.raw()), kGranule)
          << Of(options);
    }
  }
}

// A rank's end of a group, which breaks, or is late, in its n-th gather.
class BreakingDeviceRank final : public DeviceRank {
 public:
  BreakingDeviceRank(std::shared_ptr<DeviceRank> rank, int gathers, std::function<void()> breaks)
      : rank_(std::move(rank)), left_(gathers), breaks_(std::move(breaks)) {}

  int32_t rank() const override { return rank_->rank(); }
  int32_t size() const override { return rank_->size(); }
  int32_t ranks_of_device() const override { return rank_->ranks_of_device(); }
  void AllGather(TensorView whole, std::span<const Share> shares, const Stream& stream) override {
    if (--left_ == 0) breaks_();
    rank_->AllGather(whole, shares, stream);
  }
  void AllReduceOr(std::span<uint32_t> words, const Stream& stream) override {
    rank_->AllReduceOr(words, stream);
  }
  std::optional<Graph> Record(const Stream& stream, FunctionRef<void()> work) override {
    return rank_->Record(stream, work);
  }
  void Launch(const std::optional<Graph>& graph, const Stream& stream) override {
    rank_->Launch(graph, stream);
  }

 private:
  const std::shared_ptr<DeviceRank> rank_;
  int left_;
  const std::function<void()> breaks_;
};

// While buckets are prepared, in a recording, and within a step.
TEST_F(CudaRanks, OneThatBreaksOrIsLateEndsTheRunnerByItsName) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  struct Case {
    StepMode mode;
    int gathers;
    bool is_late;
  };
  for (const auto& [mode, gathers, is_late] :
       {Case{StepMode::kGraph, 1, false}, Case{StepMode::kGraph, 30, false},
        Case{StepMode::kGraph, 100, false}, Case{StepMode::kEager, 200, false},
        Case{StepMode::kEager, 5, true}}) {
    const RunnerOptions options = ExactOptions(4, 1, mode);
    const MemoryPlan plan = cuda::MakeMemoryPlan(config, *source, options);
    std::vector<CudaRank> ranks =
        ShareDevice(MakeHostRanks(4, std::chrono::milliseconds(is_late ? 1000 : 60000)));
    ranks[2].device =
        std::make_shared<BreakingDeviceRank>(ranks[2].device, gathers, [late = is_late] {
          if (!late) throw Error(ErrorCode::kInvalidArgument, "a memory error");
          std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        });
    const auto run = [&] {
      ModelRunner runner(
          std::make_unique<LocalRanksDevice>(config, *source, options, plan, LoadProgress(), ranks),
          plan);
      for (int round = 0; round < 20; ++round) RunTwo(runner);
    };
    EXPECT_EQ(DeviceErrorOf(run), is_late ? "rank 2 of 4: did not come to a gather within 1000 ms"
                                          : "rank 2 of 4: a memory error")
        << gathers;
  }
}

// One rank runs the same calls as several, through NCCL, and a recording has them in it.
TEST_F(CudaRanks, OneOfNcclChangesNoBit) {
  if (!NcclProblem().empty()) GTEST_SKIP() << NcclProblem();
  for (const ModelConfig& config : {ReadModelConfig(kTrueGeometry), WideConfig()}) {
    const auto source = MakeDummyWeights(config);
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      const RunnerOptions options = ExactOptions(1, 1, mode);
      const std::vector<JobReport> alone = RunTwo(*RunnerOf(config, *source, options));
      const MemoryPlan plan = cuda::MakeMemoryPlan(config, *source, options);
      ModelRunner runner(
          std::make_unique<LocalRanksDevice>(config, *source, options, plan, LoadProgress(),
                                             JoinByNccl(MakeHostRanks(1))),
          plan);
      ExpectSame(RunTwo(runner), alone, Of(options));
      // As a process of mpirun does.
      const std::shared_ptr<Collective> host = std::move(MakeLocalRanks(1)[0]);
      CudaRunner process(config, *source, options, plan, LoadProgress(), host);
      ExpectSame(RunTwo(process), alone, Of(options) + ", a process");
    }
  }
}

// Where there are as many GPUs.
TEST_F(CudaRanks, OfNcclChangeNoBit) {
  if (!NcclProblem().empty()) GTEST_SKIP() << NcclProblem();
  if (NumDevices() < 2) GTEST_SKIP() << "one GPU: several ranks of NCCL were not run";
  const ModelConfig config = WideConfig();
  const auto source = MakeDummyWeights(config);
  const std::vector<JobReport> alone =
      RunTwo(*RunnerOf(config, *source, ExactOptions(1, 1, StepMode::kGraph)));
  for (const int32_t size : {2, 4, 8}) {
    if (size > NumDevices()) break;
    for (const int32_t ep_size : {1, size}) {
      const RunnerOptions options = ExactOptions(size, ep_size, StepMode::kGraph);
      ExpectSame(RunTwo(*RunnerOf(config, *source, options)), alone, Of(options));
    }
  }
}

TEST_F(CudaRanks, EndWhileAStepIsUnderWay) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<PageId> pages = FirstPages(1);
  const StepSequence seq{.tokens = tokens, .pages = pages, .want = Want::kNextToken};
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  // Behind what the step was given, which stays until the runner has ended.
  const auto runner = RunnerOf(config, *source, ExactOptions(2, 1, StepMode::kGraph));
  runner->Submit({.sequences = {&seq, 1}});
}

}  // namespace
}  // namespace quire::cuda
