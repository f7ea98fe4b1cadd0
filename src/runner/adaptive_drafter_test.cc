#include "runner/adaptive_drafter.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "decode/ngram_drafter.h"
#include "runner/cpu_runner.h"
#include "runner/draft_runner.h"
#include "runner/runner_cases.h"
#include "runner/shape_costs.h"
#include "runner/speculative_runner.h"
#include "testing/allocation_count.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

// A layer whose passes are counted.
class CountedPasses final : public DraftRunner {
 public:
  explicit CountedPasses(DraftRunner& runner) : runner_(runner) {}

  int32_t num_step_states() const override { return runner_.num_step_states(); }
  int32_t first_row_state() const override { return runner_.first_row_state(); }
  std::span<const TokenLogprob> Draft(const DraftPass& pass) override {
    ++num_passes;
    return runner_.Draft(pass);
  }
  void CopyState(int32_t from, int32_t to) override { runner_.CopyState(from, to); }

  int64_t num_passes = 0;

 private:
  DraftRunner& runner_;
};

// And a runner whose steps are.
class CountedSteps final : public Runner {
 public:
  explicit CountedSteps(Runner& runner) : runner_(runner) {}

  const RunnerLimits& limits() const override { return runner_.limits(); }
  void Submit(const StepBatch& batch) override {
    ++num_steps;
    num_seqs = std::ssize(batch.sequences);
    runner_.Submit(batch);
  }
  const StepResult& Collect() override { return runner_.Collect(); }

  int64_t num_steps = 0;
  int64_t num_seqs = 0;

 private:
  Runner& runner_;
};

// And a target whose tokens are.
class CountedTokens final : public RunnerOver {
 public:
  CountedTokens(std::unique_ptr<MeteredRunner> target, int64_t& num_tokens)
      : RunnerOver(std::move(target)), num_tokens_(num_tokens) {}

  const RunnerLimits& limits() const override { return target_->limits(); }
  void Submit(const StepBatch& batch) override {
    for (const StepSequence& seq : batch.sequences) num_tokens_ += std::ssize(seq.tokens);
    target_->Submit(batch);
  }
  const StepResult& Collect() override { return target_->Collect(); }

 private:
  int64_t& num_tokens_;
};

const std::vector<TreeShape> kShapes = CandidateShapes(4, 8);
const RunnerOptions kAdaptiveOptions{.page_size = PageSize(16),
                                     .context = TokenCount(320),
                                     .max_seqs = 5,
                                     .max_step_tokens = TokenCount(64),
                                     .kv_format = KvFormat::kLatentF32,
                                     .num_threads = 1};

struct AdaptiveCase {
  AdaptiveCase() {
    const std::filesystem::path folder =
        std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "hf" / "v3_mtp";
    const TreeShape around = ShapeAround(kShapes);
    auto target = testing::MakeRunner(folder, LayerTargetOptions(kAdaptiveOptions, around));
    passes = std::make_unique<CountedPasses>(*target->draft_runner());
    auto layer = std::make_unique<LayerDrafter>(*passes, target->limits(), around);
    const auto use_shape = [&layer = *layer](const TreeShape& shape) { layer.UseShape(shape); };
    auto adaptive = std::make_unique<AdaptiveDrafter>(std::move(layer), use_shape, kShapes,
                                                      target->limits().max_seqs);
    drafter = adaptive.get();
    runner =
        std::make_unique<SpeculativeRunner>(std::move(target), std::move(adaptive), around.Room());
    steps = std::make_unique<CountedSteps>(*runner);
  }

  std::unique_ptr<CountedPasses> passes;
  AdaptiveDrafter* drafter = nullptr;
  std::unique_ptr<SpeculativeRunner> runner;
  std::unique_ptr<CountedSteps> steps;
};

