// What the tests of draft layers share, on the CPU and on a device.
#ifndef QUIRE_RUNNER_DRAFT_CASES_H_
#define QUIRE_RUNNER_DRAFT_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decode/drafter.h"
#include "decode/ngram_drafter.h"
#include "runner/layer_drafter.h"
#include "runner/metered_runner.h"
#include "runner/runner_cases.h"
#include "runner/runner_options.h"
#include "runner/speculative_runner.h"
#include "testing/active_faults.h"
#include "testing/mixed_drafter.h"
#include "testing/scripted_drafter.h"
#include "testing/step_jobs.h"

namespace quire {

// A model with a draft layer.
inline std::filesystem::path DraftFixture(const std::string& name) {
  return std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "hf" / name;
}

inline RunnerOptions DraftOptions(int32_t page_size, StepMode mode = StepMode::kEager) {
  return {.page_size = PageSize(page_size),
          .context = TokenCount(160),
          .max_seqs = 3,
          .max_step_tokens = TokenCount(128),
          .kv_format = KvFormat::kLatentF32,
          .index_type = IndexKeyType::kF32,
          .mode = mode,
          .checks = StepChecks::kPoison,
          .num_threads = 2,
          .faults = testing::ActiveFaults()};
}

// Tokens of each answer.
inline constexpr size_t kDraftOutput = 40;

// What was drafted, for which text.
struct SeenDraft {
  std::vector<int32_t> text, tokens, parents;
};

// Speculates by the draft layer of `target`, which was made with LayerTargetOptions of the shape; every
// draft is added to `seen`.
inline std::unique_ptr<SpeculativeRunner> MakeDrafting(std::unique_ptr<MeteredRunner> target,
                                                       const TreeShape& shape,
                                                       std::vector<SeenDraft>& seen,
                                                       std::unique_ptr<Drafter> scripted = {}) {
  auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape,
                                              testing::ActiveFaults());
  const auto observe = [&seen](const std::vector<int32_t>& text, const Draft& draft) {
    seen.push_back({.text = text,
                    .tokens = {draft.tokens.begin(), draft.tokens.begin() + draft.num_nodes},
                    .parents = {draft.parents.begin(), draft.parents.begin() + draft.num_nodes}});
  };
  return std::make_unique<SpeculativeRunner>(
      std::move(target),
      std::make_unique<testing::MixedDrafter>(std::move(layer), std::move(scripted), observe),
      shape.Room());
}

// What a runner that has seen nothing of the text before, and drafts to `seen`, drafts for it.
inline SeenDraft DraftAnew(Runner& runner, const std::vector<int32_t>& whole,
                           std::vector<SeenDraft>& seen) {
  static uint64_t next_id = 100;
  const std::vector<PageId> pages =
      FirstPages(runner.limits().page_size.PagesFor(runner.limits().context).raw());
  const std::span<const int32_t> text = whole;
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

// One sequence on its way.
struct Draftee {
  std::vector<int32_t> prompt;
  size_t chunk = 1;
  std::vector<PageId> pages = {};
  uint64_t id = 0;
  SamplingParams sampling = {};
  std::vector<int32_t> text = {};
  std::vector<float> logprobs = {};  // of what was drawn
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
    for (const StepToken& token : result.answers[0].tokens) {
      text.push_back(token.chosen.token);
      logprobs.push_back(token.chosen.logprob);
    }
    computed = text.size() - 1;
  }
};

