// What else an engine does at the same time changes no bit of an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "testing/invariants/engine_cases.h"

namespace quire::testing {
namespace {

using EngineBatch = EngineCaseTest;

TEST_P(EngineBatch, PreemptedSequencesGoOnWithTheSameTokens) {
  ServingLoop loop(*runner_, lone_, ScarceLimits(160, 100), Pages::kScarce);
  for (uint64_t i = 0; i < 3; ++i) loop.Add(Greedy(Tokens(98 + static_cast<int64_t>(i), i), 60));
  loop.RunAll();
  EXPECT_GT(loop.counters().preemptions, 0);
  EXPECT_GT(loop.seen().went_back, 0);
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

TEST_P(EngineBatch, APreemptedSequenceWithoutCacheIsComputedFromItsStart) {
  ServingLoop loop(*runner_, lone_, ScarceLimits(160, 100), Pages::kScarce,
                   {.prefix_cache = PrefixCache::kOff});
  for (uint64_t i = 0; i < 2; ++i) loop.Add(Greedy(Tokens(100, i), 60));
  loop.RunAll();
  EXPECT_GT(loop.counters().preemptions, 0);
  EXPECT_GT(loop.counters().prefill_tokens, 2 * 100);
  EXPECT_EQ(loop.counters().pages_free, loop.counters().pages_total);
}

TEST_P(EngineBatch, ALongPromptInChunksAmongRunningAnswers) {
  struct Mix {
    int32_t max_seqs;
    int64_t max_step_tokens;
  };
  for (const Mix mix : {Mix{2, 11}, Mix{4, 24}, Mix{8, 67}}) {
    SCOPED_TRACE(mix.max_step_tokens);
    RunnerLimits narrow = limits();
    narrow.max_seqs = mix.max_seqs;
    narrow.max_samples = mix.max_seqs;
    narrow.max_step_tokens = TokenCount(mix.max_step_tokens);
    ServingLoop loop(*runner_, lone_, narrow, Pages::kAmple);
    std::set<RequestId> running;
    for (int32_t i = 1; i < mix.max_seqs; ++i) {
      running.insert(loop.Add(Greedy(Tokens(3 + i, 100 + static_cast<uint64_t>(i)), 24)));
    }
    loop.Steps(8);
    const RequestId late = loop.Add(Greedy(Tokens(150, 110), 4));
    // No running answer waits for the chunks: each has a token in every step.
    while (loop.served(late).answers[0].report.output.empty() && !HasFailure()) {
      loop.Step();
      for (const RequestId id : running) {
        const auto in_step = std::ranges::count(loop.last_batch(), id, &SeenSequence::request);
        EXPECT_EQ(in_step, loop.served(id).ended && in_step == 0 ? 0 : 1) << "request " << id;
      }
    }
    loop.RunAll();
    EXPECT_GE(loop.seen().mixed_steps, 150 / mix.max_step_tokens);
    EXPECT_GE(loop.NumDistinctTokens(), 8);
  }
}

TEST_P(EngineBatch, SamplesOfOnePromptShareItsPages) {
  for (const PrefixCache prefix_cache : {PrefixCache::kOn, PrefixCache::kOff}) {
    for (const int64_t length : {50, 128}) {
      SCOPED_TRACE(length);
      ServingLoop loop = MakeLoop({.prefix_cache = prefix_cache});
      Request request = Greedy(Tokens(length, 120), 14);
      request.sampling.temperature = 1.3f;
      request.sampling.top_p = 0.95f;
      request.num_samples = 4;
      const RequestId id = loop.Add(request);
      loop.Steps(2);  // the prompt, then a token of each answer
      ASSERT_EQ(loop.last_batch().size(), 4u);
      const auto whole = static_cast<size_t>(length / page());
      std::set<PageId> own;
      for (const SeenSequence& seq : loop.last_batch()) {
        const std::vector<PageId>& first = loop.last_batch()[0].pages;
        EXPECT_TRUE(std::equal(first.begin(), first.begin() + static_cast<int64_t>(whole),
                               seq.pages.begin()));
        own.insert(seq.pages.at(whole));
      }
      EXPECT_EQ(own.size(), 4u);
      loop.RunAll();
      EXPECT_EQ(loop.counters().page_copies, 3 * CopiesFor(length));
      EXPECT_EQ(loop.counters().prefill_tokens, length);
      std::set<std::vector<int32_t>> outputs;
      for (const ServedAnswer& answer : loop.served(id).answers) {
        outputs.insert(answer.report.output);
      }
      EXPECT_EQ(outputs.size(), 4u);
    }
  }
}

// More answers than places: those that wait find the prompt in the cache.
TEST_P(EngineBatch, SamplesThatWaitForAPlaceAreTheSame) {
  RunnerLimits narrow = limits();
  narrow.max_seqs = 3;
  narrow.max_samples = 3;
  ServingLoop loop(*runner_, lone_, narrow, Pages::kAmple);
  loop.Add(Greedy(Tokens(20, 130), 30));
  Request request = Greedy(Tokens(70, 131), 10);
  request.sampling.temperature = 1.3f;
  request.num_samples = 3;
  const RequestId id = loop.Add(request);
  loop.Steps(3);
  EXPECT_EQ(loop.counters().running, 3);
  EXPECT_EQ(std::ranges::count(loop.last_batch(), id, &SeenSequence::request), 2);
  loop.RunAll();
}

TEST_P(EngineBatch, ACancelledRequestLeavesTheOthersAloneAndFreesItsPages) {
  RunnerLimits narrow = limits();
  narrow.max_step_tokens = TokenCount(40);
  ServingLoop loop(*runner_, lone_, narrow, Pages::kAmple, {.prefix_cache = PrefixCache::kOff});
  const RequestId stays = loop.Add(Greedy(Tokens(20, 140), 30));
  const RequestId decodes = loop.Add(Greedy(Tokens(15, 141), 30));
  loop.Steps(4);
  const RequestId prefills = loop.Add(Greedy(Tokens(200, 142), 30));
  loop.Steps(2);
  ASSERT_EQ(loop.last_batch().size(), 3u);
  loop.Cancel(decodes);
  loop.Cancel(prefills);
  loop.Step();
  EXPECT_TRUE(loop.served(decodes).ended);
  EXPECT_TRUE(loop.served(prefills).ended);
  EXPECT_EQ(loop.served(decodes).answers[0].finish, FinishReason::kCancelled);
  EXPECT_GT(loop.served(decodes).answers[0].report.output.size(), 2u);
  EXPECT_EQ(loop.served(prefills).answers[0].report.output.size(), 0u);
  ASSERT_EQ(loop.last_batch().size(), 1u);
  EXPECT_EQ(loop.last_batch()[0].request, stays);
  EXPECT_EQ(loop.counters().pages_free,
            loop.counters().pages_total - std::ssize(loop.last_batch()[0].pages));
  loop.RunAll();
  EXPECT_EQ(loop.served(stays).answers[0].report.output.size(), 30u);
}

// What a cancelled request has computed of its prompt is not lost.
TEST_P(EngineBatch, HalfAPromptIsFoundWhenItsRequestWasCancelled) {
  RunnerLimits narrow = limits();
  narrow.max_step_tokens = TokenCount(45);
  ServingLoop loop(*runner_, lone_, narrow, Pages::kAmple);
  const Request request = Greedy(Tokens(200, 150), 12);
  const RequestId id = loop.Add(request);
  loop.Steps(2);
  loop.Cancel(id);
  loop.RunAll();
  EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(90));
  EXPECT_EQ(loop.counters().page_copies, CopiesFor(90));
}

// The copy of the prompt's last page that it was to begin with is never made, so nobody may find it.
TEST_P(EngineBatch, AnAnswerStoppedBeforeItsOwnFirstStepLeavesNothingBehind) {
  ServingLoop loop = MakeLoop();
  Request request = Greedy(Tokens(50, 160), 20);
  request.num_samples = 2;
  const RequestId id = loop.Add(request);
  loop.Step();
  loop.StopAnswer(id, 1);
  loop.Step();
  EXPECT_EQ(loop.served(id).answers[1].finish, FinishReason::kStop);
  EXPECT_EQ(loop.served(id).answers[1].report.output.size(), 1u);
  EXPECT_EQ(loop.counters().page_copies, 0);
  const RequestId again = loop.Add(Greedy(request.prompt, 8));
  loop.RunAll();
  EXPECT_EQ(loop.cached_tokens(again), std::min<int64_t>(49, 50 / page() * page()));
  EXPECT_EQ(loop.served(id).answers[0].report.output.size(), 20u);
}

// As many biases and stop tokens as one may bring, in every sequence of a step. Each token may be
// there many times.
TEST_P(EngineBatch, EveryRequestMayBringTheMostBiasesAndStopTokens) {
  ServingLoop loop = MakeLoop();
  const auto half = static_cast<int32_t>(limits().vocab_size / 2);
  for (int32_t i = 0; i < limits().max_seqs; ++i) {
    Request request = Greedy(Tokens(9, 170 + static_cast<uint64_t>(i)), 12);
    request.min_tokens = 8;
    for (int32_t k = 0; k < kMaxRequestBiases; ++k) {
      request.logit_bias.push_back({.token = (k + i) % half, .bias = 0.25f});
    }
    for (int32_t k = 0; k < kMaxRequestStops + kMaxModelStops; ++k) {
      request.stop_tokens.push_back((k + i) % half);
    }
    loop.Add(std::move(request));
  }
  loop.RunAll();
  EXPECT_EQ(loop.counters().answers_finished, limits().max_seqs);
  for (const auto& [id, served] : loop.all()) {
    const std::vector<int32_t>& output = served.answers[0].report.output;
    ASSERT_GE(output.size(), 8u) << "request " << id;
    EXPECT_EQ(std::ranges::count_if(std::span(output).first(8),
                                    [&](int32_t token) { return token < half; }),
              0)
        << "request " << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineBatch, ::testing::ValuesIn(EngineCases()), EngineCaseName);

}  // namespace
}  // namespace quire::testing
