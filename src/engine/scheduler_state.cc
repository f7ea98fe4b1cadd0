// What can be seen of a scheduler between steps, and what must hold of it.
#include <algorithm>

#include "base/error.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"

namespace quire {

SchedulerCounters Scheduler::counters() const {
  SchedulerCounters now = counters_;
  now.evicted_pages = pages_.num_evicted();
  now.waiting = num_waiting_tasks_;
  now.running = std::ssize(running_);
  now.pages_free = pages_.num_free().raw();
  now.pages_cached = pages_.num_cached().raw();
  now.pages_total = pages_.num_pages().raw();
  return now;
}

SchedulerSnapshot Scheduler::Snapshot() const {
  SchedulerSnapshot snapshot;
  std::vector<bool> in_use(static_cast<size_t>(limits_.pool_pages.raw()));
  int64_t num_in_use = 0;
  const auto mark = [&](PageId page) {
    auto is_marked = in_use[static_cast<size_t>(page.raw())];
    if (!is_marked) ++num_in_use;
    is_marked = true;
  };
  for (const Sequence* seq : running_) {
    snapshot.running.push_back({.request = seq->task->id,
                                .sample = seq->sample,
                                .prompt_tokens = seq->prompt_length(),
                                .computed_tokens = seq->pages.computed,
                                .output_tokens = seq->num_output(),
                                .pages = PageCount(seq->pages.list.PageIds().size())});
    for (const PageId page : seq->pages.list.PageIds()) mark(page);
    if (seq->pages.to_copy) mark(seq->pages.to_copy->page.page());
  }
  snapshot.pages_free = pages_.num_free();
  snapshot.pages_in_use = PageCount(num_in_use);
  snapshot.pages_cached = pages_.num_pages() - snapshot.pages_free - snapshot.pages_in_use;
  snapshot.counters = counters();
  return snapshot;
}

void Scheduler::CheckInvariants() const {
  pages_.CheckInvariants();
  int64_t num_placed = 0;
  size_t num_deadlines = 0;
  for (const auto& [id, task] : tasks_) {
    for (const auto& seq : task->answers) {
      CheckSequence(*seq);
      if (seq->running || waiting_.contains(seq.get())) ++num_placed;
    }
    if (!task->request.deadline) continue;
    QUIRE_CHECK(deadlines_.contains({*task->request.deadline, id}), "request {}", id);  // 5
    ++num_deadlines;
  }
  QUIRE_CHECK(num_placed == std::ssize(waiting_) + std::ssize(running_));  // 1
  QUIRE_CHECK(std::ssize(running_) <= limits_.max_seqs);                   // 4
  QUIRE_CHECK(num_deadlines == deadlines_.size());                         // 5
  CheckLeases();
}

void Scheduler::CheckSequence(const Sequence& seq) const {
  const bool waits = waiting_.contains(const_cast<Sequence*>(&seq));
  const bool runs = std::ranges::count(running_, &seq) == 1;
  const bool has_begun = seq.sample == 0 || !seq.task->answers.front()->IsBeforeFork();
  QUIRE_CHECK(
      runs == seq.running && !(runs && waits) && (runs || waits) == (!seq.finished && has_begun),
      "request {} sample {}: runs {}, waits {}, finished {}", seq.task->id, seq.sample, runs, waits,
      seq.finished);  // 1
  seq.pages.list.CheckInvariants();
  QUIRE_CHECK(seq.pages.list.length() >= seq.pages.computed);  // 2
  QUIRE_CHECK(runs ||
              (seq.pages.list.length() == TokenCount(0) && !seq.pages.to_copy.has_value()));  // 2
}

void Scheduler::CheckLeases() const {
  int64_t known = pages_.num_cached().raw();
  for (const Sequence* seq : running_) {
    known += std::ssize(seq->pages.list.PageIds()) + (seq->pages.to_copy ? 1 : 0);
  }
  int64_t counted = 0;
  for (int64_t page = 1; page <= pages_.num_pages().raw(); ++page) {
    counted += pages_.num_leases(PageId(page));
  }
  QUIRE_CHECK(counted == known, "{} leases on pages, {} of them known", counted, known);  // 3
}

}  // namespace quire
