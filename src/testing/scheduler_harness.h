// A scheduler and a fake runner, and all that was heard of the requests given to them.
#ifndef QUIRE_TESTING_SCHEDULER_HARNESS_H_
#define QUIRE_TESTING_SCHEDULER_HARNESS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "step/step.h"
#include "testing/fake_runner.h"

namespace quire::testing {

inline Request MakeRequest(std::vector<int32_t> prompt, int64_t max_tokens) {
  return {.prompt = std::move(prompt), .max_tokens = max_tokens};
}

// One answer, as far as it was heard of.
struct HeardAnswer {
  std::vector<int32_t> tokens;  // a stop token included
  std::optional<FinishReason> finish;
  std::optional<TokenCount> cached_tokens;
  std::vector<TokenEvent::PromptToken> prompt_scores;
  std::string error;
};

struct HeardRequest {
  Request request;
  std::vector<HeardAnswer> answers;
  int64_t added_in = 0;               // steps before it came
  std::optional<int64_t> first_step;  // that computed something of it
  std::optional<int64_t> ended_in;
};

// What one sequence of a step was.
struct StepRecord {
  RequestId request = 0;
  int32_t first_sample = 0, num_samples = 0;  // 0 samples: not the last token
  int64_t position = 0, q_len = 0;
};

inline std::vector<int32_t> HeldTokens(const Request& request, int64_t num_output) {
  std::vector<int32_t> held;
  if (num_output < request.min_tokens) held = request.stop_tokens;
  for (const LogitBias& bias : request.logit_bias) {
    if (bias.bias <= kFakeLowBias) held.push_back(bias.token);
  }
  return held;
}

// Prompt, and the first `num_output` tokens of an answer.
inline std::vector<int32_t> History(const Request& request, std::span<const int32_t> output) {
  std::vector<int32_t> history = request.prompt;
  history.insert(history.end(), output.begin(), output.end());
  return history;
}

// What FakeRunner answers, up to max_tokens.
inline std::vector<int32_t> OutputOf(const Request& request, int64_t vocab_size,
                                     int32_t sample = 0) {
  std::vector<int32_t> output;
  for (int64_t i = 0; i < request.max_tokens; ++i) {
    output.push_back(ExpectedToken(History(request, output), sample, vocab_size));
  }
  return output;
}

class Harness {
 public:
  explicit Harness(const RunnerLimits& limits, SchedulerOptions options = {})
      : runner_(limits), scheduler_(limits, options) {}

  // Its sampling.seed is replaced: by that its sequences are known in a batch.
  std::optional<RequestId> TryAdd(Request request) {
    request.sampling.seed = next_seed_;
    const std::optional<RequestId> id = scheduler_.Add(request);
    if (!id) return id;
    HeardRequest heard;
    heard.request = std::move(request);
    heard.answers.resize(static_cast<size_t>(heard.request.num_samples));
    heard.added_in = num_steps();
    by_seed_.emplace(next_seed_++, *id);
    heard_.emplace(*id, std::move(heard));
    return id;
  }
  RequestId Add(Request request) { return TryAdd(std::move(request)).value(); }

