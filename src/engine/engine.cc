#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include "base/error.h"

namespace quire {

Engine::Engine(Runner& runner, const SchedulerOptions& options)
    : Engine(std::vector<Runner*>{&runner}, options) {}

Engine::Engine(std::vector<Runner*> runners, const SchedulerOptions& options)
    : steps_(std::move(runners)),
      schedulers_(steps_.limits(), options, steps_.size()),
      batches_(steps_.size()) {
  thread_ = std::thread([this] { ThreadMain(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<RequestId> Engine::Submit(Request request, Listener listener) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw InternalError("the engine has failed: " + *failure_);
  if (stopping_) return std::nullopt;
  const std::optional<RequestId> id = schedulers_.Add(std::move(request));
  if (id) {
    listeners_.emplace(*id, std::make_shared<Listener>(std::move(listener)));
    changed_.notify_all();
  }
  return id;
}

void Engine::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  schedulers_.Cancel(id);
  changed_.notify_all();
}

void Engine::StopAnswer(RequestId id, int32_t sample) {
  const std::lock_guard lock(mutex_);
  schedulers_.StopAnswer(id, sample);
  changed_.notify_all();
}

bool Engine::EmptyCache() {
  const std::lock_guard lock(mutex_);
  return schedulers_.EmptyCache();
}

std::optional<EngineClock::duration> Engine::step_age() const {
  const std::lock_guard lock(mutex_);
  if (!step_began_) return std::nullopt;
  return EngineClock::now() - *step_began_;
}

EngineClock::duration Engine::since_last_step() const {
  const std::lock_guard lock(mutex_);
  return EngineClock::now() - last_step_;
}

SchedulerCounters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  return schedulers_.counters();
}

SchedulerSnapshot Engine::Snapshot() const {
  const std::lock_guard lock(mutex_);
  return schedulers_.Snapshot();
}

std::optional<std::string> Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Engine::lost_device() const {
  const std::lock_guard lock(mutex_);
  return lost_device_;
}

void Engine::ThreadMain() {
  try {
    RunUntilStopped();
  } catch (const DeviceError& error) {
    const std::string reason = error.what();
    const bool lost_device = error.is_sticky();
    try {
      Deliver();  // what came of steps before it
    } catch (...) {
      // The device is the reason all the same.
    }
    Fail(reason, lost_device);
  } catch (const std::exception& error) {
    Fail(error.what(), false);
  } catch (...) {
    Fail("an exception of an unknown type", false);
  }
}

// Nobody waits for ever, and whoever looks after the process can see that it is of no more use.
void Engine::Fail(const std::string& reason, bool lost_device) {
  std::unordered_map<RequestId, std::shared_ptr<Listener>> listeners;
  {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
    lost_device_ = lost_device;
    listeners.swap(listeners_);
  }
  for (const auto& [id, listener] : listeners) {
    const TokenEvent end{
        .request = id, .finish = FinishReason::kFailed, .last_of_request = true, .error = reason};
    try {
      (*listener)(end);
    } catch (...) {
      // A listener that throws may be the failure itself; the others are to hear of it.
    }
  }
}

void Engine::RunUntilStopped() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || schedulers_.HasWork(); });
      if (stopping_) break;
      step_began_ = EngineClock::now();
    }
    RunStep();
    const std::lock_guard lock(mutex_);
    step_began_.reset();
    last_step_ = EngineClock::now();
  }
  EndAll();
}

// Whatever goes wrong in a part of a step ends what was running in its group, and the engine goes on with
// the rest; but without its device it cannot.
void Engine::Abandon(size_t group, const std::string& error) {
  const std::lock_guard lock(mutex_);
  schedulers_[group].Abandon(error, events_);
}

// Events of the last step are delivered once this one has been submitted, and outside of what is
// attempted: a listener's exception is not a step's. A step that runs is waited for in any case, since what
// it reads is about to go.
void Engine::RunStep() {
  const bool runs = Begin();
  std::exception_ptr thrown;
  try {
    Deliver();
  } catch (...) {
    thrown = std::current_exception();
  }
  if (runs) Complete();
  if (thrown) std::rethrow_exception(thrown);
  bool goes_on = false;
  {
    const std::lock_guard lock(mutex_);
    goes_on = schedulers_.HasWork();
  }
  if (!goes_on) Deliver();
}

