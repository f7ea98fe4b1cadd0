// What a scheduler promises, one behaviour at a time. Every answer is held against what follows from
// its tokens alone, and the scheduler's invariants are checked after every step: see Harness.
#include "engine/scheduler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "testing/error_message.h"
#include "testing/sanitized_share.h"
#include "testing/scheduler_harness.h"

namespace quire::testing {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kVocab = 1000;

struct Shape {
  int32_t page_size = 4;
  int64_t pages = 200;  // without the scratch page
  int64_t context = 300;
  int32_t max_seqs = 8;
  int64_t step_tokens = 64;
};

RunnerLimits Limits(const Shape& shape) {
  return {.page_size = PageSize(shape.page_size),
          .pool_pages = PageCount(shape.pages + 1),
          .context = TokenCount(shape.context),
          .max_seqs = shape.max_seqs,
          .max_step_tokens = TokenCount(shape.step_tokens),
          .max_samples = shape.max_seqs,
          .vocab_size = kVocab};
}

// The token that the fake runner draws as the number-th (from 0) of a request's first answer.
int32_t TokenNumber(const Request& request, int64_t number, int32_t sample = 0) {
  std::vector<int32_t> history = request.prompt;
  for (int64_t i = 0; i < number; ++i) {
    history.push_back(ExpectedToken(history, sample, kVocab));
  }
  return ExpectedToken(history, sample, kVocab);
}

void ExpectFinish(const HeardAnswer& answer, FinishReason reason) {
  ASSERT_TRUE(answer.finish.has_value());
  EXPECT_STREQ(FinishReasonName(*answer.finish), FinishReasonName(reason));
}

// ---- Answers ----

TEST(SchedulerTest, AnswersFollowFromTheirTokens) {
  Harness harness(Limits({}));
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 12; ++i) ids.push_back(harness.Add(MakeRequest(Prompt(5 + i, i), 9)));
  harness.RunAll();
  for (const RequestId id : ids) {
    EXPECT_EQ(harness.answer(id).tokens.size(), 9u);
    ExpectFinish(harness.answer(id), FinishReason::kLength);
  }
  const SchedulerCounters counters = harness.counters();
  EXPECT_EQ(counters.requests_added, 12);
  EXPECT_EQ(counters.answers_finished, 12);
  EXPECT_EQ(counters.output_tokens, 12 * 9);
  EXPECT_EQ(counters.steps, harness.num_steps());
  EXPECT_EQ(counters.waiting + counters.running, 0);
  EXPECT_EQ(counters.pages_free + counters.pages_cached, counters.pages_total);
}

TEST(SchedulerTest, OneTokenIsAPrompt) {
  Harness harness(Limits({}));
  const RequestId id = harness.Add(MakeRequest(Prompt(1), 3));
  Request scored = MakeRequest(Prompt(1, 1), 3);
  scored.score_prompt = true;
  const RequestId scored_id = harness.Add(scored);
  harness.RunAll();
  EXPECT_EQ(harness.answer(id).tokens.size(), 3u);
  EXPECT_EQ(harness.answer(scored_id).tokens.size(), 3u);
  EXPECT_TRUE(harness.answer(scored_id).prompt_scores.empty());
}

TEST(SchedulerTest, AnAnswerEndsWithTheContext) {
  Harness harness(Limits({.context = 20}));
  const RequestId id = harness.Add(MakeRequest(Prompt(15), 100));
  const RequestId longest = harness.Add(MakeRequest(Prompt(19, 1), 100));
  harness.RunAll();
  EXPECT_EQ(harness.answer(id).tokens.size(), 5u);
  ExpectFinish(harness.answer(id), FinishReason::kLength);
  EXPECT_EQ(harness.answer(longest).tokens.size(), 1u);
}

TEST(SchedulerTest, AStopTokenEndsAnAnswerAndIsReported) {
  Harness harness(Limits({}));
  Request request = MakeRequest(Prompt(6), 20);
  request.stop_tokens = {TokenNumber(request, 4)};
  const RequestId id = harness.Add(request);
  harness.RunAll();
  ASSERT_LE(harness.answer(id).tokens.size(), 5u);
  EXPECT_EQ(harness.answer(id).tokens.back(), request.stop_tokens[0]);
  ExpectFinish(harness.answer(id), FinishReason::kStop);
}

TEST(SchedulerTest, BeforeMinTokensStopTokensAreHeldDown) {
  Harness harness(Limits({}));
  Request request = MakeRequest(Prompt(6), 20);
  for (int64_t i = 0; i < 8; ++i) request.stop_tokens.push_back(TokenNumber(request, i));
  request.min_tokens = 8;
  // However much the request wants it.
  request.logit_bias = {{.token = request.stop_tokens[0], .bias = 100}};
  const RequestId id = harness.Add(request);
  harness.RunAll();
  ASSERT_GE(harness.answer(id).tokens.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::ranges::count(request.stop_tokens, harness.answer(id).tokens[i]), 0);
  }
}

TEST(SchedulerTest, PromptsAreScored) {
  // Budgets that give one chunk, many, and chunks of a single token.
  for (const int64_t step_tokens : {64, 7, 1}) {
    Harness harness(Limits({.max_seqs = 1, .step_tokens = step_tokens}));
    Request request = MakeRequest(Prompt(23), 3);
    request.score_prompt = true;
    request.sampling.top_logprobs = 2;
    harness.Add(MakeRequest(Prompt(23), 1));  // in the cache, and yet every token is scored
    const RequestId id = harness.Add(request);
    harness.RunAll();
    EXPECT_EQ(harness.answer(id).cached_tokens, TokenCount(0));
    const auto& scores = harness.answer(id).prompt_scores;
    ASSERT_EQ(scores.size(), 22u);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].chosen.token, request.prompt[i + 1]);
      EXPECT_EQ(scores[i].chosen.logprob,
                ExpectedLogprob(std::span(request.prompt).first(i + 1), request.prompt[i + 1]));
      EXPECT_EQ(scores[i].top.size(), 2u);
    }
  }
}

TEST(SchedulerTest, ScoresAreThoseOfOnePassAfterPreemption) {
  // The first request grows until the second, which scores its long prompt in small chunks, must go.
  Harness harness(
      Limits({.page_size = 1, .pages = 60, .context = 60, .max_seqs = 2, .step_tokens = 2}));
  harness.Add(MakeRequest(Prompt(2), 30));
  harness.Steps(2);
  Request request = MakeRequest(Prompt(50, 1), 2);
  request.score_prompt = true;
  const RequestId id = harness.Add(request);
  harness.RunAll();
  EXPECT_GT(harness.counters().preemptions, 0);
  const auto& scores = harness.answer(id).prompt_scores;
  ASSERT_EQ(scores.size(), 49u);
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].chosen.token, request.prompt[i + 1]) << i;
  }
}

// ---- Prefill and decode in one step ----

