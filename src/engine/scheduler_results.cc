// What came of a step: tokens, answers that end, and those that have a fault.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"

namespace quire {
namespace {

bool Contains(std::span<const int32_t> tokens, int32_t token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

}  // namespace

void Scheduler::Commit(const StepResult& result, std::vector<TokenEvent>& events) {
  QUIRE_CHECK(result.sequences.size() == entries_.size(), "{} results for {} sequences",
              result.sequences.size(), entries_.size());
  RestartSharers(result);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].seq == nullptr) continue;
    CommitEntry(entries_[i], batch_[i], result.sequences[i], events);
  }
  entries_.clear();
}

// What has a fault may have left it in its pages. Those who share pages that it has written in this step,
// in the step or admitted since, begin anew; and so do those who share what these have written.
void Scheduler::RestartSharers(const StepResult& result) {
  if (std::ranges::all_of(result.sequences, [](const StepSequenceResult& each) {
        return each.fault == RowFault::kNone;
      })) {
    return;
  }
  std::set<PageId> doubtful;
  std::vector<Sequence*> sharers;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Sequence& seq = *entries_[i].seq;
    const bool shares = Holds(seq, doubtful);
    if (shares) {
      sharers.push_back(&seq);
      entries_[i].seq = nullptr;
    }
    if (!shares && result.sequences[i].fault == RowFault::kNone) continue;
    const auto first = static_cast<size_t>(limits_.page_size.FullPages(seq.pages.computed).raw());
    const std::span<const PageId> written = seq.pages.list.PageIds().subspan(first);
    doubtful.insert(written.begin(), written.end());
  }
  for (Sequence* seq : running_) {
    if (!seq->in_batch && Holds(*seq, doubtful)) sharers.push_back(seq);
  }
  for (Sequence* seq : sharers) Restart(*seq);
}

// Whether what the sequence has before its next tokens is in, or to be copied from, one of `pages`.
bool Scheduler::Holds(const Sequence& seq, const std::set<PageId>& pages) {
  if (pages.empty()) return false;
  if (seq.pages.to_copy && pages.contains(seq.pages.to_copy->page.page())) return true;
  return std::ranges::any_of(
      seq.pages.list.PageIds().first(static_cast<size_t>(seq.pages.matched.raw())),
      [&](PageId page) { return pages.contains(page); });
}

void Scheduler::Restart(Sequence& seq) {
  seq.alone = true;
  seq.in_batch = false;
  seq.pages.is_sound = false;
  Release(seq);
  waiting_.insert(&seq);
}

void Scheduler::CommitEntry(const Entry& entry, const StepSequence& step,
                            const StepSequenceResult& result, std::vector<TokenEvent>& events) {
  Sequence& seq = *entry.seq;
  if (!seq.IsDecoding()) counters_.prefill_tokens += entry.q_len.raw();
  CountCached(seq);
  seq.in_batch = false;
  seq.pages.computed += entry.q_len;
  seq.pages.kept = PageCount(step.pages.size());
  if (std::exchange(seq.pages.to_copy, std::nullopt))
    admission_blocked_ = false;  // its page can go
  if (seq.stopped) {
    seq.pages.is_sound = result.fault == RowFault::kNone;
    return;
  }
  if (result.fault != RowFault::kNone) {
    Fail(seq,
         fmt::format("request {}, answer {}: {} behind {} tokens", seq.task->id, seq.sample,
                     RowFaultName(result.fault), seq.pages.computed),
         events);
    return;
  }
  if (entry.num_samples > 0 && seq.mask_failure) {
    Fail(seq, fmt::format("request {}, answer {}: {}", seq.task->id, seq.sample, *seq.mask_failure),
         events);
    return;
  }
  if (entry.num_samples == 0) {
    if (seq.WantsScores()) TakeScores(seq, result);
    return;
  }
  if (result.num_drafted > 0) CountDraft(result);
  if (seq.num_output() == 0) PublishPrompt(seq);
  // Forks share the prompt's pages, so they are made before the first answer grows or ends.
  if (seq.SamplesToDraw() > 1) Fork(seq, entry.num_samples);
  QUIRE_CHECK(std::ssize(result.answers) == entry.num_samples, "{} answers for {} samples",
              result.answers.size(), entry.num_samples);
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const std::span<const StepToken> tokens = result.answers[i].tokens;
    QUIRE_CHECK(!tokens.empty() && std::ssize(tokens) <= step.lookahead.raw() + 1,
                "{} tokens with a lookahead of {}", tokens.size(), step.lookahead);
    TakeTokens(i == 0 ? seq : *seq.task->answers[i], tokens, events);
  }
}

// All that were right, whether or not the answer ends among them.
void Scheduler::CountDraft(const StepSequenceResult& result) {
  const size_t num_accepted = result.answers[0].tokens.size() - 1;
  ++counters_.drafts;
  counters_.draft_tokens += result.num_drafted;
  counters_.accepted_tokens += static_cast<int64_t>(num_accepted);
  for (size_t i = 0; i < std::min(num_accepted, counters_.accepted_at.size()); ++i) {
    ++counters_.accepted_at[i];
  }
}

void Scheduler::TakeScores(Sequence& seq, const StepSequenceResult& result) {
  for (const StepToken& token : result.answers[0].tokens) {
    seq.task->prompt_scores.push_back({token.chosen, {token.top.begin(), token.top.end()}});
  }
}

void Scheduler::PublishPrompt(const Sequence& seq) {
  const Request& request = seq.task->request;
  pages_.PublishPrompt(request.cache_salt, request.prompt, seq.pages.list);
  admission_blocked_ = false;  // the first that waits may need fewer pages now
}

