// The engine's thread: who hears what, from which thread, and what happens when things go wrong.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/error_message.h"
#include "testing/fake_runner.h"
#include "testing/scheduler_harness.h"

namespace quire::testing {
namespace {

RunnerLimits SmallLimits() {
  return {.page_size = PageSize(4),
          .pool_pages = PageCount(81),
          .context = TokenCount(200),
          .max_seqs = 4,
          .max_step_tokens = TokenCount(32),
          .max_samples = 4,
          .vocab_size = 1000};
}

std::vector<int32_t> ExpectedOutput(const Request& request, int32_t sample = 0) {
  return OutputOf(request, SmallLimits().vocab_size, sample);
}

// Holds every step until it is let go.
class GatedRunner final : public Runner {
 public:
  explicit GatedRunner(const RunnerLimits& limits) : runner_(limits) {}

  const RunnerLimits& limits() const override { return runner_.limits(); }
  void Submit(const StepBatch& batch) override {
    {
      std::unique_lock lock(mutex_);
      ++num_arrived_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return is_open_; });
    }
    runner_.Submit(batch);
  }
  const StepResult& Collect() override { return runner_.Collect(); }

  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void WaitForStep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_arrived_ > 0; });
  }

 private:
  FakeRunner runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int64_t num_arrived_ = 0;
};

// What a listener heard, to be waited for.
class Ear {
 public:
  Engine::Listener listener() {
    return [heard = heard_](const TokenEvent& event) {
      const std::lock_guard lock(heard->mutex);
      heard->events.push_back(event);
      if (event.last_of_request) heard->ended.set_value();
    };
  }
  // All events, once the last has come.
  std::vector<TokenEvent> Wait() {
    ended_.wait();
    return Now();
  }
  std::vector<TokenEvent> Now() const {
    const std::lock_guard lock(heard_->mutex);
    return heard_->events;
  }

 private:
  struct Heard {
    std::mutex mutex;
    std::vector<TokenEvent> events;
    std::promise<void> ended;
  };
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  std::future<void> ended_ = heard_->ended.get_future();
};

void ExpectFinish(const TokenEvent& event, FinishReason reason) {
  EXPECT_STREQ(FinishReasonName(event.finish), FinishReasonName(reason));
}

TEST(EngineTest, GeneratesAnswers) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  Request request = MakeRequest(Prompt(10), 7);
  request.num_samples = 3;
  const std::vector<Answer> answers = Generate(engine, request);
  ASSERT_EQ(answers.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    const Answer& answer = answers[static_cast<size_t>(i)];
    EXPECT_EQ(answer.tokens, ExpectedOutput(request, i));
    EXPECT_EQ(answer.logprobs.size(), 7u);
    EXPECT_EQ(answer.logprobs[0], ExpectedLogprob(request.prompt, answer.tokens[0]));
    EXPECT_STREQ(FinishReasonName(answer.finish), "length");
    EXPECT_EQ(answer.cached_tokens, TokenCount(0));
  }
  request.num_samples = 1;
  EXPECT_EQ(Generate(engine, request)[0].cached_tokens, TokenCount(9));
  EXPECT_EQ(engine.counters().answers_finished, 4);
}

TEST(EngineTest, AStopTokenIsNoPartOfAnAnswer) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  Request request = MakeRequest(Prompt(10), 7);
  const std::vector<int32_t> output = ExpectedOutput(request);
  request.stop_tokens = {output[3]};
  const Answer answer = Generate(engine, request)[0];
  EXPECT_EQ(answer.tokens, std::vector<int32_t>(output.begin(), output.begin() + 3));
  EXPECT_STREQ(FinishReasonName(answer.finish), "stop");
}

TEST(EngineTest, TakesRequestsFromManyThreads) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t i = 0; i < 30; ++i) {
        const Request request = MakeRequest(Prompt(1 + (t * 7 + i) % 60, i % 5), 1 + i % 20);
        Ear ear;  // not Generate: what it throws would end the process from here
        engine.Submit(request, ear.listener());
        std::vector<int32_t> output;
        for (const TokenEvent& event : ear.Wait()) output.push_back(event.token);
        if (output != ExpectedOutput(request)) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(engine.counters().answers_finished, 6 * 30);
}

TEST(EngineTest, CancelsFromAnyThread) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t i = 0; i < 20; ++i) {
        Ear ear;
        const std::optional<RequestId> id =
            engine.Submit(MakeRequest(Prompt(20, t), 150), ear.listener());
        if (i % 3 != 0) std::this_thread::yield();
        engine.Cancel(*id);
        ear.Wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const SchedulerCounters counters = engine.counters();
  EXPECT_EQ(counters.answers_finished, 80);
  EXPECT_EQ(counters.pages_free + counters.pages_cached, counters.pages_total);
}

