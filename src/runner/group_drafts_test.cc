// Groups that speculate: texts and log-probabilities are those of one rank without, and drafts those of one
// rank with, whatever the others draft meanwhile and how often. On the CPU, and on one GPU that all share.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/group_threads.h"
#include "decode/ngram_drafter.h"
#include "device/collective.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/draft_cases.h"
#include "runner/layer_drafter.h"
#include "runner/rank_cases.h"
#include "runner/speculative_runner.h"
#include "runner/test_backend.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using Collectives = std::vector<std::unique_ptr<Collective>>;

// When groups step: all of them, as long as one has something to compute.
class Rounds {
 public:
  explicit Rounds(size_t size) : meeting_(static_cast<std::ptrdiff_t>(size)), has_work_(size) {}

  // Whether there is one more; this group has, or takes part.
  bool Begin(size_t group, bool has_work) {
    has_work_[group] = has_work ? 1 : 0;
    meeting_.arrive_and_wait();
    const bool goes_on = std::ranges::find(has_work_, 1) != has_work_.end();
    meeting_.arrive_and_wait();
    return goes_on;
  }
  // This one comes no more.
  void Leave(size_t group) {
    has_work_[group] = 0;
    meeting_.arrive_and_drop();
  }

 private:
  std::barrier<> meeting_;
  std::vector<uint8_t> has_work_;
};

// A group's runner, which begins every step when the others do.
class GroupRunner final : public Runner {
 public:
  GroupRunner(Runner& runner, Rounds& rounds, size_t group)
      : runner_(runner), rounds_(rounds), group_(group) {}

  const RunnerLimits& limits() const override { return runner_.limits(); }
  void Submit(const StepBatch& batch) override {
    rounds_.Begin(group_, true);
    runner_.Submit(batch);
  }
  const StepResult& Collect() override { return runner_.Collect(); }

  // So many steps of the others; or all that they still have.
  void TakePart(int64_t steps) {
    for (int64_t i = 0; i < steps && rounds_.Begin(group_, false); ++i) runner_.Step({});
  }
  void TakePartToTheEnd() {
    while (rounds_.Begin(group_, false)) runner_.Step({});
  }

 private:
  Runner& runner_;
  Rounds& rounds_;
  const size_t group_;
};

// What they draft with.
struct Speculating {
  TreeShape shape = {};
  bool by_ngram = false;
  StepMode mode = StepMode::kEager;

  RunnerOptions Options(int32_t dp_size) const {
    RunnerOptions options = DraftOptions(16, mode);
    options.dp_size = dp_size;
    return by_ngram ? TargetOptions(options, shape.Room()) : LayerTargetOptions(options, shape);
  }
  std::unique_ptr<SpeculativeRunner> Over(std::unique_ptr<MeteredRunner> target,
                                          std::vector<SeenDraft>& seen) const {
    if (!by_ngram) return MakeDrafting(std::move(target), shape, seen);
    auto ngram =
        std::make_unique<NgramDrafter>(target->limits().max_seqs, target->limits().context);
    return std::make_unique<SpeculativeRunner>(std::move(target), std::move(ngram), shape.Room());
  }
};

// Groups of a model with a draft layer, and what each has drafted.
struct DraftingGroups {
  DraftingGroups(const std::filesystem::path& folder, const Speculating& how, Collectives ranks)
      : config(ReadModelConfig(folder)),
        source(OpenWeightFiles(folder, config)),
        seen(ranks.size()) {
    const RunnerOptions options = how.Options(static_cast<int32_t>(ranks.size()));
    auto targets = testing::MakeBackendGroups(config, *source, options, Shared(std::move(ranks)));
    for (size_t i = 0; i < targets.size(); ++i) {
      runners.push_back(how.Over(std::move(targets[i]), seen[i]));
    }
  }

  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  std::vector<std::vector<SeenDraft>> seen;
  std::vector<std::unique_ptr<SpeculativeRunner>> runners;
};

// Each begins three steps after the one before it, and has another number of tokens to say: so prompts meet
// drafts, and groups with something to draft those without.
std::vector<Answers> AnswerOutOfStep(DraftingGroups& groups, std::vector<std::string>* errors) {
  const size_t size = groups.runners.size();
  GroupThreads threads(size);
  Rounds rounds(size);
  std::vector<Answers> answers(size);
  threads.Run([&](size_t group) {
    GroupRunner runner(*groups.runners[group], rounds, group);
    (*errors)[group] = DeviceErrorOf([&] {
      runner.TakePart(static_cast<int64_t>(3 * group));
      answers[group] = AnswerAll(runner, kDraftOutput - 5 * group);
      runner.TakePartToTheEnd();
    });
    if (!(*errors)[group].empty()) rounds.Leave(group);
  });
  return answers;
}