TEST(ShapeCostsTest, AStepCostsWhatItsPartsDo) {
  AdaptiveCase each;
  // A step takes 10 s, a pass of the layer 1 s.
  const auto seconds = [&] {
    return 10.0 * static_cast<double>(each.steps->num_steps) +
           static_cast<double>(each.passes->num_passes);
  };
  const ShapeCosts measured =
      MeasureShapeCosts(*each.steps, *each.drafter, {.seconds = seconds, .budget_seconds = 1e9});
  EXPECT_DOUBLE_EQ(measured.prompt_token_seconds, 1.0 / 64) << "a pass for 64 tokens more";
  const std::vector<ShapeCost>& costs = measured.steps;
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_EQ(costs[0].num_seqs, 1);
  EXPECT_EQ(costs[1].num_seqs, 4);
  EXPECT_EQ(costs[2].num_seqs, 5);
  for (const ShapeCost& cost : costs) {
    ASSERT_EQ(cost.seconds.size(), kShapes.size() + 1);
    EXPECT_DOUBLE_EQ(cost.seconds[0], 10) << "a plain step runs no layer";
    for (size_t i = 0; i < kShapes.size(); ++i) {
      // One pass for each level but the first, and one behind the step.
      EXPECT_DOUBLE_EQ(cost.seconds[i + 1], 10 + static_cast<double>(kShapes[i].steps)) << i;
    }
  }
}

// Nothing of the texts that are measured stood there before: ngrams have nothing to guess.
TEST(ShapeCostsTest, AChainOfNgramsIsMeasuredWhole) {
  const std::vector<TreeShape> shapes = CandidateShapes(1, 16);
  const DraftRoom room = ShapeAround(shapes).Room();
  const std::filesystem::path folder =
      std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "hf" / "v2_lite";
  int64_t num_tokens = 0;
  auto target = std::make_unique<CountedTokens>(
      testing::MakeRunner(folder, TargetOptions(kAdaptiveOptions, room)), num_tokens);
  auto adaptive = std::make_unique<AdaptiveDrafter>(
      std::make_unique<NgramDrafter>(kAdaptiveOptions.max_seqs, target->limits().context), nullptr,
      shapes, kAdaptiveOptions.max_seqs);
  AdaptiveDrafter& drafter = *adaptive;
  SpeculativeRunner runner(std::move(target), std::move(adaptive), room);
  // A token of the target takes a second.
  const auto seconds = [&] { return static_cast<double>(num_tokens); };
  const ShapeCosts measured =
      MeasureShapeCosts(runner, drafter, {.seconds = seconds, .budget_seconds = 1e9});
  EXPECT_DOUBLE_EQ(measured.prompt_token_seconds, 0);
  ASSERT_EQ(measured.steps.size(), 3u);
  for (const ShapeCost& cost : measured.steps) {
    const auto num_seqs = static_cast<double>(cost.num_seqs);
    EXPECT_DOUBLE_EQ(cost.seconds[0], num_seqs);
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_DOUBLE_EQ(cost.seconds[i + 1], num_seqs * static_cast<double>(shapes[i].nodes)) << i;
    }
  }
}

TEST(ShapeCostsTest, WhatIsNotMeasuredInTimeIsNeverChosen) {
  AdaptiveCase each;
  const auto seconds = [&] { return static_cast<double>(each.steps->num_steps); };
  // The sequences' prompts, and some steps of the first shape.
  const std::vector<ShapeCost> costs =
      MeasureShapeCosts(*each.steps, *each.drafter, {.seconds = seconds, .budget_seconds = 6})
          .steps;
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_DOUBLE_EQ(costs[0].seconds[0], 1);
  EXPECT_DOUBLE_EQ(costs[0].seconds[1], 1);
  EXPECT_GT(costs[0].seconds[2], 1e300);
}

// Sequences of an adaptive case, as they grow.
class Texts {
 public:
  explicit Texts(AdaptiveCase& of) : of_(of) {}

  // A new sequence, in pages of its own.
  size_t Begin(std::vector<int32_t> prompt) {
    texts_.push_back({.id = texts_.size() + 1, .prompt = prompt.size(), .tokens = prompt});
    for (int32_t k = 0; k < 10; ++k) {
      texts_.back().pages.emplace_back(1 + static_cast<int32_t>((texts_.size() - 1) % 5) * 10 + k);
    }
    return texts_.size() - 1;
  }
  void BeginAgain(size_t i) { texts_[i].tokens.resize(texts_[i].prompt); }

