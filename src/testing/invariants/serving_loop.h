// A scheduler over a real runner, one step at a time, with all that must hold of every step:
//
//   E1  an answer is that of the request alone (LoneAnswers): tokens, log-probabilities, alternatives,
//       prompt scores, bit for bit; one that was cut short is its beginning
//   E2  cached_tokens is what a naive model of the cache finds at the moment of admission, or at the
//       request's first step, in which it may share whole pages with those before it, and where that step
//       begins; with too few pages for everybody, at most that
//   E3  the scheduler's invariants; in the end every page is free or cached
//   E4  the counters agree with what was seen of the batches
#ifndef QUIRE_TESTING_INVARIANTS_SERVING_LOOP_H_
#define QUIRE_TESTING_INVARIANTS_SERVING_LOOP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "runner/metered_runner.h"
#include "step/step.h"
#include "testing/invariants/cached_prefixes.h"
#include "testing/invariants/lone_answers.h"

namespace quire::testing {

// kAmple: nothing is evicted or preempted, so the model of the cache is exact.
enum class Pages { kAmple, kScarce };

struct ServedAnswer {
  JobReport report;
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenCount> cached_tokens;
  int64_t computed = 0;  // tokens whose rows have been computed by a step, or found
};

struct ServedRequest {
  Request request;
  std::vector<ServedAnswer> answers;
  // By the model, once admitted: at least and at most. They differ where a page of the first step and one
  // from before have as many tokens in common with the prompt: from the one nothing can be copied.
  std::optional<std::pair<int64_t, int64_t>> expected_cached;
  int64_t position = -1;  // where its first step began
  bool ended = false;
};

// One sequence of the last batch.
struct SeenSequence {
  RequestId request = 0;
  int32_t first_sample = 0;
  int32_t num_samples = 0;  // 0: not the last token
  int64_t position = 0;
  int64_t q_len = 0;
  std::vector<PageId> pages;
};

// What was seen of the batches.
struct SeenSteps {
  int64_t steps = 0;
  int64_t copies = 0;       // pages, by the runner
  int64_t mixed_steps = 0;  // with a token of an answer, and a chunk of several tokens
  int64_t went_back = 0;    // sequences computed once more
};

// `limits`, of whom the scheduler knows, may be narrower than the runner's.
class ServingLoop {
 public:
  ServingLoop(MeteredRunner& runner, LoneAnswers& lone, const RunnerLimits& limits, Pages pages,
              SchedulerOptions options = {});

  // Its sampling.seed is replaced: by that its sequences are known in a batch.
  RequestId Add(Request request);
  void Cancel(RequestId id) { scheduler_.Cancel(id); }
  void StopAnswer(RequestId id, int32_t sample) { scheduler_.StopAnswer(id, sample); }
  // False if there was nothing to compute.
  bool Step();
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  // Until nothing is open; then E3 and E4.
  void RunAll();
  // A request by itself.
  const ServedRequest& Run(Request request) {
    const RequestId id = Add(std::move(request));
    RunAll();
    return served(id);
  }

  SchedulerCounters counters() const { return scheduler_.counters(); }
  const ServedRequest& served(RequestId id) const { return served_.at(id); }
  int64_t cached_tokens(RequestId id) const {
    return served_.at(id).answers[0].cached_tokens.value().raw();
  }
  const std::map<RequestId, ServedRequest>& all() const { return served_; }
  const SeenSteps& seen() const { return seen_; }
  const std::vector<SeenSequence>& last_batch() const { return batch_; }
  // Different tokens in all answers.
  int64_t NumDistinctTokens() const;

 private:
  enum class Cut { kNot, kShort };  // by the caller, and not with a token of its own

  void See(const StepBatch& batch);
  void SeeSequence(const StepSequence& seq);
  bool LooksUp(const ServedRequest& served) const;
  void NoteFirstStep(ServedRequest& served) const;
  void NoteChunk(const StepSequence& seq, const ServedRequest& served);
  void NoteAdmissions();
  void AdvanceComputed();
  void Take(std::vector<TokenEvent>& events);
  void TakeEvent(const TokenEvent& event);
  void TakeFirst(const TokenEvent& event, ServedRequest& served, ServedAnswer& answer);
  void CheckAnswer(const ServedRequest& served, int32_t sample, Cut cut);
  void CheckEnd() const;
  void Publish(const ServedRequest& served, const ServedAnswer& answer);

  MeteredRunner& runner_;
  LoneAnswers& lone_;
  const RunnerLimits limits_;
  const Pages pages_;
  const SchedulerOptions options_;
  Scheduler scheduler_;
  CachedPrefixes cached_;
  CachedPrefixes chunks_;  // of the step at hand
  std::map<RequestId, ServedRequest> served_;
  std::map<uint64_t, RequestId> by_seed_;
  // Not yet admitted, in the order in which they are to be.
  std::set<std::pair<int64_t, RequestId>> queue_;
  std::vector<SeenSequence> batch_;
  SeenSteps seen_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_SERVING_LOOP_H_
