// What a scheduler promises of prefixes: found in the cache, and shared by prompts that come together.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/scheduler_testing.h"
#include "testing/sanitized_share.h"

namespace quire::testing {
namespace {

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

}  // namespace
}  // namespace quire::testing
