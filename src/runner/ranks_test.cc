// One model on several ranks of this process: the bits are those of one rank, and what happens to one
// rank is told of all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/executor.h"
#include "device/arena.h"
#include "device/collective.h"
#include "kernels/cpu/weight_packer.h"
#include "model/config.h"
#include "model/rope_table.h"
#include "model/shard.h"
#include "model/weight_source.h"
#include "runner/cpu/cpu_step_device.h"
#include "runner/cpu/local_ranks_device.h"
#include "runner/cpu/test_mapped_memory.h"
#include "runner/draft_cases.h"
#include "runner/kv_stores.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/plan_parts.h"
#include "runner/rank_cases.h"
#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/resident_bytes.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::AllocationCount;
using testing::ErrorMessage;
using testing::JobReport;
using testing::MakeRunner;
using testing::Weights;

// All sizes that the heads allow, with experts cut by their width and shared out.
void ExpectRanksChangeNoBit(const std::filesystem::path& folder, Weights weights) {
  const ModelConfig config = ReadModelConfig(folder);
  const std::vector<JobReport> alone = RunTwo(*MakeRunner(folder, OptionsOfRanks(1), weights));
  for (const int32_t size : {2, 4, 5, 8}) {
    if (config.num_heads % size != 0) continue;
    ExpectSame(RunTwo(*MakeRunner(folder, OptionsOfRanks(size), weights)), alone,
               fmt::format("{} ranks", size));
    if (config.moe.expert_width == 0 || config.moe.route.num_experts % size != 0) continue;
    ExpectSame(RunTwo(*MakeRunner(folder, OptionsOfRanks(size, size), weights)), alone,
               fmt::format("{} ranks with experts of their own", size));
  }
}

class RanksTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RanksTest, ChangeNoBitOfAFixture) {
  ExpectRanksChangeNoBit(kHfFixtures / GetParam(), Weights::kFiles);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RanksTest, ::testing::ValuesIn(FixtureNames()),
                         [](const auto& name) { return name.param; });

TEST(Ranks, ChangeNoBitWithLatentRowsOfTheTrueSizeAndSparseAttention) {
  ExpectRanksChangeNoBit(kTrueGeometry, Weights::kDummy);
  ExpectRanksChangeNoBit(kSparse, Weights::kDummy);
}

TEST(Ranks, RunPaddedStepsAndStepsThatReadNoUnwrittenValueWithTheSameBits) {
  const std::filesystem::path folder = kHfFixtures / "v3_groups";
  const std::vector<JobReport> alone = RunTwo(*MakeRunner(folder, OptionsOfRanks(1)));
  for (const int32_t ep_size : {1, 4}) {
    RunnerOptions options = OptionsOfRanks(4, ep_size);
    options.mode = StepMode::kGraph;
    ExpectSame(RunTwo(*MakeRunner(folder, options)), alone, "padded");
    options.mode = StepMode::kEager;
    options.checks = StepChecks::kPoison;
    ExpectSame(RunTwo(*MakeRunner(folder, options)), alone, "poisoned");
  }
}

TEST(Ranks, GuessAheadWithTheBitsOfOneThatDoesNot) {
  const auto make = [](int32_t size, RunnerOptions options) {
    options.tp_size = size;
    return MakeRunner(DraftFixture("v3_mtp"), options);
  };
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    const RunnerOptions options = DraftOptions(16, mode);
    ExpectRanksDraftAsOne(2, {.steps = 3, .nodes = 4}, options, make);
    ExpectRanksDraftAsOne(4, {.steps = 3, .branches = 4, .nodes = 8}, options, make);
    ExpectRanksGuessByTheTextAsOne(4, options, make);
  }
}

TEST(Ranks, ReadMasksInCollect) {
  ExpectMasksAreReadByCollect(*MakeRunner(kHfFixtures / "v3_groups", [] {
    RunnerOptions options = OptionsOfRanks(2);
    options.max_seqs = 4;
    options.page_size = PageSize(16);
    options.max_step_tokens = TokenCount(64);
    return options;
  }()));
}

