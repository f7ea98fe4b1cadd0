// Steps of runners that take part in each other's: all of them begin one together, and all of them end it.
//
// One runner is the plain case. Of several, one that has nothing to compute, or whose batch it refuses, is
// given a batch of no sequences, since the others wait for it within the step. They may do so within Submit
// and Collect, too, where drafts are computed: each is called on a thread of its own.
#ifndef QUIRE_ENGINE_GROUP_STEPS_H_
#define QUIRE_ENGINE_GROUP_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/group_threads.h"
#include "step/step.h"

namespace quire {

class GroupSteps {
 public:
  // What went wrong in a group, and can be lived with. One call at a time, on any thread.
  using OnError = std::function<void(size_t group, const std::string& error)>;
  using Take = std::function<void(size_t group, const StepResult& result)>;

  // At least one, with the same limits, which outlive this.
  explicit GroupSteps(std::vector<Runner*> runners);

  size_t size() const { return runners_.size(); }
  const RunnerLimits& limits() const { return runners_.front()->limits(); }

  // Starts a step, with a batch for every group. Calls on_error of a batch that is refused; whether anything
  // runs. Throws what has lost the device, once nothing runs any more.
  bool Submit(std::span<const StepBatch> batches, const OnError& on_error);
  // Waits for all groups, and then calls take(group, result) for each that runs, or on_error if it, or take,
  // throws. Throws as Submit does.
  void Collect(const Take& take, const OnError& on_error);

 private:
  // do_it(); what it throws is told, or kept in lost_. Whether it threw nothing.
  bool Attempt(size_t group, FunctionRef<void()> do_it, const OnError& on_error);
  bool IsLost();

  const std::vector<Runner*> runners_;
  std::vector<uint8_t> runs_;               // 0 or 1, of each
  std::vector<const StepResult*> results_;  // of those that ran, or null
  std::mutex mutex_;                        // of lost_, and of calls of OnError
  std::exception_ptr lost_;                 // the first that no step can follow
  GroupThreads threads_;                    // last: nothing is under way when the rest goes
};

}  // namespace quire

#endif  // QUIRE_ENGINE_GROUP_STEPS_H_
