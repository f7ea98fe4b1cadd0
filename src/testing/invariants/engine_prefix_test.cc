// What a request finds in the prefix cache changes no bit of its answer.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "testing/invariants/engine_cases.h"

namespace quire::testing {
namespace {

using EnginePrefix = EngineCaseTest;

// The two ways to be alone agree: through a scheduler without a cache, and without a scheduler.
TEST_P(EnginePrefix, ASchedulerWithoutCacheAnswersLikeTheRunnerAlone) {
  ServingLoop loop = MakeLoop({.prefix_cache = PrefixCache::kOff});
  const Request request = Greedy(Tokens(100, 1), 16);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(loop.Run(request).answers[0].report.output.size(), 16u);
  EXPECT_EQ(loop.counters().cached_tokens, 0);
  EXPECT_EQ(loop.counters().pages_free, loop.counters().pages_total);
  EXPECT_GE(loop.NumDistinctTokens(), 8) << "the answers are too much alike to tell anything";
}

TEST_P(EnginePrefix, TheSamePromptAgainIsComputedFromItsLastToken) {
  ServingLoop loop = MakeLoop();
  int64_t copies = 0;
  // The second ends its hit at a page boundary, but for pages of 61.
  for (const int64_t length : {100, 129}) {
    const Request request = Greedy(Tokens(length, 2 + static_cast<uint64_t>(length)), 12);
    EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(0));
    const int64_t before = loop.counters().prefill_tokens;
    EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(length - 1));
    EXPECT_EQ(loop.counters().prefill_tokens, before + 1);
    copies += CopiesFor(length - 1);
  }
  EXPECT_EQ(copies, page() == 1 ? 0 : 1 + CopiesFor(128));
  EXPECT_EQ(loop.counters().page_copies, copies);
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

TEST_P(EnginePrefix, AHitMayEndAtAPageBoundaryOrInsideAPage) {
  ServingLoop loop = MakeLoop();
  const std::vector<int32_t> first = Tokens(150, 10);
  loop.Run(Greedy(first, 8));
  int64_t copies = 0;
  uint64_t seed = 20;
  for (const int64_t shared : {128, 133, 127, 1}) {
    const ServedRequest& served = loop.Run(Greedy(Diverge(first, shared, 9, ++seed), 8));
    EXPECT_EQ(served.answers[0].cached_tokens, TokenCount(shared));
    copies += CopiesFor(shared);
    EXPECT_EQ(loop.counters().page_copies, copies);
  }
  EXPECT_EQ(copies, page() == 1 ? 0 : 3 + CopiesFor(128));
  // None of them wrote to the pages that they began in.
  EXPECT_EQ(loop.Run(Greedy(first, 8)).answers[0].cached_tokens, TokenCount(149));
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

TEST_P(EnginePrefix, SequencesThatPartInsideAPageLeaveEachOtherAlone) {
  ServingLoop loop = MakeLoop();
  const std::vector<int32_t> first = Tokens(100, 30);
  loop.Run(Greedy(first, 8));
  const std::vector<int32_t> left = Diverge(first, 70, 20, 31);
  const RequestId a = loop.Add(Greedy(left, 24));
  const RequestId b = loop.Add(Greedy(Diverge(first, 70, 25, 32), 24));
  const RequestId c = loop.Add(Greedy(first, 24));
  loop.RunAll();
  EXPECT_EQ(loop.cached_tokens(a), 70);
  EXPECT_EQ(loop.cached_tokens(b), 70);
  EXPECT_EQ(loop.cached_tokens(c), 99);
  EXPECT_EQ(loop.counters().page_copies, 2 * CopiesFor(70) + CopiesFor(99));
  // The page that all came from, and one of those that they went on in.
  EXPECT_EQ(loop.Run(Greedy(first, 8)).answers[0].cached_tokens, TokenCount(99));
  EXPECT_EQ(loop.Run(Greedy(Diverge(left, 83, 5, 33), 8)).answers[0].cached_tokens, TokenCount(83));
  EXPECT_EQ(loop.counters().page_copies, 2 * CopiesFor(70) + 2 * CopiesFor(99) + CopiesFor(83));
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

TEST_P(EnginePrefix, AConversationFindsItsOwnAnswers) {
  ServingLoop loop = MakeLoop();
  std::vector<int32_t> talk = Tokens(37, 40);
  int64_t expected = 0;
  int64_t copies = 0;
  for (uint64_t turn = 0; turn < 4; ++turn) {
    const ServedRequest& served = loop.Run(Greedy(talk, 21));
    EXPECT_EQ(served.answers[0].cached_tokens, TokenCount(expected)) << "turn " << turn;
    copies += CopiesFor(expected);
    const std::vector<int32_t>& output = served.answers[0].report.output;
    talk.insert(talk.end(), output.begin(), output.end());
    expected = std::ssize(talk) - 1;  // the last token was drawn, and never computed
    const std::vector<int32_t> more = Tokens(11, 41 + turn);
    talk.insert(talk.end(), more.begin(), more.end());
  }
  EXPECT_EQ(loop.counters().page_copies, copies);
  EXPECT_EQ(copies > 0, page() > 1);
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

// Whole pages of what the first computes, in the step in which it does.
TEST_P(EnginePrefix, PromptsThatComeTogetherComputeWhatTheyShareOnce) {
  ServingLoop loop = MakeLoop();
  const std::vector<int32_t> first = Tokens(150, 90);
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 4; ++i) ids.push_back(loop.Add(Greedy(first, 6)));
  for (uint64_t i = 0; i < 3; ++i) {
    ids.push_back(loop.Add(Greedy(Diverge(first, 140, 9 + static_cast<int64_t>(i), 91 + i), 6)));
  }
  loop.RunAll();
  EXPECT_EQ(loop.cached_tokens(ids[0]), 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(loop.cached_tokens(ids[i]), 149 / page() * page());
  for (size_t i = 4; i < ids.size(); ++i) {
    EXPECT_EQ(loop.cached_tokens(ids[i]), 140 / page() * page());
  }
  EXPECT_EQ(loop.counters().page_copies, 0);
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

TEST_P(EnginePrefix, SaltsAreApart) {
  ServingLoop loop = MakeLoop();
  Request request = Greedy(Tokens(50, 50), 6);
  loop.Run(request);
  request.cache_salt = "other";
  EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(0));
  EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(49));
}

// Scores need every position, so such a request looks up nothing; what it computed is cached.
TEST_P(EnginePrefix, PromptScoresAreComputedAndNotFound) {
  ServingLoop loop = MakeLoop();
  Request request = Greedy(Tokens(60, 60), 6);
  loop.Run(request);
  request.score_prompt = true;
  EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(0));
  request.prompt = Tokens(60, 61);
  loop.Run(request);
  request.score_prompt = false;
  EXPECT_EQ(loop.Run(request).answers[0].cached_tokens, TokenCount(59));
}

TEST_P(EnginePrefix, AnEvictedPrefixIsComputedAgain) {
  ServingLoop loop(*runner_, lone_, ScarceLimits(160, 40), Pages::kScarce);
  const Request first = Greedy(Tokens(110, 70), 10);
  const auto again = [&] { return loop.Run(first).answers[0].cached_tokens.value().raw(); };
  EXPECT_EQ(again(), 0);
  EXPECT_EQ(again(), 109);
  EXPECT_EQ(loop.counters().evicted_pages, 0);
  for (uint64_t i = 0; i < 3; ++i) loop.Run(Greedy(Tokens(110, 71 + i), 10));
  EXPECT_GT(loop.counters().evicted_pages, 0);
  EXPECT_EQ(again(), 0) << "used longest ago";
  EXPECT_EQ(again(), 109);
  EXPECT_EQ(loop.counters().preemptions, 0);
  EXPECT_GE(loop.NumDistinctTokens(), 8);
}

// Pages are evicted from the end of what was used longest ago: the rest is still found.
TEST_P(EnginePrefix, WhatIsLeftOfAPrefixIsFound) {
  ServingLoop loop(*runner_, lone_, ScarceLimits(200, 0), Pages::kScarce);
  const Request first = Greedy(Tokens(180, 80), 4);
  loop.Run(first);
  const int64_t pages = (183 + page() - 1) / page();  // the last token drawn is not computed
  EXPECT_EQ(loop.counters().pages_cached, pages);
  loop.Run(Greedy(Tokens(100, 81), 4));
  const int64_t left = pages - loop.counters().evicted_pages;
  EXPECT_GT(left, 0);
  EXPECT_LT(left, pages);
  EXPECT_EQ(loop.Run(first).answers[0].cached_tokens, TokenCount(left * page()));
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePrefix, ::testing::ValuesIn(EngineCases()), EngineCaseName);

}  // namespace
}  // namespace quire::testing
