#include "runner/cpu_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/faulty_weights.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::AllocationCount;
using testing::Difference;
using testing::ErrorMessage;
using testing::Job;
using testing::JobReport;
using testing::MakeRunner;
using testing::RandomTokens;
using testing::RunJob;
using testing::Weights;

std::unique_ptr<CpuRunner> Make(const RunnerOptions& options) {
  return MakeRunner(kTrueGeometry, options, Weights::kDummy);
}

const RunnerOptions kOptions{.page_size = PageSize(16),
                             .context = TokenCount(128),
                             .max_seqs = 4,
                             .max_step_tokens = TokenCount(64),
                             .num_threads = 2};

TEST(CpuRunnerTest, AStepAllocatesNothing) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    const auto runner = Make(options);
    const std::vector<int32_t> tokens = RandomTokens(60, runner->limits().vocab_size, 1);
    const std::vector<PageId> pages = FirstPages(8);
    const LogitBias bias[] = {{.token = 3, .bias = 1.0f}};
    const SamplingParams sampling{.temperature = 0.8f,
                                  .top_k = 20,
                                  .top_p = 0.9f,
                                  .min_p = 0.01f,
                                  .repetition_penalty = 1.1f,
                                  .frequency_penalty = 0.1f,
                                  .presence_penalty = 0.1f,
                                  .logit_bias = bias,
                                  .top_logprobs = 20};
    const StepPageCopy copies[] = {{.from = PageId(1), .to = PageId(20), .count = 5}};
    const StepSequence prefill[] = {
        {.tokens = tokens, .pages = pages, .want = Want::kScores, .sampling = sampling}};
    const StepSequence decode[] = {{.tokens = std::span(tokens).first(1),
                                    .position = TokenCount(60),
                                    .pages = pages,
                                    .want = Want::kNextToken,
                                    .sampling = sampling,
                                    .num_samples = 2,
                                    .prompt = tokens,
                                    .output = std::span(tokens).first(4)}};
    for (int round = 0; round < 3; ++round) {
      const int64_t before = AllocationCount();
      runner->Step({.sequences = prefill});
      runner->Step({.copies = copies, .sequences = decode});
      EXPECT_EQ(AllocationCount() - before, 0) << "round " << round;
    }
  }
  const int64_t before = AllocationCount();
  const auto counted = std::make_unique<int>(1);
  EXPECT_GT(AllocationCount(), before) << "the hook counts nothing";
}

TEST(CpuRunnerTest, SeveralSamplesOfOneDistributionAreThoseOfSeveralSteps) {
  const auto runner = Make(kOptions);
  const std::vector<int32_t> tokens = RandomTokens(20, runner->limits().vocab_size, 2);
  const std::vector<PageId> pages = FirstPages(2);
  StepSequence seq{.tokens = tokens,
                   .pages = pages,
                   .want = Want::kNextToken,
                   .sampling = {.temperature = 2.0f, .seed = 11},
                   .num_samples = 4};
  std::vector<int32_t> at_once;
  for (const StepAnswer& answer : runner->Step({.sequences = {&seq, 1}}).sequences[0].answers) {
    ASSERT_EQ(answer.tokens.size(), 1u);
    at_once.push_back(answer.tokens[0].chosen.token);
  }
  ASSERT_EQ(at_once.size(), 4u);
  seq.num_samples = 1;
  for (int32_t i = 0; i < 4; ++i) {
    seq.first_sample = i;
    const StepResult& result = runner->Step({.sequences = {&seq, 1}});
    EXPECT_EQ(result.sequences[0].answers[0].tokens[0].chosen.token,
              at_once[static_cast<size_t>(i)]);
  }
}

TEST(CpuRunnerTest, MasksAreReadByCollect) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    ExpectMasksAreReadByCollect(*Make(options));
  }
}