TEST(EngineTest, RequestsComeAndGoWhileAStepRuns) {
  GatedRunner runner(SmallLimits());
  Engine engine(runner, {});
  Ear first, second;
  const std::optional<RequestId> id = engine.Submit(MakeRequest(Prompt(5), 3), first.listener());
  runner.WaitForStep();
  ASSERT_TRUE(engine.Submit(MakeRequest(Prompt(5, 1), 3), second.listener()).has_value());
  engine.Cancel(*id);
  EXPECT_EQ(engine.counters().running, 1);
  runner.Open();
  const std::vector<TokenEvent> events = first.Wait();
  ExpectFinish(events.back(), FinishReason::kCancelled);
  EXPECT_LE(events.size(), 2u);  // the token of the step that ran, and the end
  EXPECT_EQ(second.Wait().size(), 3u);
}

TEST(EngineTest, ListenersMayCallTheEngine) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  Ear last;
  std::atomic<int> num_heard = 0;
  // Each request submits the next one with its third token, and cancels itself.
  std::function<void(int32_t)> submit = [&](int32_t left) {
    const Engine::Listener listener = [&, left](const TokenEvent& event) {
      EXPECT_EQ(engine.limits().max_seqs, 4);
      if (++num_heard % 3 != 0) return;
      engine.counters();
      engine.Cancel(event.request);
      if (left > 0) {
        submit(left - 1);
      } else {
        engine.Submit(MakeRequest(Prompt(3), 2), last.listener());
      }
    };
    engine.Submit(MakeRequest(Prompt(6, left), 100), listener);
  };
  submit(5);
  EXPECT_EQ(last.Wait().size(), 2u);
}

TEST(EngineTest, AListenerThatHasHeardEnoughHearsNoOtherToken) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  Ear ear;
  const Engine::Listener listener = [&, heard = ear.listener(),
                                     count = 0](const TokenEvent& event) mutable {
    if (++count == 3) engine.StopAnswer(event.request, event.sample);
    heard(event);
  };
  engine.Submit(MakeRequest(Prompt(6), 100), listener);
  const std::vector<TokenEvent> events = ear.Wait();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events.back().token, kNoToken);
  ExpectFinish(events.back(), FinishReason::kStop);
}

// What it is told of a step, and by which thread: a listener that waits holds up the step that runs, and no
// step is submitted before it returns but that one.
TEST(EngineTest, EventsOfAStepComeWhileTheNextOneRuns) {
  class CountingRunner final : public Runner {
   public:
    explicit CountingRunner(const RunnerLimits& limits) : runner_(limits) {}
    const RunnerLimits& limits() const override { return runner_.limits(); }
    void Submit(const StepBatch& batch) override {
      runner_.Submit(batch);
      ++num_submitted;
    }
    const StepResult& Collect() override {
      ++num_collected;
      return runner_.Collect();
    }
    std::atomic<int> num_submitted = 0, num_collected = 0;

   private:
    FakeRunner runner_;
  };
  CountingRunner runner(SmallLimits());
  Engine engine(runner, {});
  std::vector<std::pair<int, int>> seen;
  std::promise<void> ended;
  engine.Submit(MakeRequest(Prompt(6), 4), [&](const TokenEvent& event) {
    seen.emplace_back(runner.num_submitted, runner.num_collected);
    if (event.last_of_request) ended.set_value();
  });
  ended.get_future().wait();
  // The last token is that of the last step.
  EXPECT_EQ(seen, (std::vector<std::pair<int, int>>{{2, 1}, {3, 2}, {4, 3}, {4, 4}}));
}

TEST(EngineTest, AStoppedAnswerHasNoTokenOfTheStepThatRuns) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  Ear stopped, other;
  const Engine::Listener listener = [&, heard = stopped.listener()](const TokenEvent& event) {
    if (event.token != kNoToken) engine.StopAnswer(event.request, event.sample);
    heard(event);
  };
  engine.Submit(MakeRequest(Prompt(6), 50), listener);
  engine.Submit(MakeRequest(Prompt(6, 1), 50), other.listener());
  EXPECT_EQ(stopped.Wait().size(), 2u);
  EXPECT_EQ(other.Wait().size(), 50u);
  const SchedulerCounters counters = engine.counters();
  EXPECT_EQ(counters.output_tokens, 51);
  EXPECT_EQ(counters.pages_free + counters.pages_cached, counters.pages_total);
}