  // One step, with all checks; false if there was nothing to compute. A step that fails as planned is
  // abandoned.
  bool Step() {
    std::vector<TokenEvent> events;
    const StepBatch batch = scheduler_.Schedule(now_, events);
    Take(events);
    Record(batch);
    if (!batch.sequences.empty()) Compute(batch, events);
    Take(events);
    scheduler_.CheckInvariants();
    now_ += std::chrono::milliseconds(1);
    return !batch.sequences.empty();
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  void FailNextStep(const std::string& message) {
    failure_ = message;
    runner_.FailStep(runner_.num_steps(), message);
  }
  // Until nothing is open.
  void RunAll(int64_t max_steps = 10'000) {
    for (int64_t i = 0; scheduler_.HasWork() && !::testing::Test::HasFailure(); ++i) {
      ASSERT_LT(i, max_steps) << "it does not end";
      Step();
    }
  }

  Scheduler& scheduler() { return scheduler_; }
  FakeRunner& runner() { return runner_; }
  SchedulerCounters counters() const { return scheduler_.counters(); }
  const HeardRequest& heard(RequestId id) const { return heard_.at(id); }
  const std::map<RequestId, HeardRequest>& all() const { return heard_; }
  const HeardAnswer& answer(RequestId id, size_t sample = 0) const {
    return heard_.at(id).answers.at(sample);
  }
  bool HasEnded(RequestId id) const { return heard_.at(id).ended_in.has_value(); }
  // Of the last step.
  const std::vector<StepRecord>& records() const { return records_; }
  int64_t num_steps() const { return num_steps_; }
  EngineClock::time_point now() const { return now_; }
  void set_prepares(bool prepares) { prepares_ = prepares; }
  // Tokens of the last step that are of this request.
  int64_t TokensOf(RequestId id) const {
    int64_t tokens = 0;
    for (const StepRecord& record : records_) tokens += record.request == id ? record.q_len : 0;
    return tokens;
  }

 private:
  // An answer has one id in all its steps, and no other has it: those of a step differ (FakeRunner).
  void ExpectOwnId(const StepSequence& seq, RequestId request) {
    EXPECT_NE(seq.id, 0u);
    EXPECT_EQ(ids_.try_emplace({request, seq.first_sample}, seq.id).first->second, seq.id);
  }

  void Compute(const StepBatch& batch, std::vector<TokenEvent>& events) {
    try {
      runner_.Submit(batch);
      if (prepares_) scheduler_.PrepareNext();
      scheduler_.Commit(runner_.Collect(), events);
    } catch (const InternalError& error) {
      if (error.what() != failure_) throw;  // a mistake with pages
      scheduler_.Abandon(error.what(), events);
    }
  }

  void Record(const StepBatch& batch) {
    records_.clear();
    if (batch.sequences.empty()) return;
    for (const StepSequence& seq : batch.sequences) {
      const RequestId id = by_seed_.at(seq.sampling.seed);
      HeardRequest& heard = heard_.at(id);
      if (!heard.first_step) heard.first_step = num_steps_;
      ExpectOwnId(seq, id);
      records_.push_back({.request = id,
                          .first_sample = seq.first_sample,
                          .num_samples = seq.want == Want::kNextToken ? seq.num_samples : 0,
                          .position = seq.position.raw(),
                          .q_len = std::ssize(seq.tokens)});
    }
    ++num_steps_;
  }

  void Take(std::vector<TokenEvent>& events) {
    for (const TokenEvent& event : events) TakeEvent(event);
    events.clear();
  }

  // Holds an event against what follows from the request alone.
  void TakeEvent(const TokenEvent& event) {
    SCOPED_TRACE(::testing::Message() << "request " << event.request << " sample " << event.sample
                                      << " finish " << FinishReasonName(event.finish));
    ASSERT_TRUE(heard_.contains(event.request));
    HeardRequest& heard = heard_.at(event.request);
    ASSERT_FALSE(heard.ended_in.has_value()) << "an event behind the last one";
    HeardAnswer& answer = heard.answers.at(static_cast<size_t>(event.sample));
    ASSERT_FALSE(answer.finish.has_value()) << "an event behind the end of the answer";
    const bool is_first = !answer.cached_tokens.has_value();
    ASSERT_EQ(event.cached_tokens.has_value(), is_first);
    if (is_first) {
      answer.cached_tokens = event.cached_tokens;
      answer.prompt_scores = event.prompt_scores;
    }
    ASSERT_TRUE(is_first || event.prompt_scores.empty());
    if (event.token != kNoToken) TakeToken(heard.request, event, answer);
    ASSERT_EQ(event.error.empty(), event.finish != FinishReason::kFailed);
    answer.error = event.error;
    if (event.finish != FinishReason::kNone) answer.finish = event.finish;
    const bool all_ended = std::ranges::all_of(
        heard.answers, [](const HeardAnswer& each) { return each.finish.has_value(); });
    ASSERT_EQ(event.last_of_request, all_ended);
    if (all_ended) heard.ended_in = num_steps_;
  }

  void TakeToken(const Request& request, const TokenEvent& event, HeardAnswer& answer) {
    const int64_t vocab_size = runner_.limits().vocab_size;
    const std::vector<int32_t> history = History(request, answer.tokens);
    const int64_t num_output = std::ssize(answer.tokens);
    ASSERT_EQ(event.token,
              ExpectedToken(history, event.sample, vocab_size, HeldTokens(request, num_output)))
        << "behind " << history.size() << " tokens, " << num_output << " of them drawn";
    ASSERT_EQ(event.logprob, ExpectedLogprob(history, event.token));
    ASSERT_EQ(std::ssize(event.top), request.sampling.top_logprobs);
    answer.tokens.push_back(event.token);
    const bool stops =
        num_output >= request.min_tokens &&
        std::ranges::find(request.stop_tokens, event.token) != request.stop_tokens.end();
    const bool is_full = num_output + 1 >= request.max_tokens ||
                         TokenCount(history.size() + 1) >= runner_.limits().context;
    ASSERT_STREQ(FinishReasonName(event.finish), FinishReasonName(stops     ? FinishReason::kStop
                                                                  : is_full ? FinishReason::kLength
                                                                            : FinishReason::kNone));
  }

  FakeRunner runner_;
  Scheduler scheduler_;
  std::map<RequestId, HeardRequest> heard_;
  std::map<uint64_t, RequestId> by_seed_;
  uint64_t next_seed_ = 1;
  std::vector<StepRecord> records_;
  std::map<std::pair<RequestId, int32_t>, uint64_t> ids_;  // of answers, as runners know them
  int64_t num_steps_ = 0;
  EngineClock::time_point now_{};
  bool prepares_ = true;
  std::string failure_;
};

// n tokens that no other `author` begins with.
inline std::vector<int32_t> Prompt(int64_t n, int32_t author = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>((author * 37 + i * 11 + i / 7) % 997));
  }
  return tokens;
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SCHEDULER_HARNESS_H_