TEST(SchedulerTest, StreamsGoOnWhileALongPromptIsComputed) {
  Harness harness(Limits({.step_tokens = 16}));
  std::vector<RequestId> streams;
  for (int32_t i = 0; i < 3; ++i) streams.push_back(harness.Add(MakeRequest(Prompt(4, i), 100)));
  harness.Steps(2);
  const RequestId prompt = harness.Add(MakeRequest(Prompt(200, 9), 2));
  int64_t num_chunks = 0;
  for (; harness.answer(prompt).tokens.empty(); ++num_chunks) {
    harness.Step();
    for (const RequestId id : streams) EXPECT_EQ(harness.TokensOf(id), 1);
    EXPECT_LE(harness.TokensOf(prompt), 13);
  }
  EXPECT_EQ(num_chunks, (200 + 12) / 13);
  EXPECT_EQ(harness.counters().mixed_steps, num_chunks);
  harness.RunAll();
}

TEST(SchedulerTest, PromptsAreComputedOldestFirst) {
  Harness harness(Limits({.step_tokens = 10}));
  const RequestId a = harness.Add(MakeRequest(Prompt(15, 0), 1));
  const RequestId b = harness.Add(MakeRequest(Prompt(15, 1), 1));
  harness.Step();
  EXPECT_EQ(harness.TokensOf(a), 10);
  harness.Step();
  EXPECT_EQ(harness.TokensOf(a), 5);
  EXPECT_EQ(harness.TokensOf(b), 5);
  harness.RunAll();
}

// ---- The prefix cache ----

class PrefixCacheTest : public ::testing::Test {
 protected:
  // The prompt of 12 tokens = 3 pages is in the cache.
  PrefixCacheTest() { Run(MakeRequest(Prompt(12), 1)); }

  RequestId Run(const Request& request) {
    const RequestId id = harness_.Add(request);
    harness_.RunAll();
    return id;
  }
  // The first `shared` tokens of the cached prompt, then others.
  static std::vector<int32_t> Sharing(int64_t shared, int64_t total, int32_t author) {
    std::vector<int32_t> tokens = Prompt(shared);
    for (const int32_t token : Prompt(total - shared, author)) tokens.push_back(token);
    return tokens;
  }

  Harness harness_{Limits({})};
};

TEST_F(PrefixCacheTest, FindsNothing) {
  const RequestId id = Run(MakeRequest(Prompt(12, 1), 2));
  EXPECT_EQ(harness_.answer(id).cached_tokens, TokenCount(0));
  EXPECT_EQ(harness_.counters().cached_tokens, 0);
}

TEST_F(PrefixCacheTest, SharesFullPages) {
  const RequestId id = Run(MakeRequest(Sharing(8, 14, 1), 2));
  EXPECT_EQ(harness_.answer(id).cached_tokens, TokenCount(8));
  EXPECT_EQ(harness_.counters().page_copies, 0);
}

TEST_F(PrefixCacheTest, CopiesThePageInWhichAMatchEnds) {
  const RequestId id = Run(MakeRequest(Sharing(10, 14, 1), 2));
  EXPECT_EQ(harness_.answer(id).cached_tokens, TokenCount(10));
  EXPECT_EQ(harness_.counters().page_copies, 1);
  EXPECT_EQ(harness_.runner().num_copies(), 1);
}

TEST_F(PrefixCacheTest, LeavesOneTokenOfAPromptThatIsAllThere) {
  const RequestId id = harness_.Add(MakeRequest(Prompt(12), 3));
  harness_.Step();
  EXPECT_EQ(harness_.TokensOf(id), 1);
  EXPECT_EQ(harness_.answer(id).cached_tokens, TokenCount(11));
  harness_.RunAll();
}

TEST_F(PrefixCacheTest, FindsWhatWasAnswered) {
  Request turn = MakeRequest(Prompt(12), 7);
  const RequestId first = Run(turn);
  turn.prompt = History(turn, harness_.answer(first).tokens);  // 19 tokens, the last not computed
  turn.prompt.push_back(5);
  const RequestId second = Run(turn);
  EXPECT_EQ(harness_.answer(second).cached_tokens, TokenCount(18));
}

TEST_F(PrefixCacheTest, IsOneForEverySalt) {
  Request request = MakeRequest(Prompt(12), 1);
  request.cache_salt = "tenant";
  EXPECT_EQ(harness_.answer(Run(request)).cached_tokens, TokenCount(0));
  EXPECT_EQ(harness_.answer(Run(request)).cached_tokens, TokenCount(11));
}

TEST_F(PrefixCacheTest, IsUsedByManyAtOnce) {
  for (int32_t i = 30; i < 36; ++i) harness_.Add(MakeRequest(Sharing(10, 14, i), 6));
  harness_.RunAll();
  EXPECT_EQ(harness_.counters().page_copies, 6);
  EXPECT_EQ(harness_.counters().cached_tokens, 60);
}

TEST(SchedulerTest, WithoutAPrefixCacheNothingStays) {
  Harness harness(Limits({}), {.prefix_cache = PrefixCache::kOff});
  harness.Add(MakeRequest(Prompt(12), 5));
  harness.RunAll();
  const RequestId id = harness.Add(MakeRequest(Prompt(12), 5));
  harness.RunAll();
  EXPECT_EQ(harness.answer(id).cached_tokens, TokenCount(0));
  EXPECT_EQ(harness.counters().pages_free, harness.counters().pages_total);
}

TEST(SchedulerTest, ARequestThatDoesNotFitYetEvictsNothing) {
  Harness harness(Limits({.pages = 25, .context = 100, .max_seqs = 4}));
  harness.Add(MakeRequest(Prompt(20), 1));  // 5 cached pages
  harness.RunAll();
  const RequestId runs = harness.Add(MakeRequest(Prompt(50, 1), 10));
  harness.Step();
  const RequestId waits = harness.Add(MakeRequest(Prompt(60, 2), 1));
  harness.Steps(2);
  EXPECT_EQ(harness.counters().waiting, 1);
  EXPECT_EQ(harness.counters().evicted_pages, 0);
  harness.RunAll();
  EXPECT_LT(*harness.heard(runs).ended_in, *harness.heard(waits).ended_in);
  EXPECT_GT(harness.counters().evicted_pages, 0);
}

// ---- Prompts that come together ----

// `count` prompts of `total` tokens of which the first `shared` are the same.
std::vector<RequestId> AddBurst(Harness& harness, int count, int64_t shared, int64_t total,
                                int64_t max_tokens) {
  std::vector<RequestId> ids;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> tokens = Prompt(shared);
    for (const int32_t token : Prompt(total - shared, 20 + i)) tokens.push_back(token);
    ids.push_back(harness.Add(MakeRequest(tokens, max_tokens)));
  }
  return ids;
}

TEST(SchedulerTest, SixtyFourEqualPromptsAreComputedOnce) {
  constexpr int64_t kLength = 4096 / testing::kSampledParts / 64 * 64;
  for (const int64_t step_tokens : {512, 2048, 8192}) {
    Harness harness(Limits({.page_size = 64,
                            .pages = 64 * 70,
                            .context = kLength + 64,
                            .max_seqs = 64,
                            .step_tokens = step_tokens}));
    std::vector<RequestId> ids;
    for (int i = 0; i < 64; ++i) ids.push_back(harness.Add(MakeRequest(Prompt(kLength), 3)));
    harness.RunAll();
    EXPECT_EQ(harness.answer(ids[0]).cached_tokens, TokenCount(0));
    for (size_t i = 1; i < ids.size(); ++i) {
      EXPECT_GE(*harness.answer(ids[i]).cached_tokens, TokenCount(kLength - 64)) << i;
    }
    EXPECT_LE(harness.counters().prefill_tokens, kLength + 63 * 64);
    // A step for each chunk of the first, one for the others' ends, and those of answers.
    EXPECT_LE(harness.num_steps(), (kLength + 63 * 64) / step_tokens + 4);
  }
}

