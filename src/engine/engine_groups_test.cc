// An engine over runners that take part in each other's steps: all are in every one, and what goes wrong in
// one group, or is lost with it, is told of those it concerns.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "testing/fake_runner.h"
#include "testing/scheduler_harness.h"

namespace quire::testing {
namespace {

RunnerLimits MeetingLimits() {
  return {.page_size = PageSize(4),
          .pool_pages = PageCount(31),
          .context = TokenCount(100),
          .max_seqs = 2,
          .max_step_tokens = TokenCount(16),
          .max_samples = 2,
          .vocab_size = 1000};
}

// What the runners of one engine see of each other.
class Meeting {
 public:
  explicit Meeting(int64_t size) : size_(size) {}

  // Returns when all have come as often as this one: to the beginning of a step, or to its end.
  void Come(int64_t* count) {
    std::unique_lock lock(mutex_);
    const int64_t needed = ((*count)++ / size_ + 1) * size_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return *count >= needed || !lost_.empty(); });
    ThrowIfLostLocked();
  }
  void Lose(const std::string& why) {
    const std::lock_guard lock(mutex_);
    lost_ = why;
    changed_.notify_all();
  }

  int64_t num_submitted = 0;
  int64_t num_collected = 0;
  std::promise<void> opens;
  std::shared_future<void> is_open = opens.get_future().share();  // before it no step begins

 private:
  void ThrowIfLostLocked() const {
    if (!lost_.empty()) throw DeviceError(DeviceError::Lasts::kForever, lost_);
  }

  const int64_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string lost_;  // why no step can end any more
};

// A runner that waits for the others when a step begins, as one that drafts does, and when it ends: a rank
// among others.
class MeetingRunner final : public Runner {
 public:
  explicit MeetingRunner(Meeting& meeting) : runner_(MeetingLimits()), meeting_(meeting) {}

  const RunnerLimits& limits() const override { return runner_.limits(); }
  void Submit(const StepBatch& batch) override {
    meeting_.is_open.wait();
    computes_ = !batch.sequences.empty();
    if (computes_) {
      Require(!std::exchange(refuses_, false), "a batch that is not liked");
      runner_.Submit(batch);
    } else {
      ++num_idle_;
    }
    meeting_.Come(&meeting_.num_submitted);
  }
  const StepResult& Collect() override {
    if (std::exchange(breaks_, false)) meeting_.Lose("rank 1 of 2: a memory error");
    meeting_.Come(&meeting_.num_collected);
    return computes_ ? runner_.Collect() : nothing_;
  }

  void RefuseNext() { refuses_ = true; }
  void BreakNext() { breaks_ = true; }
  int64_t num_idle() const { return num_idle_; }
  FakeRunner& fake() { return runner_; }

 private:
  FakeRunner runner_;
  Meeting& meeting_;
  const StepResult nothing_ = {};
  bool computes_ = false, refuses_ = false, breaks_ = false;
  int64_t num_idle_ = 0;
};

// Runners, and the engine over them.
struct Groups {
  explicit Groups(int64_t size) : meeting(size) {
    std::vector<Runner*> all;
    for (int64_t i = 0; i < size; ++i) {
      runners.push_back(std::make_unique<MeetingRunner>(meeting));
      all.push_back(runners.back().get());
    }
    engine.emplace(all, SchedulerOptions());
  }
  void Open() { meeting.opens.set_value(); }

  Meeting meeting;
  std::vector<std::unique_ptr<MeetingRunner>> runners;
  std::optional<Engine> engine;
};

std::vector<int32_t> MeetingOutput(const Request& request) {
  return OutputOf(request, MeetingLimits().vocab_size);
}