  // A step of these. How many tokens were drafted for each.
  std::vector<int32_t> Run(const std::vector<size_t>& who) {
    std::vector<StepSequence> batch;
    for (const size_t i : who) {
      const Text& text = texts_[i];
      const std::span<const int32_t> tokens = text.tokens;
      const bool begins = tokens.size() == text.prompt;
      batch.push_back({.id = text.id,
                       .tokens = begins ? tokens : tokens.last(1),
                       .position = TokenCount(begins ? 0 : tokens.size() - 1),
                       .pages = text.pages,
                       .lookahead = begins ? TokenCount(0) : of_.runner->limits().lookahead,
                       .want = Want::kNextToken,
                       .sampling = {.temperature = 0},
                       .prompt = tokens.first(text.prompt),
                       .output = tokens.subspan(text.prompt)});
    }
    const int64_t before = testing::AllocationCount();
    const StepResult& result = of_.runner->Step({.sequences = batch});
    EXPECT_EQ(testing::AllocationCount() - before, 0);
    std::vector<int32_t> drafted;
    for (size_t k = 0; k < who.size(); ++k) {
      drafted.push_back(result.sequences[k].num_drafted);
      for (const StepToken& token : result.sequences[k].answers[0].tokens) {
        texts_[who[k]].tokens.push_back(token.chosen.token);
      }
    }
    return drafted;
  }

 private:
  struct Text {
    uint64_t id = 0;
    size_t prompt = 0;
    std::vector<int32_t> tokens = {};
    std::vector<PageId> pages = {};
  };

  AdaptiveCase& of_;
  std::vector<Text> texts_;
};

// Of a plain step 1 s.
ShapeCost CostOf(int64_t num_seqs, double drafting) {
  ShapeCost of{.num_seqs = num_seqs, .seconds = {1}};
  of.seconds.resize(kShapes.size() + 1, drafting);
  return of;
}

// Two sequences with drafts, then three, which are too many for it.
TEST(AdaptiveDrafterTest, WhereNothingPaysTheLayerDoesNotRunAndSequencesAreLeftOut) {
  AdaptiveCase each;
  each.drafter->ChooseBy({.steps = {CostOf(2, 1), CostOf(3, 100)}});
  Texts texts(each);
  for (int32_t i = 0; i < 3; ++i) texts.Begin({3 + i, 5, 9});
  texts.Run({0});
  EXPECT_GT(texts.Run({0})[0], 0);
  texts.Run({0, 1});
  const std::vector<int32_t> both = texts.Run({0, 1});
  EXPECT_GT(both[0], 0);
  EXPECT_GT(both[1], 0);
  const int64_t passes = each.passes->num_passes;
  texts.Run({0, 1, 2});
  EXPECT_EQ(texts.Run({0, 1, 2}), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(each.passes->num_passes, passes);
  // The layer lacks rows of all three.
  EXPECT_EQ(texts.Run({0, 2}), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(each.passes->num_passes, passes);
  texts.BeginAgain(1);  // by preemption
  texts.Run({1});
  EXPECT_GT(texts.Run({1})[0], 0);
}

// Five prompts of 12 tokens at once, of which each token takes as long as half a sequence's plain step.
TEST(AdaptiveDrafterTest, APromptCountsWhenItsSequenceHasLeft) {
  AdaptiveCase each;
  each.drafter->ChooseBy({.steps = {CostOf(1, 1)}, .prompt_token_seconds = 0.5});
  Texts texts(each);
  const auto begin = [&] {
    std::vector<size_t> who;
    for (int32_t i = 0; i < 5; ++i) {
      who.push_back(texts.Begin({3 + i, 5, 9, 4, 8, 3, 7, 5, 4, 6, 3, 9}));
    }
    texts.Run(who);
    return who;
  };
  // Nobody knows yet how long the answers will be.
  std::vector<size_t> who = begin();
  for (const int32_t drafted : texts.Run(who)) EXPECT_GT(drafted, 0);
  // They were short.
  for (int32_t round = 0; round < 4; ++round) who = begin();
  for (const int32_t drafted : texts.Run(who)) EXPECT_EQ(drafted, 0);
}

}  // namespace
}  // namespace quire
