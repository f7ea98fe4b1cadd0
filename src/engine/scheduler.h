// A Scheduler decides who is computed in which step, with which pages.
//
// It batches continuously under a token budget: every running sequence gets its next token in every step,
// what is left of the budget goes to prefill chunks, oldest first. Requests are admitted in the order
// of their numbers, moved by priority, and never past one that does not fit yet; only the other answers
// to a prompt that was just computed go ahead of the queue. Prefixes are found in the tree by token, those
// that the step at hand computes among them: of prompts that begin alike and come together the first
// computes what they share, and if it comes to a fault, the others begin anew and compute it themselves.
// When pages run out, cached ones are evicted, then the youngest sequence is preempted: its pages go to
// the tree, and it is computed again from what is left of them when its turn comes.
//
// Token ids and page numbers in, a StepBatch out; no clock, no thread, no device. One thread at a time
// uses a scheduler. One step:
//
//   StepBatch batch = scheduler.Schedule(now, events);  // empty: nothing to do
//   runner.Submit(batch);
//   scheduler.PrepareNext();                            // while it runs: admits what waits,
//   scheduler.FillMasks();                              // and says which tokens may follow
//   scheduler.Commit(runner.Collect(), events);
#ifndef QUIRE_ENGINE_SCHEDULER_H_
#define QUIRE_ENGINE_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cache/page_list.h"
#include "engine/counters.h"
#include "engine/page_policy.h"
#include "engine/request.h"
#include "step/step.h"