// Whether there was something to submit. The lock is held while the schedulers decide, not while the
// runners compute: requests can be queued and cancelled meanwhile.
bool Engine::Begin() {
  {
    const std::lock_guard lock(mutex_);
    schedulers_.Balance();
  }
  for (size_t group = 0; group < schedulers_.size(); ++group) {
    batches_[group] = {};
    try {
      const std::lock_guard lock(mutex_);
      batches_[group] = schedulers_[group].Schedule(EngineClock::now(), events_);
    } catch (const std::exception& error) {
      Abandon(group, error.what());
    }
  }
  if (std::ranges::all_of(batches_, [](const StepBatch& each) { return each.sequences.empty(); })) {
    return false;
  }
  return steps_.Submit(batches_,
                       [&](size_t group, const std::string& error) { Abandon(group, error); });
}

// What was submitted must have ended before anything it reads may change, whatever went wrong meanwhile.
void Engine::Complete() {
  std::vector<std::exception_ptr> failures;
  for (size_t group = 0; group < schedulers_.size(); ++group) failures.push_back(Prepare(group));
  const auto take = [&](size_t group, const StepResult& result) {
    if (failures[group]) std::rethrow_exception(failures[group]);
    const std::lock_guard lock(mutex_);
    schedulers_[group].Commit(result, events_);
  };
  steps_.Collect(take, [&](size_t group, const std::string& error) { Abandon(group, error); });
}

// While the step runs; returns what went wrong.
std::exception_ptr Engine::Prepare(size_t group) {
  try {
    {
      const std::lock_guard lock(mutex_);
      schedulers_[group].PrepareNext();
    }
    // Without the lock: it takes tens of microseconds for every answer.
    schedulers_[group].FillMasks();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// What a listener leaves by throwing is delivered to nobody.
void Engine::Deliver() {
  delivering_.clear();
  delivering_.swap(events_);
  for (const TokenEvent& event : delivering_) {
    std::shared_ptr<Listener> listener;
    {
      const std::lock_guard lock(mutex_);
      const auto found = listeners_.find(event.request);
      QUIRE_CHECK(found != listeners_.end(), "request {} has no listener", event.request);
      listener = found->second;
      if (event.last_of_request) listeners_.erase(found);
    }
    (*listener)(event);
  }
}

void Engine::EndAll() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, listener] : listeners_) schedulers_.Cancel(id);
    for (size_t group = 0; group < schedulers_.size(); ++group) {
      const StepBatch batch = schedulers_[group].Schedule(EngineClock::now(), events_);
      QUIRE_CHECK(batch.sequences.empty());
    }
  }
  Deliver();
}

namespace {

// What the caller of Generate waits for. The listener has a share in it: it may still be on its way
// out when the caller goes on.
struct Pending {
  std::vector<Answer> answers;
  std::optional<std::string> error;
  std::promise<void> done;

  void Take(const TokenEvent& event) {
    Answer& answer = answers[static_cast<size_t>(event.sample)];
    if (event.cached_tokens) answer.cached_tokens = *event.cached_tokens;
    if (event.token != kNoToken && event.finish != FinishReason::kStop) {
      answer.tokens.push_back(event.token);
      answer.logprobs.push_back(event.logprob);
    }
    answer.finish = event.finish;
    if (event.finish == FinishReason::kFailed) error = event.error;
    if (event.last_of_request) done.set_value();
  }
};

}  // namespace

std::vector<Answer> Generate(Engine& engine, Request request) {
  const auto pending = std::make_shared<Pending>();
  pending->answers.resize(static_cast<size_t>(std::max(request.num_samples, 1)));
  if (!engine.Submit(std::move(request),
                     [pending](const TokenEvent& event) { pending->Take(event); })) {
    throw Error(ErrorCode::kCapacityExceeded, "engine: the queue is full");
  }
  pending->done.get_future().wait();
  if (pending->error) throw InternalError(*pending->error);
  return std::move(pending->answers);
}

}  // namespace quire
