// What a scheduler promises of pages: shared by several answers, given up where they run out.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/scheduler_testing.h"

namespace quire::testing {
namespace {

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

}  // namespace
}  // namespace quire::testing