TEST(Ranks, TakeWhatThePlanSaysAndAgreeOnThePool) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const auto source = MakeDummyWeights(config);
  const MemoryPlan alone = MakeMemoryPlan(config, *source, OptionsOfRanks(1));
  RunnerOptions options = OptionsOfRanks(config.num_heads);
  ByteOffset weights{0};
  PageCount pages{0};
  for (options.rank = 0; options.rank < options.tp_size; ++options.rank) {
    const MemoryPlan plan = MakeMemoryPlan(config, *source, options);
    if (options.rank == 0) pages = plan.limits.pool_pages;
    EXPECT_EQ(plan.limits.pool_pages, pages);
    EXPECT_EQ(plan.kv, alone.kv);  // every rank has all tokens
    EXPECT_LT(plan.weights, alone.weights);
    weights += plan.weights;
  }
  EXPECT_GE(weights, alone.weights);
  EXPECT_LT(weights, alone.weights * options.tp_size);
}

ByteOffset AngleBytes(const ModelConfig& config, const RunnerLimits& limits) {
  Carver carver;
  SerialExecutor serial;
  cpu::CpuWeightPacker packer(carver, serial);
  MakeRopeAngles(config, limits.context, packer);
  return carver.used();
}

// Every row of each rank's plan, of what the rank has laid out; what is left of the whole are the weights.
void ExpectTheRowsOfTheirPlans(const ModelConfig& config, WeightSource& source,
                               const RunnerOptions& options, const std::vector<MemoryPlan>& plans) {
  std::vector<std::unique_ptr<Collective>> ranks = MakeLocalRanks(options.tp_size);
  for (RunnerOptions each = options; each.rank < each.tp_size; ++each.rank) {
    const MemoryPlan& plan = plans[static_cast<size_t>(each.rank)];
    CpuStepDevice device(config, source, each, plan, {},
                         std::move(ranks[static_cast<size_t>(each.rank)]));
    const StepMemory& memory = device.memory();
    EXPECT_EQ(memory.table_bytes, plan.step_tables);
    EXPECT_EQ(memory.workspace_bytes + AngleBytes(config, plan.limits), plan.workspace);
    EXPECT_EQ(memory.attention_bytes, plan.attention);
    EXPECT_EQ(memory.selection_bytes, plan.selection);
    // Of each store a piece, which ends where the next may begin.
    const ByteOffset pages = plan.kv_per_page * plan.limits.pool_pages.raw();
    const auto stores = static_cast<int64_t>(StoreLayouts(ConfigFor(config, each), each).size());
    EXPECT_GE(plan.kv, pages);
    EXPECT_LT(plan.kv, pages + ByteOffset(Carver::kAlignment) * stores);
  }
}

void ExpectTheMemoryOfTheirPlans(const ModelConfig& config, WeightSource& source,
                                 const RunnerOptions& options) {
  SCOPED_TRACE(fmt::format("{}, tp {}, ep {}", config.family, options.tp_size, options.ep_size));
  const std::vector<MemoryPlan> plans = PlansOfEach(
      options, [&](const RunnerOptions& each) { return MakeMemoryPlan(config, source, each); });
  TakeBufferSizes();
  ModelRunner runner(MakeCpuStepDevice(config, source, options, plans[0], {}), plans[0]);
  EXPECT_EQ(TakeBufferSizes(), ArenasOf(plans));
  RunTwo(runner);
  EXPECT_EQ(TakeBufferSizes(), std::vector<ByteOffset>()) << "in a step";
  ExpectTheRowsOfTheirPlans(config, source, options, plans);
}

TEST_P(RanksTest, TakeTheMemoryOfTheirPlans) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / GetParam());
  const auto source = OpenWeightFiles(kHfFixtures / GetParam(), config);
  for (const int32_t size : {2, 4, 5, 8}) {
    if (config.num_heads % size != 0) continue;
    RunnerOptions options = OptionsOfRanks(size);
    ExpectTheMemoryOfTheirPlans(config, *source, options);
    if (config.num_draft_layers == 1) {
      ExpectTheMemoryOfTheirPlans(
          config, *source, LayerTargetOptions(options, {.steps = 3, .branches = 4, .nodes = 8}));
    }
    options.ep_size = size;
    if (config.moe.expert_width == 0 || config.moe.route.num_experts % size != 0) continue;
    ExpectTheMemoryOfTheirPlans(config, *source, options);
  }
}

// A vocabulary that does not come out even: ranks differ.
TEST(Ranks, OfUnlikeSharesTakeTheMemoryOfTheirPlans) {
  ModelConfig config = ReadModelConfig(kTrueGeometry);
  config.vocab_size = 336;  // 21 panels of 16
  const auto source = MakeDummyWeights(config);
  const RunnerOptions options = OptionsOfRanks(config.num_heads);
  ExpectTheMemoryOfTheirPlans(config, *source, options);
  const MemoryPlan plan = MakeMemoryPlan(config, *source, options);
  EXPECT_NE(plan.ranks.back().arena, plan.ranks.front().arena);
}