TEST(CpuRunnerTest, MoreSequencesThanABlockOfLogitsDrawWhatEachDrawsAlone) {
  RunnerOptions options = kOptions;
  options.max_seqs = 150;
  options.max_step_tokens = TokenCount(150);
  const auto runner = Make(options);
  const std::vector<int32_t> tokens = RandomTokens(150, runner->limits().vocab_size, 6);
  const std::vector<PageId> pages = FirstPages(150);
  std::vector<StepSequence> seqs;
  for (size_t i = 0; i < tokens.size(); ++i) {
    seqs.push_back({.tokens = std::span(tokens).subspan(i, 1),
                    .pages = std::span(pages).subspan(i, 1),
                    .want = i % 3 == 2 ? Want::kScores : Want::kNextToken,
                    .sampling = {.temperature = 1.5f, .seed = i, .top_logprobs = 2}});
  }
  std::vector<TokenLogprob> together;
  for (const StepSequenceResult& result : runner->Step({.sequences = seqs}).sequences) {
    ASSERT_EQ(result.answers.size(), 1u);
    const StepToken& token = result.answers[0].tokens[0];
    together.push_back(token.chosen);
    together.insert(together.end(), token.top.begin(), token.top.end());
  }
  ASSERT_EQ(together.size(), 450u);
  for (size_t i = 0; i < seqs.size(); ++i) {
    const StepResult& result = runner->Step({.sequences = {&seqs[i], 1}});
    const StepToken& alone = result.sequences[0].answers[0].tokens[0];
    EXPECT_EQ(alone.chosen.token, together[3 * i].token) << i;
    EXPECT_EQ(alone.chosen.logprob, together[3 * i].logprob) << i;
    EXPECT_EQ(alone.top[1].token, together[3 * i + 2].token) << i;
    EXPECT_EQ(alone.top[1].logprob, together[3 * i + 2].logprob) << i;
  }
}