TEST(EngineTest, AListenerThatThrowsWhileAStepRunsEndsTheEngineOnceTheStepHasEnded) {
  GatedRunner runner(SmallLimits());
  // They outlive the engine, which may tell of an end once more when its failure is known.
  Ear other;
  std::atomic<int> num_heard = 0;
  Engine engine(runner, {});
  engine.Submit(MakeRequest(Prompt(6), 50), [&](const TokenEvent&) {
    if (++num_heard == 2) throw std::runtime_error("a bug");
  });
  engine.Submit(MakeRequest(Prompt(6, 1), 50), other.listener());
  runner.Open();  // not before both are there: an engine that has failed takes nothing
  ExpectFinish(other.Wait().back(), FinishReason::kFailed);
  while (!engine.failure()) std::this_thread::yield();
  EXPECT_EQ(engine.failure(), "a bug");
}

TEST(EngineTest, ItsEndCancelsWhatIsOpen) {
  constexpr int kNumOpen = 10;
  FakeRunner runner(SmallLimits());
  std::atomic<int> num_submitted = 0, num_refused = 0, num_ended = 0, num_answers = 0;
  Engine* engine = nullptr;
  // Whatever ends is submitted anew, so something is open when the engine ends. What its end cancels
  // is, too, and that is refused.
  std::function<void()> submit = [&] {
    Request request = MakeRequest(Prompt(10, num_submitted), 50);
    request.num_samples = 2;
    const auto id = engine->Submit(request, [&](const TokenEvent& event) {
      if (event.finish != FinishReason::kNone) ++num_answers;
      if (!event.last_of_request) return;
      ++num_ended;
      submit();
    });
    ++(id ? num_submitted : num_refused);
  };
  {
    Engine ending(runner, {});
    engine = &ending;
    for (int i = 0; i < kNumOpen; ++i) submit();
  }
  EXPECT_EQ(num_refused, kNumOpen);
  EXPECT_EQ(num_ended, num_submitted);
  EXPECT_EQ(num_answers, 2 * num_submitted);
}

TEST(EngineTest, AFailedStepEndsItsRequestsAndTheEngineLivesOn) {
  FakeRunner runner(SmallLimits());
  runner.FailStep(3, "out of luck");
  Engine engine(runner, {});
  const Request request = MakeRequest(Prompt(10), 20);
  Ear ear;
  engine.Submit(request, ear.listener());
  const std::vector<TokenEvent> events = ear.Wait();
  ASSERT_EQ(events.size(), 4u);  // three tokens, and the end
  ExpectFinish(events.back(), FinishReason::kFailed);
  EXPECT_EQ(events.back().error, "out of luck");
  const Answer answer = Generate(engine, request)[0];
  EXPECT_EQ(answer.tokens, ExpectedOutput(request));
  EXPECT_EQ(answer.cached_tokens, TokenCount(0));
}

// Throws a DeviceError in its second step.
class BrokenDevice : public FakeRunner {
 public:
  BrokenDevice(const RunnerLimits& limits, DeviceError::Lasts lasts)
      : FakeRunner(limits), lasts_(lasts) {}
  const StepResult& Collect() override {
    const StepResult& result = FakeRunner::Collect();
    if (num_steps() == 2) throw DeviceError(lasts_, "an illegal address");
    return result;
  }

 private:
  DeviceError::Lasts lasts_;
};

TEST(EngineTest, ADeviceThatIsLostEndsTheEngineAndOneThatIsNotDoesNot) {
  for (const auto lasts : {DeviceError::Lasts::kOnce, DeviceError::Lasts::kForever}) {
    const bool lost = lasts == DeviceError::Lasts::kForever;
    BrokenDevice runner(SmallLimits(), lasts);
    Engine engine(runner, {});
    const Request request = MakeRequest(Prompt(5), 20);
    Ear ear;
    engine.Submit(request, ear.listener());
    const std::vector<TokenEvent> events = ear.Wait();
    ExpectFinish(events.back(), FinishReason::kFailed);
    EXPECT_EQ(events.back().error, "an illegal address");
    EXPECT_EQ(engine.lost_device(), lost);
    EXPECT_EQ(engine.failure().has_value(), lost);
    if (!lost) {
      EXPECT_EQ(Generate(engine, request)[0].tokens.size(), 20u);
    }
  }
}

