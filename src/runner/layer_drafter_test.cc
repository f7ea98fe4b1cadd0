// The drafts of draft layers, on the CPU and on a device.
#include "runner/layer_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runner/draft_cases.h"
#include "runner/runner_cases.h"
#include "runner/test_backend.h"
#include "runner/test_models.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/faulty_weights.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::ErrorMessage;
using testing::MakeBackendRunner;
using testing::RandomTokens;

// ---- History ----

struct HistoryCase {
  const char* name;  // of a fixture, or null: the true geometry with a draft layer of dummy weights
  KvFormat kv_format;
  int32_t page_size;
  StepMode mode;
  TreeShape shape;

  RunnerOptions Options(int32_t pages_of) const {
    RunnerOptions options = DraftOptions(pages_of, mode);
    options.kv_format = kv_format;
    return options;
  }
  std::unique_ptr<MeteredRunner> Make(const RunnerOptions& options) const {
    if (name != nullptr) return MakeBackendRunner(DraftFixture(name), options);
    ModelConfig config = ReadModelConfig(kTrueGeometry);
    config.num_draft_layers = 1;
    return MakeBackendRunner(config, *MakeDummyWeights(config), options);
  }
};

class DraftHistory : public ::testing::TestWithParam<HistoryCase> {};

// Paths of trees are accepted, rows move, chunks end anywhere, others run beside it.
TEST_P(DraftHistory, DraftsDependOnTheTextAloneAndChangeNone) {
  const HistoryCase& given = GetParam();
  ExpectDraftsDependOnTheTextAlone(
      given.shape,
      [&](int32_t page_size, const TreeShape* drafting) {
        const RunnerOptions options = given.Options(page_size);
        return given.Make(drafting == nullptr ? options : LayerTargetOptions(options, *drafting));
      },
      given.page_size);
}

const HistoryCase kHistoryCases[] = {
    {"v3_mtp", KvFormat::kLatentF32, 1, StepMode::kEager, {.steps = 3, .branches = 1, .nodes = 4}},
    {"v3_mtp", KvFormat::kLatentF32, 16, StepMode::kGraph, {.steps = 3, .branches = 4, .nodes = 8}},
    {"v3_mtp", KvFormat::kLatentF32, 61, StepMode::kEager, {.steps = 2, .branches = 8, .nodes = 5}},
    {"v3_mtp", KvFormat::kLatentF32, 64, StepMode::kGraph, {.steps = 4, .branches = 1, .nodes = 5}},
    {"v32_mtp",
     KvFormat::kLatentF32,
     16,
     StepMode::kGraph,
     {.steps = 4, .branches = 3, .nodes = 17}},
    {"glm_flash_mtp",
     KvFormat::kLatentF32,
     64,
     StepMode::kEager,
     {.steps = 8, .branches = 2, .nodes = 9}},
    // On a device, by tensor cores.
    {nullptr, KvFormat::kLatentBf16, 61, StepMode::kGraph, {.steps = 3, .branches = 1, .nodes = 4}},
    {nullptr, KvFormat::kLatentFp8, 16, StepMode::kGraph, {.steps = 3, .branches = 4, .nodes = 8}}};

