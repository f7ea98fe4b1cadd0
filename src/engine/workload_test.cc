// Ten thousand random requests through schedulers of many shapes; under a sanitizer, a quarter.
//
//   W1   every answer is what follows from its tokens alone, and ends for a reason it has (Harness)
//   W2   the scheduler's invariants hold after every step; in the end every page is free or cached
//   W3   no limit of the runner is exceeded, no page misused (FakeRunner)
//   W4   nobody starves: a request ends within as many steps as computing it, and all that may go
//        before it, one token at a time would take
//   W5   what came earlier and goes first by the order of the queue is never overtaken
//   W6   cancelled requests end with the next step, and late ones with the first after their deadline
//
// A failure prints the seed of its configuration, which is drawn from that alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "testing/sanitized_share.h"
#include "testing/scheduler_harness.h"
#include "testing/splitmix64.h"

namespace quire::testing {
namespace {

constexpr uint64_t kFirstSeed = 1;
// Not sampled: what a few configurations preempt and copy by chance differs too much.
constexpr int kParts = kSanitizedParts / kSampledParts;
constexpr int kNumConfigs = 100 / kParts;
constexpr int kRequestsPerConfig = 100;
constexpr int64_t kSmallVocab = 97;  // few enough for stop tokens to be met

class Random {
 public:
  explicit Random(uint64_t seed) : state_(SplitMix64(seed)) {}

  // Uniform, both ends included.
  int64_t Between(int64_t low, int64_t high) {
    const uint64_t number = SplitMix64(state_);
    state_ += kSplitMix64Step;
    return low + static_cast<int64_t>(number % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int64_t n) { return Between(1, n) == 1; }
  int64_t Pick(std::initializer_list<int64_t> values) {
    return *std::next(values.begin(), Between(0, std::ssize(values) - 1));
  }

 private:
  uint64_t state_;
};

// What must have happened for the tests to mean something.
struct Coverage {
  int64_t requests = 0, refused = 0, ended = 0, cached_tokens = 0, page_copies = 0, preemptions = 0;
  int64_t mixed_steps = 0, evicted_pages = 0, failed_steps = 0, waiting_forks = 0, steps = 0;
  int64_t prefill_tokens = 0;
  std::map<FinishReason, int64_t> finishes;
};

class Workload {
 public:
  Workload(uint64_t seed, Coverage& coverage)
      : random_(seed), coverage_(coverage), harness_(DrawLimits(), DrawOptions()) {
    arrival_gap_ = random_.Pick({0, 1, 3, 8});
    has_failures_ = random_.OneIn(4);
    for (auto& prompt : roots_) prompt = DrawTokens(context() - 1);
  }

  void Run() {
    for (int i = 0; i < kRequestsPerConfig && !::testing::Test::HasFailure(); ++i) {
      Arrive();
      for (int64_t steps = random_.Between(0, arrival_gap_); steps > 0; --steps) Step();
    }
    while (harness_.scheduler().HasWork() && !::testing::Test::HasFailure()) Step();
    CheckEnd();
    Count();
  }

 private:
  int64_t context() { return harness_.runner().limits().context.raw(); }

  RunnerLimits DrawLimits() {
    const PageSize page_size(random_.Pick({1, 3, 16, 64}));
    const TokenCount context(random_.Between(2, 160));
    // From pages for a single sequence to plenty.
    const PageCount pages =
        page_size.PagesFor(context) * random_.Pick({1, 1, 2, 4}) + PageCount(random_.Between(0, 3));
    const auto max_seqs = static_cast<int32_t>(random_.Pick({1, 2, 4, 9, 16}));
    return {.page_size = page_size,
            .pool_pages = pages + PageCount(1),
            .context = context,
            .max_seqs = max_seqs,
            .max_step_tokens = TokenCount(max_seqs + random_.Pick({0, 1, 7, 60})),
            .max_samples = max_seqs,
            .vocab_size = kSmallVocab};
  }
  SchedulerOptions DrawOptions() {
    return {.max_waiting = random_.Pick({5, 1000}),
            .prefix_cache = random_.OneIn(5) ? PrefixCache::kOff : PrefixCache::kOn,
            .priority_weight = random_.Between(0, 20)};
  }