#ifndef QUIRE_SANITIZED  // a sanitizer's shadow counts too

TEST(Ranks, AreResidentWithinOnePercentOfTheirPlans) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const auto source = MakeDummyWeights(config);
  RunnerOptions options = OptionsOfRanks(4);
  options.pool_tokens = TokenCount(50000);
  const MemoryPlan plan = MakeMemoryPlan(config, *source, options);
  const auto planned = static_cast<double>(plan.arena_of_all().raw());
  ASSERT_GT(planned, 400e6);
  const int64_t before = testing::ResidentBytes();
  const auto taken = [&] {
    return static_cast<double>(testing::ResidentBytes() - before) / planned;
  };
  ModelRunner runner(MakeCpuStepDevice(config, *source, options, plan, {}), plan);
  EXPECT_NEAR(taken(), 1.0, 0.01) << "once loaded";
  RunTwo(runner);
  EXPECT_NEAR(taken(), 1.0, 0.01) << "once used";
}

#endif

TEST(Ranks, ThatDoNotComeOutEvenAreRefusedWithTheSizesThatWould) {
  ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");  // 4 heads, 16 experts
  const auto refusal = [&](int32_t tp_size, int32_t ep_size) {
    return ErrorMessage(ErrorCode::kInvalidArgument,
                        [&] { WithShard(config, 0, tp_size, ep_size); });
  };
  EXPECT_EQ(refusal(4, 2), "ep size: expected 1 or 4, the tp size, got 2");
  EXPECT_EQ(refusal(1, 2),
            "ep size: expected 1, or a tp size of as many ranks with it, got 2 and one rank");
  config.num_heads = 20;
  EXPECT_EQ(
      refusal(8, 1),
      "tp size: expected a number of ranks that the 20 heads come out even for: 1, 2, 4, 5 or "
      "10, got 8");  // 12 units of an expert are too few for 20
  config.moe.expert_width = config.moe.shared_width = 64;
  EXPECT_EQ(refusal(8, 1),
            "tp size: expected a number of ranks that the 20 heads come out even for: 1, 2, 4, 5, "
            "10 or 20, got 8");
  EXPECT_EQ(refusal(5, 5),
            "ep size: expected 1 or a number that the 16 experts come out even for: 1, 2, 4, 8 or "
            "16, got 5");
  config.moe.expert_width = 0;
  EXPECT_EQ(refusal(4, 4), "ep size: expected 1 for a model without experts, got 4");
}

TEST(Ranks, OneThatBreaksWithinAStepEndsTheRunnerByItsName) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  const RunnerOptions options = OptionsOfRanks(4);
  const MemoryPlan plan = MakeMemoryPlan(config, *source, options);
  for (const int gathers : {1, 6, 40}) {
    std::vector<std::unique_ptr<Collective>> ranks = MakeLocalRanks(4);
    ranks[2] = std::make_unique<BreakingRank>(std::move(ranks[2]), gathers);
    ModelRunner runner(std::make_unique<LocalRanksDevice>(config, *source, options, plan,
                                                          LoadProgress(), std::move(ranks)),
                       plan);
    const auto run = [&] { RunTwo(runner); };
    EXPECT_EQ(DeviceErrorOf(run), "rank 2 of 4: a memory error") << gathers;
    EXPECT_EQ(DeviceErrorOf(run), "rank 2 of 4: a memory error") << gathers;
  }
}

TEST(Ranks, TakeNoMemoryInAStep) {
  const auto runner = MakeRunner(kHfFixtures / "v3_groups", OptionsOfRanks(4));
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<PageId> pages = FirstPages(1);
  const StepSequence seq{.tokens = tokens, .pages = pages, .want = Want::kNextToken};
  const auto step = [&] { runner->Step({.sequences = {&seq, 1}}); };
  step();
  // Others may still be at the last part of that step. Once they come to the next one they are not.
  step();
  const int64_t before = AllocationCount();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(AllocationCount() - before, 0);
}

TEST(Ranks, EndWhileAStepIsUnderWay) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<PageId> pages = FirstPages(1);
  const StepSequence seq{.tokens = tokens, .pages = pages, .want = Want::kNextToken};
  // Behind what the step was given, which stays until the runner has ended.
  const auto runner = MakeRunner(kHfFixtures / "v3_groups", OptionsOfRanks(2));
  runner->Submit({.sequences = {&seq, 1}});
}

}  // namespace
}  // namespace quire