TEST(CpuRunnerTest, LogProbabilitiesAreADistribution) {
  const auto runner = Make(kOptions);
  const std::vector<int32_t> tokens = RandomTokens(3, runner->limits().vocab_size, 3);
  const std::vector<PageId> pages = FirstPages(1);
  // The score of every token of the vocabulary behind the same three.
  double sum = 0;
  for (int32_t next = 0; next < runner->limits().vocab_size; ++next) {
    const StepSequence seq{
        .tokens = tokens, .pages = pages, .want = Want::kScores, .next_token = next};
    sum += std::exp(double{
        runner->Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens[2].chosen.logprob});
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
}

TEST(CpuRunnerTest, CopiedPagesHoldTheSameTokens) {
  const auto runner = Make(kOptions);
  const std::vector<int32_t> tokens = RandomTokens(30, runner->limits().vocab_size, 4);
  const std::vector<PageId> pages = FirstPages(2);
  StepSequence seq{.tokens = tokens,
                   .pages = pages,
                   .want = Want::kNextToken,
                   .sampling = {.temperature = 0, .top_logprobs = 5}};
  runner->Step({.sequences = {&seq, 1}});
  // 30 tokens are a page and 14 rows; the copy continues in pages of its own.
  seq.tokens = std::span(tokens).first(1);
  seq.position = TokenCount(30);
  const StepToken expected =
      runner->Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens[0];
  const TokenLogprob chosen = expected.chosen;
  const StepPageCopy copies[] = {{.from = PageId(1), .to = PageId(9), .count = 16},
                                 {.from = PageId(2), .to = PageId(7), .count = 14}};
  const std::vector<PageId> copied = {PageId(9), PageId(7)};
  seq.pages = copied;
  const StepResult& result = runner->Step({.copies = copies, .sequences = {&seq, 1}});
  EXPECT_EQ(runner->last_step().copied_pages, 2);
  EXPECT_EQ(result.sequences[0].answers[0].tokens[0].chosen.token, chosen.token);
  EXPECT_EQ(result.sequences[0].answers[0].tokens[0].chosen.logprob, chosen.logprob);
}

// A tree's second branch is what goes on: its rows move to the slots of their places.
TEST(CpuRunnerTest, MovedRowsAreThoseOfTheirNewPlace) {
  RunnerOptions options = kOptions;
  options.tree_nodes = TokenCount(4);
  const auto runner = Make(options);
  const std::vector<int32_t> tokens = RandomTokens(14, runner->limits().vocab_size, 4);
  const std::vector<int32_t> nodes = {5, 6, 7, 8}, path = {5, 7, 8}, last = {9};
  const std::vector<int32_t> parents = {-1, 0, 0, 2};
  const std::vector<PageId> pages = FirstPages(2);
  const auto run = [&](std::span<const int32_t> given, int64_t position,
                       std::span<const int32_t> tree, std::span<const StepSlotMove> moves) {
    const StepSequence seq{.tokens = given,
                           .position = TokenCount(position),
                           .pages = pages,
                           .tree_parents = tree,
                           .want = Want::kNextToken,
                           .sampling = {.temperature = 0}};
    const StepResult& result = runner->Step({.moves = moves, .sequences = {&seq, 1}});
    return result.sequences[0].answers[0].tokens.back().chosen;
  };
  run(tokens, 0, {}, {});
  run(path, 14, {}, {});
  const TokenLogprob expected = run(last, 17, {}, {});
  run(nodes, 14, parents, {});
  // Nodes 2 and 3 lie in slots 16 and 17 of the sequence, the first two of its second page, and belong
  // into 15 and 16: a target of one move is a source of another.
  const PageSize page_size = runner->limits().page_size;
  const auto slot = [&](int32_t at) {
    return page_size.SlotOf(pages[static_cast<size_t>(at) / 16], at % 16);
  };
  const StepSlotMove moves[] = {{.from = slot(16), .to = slot(15)},
                                {.from = slot(17), .to = slot(16)}};
  const TokenLogprob moved = run(last, 17, {}, moves);
  EXPECT_EQ(moved.token, expected.token);
  EXPECT_EQ(moved.logprob, expected.logprob);

  const StepSlotMove outside[] = {{.from = slot(16), .to = Slot(15)}};
  EXPECT_TRUE(ErrorMessage([&] {
                run(last, 17, {}, outside);
              }).starts_with("step: move from slot 32 to 15: expected slots 16.."));
  const std::vector<StepSlotMove> many(4 * 4 + 1, moves[0]);
  EXPECT_EQ(ErrorMessage([&] { run(last, 17, {}, many); }),
            "step: moves: expected at most 16, got 17");
}

TEST(CpuRunnerTest, KvFormatsDifferByTheirRoundingOnly) {
  // f32 keeps keys exactly; bf16 rounds them by 2^-8, fp8 by 2^-4 of a value at most. The answers
  // follow, and differ: a format that were ignored would not.
  std::vector<JobReport> reports;
  for (const KvFormat format :
       {KvFormat::kLatentF32, KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
    RunnerOptions options = kOptions;
    options.kv_format = format;
    const auto runner = Make(options);
    reports.push_back(
        RunJob(*runner, {.prompt = RandomTokens(60, runner->limits().vocab_size, 5), .chunk = 20}));
  }
  const auto distance = [&](const JobReport& a) {
    double worst = 0;
    for (size_t i = 0; i < a.tokens.size(); ++i) {
      worst = std::max<double>(
          worst, std::abs(a.tokens[i].chosen.logprob - reports[0].tokens[i].chosen.logprob));
    }
    return worst;
  };
  EXPECT_GT(distance(reports[1]), 0);
  EXPECT_GT(distance(reports[2]), distance(reports[1]));
  EXPECT_LT(distance(reports[2]), 1.0);
}

// ---- Faults of one row ----

// A runner whose embedding of kFaultyId is NaN.
constexpr int32_t kFaultyId = 7;
std::unique_ptr<CpuRunner> MakeFaulty(const RunnerOptions& options) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const std::unique_ptr<WeightSource> dummy = MakeDummyWeights(config);
  testing::FaultyWeights source(*dummy, kFaultyId);
  const MemoryPlan plan = MakeMemoryPlan(config, source, options);
  return std::make_unique<CpuRunner>(config, source, options, plan);
}

TEST(CpuRunnerTest, ARowWithNaNNamesItselfAndTheOthersKeepTheirBits) {
  ExpectARowWithNaNNamesItself(*MakeFaulty(kOptions), kFaultyId);
}

TEST(CpuRunnerTest, AChunkNamesNaNThatAnyOfItsTokensLeftInTheCache) {
  const auto runner = MakeFaulty(kOptions);
  const std::vector<PageId> pages = FirstPages(2);
  const auto fault_of = [&](const std::vector<int32_t>& tokens, TokenCount position) {
    const StepSequence seqs[] = {
        {.tokens = tokens, .position = position, .pages = std::span(pages).first(1)},
        {.tokens = {&tokens[0], 1},
         .pages = std::span(pages).subspan(1),
         .want = Want::kNextToken,
         .sampling = {.temperature = 0}}};
    const StepResult& result = runner->Step({.sequences = seqs});
    EXPECT_TRUE(result.sequences[0].answers.empty());
    EXPECT_EQ(result.sequences[1].fault, RowFault::kNone);
    EXPECT_EQ(result.sequences[1].answers.size(), 1u);
    return result.sequences[0].fault;
  };
  EXPECT_EQ(fault_of({1, 2, 3, 4}, TokenCount(0)), RowFault::kNone);
  EXPECT_EQ(fault_of({5, 6}, TokenCount(4)), RowFault::kNone);
  EXPECT_EQ(fault_of({1, kFaultyId, 3, 4}, TokenCount(0)), RowFault::kLogitsNotFinite);
  EXPECT_EQ(fault_of({5, 6}, TokenCount(4)), RowFault::kLogitsNotFinite);
}

TEST(CpuRunnerTest, PagesThatHeldNaNAreAsGoodAsOthers) {
  const auto runner = MakeFaulty(kOptions);
  const std::vector<PageId> pages = FirstPages(2);
  const auto run = [&](const std::vector<int32_t>& tokens, size_t page) {
    const StepSequence seq{.tokens = tokens,
                           .pages = std::span(pages).subspan(page, 1),
                           .want = Want::kNextToken,
                           .sampling = {.temperature = 0}};
    const StepSequenceResult& result = runner->Step({.sequences = {&seq, 1}}).sequences[0];
    return result.fault == RowFault::kNone ? result.answers[0].tokens[0].chosen.logprob : 1.0f;
  };
  EXPECT_EQ(run(std::vector<int32_t>(16, kFaultyId), 0), 1.0f);
  const float expected = run({1, 2, 3}, 1);
  EXPECT_LT(expected, 0.0f);
  EXPECT_EQ(run({1, 2, 3}, 0), expected);
}

// ---- What is read ----

// One token has all the experts that it can choose; of several tokens some choose the same.
TEST(CpuRunnerTest, ExpertsWithRowsAreReadAndNoOthers) {
  const auto runner = Make(kOptions);
  const std::vector<PageId> pages = FirstPages(8);
  const auto step = [&](int64_t num_tokens) {
    const std::vector<int32_t> tokens = RandomTokens(num_tokens, runner->limits().vocab_size, 1);
    const StepSequence seq{.tokens = tokens, .pages = pages, .want = Want::kNextToken};
    runner->Step({.sequences = {&seq, 1}});
    return runner->last_step().experts_with_rows;
  };
  const int64_t of_one = step(1);
  ASSERT_GT(of_one, 0);
  EXPECT_EQ(runner->WeightBytesPerStep(1, of_one), runner->WeightBytesPerStep(1, 0));
  const int64_t of_many = step(60);
  EXPECT_GT(of_many, of_one);
  EXPECT_EQ(runner->WeightBytesPerStep(60, of_many), runner->WeightBytesPerStep(1, of_many));
  EXPECT_LT(runner->WeightBytesPerStep(60, of_many - 1), runner->WeightBytesPerStep(60, of_many));
  EXPECT_LE(runner->WeightBytesPerStep(60, of_many), runner->WeightBytesPerStep(60, 0));
}

// ---- What is kept ----

TEST(CpuRunnerTest, ASteadyStepLooksAtNewPagesOnly) {
  const auto runner = Make(kOptions);
  std::vector<std::vector<PageId>> pages(3);
  PageId next{1};
  std::vector<PageCount> kept(3);
  const int32_t token[] = {1};
  for (int64_t position = 0; position < 40; ++position) {
    PageCount added{0};
    std::vector<StepSequence> seqs;
    for (size_t i = 0; i < 3; ++i) {
      // They begin apart, so that they grow in different steps.
      const TokenCount at(position + 5 * static_cast<int64_t>(i));
      while (PageCount(pages[i].size()) < runner->limits().page_size.PagesFor(at + TokenCount(1))) {
        pages[i].push_back(next);
        next = PageId(next.raw() + 1);
        added += PageCount(1);
      }
      seqs.push_back({.id = i + 1,
                      .tokens = token,
                      .position = at,
                      .pages = pages[i],
                      .kept_pages = kept[i],
                      .want = Want::kNextToken});
    }
    runner->Step({.sequences = seqs});
    EXPECT_EQ(runner->last_step().pages_looked_at, added) << position;
    for (size_t i = 0; i < 3; ++i) kept[i] = PageCount(pages[i].size());
  }
}

class BadStep : public ::testing::Test {
 protected:
  std::string Refusal(const StepSequence& seq) {
    const std::string message = ErrorMessage([&] { runner_->Step({.sequences = {&seq, 1}}); });
    // Nothing was lost: the next step runs.
    const StepSequence good{.tokens = tokens_, .pages = pages_};
    runner_->Step({.sequences = {&good, 1}});
    return message;
  }

  const std::unique_ptr<CpuRunner> runner_ = Make(kOptions);
  const std::vector<int32_t> tokens_ = {1, 2, 3};
  const std::vector<PageId> pages_ = FirstPages(8);
};

TEST_F(BadStep, TokensOutsideTheVocabularyAreRefused) {
  const int32_t high[] = {1, 320};
  EXPECT_EQ(Refusal({.tokens = high, .pages = pages_}),
            "step: sequence 0: token 1: expected 0..319, got 320");
  const int32_t low[] = {-1};
  EXPECT_EQ(Refusal({.tokens = low, .pages = pages_}),
            "step: sequence 0: token 0: expected 0..319, got -1");
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = pages_, .want = Want::kScores, .next_token = 320}),
            "step: sequence 0: next token: expected 0..319 or none, got 320");
}