TEST(SchedulerTest, PromptsThatBeginAlikeShareWholePagesOfOneStep) {
  Harness harness(Limits({}));
  const std::vector<RequestId> ids = AddBurst(harness, 4, 18, 24, 5);  // 4 pages and a half
  harness.Step();
  EXPECT_EQ(harness.TokensOf(ids[0]), 24);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(harness.TokensOf(ids[i]), 24 - 16);
  harness.RunAll();
  EXPECT_EQ(harness.counters().page_copies, 0);  // nothing is copied from what is not there yet
  EXPECT_EQ(harness.counters().cached_tokens, 3 * 16);
}

TEST(SchedulerTest, WhatWasComputedSinceAPromptWasAdmittedIsSharedToTheToken) {
  Harness harness(Limits({.step_tokens = 24}));
  const std::vector<RequestId> ids = AddBurst(harness, 2, 18, 24, 5);  // the first takes the step
  harness.Step();
  EXPECT_EQ(harness.TokensOf(ids[1]), 0);
  harness.RunAll();
  EXPECT_EQ(harness.answer(ids[1]).cached_tokens, TokenCount(18));
  EXPECT_EQ(harness.counters().page_copies, 1);
}

TEST(SchedulerTest, APromptThatIsAdmittedWhileAStepRunsSharesWhatTheStepComputes) {
  Harness harness(Limits({.max_seqs = 1}));
  const std::vector<RequestId> ids = AddBurst(harness, 2, 18, 24, 1);
  harness.RunAll();
  EXPECT_EQ(harness.answer(ids[1]).cached_tokens, TokenCount(18));
}

TEST(SchedulerTest, WhoSharesWhatComesToAFaultComputesItAlone) {
  for (const int64_t step_tokens : {24, 64}) {
    for (const bool prepares : {false, true}) {
      // Behind what is shared: the first alone has the fault.
      Harness harness(Limits({.max_seqs = 3, .step_tokens = step_tokens}));
      harness.set_prepares(prepares);
      const std::vector<RequestId> ids = AddBurst(harness, 4, 16, 24, 5);
      harness.runner().PoisonToken(harness.heard(ids[0]).request.prompt[20]);
      harness.RunAll();
      ExpectFinish(harness.answer(ids[0]), FinishReason::kFailed);
      for (size_t i = 1; i < 4; ++i) {
        ExpectFinish(harness.answer(ids[i]), FinishReason::kLength);
        EXPECT_EQ(harness.answer(ids[i]).tokens.size(), 5u);
      }
      // Of those that were part of the step, whatever it said of them.
      if (step_tokens == 64) {
        EXPECT_EQ(harness.answer(ids[1]).cached_tokens, TokenCount(0));
        EXPECT_EQ(harness.answer(ids[2]).cached_tokens, TokenCount(0));
      }
      const SchedulerCounters counters = harness.counters();
      EXPECT_EQ(counters.pages_free + counters.pages_cached, counters.pages_total);
      int64_t cached = 0;
      for (const RequestId id : ids) cached += harness.answer(id).cached_tokens->raw();
      EXPECT_EQ(counters.cached_tokens, cached);
    }
  }
}

// Whoever reads the counters while a step runs sees none fall behind it.
TEST(SchedulerTest, TokensOfAPrefixCountAsCachedOnceTheirStepHasNoFault) {
  for (const RowFault fault : {RowFault::kNone, RowFault::kLogitsNotFinite}) {
    Scheduler scheduler(Limits({}), {});
    for (int i = 0; i < 2; ++i) scheduler.Add(MakeRequest(Prompt(24), 5));
    std::vector<TokenEvent> events;
    ASSERT_EQ(scheduler.Schedule({}, events).sequences.size(), 2u);
    EXPECT_EQ(scheduler.counters().cached_tokens, 0);
    const StepToken token{.chosen = {.token = 1}};
    const StepAnswer answer{.tokens = {&token, 1}};
    const StepSequenceResult well{.answers = {&answer, 1}};
    const StepSequenceResult first =
        fault == RowFault::kNone ? well : StepSequenceResult{.fault = fault};
    const std::vector<StepSequenceResult> results = {first, well};
    scheduler.Commit({.sequences = results}, events);
    EXPECT_EQ(scheduler.counters().cached_tokens, fault == RowFault::kNone ? 20 : 0);
  }
}

TEST(SchedulerTest, AFaultInWhatIsSharedEndsAllAndNothingIsKept) {
  Harness harness(Limits({.max_seqs = 5}));
  const std::vector<RequestId> ids = AddBurst(harness, 8, 18, 24, 5);
  const RequestId well = harness.Add(MakeRequest(Prompt(20, 3), 5));
  harness.runner().PoisonToken(Prompt(18)[9]);
  harness.RunAll(20);
  for (const RequestId id : ids) ExpectFinish(harness.answer(id), FinishReason::kFailed);
  ExpectFinish(harness.answer(well), FinishReason::kLength);
  EXPECT_EQ(harness.counters().pages_cached, 6);  // 20 + 4 tokens that were computed
  harness.runner().PoisonToken(-2);
  harness.Add(MakeRequest(Prompt(18), 5));
  harness.RunAll();
}

TEST(SchedulerTest, WhoSharesWithACancelledPromptGoesOn) {
  for (int steps = 0; steps < 6; ++steps) {
    Harness harness(Limits({.step_tokens = 10}));
    const std::vector<RequestId> ids = AddBurst(harness, 3, 30, 36, 5);
    harness.Steps(steps);
    harness.scheduler().Cancel(ids[0]);
    harness.RunAll();
    ExpectFinish(harness.answer(ids[0]), FinishReason::kCancelled);
    for (size_t i = 1; i < 3; ++i) ExpectFinish(harness.answer(ids[i]), FinishReason::kLength);
    EXPECT_LE(harness.counters().prefill_tokens, 36 + 2 * 10);
    const SchedulerCounters counters = harness.counters();
    EXPECT_EQ(counters.pages_free + counters.pages_cached, counters.pages_total);
  }
}

TEST(SchedulerTest, AStepThatFailsLeavesNothingOfWhatWasShared) {
  Harness harness(Limits({.max_seqs = 3}));
  const std::vector<RequestId> ids = AddBurst(harness, 5, 18, 24, 5);
  harness.FailNextStep("planned");
  harness.Step();
  EXPECT_EQ(harness.counters().pages_cached, 0);
  for (size_t i = 0; i < 3; ++i) ExpectFinish(harness.answer(ids[i]), FinishReason::kFailed);
  harness.RunAll();
  for (size_t i = 3; i < 5; ++i) ExpectFinish(harness.answer(ids[i]), FinishReason::kLength);
}