namespace quire {

struct SchedulerOptions {
  int64_t max_waiting = 1024;  // requests beyond the running ones; more are refused
  PrefixCache prefix_cache = PrefixCache::kOn;
  // How many places in the queue one unit of priority is worth. Priorities are -max_priority to
  // max_priority: a request waits for at most 2 * max_priority * priority_weight that came after it.
  int64_t priority_weight = 16;
  int32_t max_priority = 16;
};

// What the schedulers behind one queue share: requests and answers are numbered through, and so many
// requests wait.
struct RequestQueue {
  RequestId next_id = 1;
  uint64_t next_sequence = 1;
  int64_t num_waiting = 0;
};

class Scheduler {
 public:
  // `limits` are those of the runner that computes the batches. Throws Error(kInvalidArgument) unless
  // there are pages for one sequence of the context length, and a token and a sample of a step for
  // every sequence. `queue` is shared with other schedulers, or null.
  Scheduler(const RunnerLimits& limits, SchedulerOptions options,
            std::shared_ptr<RequestQueue> queue = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request; nullopt if the queue is full. Throws Error(kInvalidArgument), naming the field,
  // the expected and the actual, if it could never be computed.
  std::optional<RequestId> Add(Request request);
  // Ends what is left of the request with the next Schedule. An unknown id is ignored: the request may
  // have finished just now.
  void Cancel(RequestId id);
  // Ends one answer, of which a token has been reported, as kStop with the next Schedule: its caller has
  // seen enough, and hears of no token of a step that runs. An answer that has ended is left as it is.
  void StopAnswer(RequestId id, int32_t sample);

  bool HasWork() const { return !tasks_.empty(); }

  // For whoever chooses between schedulers. Cached pages of the request's prompt that it could use;
  PageCount num_matching(const Request& request) const;
  // tokens that are to be computed until every open answer has its next one;
  TokenCount work() const;
  // and how many more requests it could begin now: less than 0 if so many wait for others to end.
  int64_t num_places() const;
  // The first that waits, has not been begun, and was not given by another one; null if there is none.
  const Request* FirstWaiting() const;
  // Gives it to another scheduler behind the same queue.
  void GiveFirstWaiting(Scheduler& other);

  // The next step; empty if there is nothing to compute. Ends cancelled and late requests. The batch
  // and what it borrows are valid until Commit or Abandon, one of which must follow if it is not
  // empty.
  StepBatch Schedule(EngineClock::time_point now, std::vector<TokenEvent>& events);
  // While a step runs: finds cached prefixes and pages for requests that wait.
  void PrepareNext();
  // While a step runs, before Commit: writes the masks that the batch borrows. Unlike the other
  // functions it may run beside Add, Cancel, StopAnswer, counters and Snapshot on other threads: it
  // touches nothing that these do.
  void FillMasks();
  // Takes the step's tokens. A sequence that has a fault ends as kFailed, and nothing of it is kept: others
  // that share what it computed in this step wait again, to compute it themselves.
  void Commit(const StepResult& result, std::vector<TokenEvent>& events);
  // The step failed, and with it whatever was in the cache: every running answer ends as kFailed, and
  // the prefix tree is emptied. Waiting requests wait on.
  void Abandon(const std::string& error, std::vector<TokenEvent>& events);
  // Forgets every cached prefix, if nothing runs or waits; whether it did.
  bool EmptyCache();

  SchedulerCounters counters() const;
  // Walks the pages of what runs.
  SchedulerSnapshot Snapshot() const;
  const RunnerLimits& limits() const { return limits_; }

  // Throws InternalError unless the invariants hold. Walks all pages and cached tokens.
  void CheckInvariants() const;

 private:
  struct Task;
  struct Sequence;
  struct Entry {
    Sequence* seq;  // null: it begins anew, and what came of it is dropped
    TokenCount q_len;
    int32_t num_samples;  // 0: the entry does not reach the last token
  };
  struct ByOrder {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };

  void Constrain(Sequence& seq) const;
  void Enqueue(std::unique_ptr<Task> task);
  Sequence* FindFirstWaiting() const;
  void CountWaiting(int64_t change);
  void EndMarked(EngineClock::time_point now, std::vector<TokenEvent>& events);
  void EndRequest(RequestId id, FinishReason reason, std::vector<TokenEvent>& events);
  void EndAnswer(RequestId id, int32_t sample, std::vector<TokenEvent>& events);

  void AddDecodes();
  bool ExtendDecodes();
  bool ExtendDecodes(TokenCount most_ahead);
  void AddPrefills();
  void Begin(Sequence& seq);
  void CountCached(const Sequence& seq);
  void AddEntry(Sequence& seq, TokenCount q_len);
  void DropEntry(const Sequence& seq);
  void MakeBatch();
  StepSequence MakeStep(const Entry& entry) const;

  void Admit();
  bool TryAdmit(Sequence& seq);
  bool ExtendOrPreempt(Sequence& seq);
  TokenCount Lookahead(const Sequence& seq) const;
  void Preempt(Sequence& seq);
  void Release(Sequence& seq);

  void RestartSharers(const StepResult& result);
  static bool Holds(const Sequence& seq, const std::set<PageId>& pages);
  void Restart(Sequence& seq);
  void CommitEntry(const Entry& entry, const StepSequence& step, const StepSequenceResult& result,
                   std::vector<TokenEvent>& events);
  void CountDraft(const StepSequenceResult& result);
  void TakeScores(Sequence& seq, const StepSequenceResult& result);
  void PublishPrompt(const Sequence& seq);
  void Fork(Sequence& parent, int32_t num_drawn);
  bool TryRunFork(const Sequence& parent, Sequence& seq);
  void TakeTokens(Sequence& seq, std::span<const StepToken> tokens,
                  std::vector<TokenEvent>& events);
  bool TakeToken(Sequence& seq, const StepToken& token, std::vector<TokenEvent>& events);
  static bool TakeConstrained(Sequence& seq, int32_t token);
  TokenEvent FirstEvent(Sequence& seq);
  void Finish(Sequence& seq, FinishReason reason, std::vector<TokenEvent>& events);
  void Fail(Sequence& seq, const std::string& error, std::vector<TokenEvent>& events);
  void Retire(Sequence& seq);
  void Forget(Task& task);
  static bool IsLastOpen(const Sequence& seq);

  void CheckSequence(const Sequence& seq) const;
  void CheckLeases() const;

  // Invariants between steps:
  //   1. An open answer either runs or waits, once; but the answers behind the first have not begun
  //      before the first has a token, and do neither.
  //   2. A running sequence has slots for all tokens it has computed; one that does not run has no
  //      pages.
  //   3. Every lease on a page is that of a sequence's list, of a copy to come, or of the tree.
  //   4. At most limits_.max_seqs sequences run.
  //   5. deadlines_ are those of the open requests that have one.
  const RunnerLimits limits_;
  const SchedulerOptions options_;
  const std::shared_ptr<RequestQueue> queue_;
  PagePolicy pages_;
  std::unordered_map<RequestId, std::unique_ptr<Task>> tasks_;
  std::set<Sequence*, ByOrder> waiting_;
  std::vector<Sequence*> running_;  // in the order of admission
  std::vector<RequestId> cancelled_;
  std::vector<std::pair<RequestId, int32_t>> stopped_;  // with the number of the answer
  std::set<std::pair<EngineClock::time_point, RequestId>> deadlines_;
  int64_t num_waiting_tasks_ = 0;  // of the queue's
  // The first that waits did not fit, and nothing has changed since: no need to try again.
  bool admission_blocked_ = false;

  // The step at hand.
  TokenCount budget_;
  int32_t samples_left_ = 0;
  std::vector<Entry> entries_;
  std::vector<StepSequence> batch_;
  std::vector<StepPageCopy> copies_;
  // Kept for their memory.
  std::vector<Sequence*> candidates_;
  std::vector<ExtendRequest> extensions_;

  SchedulerCounters counters_;
};

}  // namespace quire

#endif  // QUIRE_ENGINE_SCHEDULER_H_