  std::vector<int32_t> DrawTokens(int64_t count) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<int32_t>(random_.Between(0, kSmallVocab - 1)));
    }
    return tokens;
  }

  // New, or one of a few beginnings with an end of its own, or a talk that goes on.
  std::vector<int32_t> DrawPrompt() {
    const int64_t longest = random_.OneIn(10) ? context() - 1 : std::max<int64_t>(1, context() / 2);
    const int64_t length = random_.Between(1, longest);
    std::vector<int32_t> prompt;
    if (!talks_.empty() && random_.OneIn(3)) {
      prompt = talks_[static_cast<size_t>(random_.Between(0, std::ssize(talks_) - 1))];
    } else if (!random_.OneIn(5)) {
      prompt = roots_[static_cast<size_t>(random_.Between(0, std::ssize(roots_) - 1))];
    }
    if (!random_.OneIn(4)) prompt.resize(std::min(prompt.size(), static_cast<size_t>(length)));
    for (const int32_t token : DrawTokens(length - std::ssize(prompt))) prompt.push_back(token);
    return prompt;
  }

  Request DrawRequest() {
    Request request{.prompt = DrawPrompt()};
    const int32_t max_seqs = harness_.runner().limits().max_seqs;
    if (random_.OneIn(4)) {
      request.num_samples = static_cast<int32_t>(random_.Between(1, std::min(max_seqs, 4)));
    }
    request.max_tokens = random_.OneIn(8) ? 1000 : random_.Between(1, 60);
    if (random_.OneIn(3)) request.stop_tokens = DrawTokens(random_.Between(1, 6));
    if (random_.OneIn(6))
      request.min_tokens = random_.Between(0, std::min<int64_t>(5, request.max_tokens));
    request.score_prompt = random_.OneIn(8);
    if (random_.OneIn(4)) request.priority = static_cast<int32_t>(random_.Between(-2, 2));
    if (random_.OneIn(10)) {
      request.deadline = harness_.now() + std::chrono::milliseconds(random_.Between(0, 60));
    }
    if (random_.OneIn(8)) request.cache_salt = "other";
    request.sampling.top_logprobs = random_.OneIn(5) ? 2 : 0;
    return request;
  }

  void Arrive() {
    const std::optional<RequestId> id = harness_.TryAdd(DrawRequest());
    ++(id ? coverage_.requests : coverage_.refused);
    if (id) open_.insert(*id);
  }

  void Step() {
    if (!open_.empty() && random_.OneIn(25)) CancelOne();
    if (has_failures_ && random_.OneIn(100)) {
      harness_.FailNextStep("planned");
      ++coverage_.failed_steps;
    }
    harness_.set_prepares(!random_.OneIn(4));
    const EngineClock::time_point now = harness_.now();
    harness_.Step();
    for (const StepRecord& record : harness_.records()) {
      if (record.first_sample > 0 && record.q_len > 1) ++coverage_.waiting_forks;
    }
    CheckOpen(now);
    cancelled_.clear();
  }

  void CancelOne() {
    const RequestId id = *std::next(open_.begin(), random_.Between(0, std::ssize(open_) - 1));
    harness_.scheduler().Cancel(id);
    cancelled_.insert(id);
  }

  void CheckOpen(EngineClock::time_point now) {
    for (auto it = open_.begin(); it != open_.end();) {
      const RequestId id = *it;
      const HeardRequest& heard = harness_.heard(id);
      if (heard.ended_in) {
        CheckEnded(id);
        it = open_.erase(it);
        continue;
      }
      ++it;
      ASSERT_FALSE(cancelled_.contains(id)) << "request " << id;  // W6
      ASSERT_TRUE(!heard.request.deadline || now < *heard.request.deadline) << "request " << id;
      if (heard.first_step) CheckNotOvertaking(id);
    }
  }

  // The order of the queue is by number and priority; of two with as much priority the earlier goes
  // first. Looked at once an answer has begun: that takes a sample, in the order of the queue.
  void CheckNotOvertaking(RequestId id) {
    const HeardRequest& heard = harness_.heard(id);
    if (heard.answers[0].tokens.size() != 1) return;
    for (auto it = open_.begin(); it != open_.end() && *it < id; ++it) {
      const HeardRequest& earlier = harness_.heard(*it);
      if (earlier.request.priority < heard.request.priority) continue;
      ASSERT_TRUE(earlier.first_step.has_value()) << "request " << id << " before " << *it;  // W5
    }
  }