// A draft layer's row takes the token behind it: the last page of a chunk is not shared, and of a match the
// last token does not count.
TEST(SchedulerTest, WithADraftLayerPromptsShareWhatHasAllItsRows) {
  RunnerLimits limits = Limits({});
  limits.has_draft_rows = true;
  Harness harness(limits);
  const std::vector<RequestId> ids = AddBurst(harness, 3, 20, 20, 5);
  harness.RunAll();
  // 16 of 20 tokens are published, of which 15 count, of which 12 are whole pages.
  for (size_t i = 1; i < 3; ++i) EXPECT_EQ(harness.answer(ids[i]).cached_tokens, TokenCount(12));
}

// ---- Several answers ----

TEST(SchedulerTest, AnswersToOnePromptShareItsPages) {
  Harness harness(Limits({}), {.prefix_cache = PrefixCache::kOff});
  Request request = MakeRequest(Prompt(18), 6);  // 4 full pages and a half
  request.num_samples = 3;
  const RequestId id = harness.Add(request);
  harness.Step();
  EXPECT_EQ(harness.records().at(0).num_samples, 3);
  harness.Step();
  EXPECT_EQ(harness.records().size(), 3u);
  EXPECT_EQ(harness.counters().page_copies, 2);
  EXPECT_EQ(harness.counters().pages_total - harness.counters().pages_free, 4 + 3);
  harness.RunAll();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(harness.answer(id, i).tokens.size(), 6u);
  EXPECT_NE(harness.answer(id, 0).tokens, harness.answer(id, 1).tokens);
  EXPECT_EQ(harness.counters().pages_free, harness.counters().pages_total);
}

TEST(SchedulerTest, ASnapshotShowsWhoHoldsThePages) {
  Harness harness(Limits({}));
  harness.Add(MakeRequest(Prompt(10), 1));
  harness.RunAll();  // leaves 11 tokens, 10 of them computed, in the cache
  const PageCount all(harness.counters().pages_total);
  SchedulerSnapshot snapshot = harness.scheduler().Snapshot();
  EXPECT_TRUE(snapshot.running.empty());
  EXPECT_EQ(snapshot.pages_cached, PageCount(harness.counters().pages_cached));
  EXPECT_EQ(snapshot.pages_free + snapshot.pages_cached, all);

  Request request = MakeRequest(Prompt(10), 20);
  request.num_samples = 2;
  const RequestId id = harness.Add(request);
  harness.Steps(3);
  snapshot = harness.scheduler().Snapshot();
  ASSERT_EQ(snapshot.running.size(), 2u);
  for (int32_t sample = 0; sample < 2; ++sample) {
    const SchedulerSnapshot::Running& running = snapshot.running[static_cast<size_t>(sample)];
    EXPECT_EQ(running.request, id);
    EXPECT_EQ(running.sample, sample);
    EXPECT_EQ(running.prompt_tokens, TokenCount(10));
    EXPECT_EQ(running.output_tokens,
              std::ssize(harness.answer(id, static_cast<size_t>(sample)).tokens));
    EXPECT_EQ(running.computed_tokens, TokenCount(10 + running.output_tokens - 1));
  }
  const PageCount both = snapshot.running[0].pages + snapshot.running[1].pages;
  EXPECT_LT(snapshot.pages_in_use, both);  // the prompt's full pages are shared
  EXPECT_GT(snapshot.pages_in_use, snapshot.running[0].pages);
  EXPECT_EQ(snapshot.pages_free + snapshot.pages_cached + snapshot.pages_in_use, all);
}

TEST(SchedulerTest, AnswersToAPromptOfWholePagesNeedNoCopy) {
  Harness harness(Limits({}));
  Request request = MakeRequest(Prompt(16), 6);
  request.num_samples = 4;
  harness.Add(request);
  harness.RunAll();
  EXPECT_EQ(harness.counters().page_copies, 0);
  EXPECT_EQ(harness.counters().answers_finished, 4);
}

TEST(SchedulerTest, AnswersWithoutAPlaceWait) {
  Harness harness(Limits({.max_seqs = 4}));
  for (int32_t i = 0; i < 2; ++i) harness.Add(MakeRequest(Prompt(5, i), 12));
  harness.Step();
  Request request = MakeRequest(Prompt(10, 5), 3);
  request.num_samples = 4;
  const RequestId id = harness.Add(request);
  harness.Steps(2);
  EXPECT_EQ(harness.counters().running, 4);
  EXPECT_FALSE(harness.HasEnded(id));
  harness.RunAll();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(harness.answer(id, i).tokens.size(), 3u);
}

TEST(SchedulerTest, AnswersWithoutPagesWait) {
  Harness harness(Limits({.pages = 8, .context = 32, .max_seqs = 8}));
  Request request = MakeRequest(Prompt(14), 12);
  request.num_samples = 6;
  const RequestId id = harness.Add(request);
  harness.Steps(2);
  EXPECT_LT(harness.counters().running, 6);
  harness.RunAll();
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(harness.answer(id, i).tokens.size(), 12u);
}

TEST(SchedulerTest, ManySamplesDoNotWaitUntilEveryStreamHasEnded) {
  // As many samples in a step as sequences: the streams always take most of them.
  Harness harness(Limits({.max_seqs = 4}));
  for (int32_t i = 0; i < 3; ++i) harness.Add(MakeRequest(Prompt(5, i), 200));
  harness.Step();
  Request request = MakeRequest(Prompt(10, 5), 3);
  request.num_samples = 4;
  request.score_prompt = true;
  const RequestId id = harness.Add(request);
  harness.Steps(30);
  EXPECT_TRUE(harness.HasEnded(id));
  EXPECT_EQ(harness.answer(id).prompt_scores.size(), 9u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(harness.answer(id, i).tokens.size(), 3u);
}

TEST(SchedulerTest, AnAnswerMayEndBeforeTheOthersBegin) {
  Harness harness(Limits({}));
  Request request = MakeRequest(Prompt(10), 5);
  request.num_samples = 3;
  request.stop_tokens = {TokenNumber(request, 0)};
  const RequestId id = harness.Add(request);
  harness.RunAll();
  ExpectFinish(harness.answer(id, 0), FinishReason::kStop);
  EXPECT_EQ(harness.answer(id, 1).tokens.size(), 5u);
  EXPECT_EQ(harness.answer(id, 2).tokens.size(), 5u);
}

// ---- Running out of pages ----

TEST(SchedulerTest, PreemptionChangesNoAnswer) {
  for (const PrefixCache cache : {PrefixCache::kOn, PrefixCache::kOff}) {
    for (const int32_t page_size : {1, 3, 16}) {
      Harness harness(Limits({.page_size = page_size,
                              .pages = 48 / page_size + 2,
                              .context = 48,
                              .max_seqs = 6,
                              .step_tokens = 12}),
                      {.prefix_cache = cache});
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < 6; ++i) ids.push_back(harness.Add(MakeRequest(Prompt(4, i), 40)));
      harness.RunAll();
      EXPECT_GT(harness.counters().preemptions, 0);
      for (const RequestId id : ids) EXPECT_EQ(harness.answer(id).tokens.size(), 40u);
      // The oldest is never the one that goes.
      EXPECT_EQ(*harness.heard(ids[0]).ended_in, 40);
    }
  }
}