TEST(EngineTest, WhatThrowsOutsideOfAStepEndsTheEngineAndEveryRequest) {
  GatedRunner runner(SmallLimits());
  Engine engine(runner, {});
  EXPECT_EQ(engine.failure(), std::nullopt);
  Ear runs, waits;
  const auto id = engine.Submit(MakeRequest(Prompt(5), 20), runs.listener());
  runner.WaitForStep();
  engine.Submit(MakeRequest(Prompt(5), 20),
                [](const TokenEvent&) { throw std::runtime_error("a bug"); });
  engine.Submit(MakeRequest(Prompt(5), 20), waits.listener());
  runner.Open();
  for (Ear* ear : {&runs, &waits}) {
    const std::vector<TokenEvent> events = ear->Wait();
    ExpectFinish(events.back(), FinishReason::kFailed);
    EXPECT_EQ(events.back().error, "a bug");
  }
  EXPECT_EQ(engine.failure(), "a bug");
  engine.Cancel(*id);  // of what has ended: nothing
  try {
    engine.Submit(MakeRequest(Prompt(5), 20), [](const TokenEvent&) {});
    ADD_FAILURE() << "expected an InternalError";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "the engine has failed: a bug");
  }
}

TEST(EngineTest, GenerateSaysWhyAStepFailed) {
  FakeRunner runner(SmallLimits());
  runner.FailStep(0, "out of luck");
  Engine engine(runner, {});
  try {
    Generate(engine, MakeRequest(Prompt(10), 20));
    ADD_FAILURE() << "expected an InternalError";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "out of luck");
  }
}

TEST(EngineTest, AFullQueueRefuses) {
  GatedRunner runner(SmallLimits());
  Engine engine(runner, {.max_waiting = 2});
  std::vector<Ear> ears(3);
  engine.Submit(MakeRequest(Prompt(5), 3), ears[0].listener());
  runner.WaitForStep();
  engine.Submit(MakeRequest(Prompt(5), 3), ears[1].listener());
  engine.Submit(MakeRequest(Prompt(5), 3), ears[2].listener());
  EXPECT_EQ(engine.Submit(MakeRequest(Prompt(5), 3), [](const TokenEvent&) {}), std::nullopt);
  EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded,
                         [&] { Generate(engine, MakeRequest(Prompt(5), 3)); }),
            "engine: the queue is full");
  EXPECT_EQ(engine.counters().requests_refused, 2);
  runner.Open();
  for (Ear& ear : ears) EXPECT_EQ(ear.Wait().size(), 3u);
}

TEST(EngineTest, ABadRequestIsRefusedBeforeItIsQueued) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { Generate(engine, {}); }),
            "prompt: expected at least one token, got none");
  EXPECT_EQ(engine.counters().requests_added, 0);
}

TEST(EngineTest, DeadlinesPass) {
  GatedRunner runner(SmallLimits());
  Engine engine(runner, {});
  Request request = MakeRequest(Prompt(5), 100);
  request.deadline = EngineClock::now();
  Ear ear;
  engine.Submit(request, ear.listener());
  const std::vector<TokenEvent> events = ear.Wait();  // no step is let go
  ASSERT_EQ(events.size(), 1u);
  ExpectFinish(events[0], FinishReason::kDeadline);
}

TEST(EngineTest, AListenerThatThrowsHearsNothingTwice) {
  FakeRunner runner(SmallLimits());
  Engine engine(runner, {});
  // Both answers end before a step begins, and the second end is thrown at.
  Request request;
  request.prompt = {1, 2, 3};
  request.num_samples = 2;
  request.deadline = EngineClock::now() - std::chrono::seconds(1);
  std::mutex mutex;
  std::map<int32_t, int> num_ends;
  std::promise<void> thrown;
  engine.Submit(request, [&](const TokenEvent& event) {
    const std::lock_guard lock(mutex);
    if (event.finish != FinishReason::kNone) ++num_ends[event.sample];
    if (!event.last_of_request) return;
    thrown.set_value();
    throw std::runtime_error("a bug");
  });
  thrown.get_future().wait();
  while (!engine.failure()) std::this_thread::yield();
  EXPECT_EQ(engine.failure(), "a bug");
  const std::lock_guard lock(mutex);
  EXPECT_EQ(num_ends, (std::map<int32_t, int>{{0, 1}, {1, 1}}));
}

TEST(EngineTest, SaysHowLongAStepHasBeenRunning) {
  GatedRunner runner(SmallLimits());
  Engine engine(runner, {});
  EXPECT_EQ(engine.step_age(), std::nullopt);
  const EngineClock::duration idle = engine.since_last_step();
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 1;
  std::promise<void> ended;
  engine.Submit(request, [&](const TokenEvent& event) {
    if (event.last_of_request) ended.set_value();
  });
  runner.WaitForStep();
  const std::optional<EngineClock::duration> age = engine.step_age();
  ASSERT_TRUE(age.has_value());
  while (*engine.step_age() <= *age) std::this_thread::yield();
  EXPECT_GT(engine.since_last_step(), idle);  // none has ended
  runner.Open();
  ended.get_future().wait();
  while (engine.step_age()) std::this_thread::yield();
  EXPECT_GE(engine.since_last_step().count(), 0);
}

}  // namespace
}  // namespace quire::testing
