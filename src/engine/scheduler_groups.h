// The schedulers of groups behind one queue: each has pages, a prefix tree and sequences of its own.
//
// A request goes to the group that has most pages of its prompt in its tree, then to the one with the least
// work; but a group that could begin it now goes before one that could not. One that has to wait for a place
// is not bound to its group yet: before a step it goes to another one that has a place, and stays there, so
// that it does not lose its turn again and again. With one group all of that is nothing, and this is its
// scheduler.
#ifndef QUIRE_ENGINE_SCHEDULER_GROUPS_H_
#define QUIRE_ENGINE_SCHEDULER_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "step/step.h"

namespace quire {

class SchedulerGroups {
 public:
  // `limits` are of each group; options.max_waiting is of all together. Throws as Scheduler does.
  SchedulerGroups(const RunnerLimits& limits, const SchedulerOptions& options, size_t num_groups);

  size_t size() const { return groups_.size(); }
  Scheduler& operator[](size_t group) { return *groups_[group]; }

  // As those of a Scheduler are, of whichever group it concerns.
  std::optional<RequestId> Add(Request request);
  void Cancel(RequestId id);
  void StopAnswer(RequestId id, int32_t sample);
  bool HasWork() const;
  bool EmptyCache();

  // Between steps: requests that wait for a place go to groups that have one.
  void Balance();

  // Sums over the groups.
  SchedulerCounters counters() const;
  SchedulerSnapshot Snapshot() const;

 private:
  Scheduler& GroupFor(const Request& request) const;

  std::vector<std::unique_ptr<Scheduler>> groups_;  // at least one
};

}  // namespace quire

#endif  // QUIRE_ENGINE_SCHEDULER_GROUPS_H_
