// What a scheduler promises when requests end from outside, steps fail, or a sequence has a fault.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/scheduler_testing.h"

namespace quire::testing {
namespace {

using std::chrono::milliseconds;

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

}  // namespace
}  // namespace quire::testing