inline std::vector<Draftee> MakeDraftees(const RunnerLimits& limits) {
  std::vector<PageId> pages;
  for (int32_t i = 1; i < limits.pool_pages.raw(); ++i) pages.push_back(PageId(i));
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(3));
  const auto each = static_cast<size_t>(limits.page_size.PagesFor(TokenCount(150)).raw());
  std::vector<Draftee> draftees;
  for (size_t i = 0; i < 3; ++i) {
    Draftee draftee{
        .prompt = testing::RandomTokens(17 + 20 * static_cast<int64_t>(i), limits.vocab_size, i),
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

// What was answered: texts behind their prompts, and how likely each token of the answers was.
struct Answers {
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<float>> logprobs;
};

// Until each has so many tokens of output. With lookahead, some steps have less of it.
inline Answers AnswerAll(Runner& runner, size_t num_output) {
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
  Answers answers;
  for (Draftee& each : draftees) {
    each.text.resize(each.prompt.size() + num_output);
    each.logprobs.resize(num_output);
    answers.texts.push_back(std::move(each.text));
    answers.logprobs.push_back(std::move(each.logprobs));
  }
  return answers;
}

// make(page size, shape) is a target, without a shape one that does not draft. Paths of trees are accepted,
// rows move, chunks end anywhere, others run beside it. Drafts are held to those of make_fresh's target.
using MakeDraftTarget =
    std::function<std::unique_ptr<MeteredRunner>(int32_t page_size, const TreeShape* shape)>;
inline void ExpectDraftsDependOnTheTextAlone(const TreeShape& shape, const MakeDraftTarget& make,
                                             int32_t page_size, const MakeDraftTarget& make_fresh) {
  const auto plain = make(page_size, nullptr);
  const Answers answers = AnswerAll(*plain, kDraftOutput);
  std::vector<SeenDraft> seen;
  auto scripted = std::make_unique<testing::ScriptedDrafter>(
      [&answers](const StepSequence& seq) { return testing::NextOf(answers.texts, seq); },
      shape.branches > 1 ? testing::DraftStyle::kLastSibling : testing::DraftStyle::kRight,
      plain->limits().vocab_size, 5);
  const auto runner = MakeDrafting(make(page_size, &shape), shape, seen, std::move(scripted));
  const Answers drafted = AnswerAll(*runner, kDraftOutput);
  EXPECT_EQ(drafted.texts, answers.texts);
  EXPECT_EQ(drafted.logprobs, answers.logprobs);

  std::vector<SeenDraft> anew;
  const auto fresh = MakeDrafting(make_fresh(64, &shape), shape, anew);
  int64_t num_whole = 0;
  for (const SeenDraft& each : seen) {
    ASSERT_GT(each.tokens.size(), 1u) << "nothing was drafted behind " << each.text.size();
    ASSERT_GE(std::ranges::min(each.tokens), 0) << "no guess behind " << each.text.size();
    if (std::ssize(each.tokens) < shape.nodes) continue;  // with less lookahead
    ++num_whole;
    const SeenDraft expected = DraftAnew(*fresh, each.text, anew);
    ASSERT_EQ(each.tokens, expected.tokens) << "behind " << each.text.size() << " tokens";
    ASSERT_EQ(each.parents, expected.parents) << "behind " << each.text.size() << " tokens";
  }
  EXPECT_GT(num_whole, 10);
}
inline void ExpectDraftsDependOnTheTextAlone(const TreeShape& shape, const MakeDraftTarget& make,
                                             int32_t page_size) {
  ExpectDraftsDependOnTheTextAlone(shape, make, page_size, make);
}

// make_ranks(number of ranks, options) is a target. Ranks that guess ahead give the bits of one that does not,
// and guess what one does.
using MakeDraftRanks =
    std::function<std::unique_ptr<MeteredRunner>(int32_t size, const RunnerOptions& options)>;
inline void ExpectRanksDraftAsOne(int32_t size, const TreeShape& shape,
                                  const RunnerOptions& options, const MakeDraftRanks& make_ranks) {
  const auto make_one = [&](int32_t page_size, const TreeShape* drafting) {
    RunnerOptions each = options;
    each.page_size = PageSize(page_size);
    return make_ranks(1, drafting == nullptr ? each : LayerTargetOptions(each, *drafting));
  };
  const auto make = [&](int32_t page_size, const TreeShape* drafting) {
    if (drafting == nullptr) return make_one(page_size, drafting);
    RunnerOptions each = LayerTargetOptions(options, *drafting);
    each.page_size = PageSize(page_size);
    return make_ranks(size, each);
  };
  ExpectDraftsDependOnTheTextAlone(shape, make, options.page_size.raw(), make_one);
}

// The same of guesses by the text itself.
inline void ExpectRanksGuessByTheTextAsOne(int32_t size, const RunnerOptions& options,
                                           const MakeDraftRanks& make_ranks) {
  const auto plain = make_ranks(1, options);
  const Answers answers = AnswerAll(*plain, kDraftOutput);
  const DraftRoom room = TreeShape{.steps = 4, .nodes = 5}.Room();
  const RunnerLimits& limits = plain->limits();
  SpeculativeRunner runner(make_ranks(size, TargetOptions(options, room)),
                           std::make_unique<NgramDrafter>(limits.max_seqs, limits.context), room);
  const Answers guessed = AnswerAll(runner, kDraftOutput);
  EXPECT_EQ(guessed.texts, answers.texts);
  EXPECT_EQ(guessed.logprobs, answers.logprobs);
}

}  // namespace quire

#endif  // QUIRE_RUNNER_DRAFT_CASES_H_
