#include "engine/counters.h"

namespace quire {

SchedulerCounters& SchedulerCounters::operator+=(const SchedulerCounters& more) {
  for (int64_t SchedulerCounters::*const count :
       {&SchedulerCounters::requests_added,   &SchedulerCounters::requests_refused,
        &SchedulerCounters::answers_finished, &SchedulerCounters::steps,
        &SchedulerCounters::mixed_steps,      &SchedulerCounters::prompt_tokens,
        &SchedulerCounters::cached_tokens,    &SchedulerCounters::prefill_tokens,
        &SchedulerCounters::output_tokens,    &SchedulerCounters::drafts,
        &SchedulerCounters::draft_tokens,     &SchedulerCounters::accepted_tokens,
        &SchedulerCounters::preemptions,      &SchedulerCounters::page_copies,
        &SchedulerCounters::evicted_pages,    &SchedulerCounters::waiting,
        &SchedulerCounters::running,          &SchedulerCounters::pages_free,
        &SchedulerCounters::pages_cached,     &SchedulerCounters::pages_total}) {
    this->*count += more.*count;
  }
  for (size_t i = 0; i < accepted_at.size(); ++i) accepted_at[i] += more.accepted_at[i];
  return *this;
}

SchedulerSnapshot& SchedulerSnapshot::operator+=(const SchedulerSnapshot& more) {
  running.insert(running.end(), more.running.begin(), more.running.end());
  pages_free += more.pages_free;
  pages_cached += more.pages_cached;
  pages_in_use += more.pages_in_use;
  counters += more.counters;
  return *this;
}

}  // namespace quire
