#include "runner/layer_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "runner/cpu_runner.h"
#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/active_faults.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/mixed_drafter.h"
#include "testing/scripted_drafter.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::DraftStyle;
using testing::ErrorMessage;
using testing::MixedDrafter;
using testing::RandomTokens;
using testing::ScriptedDrafter;

std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "hf" / name;
}

RunnerOptions DraftOptions(int32_t page_size) {
  return {.page_size = PageSize(page_size),
          .context = TokenCount(160),
          .max_seqs = 3,
          .max_step_tokens = TokenCount(128),
          .kv_format = KvFormat::kLatentF32,
          .index_type = IndexKeyType::kF32,
          .checks = StepChecks::kPoison,
          .num_threads = 2,
          .faults = testing::ActiveFaults()};
}

std::vector<int32_t> TextOf(const StepSequence& seq) {
  std::vector<int32_t> text(seq.prompt.begin(), seq.prompt.end());
  text.insert(text.end(), seq.output.begin(), seq.output.end());
  return text;
}

// What was drafted, for which text.
struct SeenDraft {
  std::vector<int32_t> text, tokens, parents;
};

std::unique_ptr<SpeculativeRunner> MakeDrafting(const std::filesystem::path& folder,
                                                int32_t page_size, const TreeShape& shape,
                                                std::vector<SeenDraft>& seen,
                                                std::unique_ptr<Drafter> scripted = {}) {
  auto target = testing::MakeRunner(folder, LayerTargetOptions(DraftOptions(page_size), shape));
  auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape,
                                              testing::ActiveFaults());
  const auto observe = [&seen](const StepBatch& batch, std::span<const Draft> drafts) {
    for (const Draft& draft : drafts) {
      seen.push_back({.text = TextOf(batch.sequences[draft.sequence]),
                      .tokens = {draft.tokens.begin(), draft.tokens.begin() + draft.num_nodes},
                      .parents = {draft.parents.begin(), draft.parents.begin() + draft.num_nodes}});
    }
  };
  return std::make_unique<SpeculativeRunner>(
      std::move(target),
      std::make_unique<MixedDrafter>(std::move(layer), std::move(scripted), observe), shape.Room());
}

// ---- Parity ----

class LayerDraftParity : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerDraftParity, AChainIsThatOfThePublishedLayerHoweverThePromptIsCut) {
  const Json expected = ReadJsonFile(Fixture(GetParam()) / "expected.json");
  const auto prompt = expected.at("tokens").get<std::vector<int32_t>>();
  std::vector<int32_t> chain = {expected.at("greedy").at(0).get<int32_t>()};
  for (const Json& token : expected.at("draft").at("chain")) chain.push_back(token.get<int32_t>());
  for (const size_t chunk : {size_t{1}, size_t{13}, size_t{64}}) {
    std::vector<SeenDraft> seen;
    const auto runner = MakeDrafting(Fixture(GetParam()), 16, {.steps = 4, .nodes = 5}, seen);
    const std::vector<PageId> pages = FirstPages(8);
    std::vector<int32_t> text = prompt;
    for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
      const size_t count = std::min(chunk, prompt.size() - begin);
      const StepSequence seq{
          .id = 1,
          .tokens = std::span(prompt).subspan(begin, count),
          .position = TokenCount(begin),
          .pages = pages,
          .want = begin + count == prompt.size() ? Want::kNextToken : Want::kNothing,
          .sampling = {.temperature = 0}};
      const StepResult& result = runner->Step({.sequences = {&seq, 1}});
      if (seq.want == Want::kNextToken) {
        text.push_back(result.sequences[0].answers[0].tokens[0].chosen.token);
      }
    }
    const std::span<const int32_t> all = text;
    const StepSequence next{.id = 1,
                            .tokens = all.last(1),
                            .position = TokenCount(prompt.size()),
                            .pages = pages,
                            .lookahead = TokenCount(4),
                            .want = Want::kNextToken,
                            .sampling = {.temperature = 0},
                            .prompt = prompt,
                            .output = all.last(1)};
    runner->Step({.sequences = {&next, 1}});
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].tokens, chain) << "chunks of " << chunk;
    EXPECT_EQ(seen[0].parents, (std::vector<int32_t>{-1, 0, 1, 2, 3}));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayerDraftParity,
                         ::testing::Values("v3_mtp", "glm_flash_mtp", "v32_mtp"),
                         [](const auto& test) { return std::string(test.param); });