TEST(SchedulerTest, NobodyIsAdmittedOnlyToBePreempted) {
  Harness harness(Limits({.page_size = 1, .pages = 20, .context = 20, .max_seqs = 2}));
  const RequestId grows = harness.Add(MakeRequest(Prompt(4), 10));
  harness.Step();
  const RequestId waits = harness.Add(MakeRequest(Prompt(15, 1), 3));  // as many as are free
  harness.RunAll();
  EXPECT_EQ(harness.counters().preemptions, 0);
  EXPECT_GT(*harness.heard(waits).first_step, *harness.heard(grows).first_step + 1);
}

TEST(SchedulerTest, ASequenceMayFillThePoolThoughTheCacheHasItsPrefixToo) {
  // Both prompts begin alike and are computed side by side. The shorter one's pages go to the cache,
  // and with the longer one's behind them they cannot be evicted while that one runs.
  Harness harness(Limits({.pages = 10, .context = 40, .max_seqs = 2}));
  harness.Add(MakeRequest(Prompt(12), 1));
  const RequestId id = harness.Add(MakeRequest(Prompt(17), 23));
  harness.RunAll();
  EXPECT_EQ(harness.answer(id).tokens.size(), 23u);
}

TEST(SchedulerTest, APromptMayFillThePoolThoughItsCachedPageIsToBeCopied) {
  Harness harness(Limits({.pages = 10, .context = 40, .max_seqs = 2}));
  harness.Add(MakeRequest(Prompt(39), 1));
  harness.RunAll();
  const RequestId id = harness.Add(MakeRequest(Prompt(39), 1));
  harness.RunAll();
  EXPECT_EQ(harness.answer(id).tokens.size(), 1u);
}

// ---- Ends from outside ----

TEST(SchedulerTest, ACancelledRequestFreesItsPagesWithTheNextStep) {
  Harness harness(Limits({}), {.prefix_cache = PrefixCache::kOff});
  const RequestId stays = harness.Add(MakeRequest(Prompt(8), 50));
  Request request = MakeRequest(Prompt(40, 1), 50);
  request.num_samples = 3;
  const RequestId goes = harness.Add(request);
  harness.Steps(3);
  harness.scheduler().Cancel(goes);
  harness.scheduler().Cancel(goes);
  harness.Step();
  EXPECT_TRUE(harness.HasEnded(goes));
  for (size_t i = 0; i < 3; ++i) ExpectFinish(harness.answer(goes, i), FinishReason::kCancelled);
  EXPECT_EQ(harness.TokensOf(goes), 0);
  EXPECT_EQ(harness.counters().pages_total - harness.counters().pages_free, 3);
  harness.scheduler().Cancel(stays);
  EXPECT_FALSE(harness.Step());
  EXPECT_EQ(harness.counters().pages_free, harness.counters().pages_total);
}

TEST(SchedulerTest, WhatACancelledRequestComputedStaysInTheCache) {
  Harness harness(Limits({}));
  const RequestId goes = harness.Add(MakeRequest(Prompt(30), 50));
  harness.Steps(3);
  harness.scheduler().Cancel(goes);
  harness.Step();
  EXPECT_EQ(harness.counters().pages_total - harness.counters().pages_free,
            harness.counters().pages_cached);
  const RequestId again = harness.Add(MakeRequest(Prompt(30), 1));
  harness.RunAll();
  EXPECT_EQ(harness.answer(again).cached_tokens, TokenCount(29));
}

TEST(SchedulerTest, AllAnswersOfARequestEndEvenIfNoneHasBegun) {
  Harness harness(Limits({.step_tokens = 8}));
  Request request = MakeRequest(Prompt(40), 5);
  request.num_samples = 3;
  const RequestId waiting = harness.Add(request);
  harness.scheduler().Cancel(waiting);
  EXPECT_FALSE(harness.Step());
  const RequestId computing = harness.Add(request);
  harness.Step();
  harness.scheduler().Cancel(computing);
  EXPECT_FALSE(harness.Step());
  for (const RequestId id : {waiting, computing}) {
    for (size_t i = 0; i < 3; ++i) ExpectFinish(harness.answer(id, i), FinishReason::kCancelled);
  }
  EXPECT_EQ(harness.counters().answers_finished, 6);
}

TEST(SchedulerTest, CancellingWhatHasEndedDoesNothing) {
  Harness harness(Limits({}));
  const RequestId id = harness.Add(MakeRequest(Prompt(8), 1));
  harness.RunAll();
  harness.scheduler().Cancel(id);
  harness.scheduler().Cancel(12345);
  EXPECT_FALSE(harness.Step());
}

TEST(SchedulerTest, AStoppedAnswerEndsAlone) {
  Harness harness(Limits({}), {.prefix_cache = PrefixCache::kOff});
  Request request = MakeRequest(Prompt(40), 20);
  request.num_samples = 3;
  const RequestId id = harness.Add(request);
  harness.Steps(4);
  const size_t num_heard = harness.answer(id, 1).tokens.size();
  ASSERT_GT(num_heard, 0u);
  const int64_t pages_free = harness.counters().pages_free;
  harness.scheduler().StopAnswer(id, 1);
  harness.scheduler().StopAnswer(id, 1);
  harness.Step();
  ExpectFinish(harness.answer(id, 1), FinishReason::kStop);
  EXPECT_EQ(harness.answer(id, 1).tokens.size(), num_heard);
  EXPECT_EQ(harness.TokensOf(id), 2);
  EXPECT_GT(harness.counters().pages_free, pages_free);
  harness.RunAll();
  for (const size_t i : {0, 2}) {
    ExpectFinish(harness.answer(id, i), FinishReason::kLength);
    EXPECT_EQ(harness.answer(id, i).tokens.size(), 20u);
  }
}

TEST(SchedulerTest, AStoppedAnswerMayBeWaitingForItsPages) {
  Harness harness(Limits({.pages = 16, .context = 60}));
  const RequestId first = harness.Add(MakeRequest(Prompt(20), 36));
  const RequestId second = harness.Add(MakeRequest(Prompt(20, 1), 36));
  while (harness.counters().preemptions == 0 && harness.scheduler().HasWork()) harness.Step();
  ASSERT_EQ(harness.counters().preemptions, 1);
  harness.scheduler().StopAnswer(second, 0);
  harness.Step();
  ExpectFinish(harness.answer(second), FinishReason::kStop);
  harness.RunAll();
  ExpectFinish(harness.answer(first), FinishReason::kLength);
}

TEST(SchedulerTest, StoppingWhatHasNotBegunOrHasEndedDoesNothing) {
  Harness harness(Limits({.step_tokens = 8}));
  const RequestId ended = harness.Add(MakeRequest(Prompt(8), 1));
  harness.RunAll();
  Request request = MakeRequest(Prompt(40), 5);
  request.num_samples = 2;
  const RequestId computing = harness.Add(request);
  harness.Step();
  harness.scheduler().StopAnswer(ended, 0);
  harness.scheduler().StopAnswer(computing, 0);
  harness.scheduler().StopAnswer(computing, 1);
  harness.RunAll();
  for (size_t i = 0; i < 2; ++i) ExpectFinish(harness.answer(computing, i), FinishReason::kLength);
}