TEST_F(BadStep, TextThatPenaltiesCannotReadIsRefusedBeforeTheStep) {
  const int32_t wild[] = {1, 320};
  StepSequence seq{.tokens = tokens_,
                   .pages = pages_,
                   .want = Want::kNextToken,
                   .sampling = {.presence_penalty = 1},
                   .output = wild};
  EXPECT_EQ(ErrorMessage([&] {
              runner_->Submit({.sequences = {&seq, 1}});
            }),
            "output[1]: expected a token of 0..319, got 320");
  seq.sampling = {};
  EXPECT_EQ(Refusal(seq), "no error");  // not read
}

TEST_F(BadStep, ALongerSequenceThanTheContextIsRefusedWithBothCounts) {
  EXPECT_EQ(
      Refusal({.tokens = tokens_, .position = TokenCount(126), .pages = pages_}),
      "step: sequence 0: 126 tokens in the cache and 3 more exceed the context length of 128");
}

TEST_F(BadStep, PagesThatAreNotThereAreRefused) {
  EXPECT_EQ(
      Refusal({.tokens = tokens_, .position = TokenCount(14), .pages = std::span(pages_).first(1)}),
      "step: sequence 0: pages: expected at least 2 for 17 tokens, got 1");
  const PageId scratch[] = {PageId(0)};
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = scratch}),
            "step: sequence 0: page 0: expected 1..32, got 0");
  const PageId beyond[] = {PageId(33)};
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = beyond}),
            "step: sequence 0: page 0: expected 1..32, got 33");
}

