// Ranks with tokens of their own: the bits are those of one rank, whatever the others compute meanwhile, and
// what happens to one is told of all. On the CPU, and on one GPU that all share.
#include "runner/group_runners.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/collective.h"
#include "model/config.h"
#include "model/shard.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"
#include "runner/rank_cases.h"
#include "runner/runner_cases.h"
#include "runner/test_backend.h"
#include "runner/test_models.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::AllocationCount;
using testing::ErrorMessage;
using testing::JobReport;
using testing::PlanOfBackend;
using testing::Weights;

RunnerOptions OptionsOfGroups(int32_t dp_size) {
  RunnerOptions options = OptionsOfRanks(1);
  options.dp_size = dp_size;
  return options;
}

// The runners, and what they were made of.
struct Groups {
  Groups(const std::filesystem::path& folder, const RunnerOptions& options, Weights weights)
      : Groups(folder, options, weights, MakeLocalRanks(options.dp_size)) {}
  Groups(const std::filesystem::path& folder, const RunnerOptions& options, Weights weights,
         std::vector<std::unique_ptr<Collective>> ranks)
      : config(ReadModelConfig(folder)),
        source(weights == Weights::kFiles ? OpenWeightFiles(folder, config)
                                          : MakeDummyWeights(config)),
        plan(PlanOfBackend(config, *source, options)),
        runners(testing::MakeBackendGroups(config, *source, options, Shared(std::move(ranks)))) {}

  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  MemoryPlan plan;
  std::vector<std::unique_ptr<ModelRunner>> runners;
};

void ExpectGroupsChangeNoBit(const std::filesystem::path& folder, Weights weights,
                             RunnerOptions options = OptionsOfRanks(1)) {
  const ModelConfig config = ReadModelConfig(folder);
  if (config.moe.expert_width == 0) return;
  const std::vector<JobReport> alone =
      RunTwo(*testing::MakeBackendRunner(folder, options, weights));
  for (const int32_t size : {2, 4}) {
    if (config.moe.route.num_experts % size != 0) continue;
    options.dp_size = size;
    Groups groups(folder, options, weights);
    for (const size_t number : {size_t{0}, static_cast<size_t>(size) - 1}) {
      for (const Others others : {Others::kNothing, Others::kTheSame}) {
        OneOfGroups one(PointersTo(groups.runners), number, others);
        ExpectSame(RunTwo(one), alone,
                   fmt::format("group {} of {}, others {}", number, size,
                               others == Others::kNothing ? "idle" : "busy"));
      }
    }
  }
}

class GroupsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GroupsTest, ChangeNoBitOfAFixture) {
  ExpectGroupsChangeNoBit(kHfFixtures / GetParam(), Weights::kFiles);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GroupsTest, ::testing::ValuesIn(FixtureNames()),
                         [](const auto& name) { return name.param; });

TEST(Groups, ChangeNoBitWithLatentRowsOfTheTrueSizeAndSparseAttention) {
  ExpectGroupsChangeNoBit(kTrueGeometry, Weights::kDummy);
  ExpectGroupsChangeNoBit(kSparse, Weights::kDummy);
}

TEST(Groups, RunPaddedStepsAndStepsThatReadNoUnwrittenValueWithTheSameBits) {
  RunnerOptions options = OptionsOfRanks(1);
  options.mode = StepMode::kGraph;
  ExpectGroupsChangeNoBit(kHfFixtures / "v3_groups", Weights::kFiles, options);
  options.mode = StepMode::kEager;
  options.checks = StepChecks::kPoison;
  ExpectGroupsChangeNoBit(kHfFixtures / "v3_groups", Weights::kFiles, options);
}

// Of those that have room for the steps of all.
TEST(Groups, PadTheirStepsToTheSmallestBucketOfAll) {
  RunnerOptions options = OptionsOfGroups(2);
  options.mode = StepMode::kGraph;
  Groups groups(kHfFixtures / "v3_groups", options, Weights::kFiles);
  const std::vector<int32_t> tokens(11, 3);
  const std::vector<PageId> pages = FirstPages(3);
  const auto size_of_step = [&](size_t number, size_t num_tokens, Others others) {
    const StepSequence seq{
        .tokens = std::span(tokens).first(num_tokens), .pages = pages, .want = Want::kNextToken};
    OneOfGroups(PointersTo(groups.runners), number, others).Step({.sequences = {&seq, 1}});
    const size_t bucket = groups.runners[number]->last_step().bucket;
    EXPECT_EQ(groups.runners[1 - number]->last_step().bucket, bucket);
    return groups.runners[number]->buckets()[bucket].size;
  };
  EXPECT_EQ(size_of_step(0, 1, Others::kNothing).num_tokens, TokenCount(1));
  EXPECT_EQ(size_of_step(1, 11, Others::kNothing).num_tokens, TokenCount(16));
  EXPECT_EQ(size_of_step(1, 1, Others::kTheSame).num_tokens, TokenCount(1));
  EXPECT_EQ(size_of_step(0, 3, Others::kTheSame).num_tokens, TokenCount(4));
}

// Which rows each rank asks for differs from layer to layer: all of a step may choose one rank's experts.
TEST(Groups, HaveRoomForEveryRowOfEveryRankAtOne) {
  const ModelConfig config =
      WithOwnTokens(ReadModelConfig(kHfFixtures / "v3_groups"), 0, 2);  // 16 experts
  const OpLimits limits{.route = config.moe.route,
                        .expert_width = config.moe.expert_width,
                        .expert_ranks = 2,
                        .tokens_of_rank = 16};
  EXPECT_EQ(limits.num_visitors(), 2 * 16 * config.moe.route.top_k);
}