// Begins the other answers to the prompt. Those that have a token, a place and pages run, ahead of
// what waits: their pages are mostly there already. The rest wait.
void Scheduler::Fork(Sequence& parent, int32_t num_drawn) {
  // The parent's next slots in its last page, while it is alone there: from now on others hold the
  // page until they have copied it, and a list does not grow into a page that others hold.
  const PageSize page_size = limits_.page_size;
  const TokenCount length = parent.pages.list.length();
  if (page_size.OffsetOf(length) != 0) {
    const TokenCount ahead = Min(length + TokenCount(1) + limits_.lookahead, limits_.context);
    const ExtendRequest next{
        .list = &parent.pages.list,
        .new_length = Min(ahead, page_size.TokensIn(page_size.PagesFor(length)))};
    QUIRE_CHECK(pages_.Extend({&next, 1}));
  }
  for (const auto& seq : parent.task->answers) {
    if (seq.get() == &parent) continue;
    seq->tokens = parent.task->request.prompt;
    if (seq->sample >= num_drawn || !TryRunFork(parent, *seq)) waiting_.insert(seq.get());
  }
}

bool Scheduler::TryRunFork(const Sequence& parent, Sequence& seq) {
  if (std::ssize(running_) >= limits_.max_seqs) return false;
  if (!pages_.AdmitFork(parent.pages, parent.prompt_length(), std::ssize(running_), seq.pages)) {
    return false;
  }
  seq.running = true;
  running_.push_back(&seq);
  return true;
}

// In their order, up to one that ends the answer.
void Scheduler::TakeTokens(Sequence& seq, std::span<const StepToken> tokens,
                           std::vector<TokenEvent>& events) {
  for (const StepToken& token : tokens) {
    if (&token != &tokens.front()) seq.pages.computed += TokenCount(1);  // the one before it
    if (!TakeToken(seq, token, events)) return;
  }
}

// False if the answer ends with it.
bool Scheduler::TakeToken(Sequence& seq, const StepToken& token, std::vector<TokenEvent>& events) {
  const Request& request = seq.task->request;
  const int32_t id = token.chosen.token;
  const bool stops = seq.num_output() >= request.min_tokens && Contains(request.stop_tokens, id);
  seq.tokens.push_back(id);
  ++counters_.output_tokens;
  TokenEvent event = FirstEvent(seq);
  event.token = id;
  event.logprob = token.chosen.logprob;
  event.top.assign(token.top.begin(), token.top.end());
  const bool finished = !stops && TakeConstrained(seq, id);
  if (stops) {
    event.finish = FinishReason::kStop;
  } else if (!finished &&
             (seq.num_output() >= request.max_tokens || seq.length() >= limits_.context)) {
    event.finish = FinishReason::kLength;
  }
  const bool ends = event.finish != FinishReason::kNone;
  event.last_of_request = ends && IsLastOpen(seq);
  events.push_back(std::move(event));
  if (ends) Retire(seq);
  if (finished) Finish(seq, FinishReason::kStop, events);  // the token is part of it
  return !ends && !finished;
}

// Whether the answer has to end with this token.
bool Scheduler::TakeConstrained(Sequence& seq, int32_t token) {
  if (!seq.constraint) return false;
  QUIRE_CHECK(seq.constraint->Accept(token), "token {} was drawn, and its mask does not have it",
              token);
  return seq.constraint->IsFinished();
}

// What every event has, and what only the first of an answer has.
TokenEvent Scheduler::FirstEvent(Sequence& seq) {
  TokenEvent event{.request = seq.task->id, .sample = seq.sample};
  if (std::exchange(seq.reported, true)) return event;
  event.cached_tokens = seq.task->cached_tokens;
  if (seq.sample == 0) event.prompt_scores = std::move(seq.task->prompt_scores);
  return event;
}

void Scheduler::Finish(Sequence& seq, FinishReason reason, std::vector<TokenEvent>& events) {
  TokenEvent event = FirstEvent(seq);
  event.finish = reason;
  event.last_of_request = IsLastOpen(seq);
  events.push_back(std::move(event));
  Retire(seq);
}

bool Scheduler::IsLastOpen(const Sequence& seq) {
  return seq.task->num_finished + 1 == std::ssize(seq.task->answers);
}

// The answer has ended. With the last one of its request the request is gone, and `seq`, too.
void Scheduler::Retire(Sequence& seq) {
  if (seq.running) {
    Release(seq);
  } else if (waiting_.erase(&seq) > 0) {
    admission_blocked_ = false;  // it may be the one that did not fit
  }
  seq.finished = true;
  ++counters_.answers_finished;
  Task& task = *seq.task;
  if (++task.num_finished == std::ssize(task.answers)) Forget(task);
}

void Scheduler::Forget(Task& task) {
  if (!task.admitted) CountWaiting(-1);
  if (task.request.deadline) deadlines_.erase({*task.request.deadline, task.id});
  tasks_.erase(task.id);
}

void Scheduler::Abandon(const std::string& error, std::vector<TokenEvent>& events) {
  entries_.clear();
  pages_.EmptyCache();
  for (Sequence* seq : std::vector(running_)) {
    seq->in_batch = false;
    Fail(*seq, error, events);
  }
}

// Ends what runs, and the answers that it stands for. Nothing that it computed can be trusted, so
// nothing is published, and what was is withdrawn.
void Scheduler::Fail(Sequence& seq, const std::string& error, std::vector<TokenEvent>& events) {
  seq.pages.is_sound = false;
  std::vector<Sequence*> failed = {&seq};
  if (seq.IsBeforeFork()) {
    for (const auto& answer : seq.task->answers) {
      if (answer.get() != &seq) failed.push_back(answer.get());
    }
  }
  for (Sequence* each : failed) {
    Finish(*each, FinishReason::kFailed, events);
    events.back().error = error;
  }
}

}  // namespace quire