TEST_F(BadStep, PagesAreKeptByASequenceThatIsKnownAndHasThem) {
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = pages_, .kept_pages = PageCount(1)}),
            "step: sequence 0: kept pages: expected 0..0, got 1");
  EXPECT_EQ(Refusal({.id = 1, .tokens = tokens_, .pages = pages_, .kept_pages = PageCount(9)}),
            "step: sequence 0: kept pages: expected 0..8, got 9");
  // A page behind those that the step needs is looked at, too: the next step may keep it.
  const PageId beyond[] = {PageId(1), PageId(33)};
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = beyond}),
            "step: sequence 0: page 1: expected 1..32, got 33");
}

TEST_F(BadStep, TreesAndLookaheadAreRefusedWhereTheRunnerTakesNone) {
  const int32_t chain[] = {-1, 0, 1};
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = pages_, .tree_parents = chain}),
            "step: sequence 0: tree nodes: expected 3..0, got 3");
  EXPECT_EQ(Refusal({.tokens = tokens_, .pages = pages_, .lookahead = TokenCount(1)}),
            "step: sequence 0: 0 tree nodes and a lookahead of 1: expected 0..0 together");
}

TEST(TreeStep, WhatIsNoTreeIsRefused) {
  RunnerOptions options = kOptions;
  options.tree_nodes = TokenCount(4);
  const auto runner = Make(options);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<PageId> pages = FirstPages(9);
  const int32_t chain[] = {-1, 0, 1};
  const StepSequence good{.tokens = tokens,
                          .position = TokenCount(10),
                          .pages = pages,
                          .tree_parents = chain,
                          .want = Want::kNextToken};
  const auto refusal = [&](const std::function<void(StepSequence&)>& change) {
    StepSequence seq = good;
    change(seq);
    return ErrorMessage([&] { runner->Step({.sequences = {&seq, 1}}); });
  };
  EXPECT_EQ(refusal([](StepSequence&) {}), "no error");
  const int32_t later[] = {-1, 1, 0};
  EXPECT_EQ(refusal([&](StepSequence& seq) { seq.tree_parents = later; }),
            "step: sequence 0: parent of tree node 1: expected -1..0, got 1");
  const int32_t below[] = {-2, 0, 0};
  EXPECT_EQ(refusal([&](StepSequence& seq) { seq.tree_parents = below; }),
            "step: sequence 0: parent of tree node 0: expected -1..-1, got -2");
  EXPECT_EQ(refusal([&](StepSequence& seq) { seq.tree_parents = std::span(chain).first(2); }),
            "step: sequence 0: tree nodes: expected 3..4, got 2");
  const int32_t five[] = {-1, 0, 1, 2, 3};
  EXPECT_EQ(refusal([&](StepSequence& seq) { seq.tree_parents = five; }),
            "step: sequence 0: tree nodes: expected 3..4, got 5");
  EXPECT_EQ(refusal([&](StepSequence& seq) { seq.lookahead = TokenCount(2); }),
            "step: sequence 0: 3 tree nodes and a lookahead of 2: expected 0..4 together");
  EXPECT_EQ(refusal([&](StepSequence& seq) {
              seq.position = TokenCount(13);  // 13 and 3 nodes fill a page
              seq.pages = std::span(pages).first(1);
              seq.lookahead = TokenCount(1);
            }),
            "step: sequence 0: pages: expected at least 2 for 17 tokens, got 1");
  const int32_t four[] = {-1, 0, 1, 2};
  EXPECT_EQ(
      refusal([&](StepSequence& seq) {
        seq.sampling.presence_penalty = 1;
        seq.tree_parents = four;
      }),
      "step: sequence 0: penalties: expected all 4 nodes of the tree among the tokens, got 3");
  EXPECT_EQ(refusal([&](StepSequence& seq) {
              seq.want = Want::kScores;
              seq.next_token = 1;
            }),
            "step: sequence 0: next token: expected none for a tree, got 1");
  // Depth counts, and not the number of nodes: three beside each other fit where a chain does not.
  const int32_t siblings[] = {-1, -1, -1};
  const auto at_the_end = [&](StepSequence& seq) { seq.position = TokenCount(127); };
  EXPECT_EQ(
      refusal(at_the_end),
      "step: sequence 0: 127 tokens in the cache and 3 more exceed the context length of 128");
  EXPECT_EQ(refusal([&](StepSequence& seq) {
              at_the_end(seq);
              seq.tree_parents = siblings;
            }),
            "no error");
}