TEST(SchedulerTest, DeadlinesEndRequestsThatRunAndThatWait) {
  Harness harness(Limits({.max_seqs = 1}));
  Request request = MakeRequest(Prompt(8), 50);
  request.deadline = harness.now() + milliseconds(5);  // a step takes one
  const RequestId runs = harness.Add(request);
  const RequestId waits = harness.Add(request);
  request.deadline = harness.now() + milliseconds(1000);
  const RequestId in_time = harness.Add(request);
  harness.RunAll();
  ExpectFinish(harness.answer(runs), FinishReason::kDeadline);
  EXPECT_EQ(harness.answer(runs).tokens.size(), 5u);
  ExpectFinish(harness.answer(waits), FinishReason::kDeadline);
  EXPECT_TRUE(harness.answer(waits).tokens.empty());
  ExpectFinish(harness.answer(in_time), FinishReason::kLength);
}

TEST(SchedulerTest, WhenTheFirstInTheQueueGoesTheNextIsTriedAtOnce) {
  Harness harness(Limits({.pages = 25, .context = 100, .max_seqs = 4}));
  harness.Add(MakeRequest(Prompt(60), 30));
  harness.Step();
  const RequestId large = harness.Add(MakeRequest(Prompt(90, 1), 5));
  const RequestId small = harness.Add(MakeRequest(Prompt(4, 2), 5));
  harness.Steps(3);
  EXPECT_EQ(harness.TokensOf(small), 0) << "it must not overtake the large one";
  harness.scheduler().Cancel(large);
  harness.Step();
  EXPECT_EQ(harness.TokensOf(small), 4);
  harness.RunAll();
}

// ---- Who goes first ----

TEST(SchedulerTest, HigherPriorityGoesFirst) {
  Harness harness(Limits({.max_seqs = 1}));
  harness.Add(MakeRequest(Prompt(4), 3));
  harness.Step();
  std::vector<RequestId> ids;
  for (const int32_t priority : {0, -1, 1, 0, 2}) {
    Request request = MakeRequest(Prompt(4, 10 + priority), 2);
    request.priority = priority;
    ids.push_back(harness.Add(request));
  }
  harness.RunAll();
  const auto first_step = [&](size_t i) { return *harness.heard(ids[i]).first_step; };
  EXPECT_LT(first_step(4), first_step(2));
  EXPECT_LT(first_step(2), first_step(0));
  EXPECT_LT(first_step(0), first_step(3));
  EXPECT_LT(first_step(3), first_step(1));
}

TEST(SchedulerTest, LowPriorityWaitsForSoManyOthersOnly) {
  Harness harness(Limits({.max_seqs = 1}), {.priority_weight = 4});
  const RequestId low = harness.Add(MakeRequest(Prompt(4), 2));
  int64_t num_before = 0;
  for (int32_t i = 1; !harness.HasEnded(low) && i < 100; ++i) {
    Request request = MakeRequest(Prompt(4, i), 2);
    request.priority = 3;
    const RequestId id = harness.Add(request);
    harness.Steps(2);
    if (harness.HasEnded(id)) ++num_before;
  }
  EXPECT_TRUE(harness.HasEnded(low));
  EXPECT_LE(num_before, 3 * 4);
}

TEST(SchedulerTest, AHighPriorityBehindLongLowOnesGoesWithTheFirstPlace) {
  Harness harness(Limits({.max_seqs = 2}));
  std::vector<RequestId> low;
  for (int32_t i = 0; i < 8; ++i) low.push_back(harness.Add(MakeRequest(Prompt(6, i), 30 + 5 * i)));
  harness.Steps(10);  // two of them run
  Request urgent = MakeRequest(Prompt(6, 50), 3);
  urgent.priority = 16;
  const RequestId high = harness.Add(urgent);
  harness.RunAll();
  EXPECT_EQ(*harness.heard(high).first_step, *harness.heard(low[0]).ended_in);  // the next step
  for (size_t i = 2; i < low.size(); ++i) {
    EXPECT_GT(*harness.heard(low[i]).first_step, *harness.heard(high).first_step) << i;
  }
}

TEST(SchedulerTest, NobodyStarvesWhateverPrioritiesOthersSend) {
  const SchedulerOptions options{.priority_weight = 3, .max_priority = 4};
  Harness harness(Limits({.max_seqs = 1}), options);
  Request patient = MakeRequest(Prompt(4), 2);
  patient.priority = -4;
  const RequestId low = harness.Add(patient);
  int64_t num_before = 0;
  for (int32_t i = 1; !harness.HasEnded(low) && i < 1000; ++i) {
    Request request = MakeRequest(Prompt(4, i % 90), 2);
    request.priority = 4;
    const RequestId id = harness.Add(request);
    harness.Steps(2);
    if (harness.HasEnded(id)) ++num_before;
  }
  EXPECT_TRUE(harness.HasEnded(low));
  EXPECT_LE(num_before, 2 * 4 * 3);
  for (const int32_t priority :
       {5, -5, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    Request request = MakeRequest(Prompt(4), 2);
    request.priority = priority;
    EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { harness.Add(request); }),
              fmt::format("priority: expected -4..4, got {}", priority));
  }
}

TEST(SchedulerTest, TheQueueIsBounded) {
  Harness harness(Limits({.max_seqs = 2}), {.max_waiting = 3});
  for (int32_t i = 0; i < 3; ++i) harness.Add(MakeRequest(Prompt(4, i), 5));
  EXPECT_EQ(harness.TryAdd(MakeRequest(Prompt(4), 5)), std::nullopt);
  EXPECT_EQ(harness.counters().requests_refused, 1);
  EXPECT_EQ(harness.counters().waiting, 3);
  harness.Step();  // two run
  for (int32_t i = 0; i < 2; ++i) harness.Add(MakeRequest(Prompt(4, i), 5));
  EXPECT_EQ(harness.TryAdd(MakeRequest(Prompt(4), 5)), std::nullopt);
  harness.RunAll();
  EXPECT_EQ(harness.counters().answers_finished, 5);
}

// ---- Failed steps ----

TEST(SchedulerTest, AFailedStepEndsWhatRunsAndEmptiesTheCache) {
  Harness harness(Limits({.max_seqs = 3}));
  harness.Add(MakeRequest(Prompt(20), 1));
  harness.RunAll();
  const RequestId runs = harness.Add(MakeRequest(Prompt(9, 1), 20));
  harness.Step();
  Request request = MakeRequest(Prompt(30), 20);  // shares a page to copy
  request.num_samples = 2;
  const RequestId begins = harness.Add(request);
  const RequestId third = harness.Add(MakeRequest(Prompt(9, 2), 3));
  const RequestId waits = harness.Add(MakeRequest(Prompt(20), 3));
  harness.FailNextStep("the machine is on fire");
  harness.Step();
  for (const RequestId id : {runs, begins, third}) {
    ExpectFinish(harness.answer(id), FinishReason::kFailed);
    EXPECT_EQ(harness.answer(id).error, "the machine is on fire");
  }
  ExpectFinish(harness.answer(begins, 1), FinishReason::kFailed);
  EXPECT_EQ(harness.counters().pages_cached, 0);
  EXPECT_EQ(harness.counters().pages_free, harness.counters().pages_total);
  harness.RunAll();
  ExpectFinish(harness.answer(waits), FinishReason::kLength);
  EXPECT_EQ(harness.answer(waits).cached_tokens, TokenCount(0));
}

