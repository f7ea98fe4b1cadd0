// The drafts of draft layers, on the CPU and on a device.
#include "runner/layer_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
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
                           .num_top = num_top,
                           .first_state = root_state + 1});
      state = root_state + 1;
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
  runner.Draft({.sequences = {&rows, 1},
                .state_of = state_of,
                .wanted = {&last, 1},
                .num_top = 2,
                .first_state = root});
  const std::vector<int32_t> parents = {-1, -1, 1, 0};
  const std::vector<int32_t> tokens = {5, 9, 11, 7};
  std::vector<std::vector<TokenLogprob>> tree;
  int32_t first_state = root;
  for (const size_t begin : {size_t{0}, size_t{2}}) {
    const StepSequence level{.id = 1,
                             .tokens = std::span(tokens).subspan(begin, 2),
                             .position = TokenCount(19 + begin),
                             .pages = pages,
                             .tree_parents = std::span(parents).first(begin + 2)};
    const std::vector<int32_t> both = {0, 1};
    const std::vector<int32_t> states = begin == 0
                                            ? std::vector<int32_t>{root, root}
                                            : std::vector<int32_t>{first_state + 1, first_state};
    first_state = root + 3;
    const auto top = runner.Draft({.sequences = {&level, 1},
                                   .state_of = states,
                                   .wanted = both,
                                   .num_top = 2,
                                   .first_state = first_state});
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
