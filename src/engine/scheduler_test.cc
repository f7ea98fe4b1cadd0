// What a scheduler promises, one behaviour at a time: answers, steps, what is kept and what is refused.
// Every answer is held against what follows from its tokens alone, and the scheduler's invariants are checked
// after every step: see Harness.
#include "engine/scheduler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "engine/scheduler_testing.h"
#include "testing/error_message.h"

namespace quire::testing {
namespace {

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