// How a request ended, and with which tokens.
struct Ended {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

std::future<Ended> Ask(Engine& engine, const Request& request,
                       std::optional<RequestId>* id = nullptr) {
  const auto ended = std::make_shared<Ended>();
  const auto promise = std::make_shared<std::promise<Ended>>();
  const auto listen = [ended, promise](const TokenEvent& event) {
    if (event.token != kNoToken) ended->tokens.push_back(event.token);
    ended->finish = event.finish;
    ended->error = event.error;
    if (event.last_of_request) promise->set_value(*ended);
  };
  const std::optional<RequestId> given = engine.Submit(request, listen);
  EXPECT_TRUE(given.has_value());
  if (id != nullptr) *id = given;
  return promise->get_future();
}

TEST(EngineGroups, AnswersAreThoseOfOneGroupWithUnevenWorkAndIdleGroups) {
  for (const int64_t size : {1, 2, 4}) {
    Groups groups(size);
    groups.Open();
    const Request alone = MakeRequest(Prompt(9, 1), 6);
    EXPECT_EQ(Ask(*groups.engine, alone).get().tokens, MeetingOutput(alone));
    // All other groups took part with nothing.
    for (size_t i = 1; i < groups.runners.size(); ++i) EXPECT_GE(groups.runners[i]->num_idle(), 6);
    std::vector<Request> requests;
    for (int32_t i = 0; i < 12; ++i) {
      requests.push_back(MakeRequest(Prompt(3 + i * 4, i), i % 3 == 0 ? 30 : 2));
    }
    std::vector<std::future<Ended>> answers;
    for (const Request& request : requests) answers.push_back(Ask(*groups.engine, request));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(answers[i].get().tokens, MeetingOutput(requests[i])) << i;
    }
    EXPECT_EQ(groups.engine->counters().answers_finished, 13);
    EXPECT_EQ(groups.engine->num_groups(), groups.runners.size());
  }
}

TEST(EngineGroups, ABatchThatIsRefusedEndsWhatRanInItsGroupAlone) {
  Groups groups(2);
  groups.runners[1]->RefuseNext();
  const Request first = MakeRequest(Prompt(9, 1), 30), second = MakeRequest(Prompt(9, 2), 30);
  std::future<Ended> in_first = Ask(*groups.engine, first);
  std::future<Ended> in_second = Ask(*groups.engine, second);
  groups.Open();
  const Ended refused = in_second.get();
  EXPECT_EQ(refused.finish, FinishReason::kFailed);
  EXPECT_EQ(refused.error, "a batch that is not liked");
  EXPECT_EQ(in_first.get().tokens, MeetingOutput(first));
  EXPECT_EQ(Ask(*groups.engine, second).get().tokens, MeetingOutput(second));
  EXPECT_EQ(groups.engine->failure(), std::nullopt);
}

TEST(EngineGroups, AStepThatFailsEndsWhatRanInItsGroupAlone) {
  Groups groups(2);
  groups.runners[1]->fake().FailStep(0, "a wrong page");
  const Request first = MakeRequest(Prompt(9, 1), 30), second = MakeRequest(Prompt(9, 2), 30);
  std::future<Ended> in_first = Ask(*groups.engine, first);
  std::future<Ended> in_second = Ask(*groups.engine, second);
  groups.Open();
  EXPECT_EQ(in_second.get().error, "a wrong page");
  EXPECT_EQ(in_first.get().tokens, MeetingOutput(first));
}

TEST(EngineGroups, ARankThatIsLostEndsTheEngineByItsNameOnceAllHaveEndedTheStep) {
  Groups groups(2);
  groups.runners[0]->BreakNext();
  groups.Open();
  const Ended lost = Ask(*groups.engine, MakeRequest(Prompt(9, 1), 30)).get();
  EXPECT_EQ(lost.finish, FinishReason::kFailed);
  EXPECT_EQ(lost.error, "rank 1 of 2: a memory error");
  EXPECT_EQ(groups.engine->failure(), "rank 1 of 2: a memory error");
  EXPECT_TRUE(groups.engine->lost_device());
  groups.engine.reset();
  EXPECT_EQ(groups.meeting.num_collected, groups.meeting.num_submitted);
}

TEST(EngineGroups, CancellingAndShuttingDownLeaveNoRunnerWithinAStep) {
  Groups groups(2);
  std::optional<RequestId> first, second;
  std::future<Ended> cancelled = Ask(*groups.engine, MakeRequest(Prompt(9, 1), 80), &first);
  std::future<Ended> open = Ask(*groups.engine, MakeRequest(Prompt(9, 2), 80), &second);
  groups.Open();
  groups.engine->Cancel(*first);
  EXPECT_EQ(cancelled.get().finish, FinishReason::kCancelled);
  groups.engine.reset();
  const FinishReason last = open.get().finish;
  EXPECT_TRUE(last == FinishReason::kCancelled || last == FinishReason::kLength);
  EXPECT_EQ(groups.meeting.num_collected, groups.meeting.num_submitted);
}

}  // namespace
}  // namespace quire::testing
