// An Engine turns requests into tokens: a scheduler and a runner, joined by a thread that steps; or several
// of both, where runners take part in each other's steps.
//
// All functions may be called from any thread. Listeners are called on the engine's thread, one at a
// time and never under its lock, so they may call the engine. They hear of a step while the next one
// runs, so that a device need not wait for them, or at once if none follows. They must not throw: what one
// throws ends the engine (failure()). No event is given twice.
#ifndef QUIRE_ENGINE_ENGINE_H_
#define QUIRE_ENGINE_ENGINE_H_

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/group_steps.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/scheduler_groups.h"
#include "step/step.h"

namespace quire {

class Engine {
 public:
  using Listener = std::function<void(const TokenEvent&)>;

  // `runner` outlives the engine, which alone uses it.
  Engine(Runner& runner, const SchedulerOptions& options);
  // Of groups that step together, with the same limits.
  Engine(std::vector<Runner*> runners, const SchedulerOptions& options);
  // Ends every open request as kCancelled.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request; its events go to `listener`, the last one with last_of_request. nullopt if the
  // queue is full, or the engine is ending. Throws Error(kInvalidArgument), naming the field, if it
  // could never be computed; InternalError if the engine has failed.
  std::optional<RequestId> Submit(Request request, Listener listener);
  // The request ends within one step. Its last events still come.
  void Cancel(RequestId id);
  // One answer, of which a token has been reported, ends as kStop within one step. Its last event still
  // comes, and no token of a step that has yet to end.
  void StopAnswer(RequestId id, int32_t sample);

  // Forgets every cached prefix, if nothing runs or waits; whether it did.
  bool EmptyCache();

  // How long the step that runs has been running, with the events that are given meanwhile; nullopt: none
  // does.
  std::optional<EngineClock::duration> step_age() const;
  // Since the last step ended; since the engine began, if none has.
  EngineClock::duration since_last_step() const;

  SchedulerCounters counters() const;
  SchedulerSnapshot Snapshot() const;
  // Of each group.
  const RunnerLimits& limits() const { return steps_.limits(); }
  size_t num_groups() const { return steps_.size(); }
  // Why the engine's thread has ended, if it has: not a step, which only fails what runs, but what
  // should never throw, and a device that is lost. Every request that was open has ended as kFailed, and no step follows.
  std::optional<std::string> failure() const;
  // Whether that is a device that was lost, of which a new process may get another: then a step does
  // end the engine.
  bool lost_device() const;

 private:
  void ThreadMain();
  void RunUntilStopped();
  void Fail(const std::string& reason, bool lost_device);
  void RunStep();
  void Abandon(size_t group, const std::string& error);
  bool Begin();
  void Complete();
  std::exception_ptr Prepare(size_t group);
  void Deliver();
  void EndAll();

  GroupSteps steps_;
  mutable std::mutex mutex_;  // over all below
  std::condition_variable changed_;
  SchedulerGroups schedulers_;
  std::unordered_map<RequestId, std::shared_ptr<Listener>> listeners_;
  bool stopping_ = false;
  std::optional<std::string> failure_;
  bool lost_device_ = false;
  std::optional<EngineClock::time_point> step_began_;
  EngineClock::time_point last_step_ = EngineClock::now();
  // Of the engine's thread alone: what is to be delivered, and what is being.
  std::vector<TokenEvent> events_, delivering_;
  std::vector<StepBatch> batches_;  // of each group, in the step at hand
  std::thread thread_;
};

// One answer of a request.
struct Answer {
  std::vector<int32_t> tokens;  // without a stop token
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::kNone;
  TokenCount cached_tokens;
};

// Submits and waits, so never from a listener. Throws Error(kCapacityExceeded) if the queue is full, and Error as Submit does;
// InternalError if a step failed.
std::vector<Answer> Generate(Engine& engine, Request request);

}  // namespace quire

#endif  // QUIRE_ENGINE_ENGINE_H_
