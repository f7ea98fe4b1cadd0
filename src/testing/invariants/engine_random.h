// Random requests: shared beginnings, talks that go on, samples, scores, salts, stop tokens, penalties,
// priorities, cancels. A failure prints the seed, from which all requests are drawn.
#ifndef QUIRE_TESTING_INVARIANTS_ENGINE_RANDOM_H_
#define QUIRE_TESTING_INVARIANTS_ENGINE_RANDOM_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "testing/invariants/engine_cases.h"
#include "testing/invariants/random_config.h"

namespace quire::testing {

class EngineRandom : public EngineCaseTest {
 protected:
  static constexpr int64_t kLongestPrompt = 120;
  // As the scheduler is told: room for a talk, and few pages when they are to be scarce.
  static constexpr int64_t kContext = 160;

  explicit EngineRandom(int num_requests = 60) : num_requests_(num_requests) {}

  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  std::vector<int32_t> DrawTokens(int64_t n) { return Tokens(n, random_.Next()); }

  // New, or one of a few beginnings, or an earlier prompt, or a talk that goes on.
  std::vector<int32_t> DrawPrompt() {
    const int64_t kind = random_.Between(0, 6);
    std::vector<int32_t> prompt;
    if (kind <= 2) {
      prompt = roots_[Index(random_.Between(0, std::ssize(roots_) - 1))];
      prompt.resize(Index(random_.Between(1, kLongestPrompt)));
    } else if (kind <= 5 && !earlier_.empty()) {
      const Request& request = earlier_[Index(random_.Between(0, std::ssize(earlier_) - 1))];
      prompt = request.prompt;
      if (kind == 5) return prompt;
      const JobReport& answer = lone_.Answer(request, 0, TokenCount(kContext)).report;
      prompt.insert(prompt.end(), answer.output.begin(), answer.output.end());
    }
    for (const int32_t token : DrawTokens(random_.Between(1, 25))) prompt.push_back(token);
    if (std::ssize(prompt) > kLongestPrompt) prompt.resize(Index(kLongestPrompt));
    return prompt;
  }

  Request DrawRequest() {
    Request request = Greedy(DrawPrompt(), random_.Between(1, 14));
    request.sampling.top_logprobs = static_cast<int32_t>(random_.Between(0, 5));
    request.sampling.seed = earlier_.size() + 1;  // as the loop will have it
    request.priority = static_cast<int32_t>(random_.Pick({0, 0, 0, -1, 1, 2}));
    if (random_.OneIn(5)) {
      request.num_samples = static_cast<int32_t>(random_.Between(2, 4));
      request.sampling.temperature = 1.2f;
    } else if (random_.OneIn(4)) {
      request.max_tokens = kContext;  // as many as there is room for
    }
    if (random_.OneIn(8)) request.score_prompt = true;
    if (random_.OneIn(8)) request.cache_salt = "other";
    if (random_.OneIn(4)) request.stop_tokens = DrawTokens(4);
    if (random_.OneIn(5)) {
      request.sampling.repetition_penalty = 1.3f;
      request.sampling.frequency_penalty = 0.2f;
    }
    earlier_.push_back(request);
    return request;
  }

  RunnerLimits DrawLimits(Pages pages) {
    RunnerLimits narrow = ScarceLimits(kContext, random_.Between(30, 90));
    if (pages == Pages::kAmple) narrow.pool_pages = limits().pool_pages;
    narrow.max_seqs = static_cast<int32_t>(random_.Between(4, kMaxSeqs));
    narrow.max_samples = narrow.max_seqs;
    narrow.max_step_tokens = TokenCount(narrow.max_seqs + random_.Pick({2, 13, 40, 100}));
    return narrow;
  }

  // What requests must meet, sooner or later.
  struct Met {
    int64_t cached_tokens = 0;
    int64_t mixed_steps = 0;
    int64_t cut_short = 0;
    int64_t stopped = 0;
    int64_t distinct_tokens = 0;
    int64_t evicted_pages = 0;
    int64_t preemptions = 0;
    int64_t drafts = 0;
    int64_t draft_tokens = 0;
    int64_t accepted_tokens = 0;

    void Add(const ServingLoop& loop) {
      for (const auto& [id, served] : loop.all()) {
        for (const ServedAnswer& answer : served.answers) {
          cut_short += answer.finish == FinishReason::kCancelled ? 1 : 0;
          stopped += answer.finish == FinishReason::kStop ? 1 : 0;
        }
      }
      cached_tokens += loop.counters().cached_tokens;
      mixed_steps += loop.seen().mixed_steps;
      distinct_tokens = std::max(distinct_tokens, loop.NumDistinctTokens());
      evicted_pages += loop.counters().evicted_pages;
      preemptions += loop.counters().preemptions;
      drafts += loop.counters().drafts;
      draft_tokens += loop.counters().draft_tokens;
      accepted_tokens += loop.counters().accepted_tokens;
    }
    std::string Missing(Pages pages) const {
      if (cached_tokens == 0) return "nothing was cached";
      if (mixed_steps == 0) return "no step was mixed";
      if (cut_short == 0) return "no answer was cut short";
      if (stopped == 0) return "no answer met its stop token";
      if (distinct_tokens < 30) return "the answers are too much alike to tell anything";
      if (pages == Pages::kAmple) return "";
      if (evicted_pages == 0) return "nothing was evicted";
      if (preemptions == 0) return "nothing was preempted";
      return "";
    }
  };

  // One seed after the other until they have: what a request meets depends on the answers to others,
  // and so on the machine.
  void RunWorkloads(Pages pages) {
    Met met;
    for (uint64_t seed = 1; seed <= kMostSeeds && !HasFailure(); ++seed) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed);
      RunWorkload(seed, pages, met);
      if (met.Missing(pages).empty()) return;
    }
    EXPECT_EQ(met.Missing(pages), "");
  }

  void RunWorkload(uint64_t seed, Pages pages, Met& met) {
    random_ = Random(seed);
    earlier_.clear();
    for (auto& root : roots_) root = DrawTokens(kLongestPrompt);
    ServingLoop loop(*runner_, lone_, DrawLimits(pages), pages);
    std::multimap<int64_t, RequestId> cancels;  // by the step
    for (int i = 0; i < num_requests_ && !HasFailure(); ++i) {
      const RequestId id = loop.Add(DrawRequest());
      if (random_.OneIn(7)) cancels.emplace(loop.seen().steps + random_.Between(0, 8), id);
      for (int64_t steps = random_.Between(0, 6); steps > 0; --steps) {
        const auto due = cancels.equal_range(loop.seen().steps);
        for (auto cancel = due.first; cancel != due.second; ++cancel) loop.Cancel(cancel->second);
        loop.Step();
      }
    }
    loop.RunAll();
    EXPECT_EQ(loop.counters().page_copies > 0, page() > 1);
    met.Add(loop);
  }

  static constexpr uint64_t kMostSeeds = 20;
  const int num_requests_;
  Random random_{0};
  std::vector<int32_t> roots_[3];
  std::vector<Request> earlier_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_ENGINE_RANDOM_H_
