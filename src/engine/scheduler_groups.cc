#include "engine/scheduler_groups.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace quire {

SchedulerGroups::SchedulerGroups(const RunnerLimits& limits, const SchedulerOptions& options,
                                 size_t num_groups) {
  QUIRE_CHECK(num_groups >= 1, "no group");
  const auto queue = std::make_shared<RequestQueue>();
  for (size_t i = 0; i < num_groups; ++i) {
    groups_.push_back(std::make_unique<Scheduler>(limits, options, queue));
  }
}

// The first of those that are as good.
Scheduler& SchedulerGroups::GroupFor(const Request& request) const {
  if (groups_.size() == 1) return *groups_.front();
  const auto rank = [&](const std::unique_ptr<Scheduler>& group) {
    return std::tuple(group->num_places() > 0 ? 0 : 1, -group->num_matching(request).raw(),
                      group->work());
  };
  return **std::ranges::min_element(groups_, {}, rank);
}

std::optional<RequestId> SchedulerGroups::Add(Request request) {
  Scheduler& group = GroupFor(request);
  return group.Add(std::move(request));
}

void SchedulerGroups::Cancel(RequestId id) {
  for (const auto& group : groups_) group->Cancel(id);
}

void SchedulerGroups::StopAnswer(RequestId id, int32_t sample) {
  for (const auto& group : groups_) group->StopAnswer(id, sample);
}

bool SchedulerGroups::HasWork() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return group->HasWork(); });
}

bool SchedulerGroups::EmptyCache() {
  if (counters().running > 0 || counters().waiting > 0) return false;
  for (const auto& group : groups_) group->EmptyCache();
  return true;
}

// Every move takes a place, and there are finitely many.
void SchedulerGroups::Balance() {
  const auto has_place = [](const auto& group) { return group->num_places() > 0; };
  for (const auto& from : groups_) {
    while (from->num_places() < 0 && from->FirstWaiting() != nullptr &&
           std::ranges::any_of(groups_, has_place)) {
      from->GiveFirstWaiting(GroupFor(*from->FirstWaiting()));
    }
  }
}

SchedulerCounters SchedulerGroups::counters() const {
  SchedulerCounters sum;
  for (const auto& group : groups_) sum += group->counters();
  return sum;
}

SchedulerSnapshot SchedulerGroups::Snapshot() const {
  SchedulerSnapshot sum;
  for (const auto& group : groups_) sum += group->Snapshot();
  return sum;
}

}  // namespace quire