// ---- History ----

// One sequence on its way.
struct Draftee {
  std::vector<int32_t> prompt;
  size_t chunk = 1;
  std::vector<PageId> pages = {};
  uint64_t id = 0;
  SamplingParams sampling = {};
  std::vector<int32_t> text = {};
  size_t computed = 0;

  bool is_prefill() const { return computed < prompt.size(); }
  StepSequence Next(TokenCount lookahead) const {
    const std::span<const int32_t> all = text;
    const size_t count = is_prefill() ? std::min(chunk, prompt.size() - computed) : 1;
    return {.id = id,
            .tokens = all.subspan(computed, count),
            .position = TokenCount(computed),
            .pages = pages,
            .lookahead = is_prefill() ? TokenCount(0) : lookahead,
            .want = computed + count >= prompt.size() ? Want::kNextToken : Want::kNothing,
            .sampling = sampling,
            .prompt = all.first(prompt.size()),
            .output = all.subspan(prompt.size())};
  }
  void Take(const StepSequence& step, const StepSequenceResult& result) {
    computed += step.tokens.size();
    if (result.answers.empty()) return;
    for (const StepToken& token : result.answers[0].tokens) text.push_back(token.chosen.token);
    computed = text.size() - 1;
  }
};

std::vector<Draftee> MakeDraftees(const RunnerLimits& limits) {
  std::vector<PageId> pages;
  for (int32_t i = 1; i < limits.pool_pages.raw(); ++i) pages.push_back(PageId(i));
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(3));
  const auto each = static_cast<size_t>(limits.page_size.PagesFor(TokenCount(110)).raw());
  std::vector<Draftee> draftees;
  for (size_t i = 0; i < 3; ++i) {
    Draftee draftee{.prompt = RandomTokens(17 + 20 * static_cast<int64_t>(i), limits.vocab_size, i),
                    .chunk = 5 + 8 * i,
                    .id = i + 1,
                    .sampling = {.temperature = i == 0 ? 0.0f : 0.8f, .seed = i}};
    for (size_t k = 0; k < each; ++k) {
      draftee.pages.push_back(pages.back());
      pages.pop_back();
    }
    draftee.text = draftee.prompt;
    draftees.push_back(std::move(draftee));
  }
  return draftees;
}

// Until each has so many tokens of output. With lookahead, some steps have less of it.
std::vector<std::vector<int32_t>> Answer(Runner& runner, size_t num_output) {
  std::vector<Draftee> draftees = MakeDraftees(runner.limits());
  const auto left = [&](const Draftee& each) {
    return each.text.size() < each.prompt.size() + num_output;
  };
  for (int64_t turn = 0; std::ranges::any_of(draftees, left); ++turn) {
    std::vector<StepSequence> batch;
    std::vector<Draftee*> in_batch;
    for (Draftee& each : draftees) {
      if (!left(each)) continue;
      const TokenCount most = runner.limits().lookahead;
      batch.push_back(each.Next(turn % 4 == 3 ? TokenCount(most.raw() / 2) : most));
      in_batch.push_back(&each);
    }
    const StepResult& result = runner.Step({.sequences = batch});
    for (size_t i = 0; i < batch.size(); ++i) in_batch[i]->Take(batch[i], result.sequences[i]);
  }
  std::vector<std::vector<int32_t>> texts;
  for (Draftee& each : draftees) {
    each.text.resize(each.prompt.size() + num_output);
    texts.push_back(std::move(each.text));
  }
  return texts;
}