  static int64_t Cost(const HeardRequest& heard, int64_t context) {
    const int64_t prompt = std::ssize(heard.request.prompt);
    const int64_t output = std::min(heard.request.max_tokens, context - prompt);
    return heard.request.num_samples * (prompt + output);
  }

  void CheckEnded(RequestId id) {
    const HeardRequest& heard = harness_.heard(id);
    int64_t bound = 1;
    for (const auto& [other_id, other] : harness_.all()) {
      // Whoever was there at the same time may have gone before.
      if (other.added_in > *heard.ended_in) break;
      if (other.ended_in && *other.ended_in < heard.added_in) continue;
      bound += Cost(other, context());
    }
    ASSERT_LE(*heard.ended_in - heard.added_in, bound) << "request " << id;  // W4
    for (const HeardAnswer& answer : heard.answers) ++coverage_.finishes[*answer.finish];
    if (talks_.size() < 8) talks_.emplace_back();
    std::vector<int32_t> talk = History(heard.request, heard.answers[0].tokens);
    talk.resize(std::min(talk.size(), static_cast<size_t>(context() - 1)));
    talks_[static_cast<size_t>(random_.Between(0, std::ssize(talks_) - 1))] = std::move(talk);
    if (heard.request.score_prompt && !heard.answers[0].tokens.empty()) {
      ASSERT_EQ(heard.answers[0].prompt_scores.size(), heard.request.prompt.size() - 1);
    }
    ++coverage_.ended;
  }

  void CheckEnd() {
    const SchedulerCounters counters = harness_.counters();
    ASSERT_TRUE(open_.empty());
    ASSERT_EQ(counters.running + counters.waiting, 0);
    ASSERT_EQ(counters.pages_free + counters.pages_cached, counters.pages_total);  // W2
  }

  void Count() {
    const SchedulerCounters counters = harness_.counters();
    coverage_.cached_tokens += counters.cached_tokens;
    coverage_.page_copies += counters.page_copies;
    coverage_.preemptions += counters.preemptions;
    coverage_.mixed_steps += counters.mixed_steps;
    coverage_.evicted_pages += counters.evicted_pages;
    coverage_.steps += counters.steps;
    coverage_.prefill_tokens += counters.prefill_tokens;
  }

  Random random_;
  Coverage& coverage_;
  Harness harness_;
  int64_t arrival_gap_ = 0;
  bool has_failures_ = false;
  std::array<std::vector<int32_t>, 3> roots_;
  std::vector<std::vector<int32_t>> talks_ = {std::vector<int32_t>{1}};
  std::set<RequestId> open_, cancelled_;
};

TEST(WorkloadTest, TenThousandRandomRequests) {
  Coverage coverage;
  for (int i = 0; i < kNumConfigs && !HasFailure(); ++i) {
    const uint64_t seed = kFirstSeed + static_cast<uint64_t>(i);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    try {
      Workload(seed, coverage).Run();
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
  }
  RecordProperty("steps", std::to_string(coverage.steps));
  RecordProperty("preemptions", std::to_string(coverage.preemptions));
  RecordProperty("prefill_tokens", std::to_string(coverage.prefill_tokens));
  EXPECT_EQ(coverage.requests + coverage.refused, kNumConfigs * kRequestsPerConfig);
  EXPECT_EQ(coverage.ended, coverage.requests);
  EXPECT_GT(coverage.refused * kParts, 100);
  EXPECT_GT(coverage.cached_tokens * kParts, 5'000);
  EXPECT_GT(coverage.page_copies * kParts, 500);
  EXPECT_GT(coverage.preemptions * kParts, 300);
  EXPECT_GT(coverage.mixed_steps * kParts, 1000);
  EXPECT_GT(coverage.evicted_pages * kParts, 1000);
  EXPECT_GT(coverage.failed_steps * kParts, 20);
  EXPECT_GT(coverage.waiting_forks * kParts, 100);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
        FinishReason::kDeadline, FinishReason::kFailed}) {
    EXPECT_GT(coverage.finishes[reason] * kParts, 50) << FinishReasonName(reason);
  }
}

}  // namespace
}  // namespace quire::testing