// ---- Faults of one sequence ----

TEST(SchedulerTest, ASequenceWithAFaultEndsAloneAndNothingOfItIsKept) {
  Harness harness(Limits({}));
  const std::vector<int32_t> prompt = Prompt(20);
  harness.runner().PoisonToken(prompt[13]);
  const RequestId well = harness.Add(MakeRequest(Prompt(9, 1), 20));
  harness.Steps(2);
  const RequestId ill = harness.Add(MakeRequest(prompt, 20));
  harness.Step();
  ExpectFinish(harness.answer(ill), FinishReason::kFailed);
  EXPECT_EQ(harness.answer(ill).error,
            "request 2, answer 0: logits that are not finite behind 20 tokens");
  EXPECT_FALSE(harness.HasEnded(well));
  const SchedulerCounters counters = harness.counters();
  EXPECT_EQ(counters.pages_cached, 2);  // of the other's prompt
  EXPECT_EQ(counters.pages_free, counters.pages_total - 3);
  const RequestId again = harness.Add(MakeRequest(prompt, 20));
  harness.RunAll();
  EXPECT_EQ(harness.answer(again).cached_tokens, TokenCount(0));
  EXPECT_EQ(harness.answer(well).tokens.size(), 20u);
  ExpectFinish(harness.answer(well), FinishReason::kLength);
}

// Otherwise a request cancelled before its last chunk would leave the others to whoever comes next.
TEST(SchedulerTest, AChunkWithAFaultEndsItsRequestBeforeTheNextOneAndNothingOfItIsKept) {
  Harness harness(Limits({.step_tokens = 8}));
  Request request = MakeRequest(Prompt(40), 5);
  request.num_samples = 2;
  harness.runner().PoisonToken(request.prompt[10]);
  const RequestId id = harness.Add(request);
  harness.Step();
  EXPECT_FALSE(harness.HasEnded(id));
  harness.Step();
  for (size_t i = 0; i < 2; ++i) ExpectFinish(harness.answer(id, i), FinishReason::kFailed);
  EXPECT_EQ(harness.answer(id).error,
            "request 1, answer 0: logits that are not finite behind 16 tokens");
  EXPECT_EQ(harness.counters().pages_cached, 0);
  EXPECT_EQ(harness.counters().pages_free, harness.counters().pages_total);
}

TEST(SchedulerTest, ScoresWithAFaultEndTheirRequest) {
  Harness harness(Limits({.step_tokens = 8}));
  Request request = MakeRequest(Prompt(30), 5);
  request.score_prompt = true;
  harness.runner().PoisonToken(request.prompt[10]);
  const RequestId id = harness.Add(request);
  harness.RunAll();
  ExpectFinish(harness.answer(id), FinishReason::kFailed);
  EXPECT_EQ(harness.answer(id).error,
            "request 1, answer 0: logits that are not finite behind 16 tokens");
  EXPECT_EQ(harness.counters().pages_cached, 0);
}

TEST(SchedulerTest, OfSeveralAnswersTheOneWithAFaultEndsAlone) {
  Harness harness(Limits({}));
  Request request = MakeRequest(Prompt(10), 8);
  request.num_samples = 3;
  const int32_t poison = TokenNumber(request, 0, 1);  // the first token of the second answer
  harness.runner().PoisonToken(poison);
  const RequestId id = harness.Add(request);
  harness.RunAll();
  ExpectFinish(harness.answer(id, 0), FinishReason::kLength);
  ExpectFinish(harness.answer(id, 1), FinishReason::kFailed);
  ExpectFinish(harness.answer(id, 2), FinishReason::kLength);
  EXPECT_EQ(harness.answer(id, 1).tokens, std::vector<int32_t>{poison});
  // Before there are several, all that follow from the prompt end with it.
  harness.runner().PoisonToken(request.prompt[3]);
  request.prompt.push_back(1);
  const RequestId all = harness.Add(request);
  harness.RunAll();
  for (size_t i = 0; i < 3; ++i) ExpectFinish(harness.answer(all, i), FinishReason::kFailed);
}

// ---- Several tokens of a step ----

RunnerLimits LookaheadLimits(const Shape& shape, int64_t lookahead) {
  RunnerLimits limits = Limits(shape);
  limits.max_tree_nodes = limits.lookahead = TokenCount(lookahead);
  return limits;
}

TEST(SchedulerTest, SeveralTokensOfAStepAreTakenInOrder) {
  int64_t plain_steps = 0;
  for (const int64_t lookahead : {0, 1, 5}) {
    for (const int32_t page_size : {1, 4}) {
      Harness harness(LookaheadLimits({.page_size = page_size, .pages = 1000}, lookahead));
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < 6; ++i) ids.push_back(harness.Add(MakeRequest(Prompt(9, i), 40)));
      Request several = MakeRequest(Prompt(9, 7), 40);
      several.num_samples = 2;
      ids.push_back(harness.Add(several));
      harness.RunAll();
      for (const RequestId id : ids) EXPECT_EQ(harness.answer(id).tokens.size(), 40u);
      if (lookahead == 0) plain_steps = harness.num_steps();
      EXPECT_EQ(harness.num_steps() < plain_steps, lookahead > 0);
      // What went ahead is in the cache as what was given.
      const RequestId next = harness.Add(
          MakeRequest(History(MakeRequest(Prompt(9, 0), 40), harness.answer(ids[0]).tokens), 5));
      harness.RunAll();
      EXPECT_EQ(harness.answer(next).cached_tokens, TokenCount(48));
    }
  }
}

TEST(SchedulerTest, WhatFollowsTheEndOfAnAnswerInAStepIsIgnored) {
  for (int64_t number = 2; number < 12; ++number) {
    Harness harness(LookaheadLimits({.context = 25}, 5));
    Request stops = MakeRequest(Prompt(6), 40);
    stops.stop_tokens = {TokenNumber(stops, number)};
    const RequestId stopped = harness.Add(stops);
    const RequestId full = harness.Add(MakeRequest(Prompt(6, 1), number));
    Request held = stops;  // no stop token before the tenth
    held.min_tokens = 10;
    harness.Add(held);
    const RequestId longest = harness.Add(MakeRequest(Prompt(6, 2), 100));
    harness.RunAll();
    EXPECT_EQ(harness.answer(stopped).tokens.back(), stops.stop_tokens[0]);
    ExpectFinish(harness.answer(stopped), FinishReason::kStop);
    EXPECT_EQ(std::ssize(harness.answer(full).tokens), number);
    EXPECT_EQ(harness.answer(longest).tokens.size(), 19u);  // the context's
  }
}

