// The engine itself, with its threads: requests from several at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "testing/invariants/cached_prefixes.h"
#include "testing/invariants/engine_cases.h"

namespace quire::testing {
namespace {

// What a listener heard; the engine's thread alone touches it before `ended` is set.
struct Heard {
  JobReport report;
  FinishReason finish = FinishReason::kNone;
  int64_t cached_tokens = -1;
  std::promise<void> ended;

  void Take(const TokenEvent& event) {
    if (event.cached_tokens) cached_tokens = event.cached_tokens->raw();
    if (event.token != kNoToken) {
      report.tokens.push_back({{event.token, event.logprob}, event.top});
      report.output.push_back(event.token);
    }
    finish = event.finish;
    if (event.last_of_request) ended.set_value();
  }
};

class EngineThreads : public EngineCaseTest {
 protected:
  static constexpr int kNumThreads = 3;
  static constexpr int kRequestsPerThread = 4;

  EngineThreads() : EngineCaseTest(2) {
    const std::vector<int32_t> first = Tokens(70, 200);
    for (uint64_t i = 0; i < kNumThreads * kRequestsPerThread; ++i) {
      const auto shared = static_cast<int64_t>(40 + i / 2);  // pairs, and all in one page or two
      requests_.push_back(Greedy(Diverge(first, shared, 12, 201 + i), 10 + shared % 5));
      heard_.push_back(std::make_shared<Heard>());
    }
  }

  RequestId Submit(Engine& engine, const Request& request, const std::shared_ptr<Heard>& heard) {
    return engine.Submit(request, [heard](const TokenEvent& event) { heard->Take(event); }).value();
  }
  // Every kNumThreads-th request, each once the one before has ended.
  void SubmitShare(Engine& engine, size_t thread) {
    for (size_t i = thread; i < requests_.size(); i += kNumThreads) {
      Submit(engine, requests_[i], heard_[i]);
      heard_[i]->ended.get_future().wait();
    }
  }
  void ExpectAlone(const Request& request, const Heard& heard) {
    const LoneAnswer& alone = lone_.Answer(request, 0, limits().context);
    EXPECT_EQ(Difference(heard.report, alone.report), "");
    EXPECT_EQ(heard.finish, alone.finish);
  }

  std::vector<Request> requests_;
  std::vector<std::shared_ptr<Heard>> heard_;
};

TEST_P(EngineThreads, AnswersAreThoseOfTheRequestsAlone) {
  Engine engine(*runner_, {});
  const Request endless = Greedy(Tokens(30, 250), 200);
  const auto cancelled = std::make_shared<Heard>();
  const RequestId endless_id = Submit(engine, endless, cancelled);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([this, &engine, i] { SubmitShare(engine, i); });
  }
  for (std::thread& thread : threads) thread.join();
  engine.Cancel(endless_id);
  cancelled->ended.get_future().wait();

  CachedPrefixes all(limits().page_size);  // the most that could have been found
  for (const Request& request : requests_) all.Add("", request.prompt);
  int64_t cached = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectAlone(requests_[i], *heard_[i]);
    EXPECT_LE(heard_[i]->cached_tokens, all.Find("", requests_[i].prompt));
    cached += heard_[i]->cached_tokens;
  }
  EXPECT_GT(cached, 0);
  EXPECT_EQ(engine.counters().cached_tokens, cached);
  EXPECT_GT(engine.counters().mixed_steps, 0);
  JobReport beginning = lone_.Answer(endless, 0, limits().context).report;
  ASSERT_LE(cancelled->report.tokens.size(), beginning.tokens.size());
  beginning.tokens.resize(cancelled->report.tokens.size());
  EXPECT_EQ(Difference(cancelled->report, beginning), "");
  EXPECT_GT(beginning.tokens.size(), 8u);
}

// All at once; and once they have ended, each finds all but its last token.
TEST_P(EngineThreads, EveryPromptIsFoundOnceItsRequestHasEnded) {
  Engine engine(*runner_, {});
  for (size_t i = 0; i < requests_.size(); ++i) Submit(engine, requests_[i], heard_[i]);
  for (const auto& heard : heard_) heard->ended.get_future().wait();
  EXPECT_EQ(engine.counters().evicted_pages, 0);
  for (size_t i = 0; i < requests_.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectAlone(requests_[i], *heard_[i]);
    const auto again = std::make_shared<Heard>();
    Submit(engine, requests_[i], again);
    again->ended.get_future().wait();
    ExpectAlone(requests_[i], *again);
    EXPECT_EQ(again->cached_tokens, std::ssize(requests_[i].prompt) - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineThreads, ::testing::ValuesIn(SmallCases()), EngineCaseName);

}  // namespace
}  // namespace quire::testing