// Drafts that grow on a device are seen a little later than others of their step.
void SortByText(std::vector<SeenDraft>& seen) {
  std::ranges::stable_sort(seen, {}, &SeenDraft::text);
}

void ExpectGroupsSpeculateAsOne(const std::string& name, const Speculating& how) {
  const std::filesystem::path folder = DraftFixture(name);
  const Answers plain =
      AnswerAll(*testing::MakeBackendRunner(folder, DraftOptions(16)), kDraftOutput);
  std::vector<SeenDraft> alone;
  AnswerAll(*how.Over(testing::MakeBackendRunner(folder, how.Options(1)), alone), kDraftOutput);
  SortByText(alone);
  for (const size_t size : {2u, 4u}) {
    DraftingGroups groups(folder, how, MakeLocalRanks(static_cast<int32_t>(size)));
    std::vector<std::string> errors(size);
    const std::vector<Answers> answers = AnswerOutOfStep(groups, &errors);
    for (size_t group = 0; group < size; ++group) {
      SCOPED_TRACE(name + ", group " + std::to_string(group) + " of " + std::to_string(size));
      ASSERT_EQ(errors[group], "");
      ASSERT_EQ(answers[group].texts.size(), plain.texts.size());
      const auto is_begin_of = [&](const auto& said, const auto& whole) {
        return said.size() + 5 * group == whole.size() &&
               std::ranges::equal(said, std::span(whole.data(), said.size()));
      };
      for (size_t i = 0; i < plain.texts.size(); ++i) {
        EXPECT_TRUE(is_begin_of(answers[group].texts[i], plain.texts[i])) << "sequence " << i;
        EXPECT_TRUE(is_begin_of(answers[group].logprobs[i], plain.logprobs[i])) << "sequence " << i;
      }
      if (group > 0) continue;  // the others end earlier, so their last batches are smaller
      SortByText(groups.seen[group]);
      ASSERT_EQ(groups.seen[group].size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(groups.seen[group][i].text, alone[i].text);
        EXPECT_EQ(groups.seen[group][i].tokens, alone[i].tokens);
        EXPECT_EQ(groups.seen[group][i].parents, alone[i].parents);
      }
    }
  }
}

class GroupDrafts : public ::testing::TestWithParam<const char*> {};

TEST_P(GroupDrafts, OfChainsAndTreesAreThoseOfOneRankAndChangeNoText) {
  ExpectGroupsSpeculateAsOne(GetParam(), {.shape = {.steps = 3, .branches = 1, .nodes = 4}});
  ExpectGroupsSpeculateAsOne(GetParam(), {.shape = {.steps = 3, .branches = 4, .nodes = 8}});
}

INSTANTIATE_TEST_SUITE_P(Models, GroupDrafts,
                         ::testing::Values("v3_mtp", "v32_mtp", "glm_flash_mtp"),
                         [](const auto& name) { return name.param; });

TEST(GroupDrafts, OfPaddedPassesAndOfNgramsChangeNoText) {
  ExpectGroupsSpeculateAsOne(
      "v3_mtp", {.shape = {.steps = 2, .branches = 2, .nodes = 4}, .mode = StepMode::kGraph});
  ExpectGroupsSpeculateAsOne("v3_mtp", {.shape = {.steps = 4, .nodes = 5}, .by_ngram = true});
}

TEST(GroupDrafts, OneThatBreaksInAStepOrInADraftEndsAllByItsName) {
  const Speculating how{.shape = {.steps = 3, .branches = 1, .nodes = 4}};
  for (const int calls : {1, 7, 60, 61, 62, 63, 64, 65}) {
    Collectives ranks = MakeLocalRanks(2);
    BreakingRank& second = MakeBreaking(ranks[1]);
    DraftingGroups groups(DraftFixture("v3_mtp"), how, std::move(ranks));
    second.BreakIn(calls);
    std::vector<std::string> errors(2);
    AnswerOutOfStep(groups, &errors);
    EXPECT_EQ(errors, std::vector<std::string>(2, "rank 1 of 2: a memory error")) << calls;
  }
}

}  // namespace
}  // namespace quire