// What a runner that has seen nothing of the text before drafts for it.
SeenDraft DraftAnew(Runner& runner, const SeenDraft& old, std::vector<SeenDraft>& seen) {
  static uint64_t next_id = 100;
  const std::vector<PageId> pages =
      FirstPages(runner.limits().page_size.PagesFor(TokenCount(150)).raw());
  const std::span<const int32_t> text = old.text;
  const StepSequence prefill{.id = ++next_id,
                             .tokens = text.first(text.size() - 1),
                             .pages = pages,
                             .want = Want::kScores,
                             .next_token = text.back()};
  runner.Step({.sequences = {&prefill, 1}});
  const StepSequence next{.id = next_id,
                          .tokens = text.last(1),
                          .position = TokenCount(text.size() - 1),
                          .pages = pages,
                          .lookahead = runner.limits().lookahead,
                          .want = Want::kNextToken,
                          .sampling = {.temperature = 0},
                          .prompt = text.first(text.size() - 1),
                          .output = text.last(1)};
  seen.clear();
  runner.Step({.sequences = {&next, 1}});
  return seen.at(0);
}

struct HistoryCase {
  const char* folder;
  int32_t page_size;
  TreeShape shape;
};

class DraftHistory : public ::testing::TestWithParam<HistoryCase> {};

// Paths of trees are accepted, rows move, chunks end anywhere, others run beside it.
TEST_P(DraftHistory, DraftsDependOnTheTextAloneAndChangeNone) {
  const auto& [name, page_size, shape] = GetParam();
  constexpr size_t kOutput = 24;
  const auto plain = testing::MakeRunner(Fixture(name), DraftOptions(page_size));
  const auto texts = Answer(*plain, kOutput);
  std::vector<SeenDraft> seen;
  auto scripted = std::make_unique<ScriptedDrafter>(
      [&texts](const StepSequence& seq) { return testing::NextOf(texts, seq); },
      shape.branches > 1 ? DraftStyle::kLastSibling : DraftStyle::kRight,
      plain->limits().vocab_size, 5);
  const auto runner = MakeDrafting(Fixture(name), page_size, shape, seen, std::move(scripted));
  EXPECT_EQ(Answer(*runner, kOutput), texts);

  std::vector<SeenDraft> anew;
  const auto fresh = MakeDrafting(Fixture(name), 64, shape, anew);
  int64_t num_whole = 0;
  for (const SeenDraft& each : seen) {
    ASSERT_GT(each.tokens.size(), 1u) << "nothing was drafted behind " << each.text.size();
    if (std::ssize(each.tokens) < shape.nodes) continue;  // with less lookahead
    ++num_whole;
    const SeenDraft expected = DraftAnew(*fresh, each, anew);
    ASSERT_EQ(each.tokens, expected.tokens) << "behind " << each.text.size() << " tokens";
    ASSERT_EQ(each.parents, expected.parents) << "behind " << each.text.size() << " tokens";
  }
  EXPECT_GT(num_whole, 10);
}

const HistoryCase kHistoryCases[] = {
    {"v3_mtp", 1, {.steps = 3, .branches = 1, .nodes = 4}},
    {"v3_mtp", 16, {.steps = 3, .branches = 4, .nodes = 8}},
    {"v3_mtp", 61, {.steps = 2, .branches = 8, .nodes = 5}},
    {"v32_mtp", 16, {.steps = 4, .branches = 3, .nodes = 17}},
    {"glm_flash_mtp", 64, {.steps = 8, .branches = 2, .nodes = 9}}};

std::string HistoryName(const ::testing::TestParamInfo<HistoryCase>& info) {
  const auto& [name, page_size, shape] = info.param;
  return std::string(name) + "_page" + std::to_string(page_size) + "_" +
         std::to_string(shape.steps) + "_" + std::to_string(shape.branches) + "_" +
         std::to_string(shape.nodes);
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
  const auto target = testing::MakeRunner(
      Fixture("v3_mtp"),
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
  auto target = testing::MakeRunner(Fixture("v3_mtp"), LayerTargetOptions(DraftOptions(16), shape));
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