std::string HistoryName(const ::testing::TestParamInfo<HistoryCase>& info) {
  const auto& [name, kv_format, page_size, mode, shape] = info.param;
  return std::string(name != nullptr ? name : "true_geometry") + "_" + KvFormatName(kv_format) +
         "_page" + std::to_string(page_size) + "_" + std::to_string(shape.steps) + "_" +
         std::to_string(shape.branches) + "_" + std::to_string(shape.nodes) +
         (mode == StepMode::kGraph ? "_graph" : "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, DraftHistory, ::testing::ValuesIn(kHistoryCases), HistoryName);

// ---- What is not theirs ----

// Writes rows of a token whose embedding is NaN to all pages, the target's and the draft layer's.
void FillWithNaN(MeteredRunner& target, int32_t token) {
  const RunnerLimits& limits = target.limits();
  const TokenCount length = Min(limits.context, limits.max_step_tokens);
  const auto each = limits.page_size.FullPages(length).raw();
  const std::vector<int32_t> tokens(
      static_cast<size_t>(limits.page_size.TokensIn(PageCount(each)).raw()), token);
  const std::vector<int32_t> states(tokens.size(), 0);
  const std::vector<PageId> pages = FirstPages(limits.pool_pages.raw() - 1);
  for (int64_t end = std::ssize(pages); end > 0; end -= each) {
    const auto first = static_cast<size_t>(std::max<int64_t>(end - each, 0));
    const auto own = std::span(pages).subspan(first, static_cast<size_t>(end) - first);
    const auto count = static_cast<size_t>(limits.page_size.TokensIn(PageCount(own.size())).raw());
    const StepSequence rows{
        .id = 1000 + first, .tokens = std::span(tokens).first(count), .pages = own};
    target.Step({.sequences = {&rows, 1}});
    target.draft_runner()->Draft(
        {.sequences = {&rows, 1}, .state_of = std::span(states).first(count)});
  }
  // Who sees a row of it has nothing to say.
  const std::vector<int32_t> sound = {token - 1};
  const StepSequence behind{.id = 999,
                            .tokens = sound,
                            .position = TokenCount(1),
                            .pages = std::span(pages).first(2),
                            .want = Want::kNextToken,
                            .sampling = {.temperature = 0}};
  ASSERT_EQ(target.Step({.sequences = {&behind, 1}}).sequences[0].fault,
            RowFault::kLogitsNotFinite);
  const int32_t first = 0;
  const int32_t sound_state = target.draft_runner()->num_step_states();  // nobody has written it
  const auto top = target.draft_runner()->Draft(
      {.sequences = {&behind, 1}, .state_of = {&sound_state, 1}, .wanted = {&first, 1}});
  ASSERT_FALSE(std::isfinite(top[0].logprob));
  // A row of it again.
  const StepSequence again{
      .id = 998, .tokens = std::span(tokens).first(2), .pages = std::span(pages).first(2)};
  target.Step({.sequences = {&again, 1}});
  target.draft_runner()->Draft({.sequences = {&again, 1}, .state_of = std::span(states).first(2)});
}

// A token that is neither asked nor answered.
int32_t UnsaidToken(const std::vector<std::vector<int32_t>>& texts, int64_t vocab_size) {
  const auto is_said = [&](int32_t token) {
    return std::ranges::any_of(
        texts, [&](const auto& text) { return std::ranges::find(text, token) != text.end(); });
  };
  int32_t token = static_cast<int32_t>(vocab_size) - 1;
  while (is_said(token)) --token;
  return token;
}

class DraftSight : public ::testing::TestWithParam<const char*> {};

// With NaN in every other row of both, a row that is seen and should not be leaves no draft, or no answer.
TEST_P(DraftSight, DraftsAndTheirTargetSeeCommittedTokensAndTheirOwnPathAlone) {
  const ModelConfig config = ReadModelConfig(DraftFixture(GetParam()));
  const auto weights = OpenWeightFiles(DraftFixture(GetParam()), config);
  for (const int32_t page_size : {1, 16, 61}) {
    const auto plain = MakeBackendRunner(config, *weights, DraftOptions(page_size));
    const int32_t unsaid =
        UnsaidToken(AnswerAll(*plain, kDraftOutput).texts, plain->limits().vocab_size);
    testing::FaultyWeights faulty(*weights, unsaid);
    for (const TreeShape& shape : {TreeShape{.steps = 3, .branches = 1, .nodes = 4},
                                   TreeShape{.steps = 3, .branches = 4, .nodes = 8}}) {
      ExpectDraftsDependOnTheTextAlone(
          shape,
          [&](int32_t pages_of, const TreeShape* drafting) {
            RunnerOptions options = DraftOptions(pages_of);
            if (drafting != nullptr) options = LayerTargetOptions(options, *drafting);
            auto target = MakeBackendRunner(config, faulty, options);
            if (drafting != nullptr) FillWithNaN(*target, unsaid);
            return target;
          },
          page_size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftSight, ::testing::Values("v3_mtp", "v32_mtp"),
                         [](const auto& model) { return std::string(model.param); });

// ---- Trees ----

// The most likely tokens behind a path, by a chain of its own.
class PathDrafts {
 public:
  PathDrafts(DraftRunner& runner, std::span<const PageId> pages, std::span<const int32_t> text)
      : runner_(runner), pages_(pages), text_(text) {}

  // `path` are tokens behind the text; the state of the row before them is `root_state`.
  std::vector<TokenLogprob> Behind(std::span<const int32_t> path, int32_t root_state,
                                   int32_t num_top) {
    std::span<const TokenLogprob> top;
    int32_t state = root_state;
    for (size_t i = 0; i < path.size(); ++i) {
      const StepSequence seq{.id = 1,
                             .tokens = path.subspan(i, 1),
                             .position = TokenCount(text_.size() - 1 + i),
                             .pages = pages_};
      const int32_t first = 0;
      top = runner_.Draft({.sequences = {&seq, 1},
                           .state_of = {&state, 1},
                           .wanted = {&first, 1},
                           .num_top = num_top});
      state = runner_.first_row_state();
    }
    return {top.begin(), top.begin() + num_top};
  }

 private:
  DraftRunner& runner_;
  std::span<const PageId> pages_;
  std::span<const int32_t> text_;
};

TEST(LayerDrafterTest, RowsOfATreeSeeTheirOwnPathAndNoOther) {
  const auto target = MakeBackendRunner(
      DraftFixture("v3_mtp"),
      LayerTargetOptions(DraftOptions(16), {.steps = 3, .branches = 2, .nodes = 5}));
  DraftRunner& runner = *target->draft_runner();
  const std::vector<PageId> pages = FirstPages(4);
  const std::vector<int32_t> text = RandomTokens(20, target->limits().vocab_size, 9);
  const StepSequence prefill{.id = 1, .tokens = std::span(text).first(19), .pages = pages};
  target->Step({.sequences = {&prefill, 1}});
  // Row p takes the token behind it.
  const StepSequence rows{.id = 1, .tokens = std::span(text).subspan(1), .pages = pages};
  std::vector<int32_t> state_of(19);
  std::iota(state_of.begin(), state_of.end(), 0);
  const int32_t last = 18;
  const int32_t root = runner.num_step_states();
  runner.Draft({.sequences = {&rows, 1}, .state_of = state_of, .wanted = {&last, 1}, .num_top = 2});
  runner.CopyState(runner.first_row_state(), root);
  const std::vector<int32_t> parents = {-1, -1, 1, 0};
  const std::vector<int32_t> tokens = {5, 9, 11, 7};
  std::vector<std::vector<TokenLogprob>> tree;
  const int32_t rows_before = runner.first_row_state();
  for (const size_t begin : {size_t{0}, size_t{2}}) {
    const StepSequence level{.id = 1,
                             .tokens = std::span(tokens).subspan(begin, 2),
                             .position = TokenCount(19 + begin),
                             .pages = pages,
                             .tree_parents = std::span(parents).first(begin + 2)};
    const std::vector<int32_t> both = {0, 1};
    const std::vector<int32_t> states = begin == 0
                                            ? std::vector<int32_t>{root, root}
                                            : std::vector<int32_t>{rows_before + 1, rows_before};
    const auto top =
        runner.Draft({.sequences = {&level, 1}, .state_of = states, .wanted = both, .num_top = 2});
    for (size_t i = 0; i < 2; ++i) {
      const auto at = top.begin() + static_cast<std::ptrdiff_t>(i * kMaxTopLogprobs);
      tree.emplace_back(at, at + 2);
    }
  }
  PathDrafts alone(runner, pages, text);
  for (const std::vector<int32_t>& nodes :
       {std::vector<int32_t>{0}, std::vector<int32_t>{1}, std::vector<int32_t>{1, 2},
        std::vector<int32_t>{0, 3}}) {
    std::vector<int32_t> path;
    for (const int32_t node : nodes) path.push_back(tokens[static_cast<size_t>(node)]);
    const auto expected = alone.Behind(path, root, 2);
    const auto& actual = tree[static_cast<size_t>(nodes.back())];
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(actual[i].token, expected[i].token) << "node " << nodes.back();
      EXPECT_EQ(actual[i].logprob, expected[i].logprob) << "node " << nodes.back();
    }
  }
}

// ---- Steps and shapes ----

TEST(LayerDrafterTest, AStepAllocatesNothing) {
  const TreeShape shape{.steps = 3, .branches = 4, .nodes = 8};
  auto target =
      MakeBackendRunner(DraftFixture("v3_mtp"), LayerTargetOptions(DraftOptions(16), shape));
  auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape);
  SpeculativeRunner runner(std::move(target), std::move(layer), shape.Room());
  std::vector<Draftee> draftees = MakeDraftees(runner.limits());
  int64_t num_drafted = 0;
  for (int turn = 0; turn < 25; ++turn) {
    std::vector<StepSequence> batch;
    for (const Draftee& each : draftees) batch.push_back(each.Next(runner.limits().lookahead));
    const int64_t before = testing::AllocationCount();
    const StepResult& result = runner.Step({.sequences = batch});
    EXPECT_EQ(testing::AllocationCount() - before, 0) << "step " << turn;
    for (size_t i = 0; i < batch.size(); ++i) {
      num_drafted += result.sequences[i].num_drafted;
      draftees[i].Take(batch[i], result.sequences[i]);
    }
  }
  EXPECT_GT(num_drafted, 100);
}

TEST(LayerDrafterTest, ShapesThatCannotBeAreRefused) {
  const auto refusal = [](const TreeShape& shape) {
    return ErrorMessage([&] { LayerTargetOptions(DraftOptions(16), shape); });
  };
  EXPECT_EQ(refusal({.steps = 9, .nodes = 10}), "speculation: steps: expected 1..8, got 9");
  EXPECT_EQ(refusal({.steps = 3, .branches = 9, .nodes = 4}),
            "speculation: branches: expected 1..8, got 9");
  EXPECT_EQ(refusal({.steps = 3, .branches = 1, .nodes = 5}),
            "speculation: draft tokens: expected 4 for a chain of 3 steps, got 5");
  EXPECT_EQ(refusal({.steps = 2, .branches = 2, .nodes = 8}),
            "speculation: draft tokens: expected 2..7 with 2 steps of 2 branches, got 8");
  EXPECT_EQ(refusal({.steps = 8, .branches = 8, .nodes = 65}),
            "speculation: draft tokens: expected 2..64 with 8 steps of 8 branches, got 65");
  const DraftRoom room = TreeShape{.steps = 3, .branches = 4, .nodes = 8}.Room();
  EXPECT_EQ(room.slots, 12);
  EXPECT_EQ(room.rows, 8);
}

}  // namespace
}  // namespace quire