TEST(Groups, TakeWhatThePlanSaysWithAllWeightsButExpertsAndAPoolEach) {
  const ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  const MemoryPlan alone = PlanOfBackend(config, *source, OptionsOfRanks(1));
  RunnerOptions options = OptionsOfGroups(4);
  ByteOffset weights{0};
  for (options.rank = 0; options.rank < 4; ++options.rank) {
    const MemoryPlan plan = PlanOfBackend(config, *source, options);
    EXPECT_EQ(plan.limits.pool_pages, alone.limits.pool_pages);
    EXPECT_EQ(plan.kv, alone.kv);
    EXPECT_EQ(plan.num_groups, 4);
    EXPECT_LT(plan.weights, alone.weights);
    weights += plan.weights;
  }
  // Three times what is not an expert's comes on top. A device checks that it lays out what is planned.
  EXPECT_GT(weights, alone.weights);
  EXPECT_LT(weights, alone.weights * 4);
  Groups groups(kHfFixtures / "v3_groups", OptionsOfGroups(4), Weights::kFiles);
  for (const auto& runner : groups.runners) {
    EXPECT_EQ(runner->memory_plan().arena(), groups.plan.arena());
  }
}

TEST(Groups, ThatDoNotComeOutEvenAreRefusedWithTheSizesThatWould) {
  ModelConfig config = ReadModelConfig(kHfFixtures / "v3_groups");  // 16 experts
  const auto refusal = [&](int32_t dp_size) {
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { WithOwnTokens(config, 0, dp_size); });
  };
  EXPECT_EQ(refusal(3),
            "dp size: expected a number of ranks that the 16 experts come out even for: 1, 2, 4, 8 "
            "or 16, got 3");
  config.moe.expert_width = 0;
  EXPECT_EQ(refusal(2), "dp size: expected 1 for a model without experts, got 2");
  const auto source = OpenWeightFiles(kHfFixtures / "v3_groups", config);
  RunnerOptions options = OptionsOfGroups(2);
  options.tp_size = 2;
  config = ReadModelConfig(kHfFixtures / "v3_groups");
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kInvalidArgument, [&] { PlanOfBackend(config, *source, options); }),
      "dp size: expected 1 with a tp size or an ep size above 1, got 2");
}

TEST(Groups, OneThatBreaksWithinAStepEndsAllByItsName) {
  for (const int calls : {1, 2, 3, 8}) {
    std::vector<std::unique_ptr<Collective>> ranks = MakeLocalRanks(4);
    BreakingRank& third = MakeBreaking(ranks[2]);
    Groups groups(kHfFixtures / "v3_groups", OptionsOfGroups(4), Weights::kFiles, std::move(ranks));
    third.BreakIn(calls);
    OneOfGroups one(PointersTo(groups.runners), 0, Others::kNothing);
    EXPECT_EQ(DeviceErrorOf([&] { RunTwo(one); }), "rank 2 of 4: a memory error") << calls;
    for (const auto& runner : groups.runners) {
      EXPECT_EQ(DeviceErrorOf([&] { runner->Submit({}); }), "rank 2 of 4: a memory error");
    }
  }
}

// Where a rank breaks while groups get ready, nobody has a runner; on the CPU none waits for another then.
TEST(Groups, OneThatBreaksAtAnyTimeEndsAllByItsName) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    for (const int calls : {1, 2, 7, 40, 61, 100, 150, 200, 300}) {
      std::vector<std::unique_ptr<Collective>> ranks = MakeLocalRanks(4);
      ranks[2] = std::make_unique<BreakingRank>(std::move(ranks[2]), calls);
      RunnerOptions options = OptionsOfGroups(4);
      options.mode = mode;
      const auto run = [&] {
        Groups groups(kHfFixtures / "v3_groups", options, Weights::kFiles, std::move(ranks));
        OneOfGroups one(PointersTo(groups.runners), 0, Others::kTheSame);
        for (int round = 0; round < 20; ++round) RunTwo(one);
      };
      EXPECT_EQ(DeviceErrorOf(run), "rank 2 of 4: a memory error") << calls;
    }
  }
}

TEST(Groups, OneThatDoesNotComeEndsTheOthersByItsName) {
  const std::chrono::milliseconds patience = testing::ShortPatience();
  Groups groups(kHfFixtures / "v3_groups", OptionsOfGroups(2), Weights::kFiles,
                MakeLocalRanks(2, patience));
  const std::string error = DeviceErrorOf([&] { groups.runners[0]->Step({}); });
  EXPECT_TRUE(error.starts_with("rank 1 of 2: did not come to a ")) << error;
  EXPECT_TRUE(error.ends_with(fmt::format(" within {} ms", patience.count()))) << error;
}

TEST(Groups, TakeNoMemoryInAStep) {
  Groups groups(kHfFixtures / "v3_groups", OptionsOfGroups(4), Weights::kFiles);
  OneOfGroups one(PointersTo(groups.runners), 1, Others::kNothing);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<PageId> pages = FirstPages(1);
  const StepSequence seq{.tokens = tokens, .pages = pages, .want = Want::kNextToken};
  const auto step = [&] { one.Step({.sequences = {&seq, 1}}); };
  step();
  const int64_t before = AllocationCount();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(AllocationCount() - before, 0);
}

TEST(Groups, ABatchOfNothingIsRefusedByOneRankAlone) {
  const auto runner = testing::MakeBackendRunner(kHfFixtures / "v3_groups", OptionsOfRanks(1));
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { runner->Submit({}); }),
            "step: sequences: expected 1..2, got 0");
}

}  // namespace
}  // namespace quire