TEST(SchedulerTest, LookaheadIsGivenUpBeforeAnybodyIsPreempted) {
  // Two sequences of 20 tokens fill the pool. As long as there is a page for each of them, both go on.
  for (int32_t seed = 0; seed < 20; ++seed) {
    Harness harness(
        LookaheadLimits({.page_size = 1, .pages = 40, .context = 30, .max_seqs = 2}, 8));
    const RequestId a = harness.Add(MakeRequest(Prompt(5, 2 * seed), 24));
    const RequestId b = harness.Add(MakeRequest(Prompt(5, 2 * seed + 1), 16));
    int64_t length = 0;  // of both, with the tokens that the next step computes
    while (length <= 40 && !harness.HasEnded(a) && !harness.HasEnded(b)) {
      harness.Step();
      ASSERT_EQ(harness.counters().preemptions, 0) << "seed " << seed;
      length = 0;
      for (const RequestId id : {a, b}) length += 5 + std::ssize(harness.answer(id).tokens);
    }
  }
}

TEST(SchedulerTest, NobodyLooksBeyondMaxTokens) {
  // A page for every token that is computed: the last one drawn needs none.
  Harness harness(LookaheadLimits({.page_size = 1, .pages = 30, .context = 30}, 8));
  harness.Add(MakeRequest(Prompt(5), 3));
  while (harness.scheduler().HasWork()) {
    harness.Step();
    EXPECT_LE(harness.counters().pages_total - harness.counters().pages_free, 7);
  }
}

TEST(SchedulerTest, DraftsAreCountedByHowFarTheyWereRight) {
  Harness harness(LookaheadLimits({.page_size = 4, .pages = 1000}, 5));
  harness.Add(MakeRequest(Prompt(9), 40));
  harness.RunAll();
  const SchedulerCounters counters = harness.counters();
  EXPECT_GT(counters.drafts, 0);
  EXPECT_GT(counters.draft_tokens, counters.accepted_tokens);
  // Every step of decoding but those at the end has drafts, and gives a token besides.
  EXPECT_LE(counters.output_tokens, counters.accepted_tokens + counters.steps);
  int64_t sum = 0;
  for (size_t i = 0; i < counters.accepted_at.size(); ++i) {
    sum += counters.accepted_at[i];
    if (i > 0) {
      EXPECT_LE(counters.accepted_at[i], counters.accepted_at[i - 1]);
    }
  }
  EXPECT_EQ(sum, counters.accepted_tokens);
  EXPECT_EQ(counters.accepted_at[5], 0);
}

// ---- What is kept ----

TEST(SchedulerTest, AStepOfDecodingBringsTheNewPagesOnly) {
  Harness harness(Limits({}));
  for (int32_t i = 0; i < 5; ++i) harness.Add(MakeRequest(Prompt(7 + i, i), 60));
  harness.Steps(2);  // prompts, and the first step that knows all pages
  for (int step = 0; step < 40; ++step) {
    const int64_t before = harness.runner().num_new_pages();
    const int64_t free = harness.counters().pages_free;
    harness.Step();
    EXPECT_EQ(harness.runner().num_new_pages() - before, free - harness.counters().pages_free);
  }
}

// ---- What is refused ----

TEST(SchedulerTest, RequestsThatCannotBeComputedAreRefused) {
  Scheduler scheduler(Limits({.context = 20, .max_seqs = 4}), {});
  const auto message = [&](const std::function<void(Request&)>& spoil) {
    Request request = MakeRequest(Prompt(5), 5);
    spoil(request);
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { scheduler.Add(request); });
  };
  EXPECT_EQ(message([](Request& r) { r.prompt.clear(); }),
            "prompt: expected at least one token, got none");
  EXPECT_EQ(message([](Request& r) { r.prompt = Prompt(20); }),
            "prompt: 20 tokens leave no room for an answer in the context length of 20");
  EXPECT_EQ(message([](Request& r) { r.prompt[2] = 1000; }),
            "prompt: token 2: expected 0..999, got 1000");
  EXPECT_EQ(message([](Request& r) { r.prompt[4] = -1; }),
            "prompt: token 4: expected 0..999, got -1");
  EXPECT_EQ(message([](Request& r) { r.num_samples = 0; }), "n: expected 1..4, got 0");
  EXPECT_EQ(message([](Request& r) { r.num_samples = 5; }), "n: expected 1..4, got 5");
  EXPECT_EQ(message([](Request& r) { r.max_tokens = 0; }),
            "max_tokens: expected at least 1, got 0");
  EXPECT_EQ(message([](Request& r) { r.min_tokens = -1; }),
            "min_tokens: expected 0..5 (max_tokens), got -1");
  EXPECT_EQ(message([](Request& r) { r.min_tokens = 6; }),
            "min_tokens: expected 0..5 (max_tokens), got 6");
  EXPECT_EQ(message([](Request& r) {
              r.stop_tokens = {3, 1000};
            }),
            "stop_token_ids[1]: expected 0..999, got 1000");
  EXPECT_EQ(message([](Request& r) { r.stop_tokens.assign(1089, 7); }),
            "stop tokens: expected at most 1088, got 1089");
  EXPECT_EQ(message([](Request& r) { r.logit_bias.assign(1025, {.token = 7, .bias = 1}); }),
            "logit_bias: expected at most 1024 biases, got 1025");
  EXPECT_EQ(message([](Request& r) { r.sampling.temperature = -1; }),
            "temperature: expected >= 0 and finite, got -1");
  EXPECT_EQ(message([](Request& r) { r.sampling.top_logprobs = 21; }),
            "top_logprobs: expected 0..20, got 21");
  EXPECT_EQ(message([](Request& r) { r.logit_bias = {{.token = 1000, .bias = 1}}; }),
            "logit_bias[0].token: expected 0..999, got 1000");
  EXPECT_EQ(message([](Request& r) { r.logit_bias = {{.token = 1, .bias = std::nanf("")}}; }),
            "logit_bias[0].bias: expected a finite number for token 1, got nan");
  EXPECT_FALSE(scheduler.HasWork());
  EXPECT_EQ(scheduler.counters().requests_added, 0);
}

TEST(SchedulerTest, LimitsThatCannotWorkAreRefused) {
  const auto message = [](const RunnerLimits& limits, const SchedulerOptions& options = {}) {
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { Scheduler(limits, options); });
  };
  EXPECT_EQ(
      message(Limits({.pages = 74, .context = 300})),
      "KV cache: expected room for one sequence of the context length, 300 tokens, got 74 pages "
      "of 4; a larger cache will do, or a shorter context");
  EXPECT_EQ(message(Limits({.max_seqs = 8, .step_tokens = 7})),
            "scheduler: tokens of a step: expected at least one for each of 8 sequences, got 7");
  RunnerLimits limits = Limits({.max_seqs = 8});
  limits.max_samples = 7;
  EXPECT_EQ(message(limits),
            "scheduler: samples of a step: expected at least one for each of 8 sequences, got 7");
  EXPECT_EQ(message(Limits({}), {.max_waiting = 0}),
            "scheduler: max_waiting: expected at least 1, got 0");
}

TEST(SchedulerTest, EveryReasonHasAName) {
  EXPECT_STREQ(FinishReasonName(FinishReason::kNone), "none");
  EXPECT_STREQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_STREQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_STREQ(FinishReasonName(FinishReason::kCancelled), "cancelled");
  EXPECT_STREQ(FinishReasonName(FinishReason::kDeadline), "deadline");
  EXPECT_STREQ(FinishReasonName(FinishReason::kFailed), "failed");
}

}  // namespace
}  // namespace quire::testing