TEST_F(BadStep, MoreThanAStepCanHoldIsRefused) {
  const std::vector<int32_t> many(65, 1);
  EXPECT_EQ(Refusal({.tokens = many, .pages = pages_}),
            "step: tokens of all sequences: expected at most 64, got 65");
  EXPECT_EQ(Refusal({.pages = pages_}), "step: sequence 0: no tokens");
  EXPECT_EQ(
      Refusal({.tokens = tokens_, .pages = pages_, .want = Want::kNextToken, .num_samples = 5}),
      "step: samples of all sequences: expected at most 4, got 5");
  const std::vector<StepSequence> seqs(5, {.tokens = tokens_, .pages = pages_});
  EXPECT_EQ(ErrorMessage([&] { runner_->Step({.sequences = seqs}); }),
            "step: sequences: expected 1..4, got 5");
}

TEST_F(BadStep, PageCopiesOutsideThePoolAreRefused) {
  const StepSequence good{.tokens = tokens_, .pages = pages_};
  const auto refusal = [&](StepPageCopy copy) {
    return ErrorMessage([&] { runner_->Step({.copies = {&copy, 1}, .sequences = {&good, 1}}); });
  };
  EXPECT_EQ(refusal({.from = PageId(1), .to = PageId(33), .count = 1}),
            "step: page copy from 1 to 33: expected pages 1..32");
  EXPECT_EQ(refusal({.from = PageId(1), .to = PageId(2), .count = 17}),
            "step: page copy from 1 to 2: tokens: expected 1..16, got 17");
}

TEST(CpuRunnerTest, ALoadedDraftLayerChangesNoBit) {
  for (const std::filesystem::path& folder : {kTrueGeometry, kSparse}) {
    ModelConfig config = ReadModelConfig(folder);
    config.num_draft_layers = 1;
    const auto source = MakeDummyWeights(config);
    const auto run = [&](bool draft_layer) {
      RunnerOptions options = kOptions;
      options.draft_layer = draft_layer;
      options.checks = StepChecks::kPoison;
      CpuRunner runner(config, *source, options, MakeMemoryPlan(config, *source, options));
      return RunJob(runner, {.prompt = RandomTokens(70, 320, 3), .chunk = 33, .num_output = 4});
    };
    EXPECT_EQ(Difference(run(true), run(false)), "");
  }
}

TEST(CpuRunnerTest, SubmitAndCollectGoTogether) {
  const auto runner = Make(kOptions);
  EXPECT_THROW(runner->Collect(), InternalError);
  const std::vector<int32_t> tokens = {1};
  const std::vector<PageId> pages = FirstPages(1);
  const StepSequence seq{.tokens = tokens, .pages = pages, .want = Want::kNextToken};
  const StepBatch batch{.sequences = {&seq, 1}};
  runner->Submit(batch);
  EXPECT_THROW(runner->Submit(batch), InternalError);
  EXPECT_EQ(runner->Collect().sequences.size(), 1u);
}

}  // namespace
}  // namespace quire
