// Requests that wait, and the next step: who is in it, with which pages.
#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "engine/scheduler_sequence.h"

namespace quire {
namespace {

// Holds stop tokens down before min_tokens: far below any logit, whatever bias the request adds.
constexpr float kLowestBias = -1e9f;

}  // namespace

bool Scheduler::ByOrder::operator()(const Sequence* a, const Sequence* b) const {
  return std::tuple(a->task->order, a->task->id, a->sample) <
         std::tuple(b->task->order, b->task->id, b->sample);
}

Scheduler::Scheduler(const RunnerLimits& limits, SchedulerOptions options,
                     std::shared_ptr<RequestQueue> queue)
    : limits_(limits),
      options_(std::move(options)),
      queue_(queue != nullptr ? std::move(queue) : std::make_shared<RequestQueue>()),
      pages_(limits, options_.prefix_cache) {
  Require(limits.max_step_tokens >= TokenCount(limits.max_seqs),
          "scheduler: tokens of a step: expected at least one for each of {} sequences, got {}",
          limits.max_seqs, limits.max_step_tokens);
  Require(limits.max_samples >= limits.max_seqs,
          "scheduler: samples of a step: expected at least one for each of {} sequences, got {}",
          limits.max_seqs, limits.max_samples);
  Require(options_.max_waiting >= 1, "scheduler: max_waiting: expected at least 1, got {}",
          options_.max_waiting);
  Require(options_.max_priority >= 0, "scheduler: max_priority: expected 0 or more, got {}",
          options_.max_priority);
}

Scheduler::~Scheduler() = default;

// ---- Requests ----

std::optional<RequestId> Scheduler::Add(Request request) {
  CheckRequest(request, limits_, options_.max_priority);
  if (queue_->num_waiting >= options_.max_waiting) {
    ++counters_.requests_refused;
    return std::nullopt;
  }
  auto task = std::make_unique<Task>();
  task->id = queue_->next_id++;
  task->order = static_cast<int64_t>(task->id) - request.priority * options_.priority_weight;
  task->bias_before_min = request.logit_bias;
  for (const int32_t token : request.stop_tokens) {
    task->bias_before_min.push_back({.token = token, .bias = kLowestBias});
  }
  task->request = std::move(request);
  for (int32_t i = 0; i < task->request.num_samples; ++i) {
    task->answers.push_back(
        std::make_unique<Sequence>(*task, queue_->next_sequence++, i, limits_.page_size));
    Constrain(*task->answers.back());
  }
  task->answers.front()->tokens = task->request.prompt;
  ++counters_.requests_added;
  const RequestId id = task->id;
  Enqueue(std::move(task));
  return id;
}

void Scheduler::Enqueue(std::unique_ptr<Task> task) {
  Sequence* first = task->answers.front().get();
  waiting_.insert(first);
  CountWaiting(1);
  if (*waiting_.begin() == first) admission_blocked_ = false;  // another one did not fit
  if (task->request.deadline) deadlines_.emplace(*task->request.deadline, task->id);
  const RequestId id = task->id;
  tasks_.emplace(id, std::move(task));
}

void Scheduler::CountWaiting(int64_t change) {
  num_waiting_tasks_ += change;
  queue_->num_waiting += change;
}

// ---- Several schedulers ----

PageCount Scheduler::num_matching(const Request& request) const {
  if (request.score_prompt || request.prompt.empty()) return PageCount(0);
  return pages_.num_matching(request.cache_salt, request.prompt);
}

TokenCount Scheduler::work() const {
  TokenCount tokens{0};
  for (const Sequence* seq : running_) tokens += seq->ToCompute();
  for (const Sequence* seq : waiting_) tokens += seq->ToCompute();
  return tokens;
}

int64_t Scheduler::num_places() const {
  const int64_t waiting = std::ssize(waiting_);
  return admission_blocked_ ? -waiting : limits_.max_seqs - std::ssize(running_) - waiting;
}

Scheduler::Sequence* Scheduler::FindFirstWaiting() const {
  const auto found = std::ranges::find_if(
      waiting_, [](const Sequence* seq) { return !seq->task->admitted && !seq->task->given; });
  return found == waiting_.end() ? nullptr : *found;
}

const Request* Scheduler::FirstWaiting() const {
  const Sequence* first = FindFirstWaiting();
  return first == nullptr ? nullptr : &first->task->request;
}

void Scheduler::GiveFirstWaiting(Scheduler& other) {
  QUIRE_CHECK(other.queue_ == queue_, "schedulers of two queues");
  Sequence* const first = FindFirstWaiting();
  QUIRE_CHECK(first != nullptr, "nobody waits");
  if (first == *waiting_.begin()) admission_blocked_ = false;
  waiting_.erase(first);
  CountWaiting(-1);
  const auto found = tasks_.find(first->task->id);
  std::unique_ptr<Task> task = std::move(found->second);
  tasks_.erase(found);
  if (task->request.deadline) deadlines_.erase({*task->request.deadline, task->id});
  if (std::erase(cancelled_, task->id) > 0) other.cancelled_.push_back(task->id);
  task->given = true;
  other.Enqueue(std::move(task));
}

void Scheduler::Constrain(Sequence& seq) const {
  const ConstraintFactory& make = seq.task->request.constraint;
  if (!make) return;
  seq.constraint = make();
}

void Scheduler::Cancel(RequestId id) {
  if (tasks_.contains(id)) cancelled_.push_back(id);
}

void Scheduler::StopAnswer(RequestId id, int32_t sample) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  QUIRE_CHECK(sample >= 0 && sample < std::ssize(found->second->answers), "sample {}", sample);
  stopped_.emplace_back(id, sample);
  Sequence& seq = *found->second->answers[static_cast<size_t>(sample)];
  if (seq.num_output() > 0) seq.stopped = true;
}

// Cancelled and late requests are few, and looked up every step: so they are kept apart from the
// thousand that may wait.
void Scheduler::EndMarked(EngineClock::time_point now, std::vector<TokenEvent>& events) {
  std::ranges::sort(cancelled_);  // events in an order that can be repeated
  for (const RequestId id : cancelled_) EndRequest(id, FinishReason::kCancelled, events);
  cancelled_.clear();
  std::ranges::sort(stopped_);
  for (const auto& [id, sample] : stopped_) EndAnswer(id, sample, events);
  stopped_.clear();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    EndRequest(deadlines_.begin()->second, FinishReason::kDeadline, events);
  }
}

void Scheduler::EndRequest(RequestId id, FinishReason reason, std::vector<TokenEvent>& events) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  std::vector<Sequence*> open;  // finishing the last of them retires the task
  for (const auto& seq : found->second->answers) {
    if (!seq->finished) open.push_back(seq.get());
  }
  for (Sequence* seq : open) Finish(*seq, reason, events);
}

void Scheduler::EndAnswer(RequestId id, int32_t sample, std::vector<TokenEvent>& events) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  Sequence& seq = *found->second->answers[static_cast<size_t>(sample)];
  if (!seq.finished && seq.num_output() > 0) Finish(seq, FinishReason::kStop, events);
}

// ---- A step ----

StepBatch Scheduler::Schedule(EngineClock::time_point now, std::vector<TokenEvent>& events) {
  QUIRE_CHECK(entries_.empty(), "a step is still to be committed");
  EndMarked(now, events);
  budget_ = limits_.max_step_tokens;
  samples_left_ = limits_.max_samples;
  batch_.clear();
  copies_.clear();
  pages_.BeginStep();
  AddDecodes();
  const size_t num_decodes = entries_.size();
  Admit();
  AddPrefills();
  QUIRE_CHECK(tasks_.empty() || !entries_.empty(), "{} requests, and none can be computed",
              tasks_.size());
  MakeBatch();
  if (!entries_.empty()) ++counters_.steps;
  if (num_decodes > 0 && entries_.size() > num_decodes) ++counters_.mixed_steps;
  return {.copies = copies_, .sequences = batch_};
}

void Scheduler::PrepareNext() { Admit(); }

// What cannot be told ends its answer, and no other: with the step, since that runs.
void Scheduler::FillMasks() {
  for (const Entry& entry : entries_) {
    Sequence& seq = *entry.seq;
    if (!seq.constraint || entry.num_samples == 0) continue;
    seq.mask_failure.reset();
    try {
      if (seq.constraint->Fill(seq.mask)) continue;
      seq.mask_failure = "no token of the vocabulary can follow what was asked for";
    } catch (const Error& error) {
      seq.mask_failure = error.what();
    }
    std::ranges::fill(seq.mask, ~0u);
  }
}

// Every running answer goes on by one token, if need be at the cost of younger ones. There is a token
// and a sample for each: the constructor has seen to that.
void Scheduler::AddDecodes() {
  candidates_.clear();
  std::ranges::copy_if(running_, std::back_inserter(candidates_), &Sequence::IsDecoding);
  const bool all_fit = ExtendDecodes();
  for (Sequence* seq : candidates_) {
    if (!seq->running) continue;  // preempted for one before it
    if (all_fit || ExtendOrPreempt(*seq)) AddEntry(*seq, TokenCount(1));
  }
}

// Pages for the candidates' next tokens, and ahead of them as far as there are any: what one has to
// spare goes to others before anybody is preempted.
bool Scheduler::ExtendDecodes() {
  TokenCount ahead = limits_.lookahead;
  if (ExtendDecodes(ahead)) return true;
  for (Sequence* seq : candidates_) pages_.DropSpare(seq->length(), seq->pages);
  while (ahead > TokenCount(0)) {
    ahead = TokenCount(ahead.raw() / 2);
    if (ExtendDecodes(ahead)) return true;
  }
  return false;
}

// All at once: one search for pages to evict, and not one for every sequence.
bool Scheduler::ExtendDecodes(TokenCount most_ahead) {
  extensions_.clear();
  for (Sequence* seq : candidates_) {
    const TokenCount length = seq->length() + Min(most_ahead, Lookahead(*seq));
    extensions_.push_back(
        {.list = &seq->pages.list, .new_length = Max(seq->pages.list.length(), length)});
  }
  return pages_.Extend(extensions_);
}

void Scheduler::AddPrefills() {
  candidates_.clear();
  std::ranges::copy_if(running_, std::back_inserter(candidates_),
                       [](const Sequence* seq) { return !seq->in_batch; });
  std::ranges::sort(candidates_, ByOrder());
  for (Sequence* seq : candidates_) {
    if (budget_ == TokenCount(0)) break;
    if (seq->pages.kept == PageCount(0)) Begin(*seq);
    // Scores and the next token are different wants: the last token is a step of its own.
    const bool scores = seq->WantsScores() && seq->ToCompute() > TokenCount(1);
    const TokenCount q_len = Min(seq->ToCompute() - TokenCount(scores ? 1 : 0), budget_);
    if (q_len == seq->ToCompute() && samples_left_ == 0) continue;
    AddEntry(*seq, q_len);
    const TokenCount end = seq->pages.computed + q_len;
    pages_.PublishChunk(seq->task->request.cache_salt,
                        std::span(seq->tokens).first(static_cast<size_t>(end.raw())), seq->pages);
  }
}

// The first chunk of a sequence: others may have computed more of its tokens since it was admitted, or be
// about to, with this very step, in which every layer writes all rows before it reads any.
void Scheduler::Begin(Sequence& seq) {
  if (seq.alone || seq.WantsScores()) return;
  if (pages_.Rematch(seq.task->request.cache_salt, seq.tokens, seq.pages)) {
    admission_blocked_ = false;  // there are pages again
  }
}

// How much of a prompt was there already is known once it has begun, and is not to be computed anew.
void Scheduler::CountCached(const Sequence& seq) {
  Task& task = *seq.task;
  if (std::exchange(task.begun, true)) return;
  task.cached_tokens = seq.pages.computed;
  counters_.cached_tokens += task.cached_tokens.raw();
}

void Scheduler::AddEntry(Sequence& seq, TokenCount q_len) {
  const bool is_last = q_len == seq.ToCompute();
  // Answers that find no sample left are forked all the same, and draw their own later: waiting until
  // there are as many at once could take for ever.
  const int32_t num_samples = is_last ? std::min(seq.SamplesToDraw(), samples_left_) : 0;
  entries_.push_back({.seq = &seq, .q_len = q_len, .num_samples = num_samples});
  seq.in_batch = true;
  // Only now: the answers that wait may be a hundred thousand, and a mask takes 16 KiB.
  if (seq.constraint && num_samples > 0) {
    seq.mask.resize(static_cast<size_t>(MaskWords(limits_.vocab_size)));
  }
  budget_ -= q_len;
  samples_left_ -= num_samples;
}

void Scheduler::DropEntry(const Sequence& seq) {
  const auto entry = std::ranges::find(entries_, &seq, &Entry::seq);
  budget_ += entry->q_len;
  samples_left_ += entry->num_samples;
  entries_.erase(entry);
}

// The batch borrows the sequences' tokens and pages, so it is made once nothing changes any more.
void Scheduler::MakeBatch() {
  for (const Entry& entry : entries_) {
    batch_.push_back(MakeStep(entry));
    if (!entry.seq->pages.to_copy) continue;
    copies_.push_back(entry.seq->pages.Copy());
    ++counters_.page_copies;
  }
}

StepSequence Scheduler::MakeStep(const Entry& entry) const {
  const Sequence& seq = *entry.seq;
  const Request& request = seq.task->request;
  const std::span<const int32_t> tokens = seq.tokens;
  const auto first = static_cast<size_t>(seq.pages.computed.raw());
  const auto count = static_cast<size_t>(entry.q_len.raw());
  StepSequence step{.id = seq.id,
                    .tokens = tokens.subspan(first, count),
                    .position = seq.pages.computed,
                    .pages = seq.pages.list.PageIds(),
                    .kept_pages = seq.pages.kept,
                    .sampling = request.sampling,
                    .first_sample = seq.sample,
                    .prompt = tokens.first(request.prompt.size()),
                    .output = tokens.subspan(request.prompt.size())};
  step.sampling.logit_bias =
      seq.num_output() < request.min_tokens ? seq.task->bias_before_min : request.logit_bias;
  if (entry.num_samples > 0) {
    step.want = Want::kNextToken;
    step.num_samples = entry.num_samples;
    step.mask = seq.mask;
    // Several answers share what they were drawn behind, so none of them can go ahead; and one bias
    // holds for all tokens of a step.
    if (seq.SamplesToDraw() == 1) {
      step.lookahead =
          Min(Lookahead(seq), seq.pages.list.length() - seq.pages.computed - entry.q_len);
      const int64_t held =
          request.min_tokens - seq.num_output();  // tokens with stop tokens held down
      if (held > 0) step.lookahead = Min(step.lookahead, TokenCount(held - 1));
    }
  } else if (seq.WantsScores()) {
    step.want = Want::kScores;
    step.next_token = tokens[first + count];
  }
  return step;
}

// ---- Who runs ----

// Requests that wait, in their order, as long as there are places and pages. The first that does not
// fit ends it: passing it by would let small requests starve a large one.
void Scheduler::Admit() {
  while (!waiting_.empty() && std::ssize(running_) < limits_.max_seqs && !admission_blocked_) {
    Sequence& seq = **waiting_.begin();
    admission_blocked_ = !TryAdmit(seq);
    if (admission_blocked_) return;
    waiting_.erase(waiting_.begin());
    seq.running = true;
    running_.push_back(&seq);
    if (seq.task->admitted) continue;
    seq.task->admitted = true;
    CountWaiting(-1);
    counters_.prompt_tokens += seq.prompt_length().raw();
  }
}

// Takes pages for all tokens that the sequence has, the cached ones among them.
bool Scheduler::TryAdmit(Sequence& seq) {
  return pages_.Admit(seq.task->request.cache_salt, seq.tokens, !seq.WantsScores(),
                      std::ssize(running_), seq.pages);
}

// Slots that a step of decoding may write to beyond the sequence's tokens: none where its answer would
// have ended before. A mask is of one token.
TokenCount Scheduler::Lookahead(const Sequence& seq) const {
  if (seq.constraint) return TokenCount(0);
  const TokenCount left(seq.task->request.max_tokens - seq.num_output() - 1);
  return Min(limits_.lookahead, Min(left, limits_.context - seq.length()));
}

// Preempts the youngest sequences until the pages suffice, perhaps this very one: then false. One that
// is alone may be too large too: where others had computed the same prefix at the same time, the tree
// keeps their pages, and this sequence's own are spare. Preempted, it comes back with those of the
// tree.
bool Scheduler::ExtendOrPreempt(Sequence& seq) {
  return pages_.ExtendOrPreempt(seq.pages.list, seq.length(), [&] {
    Sequence& youngest = **std::ranges::max_element(running_, ByOrder());
    Preempt(youngest);
    return &youngest != &seq;
  });
}

void Scheduler::Preempt(Sequence& seq) {
  ++counters_.preemptions;
  Release(seq);
  waiting_.insert(&seq);
}

// Ends the sequence's part in steps; what it has computed stays in the tree until the pages are
// needed.
void Scheduler::Release(Sequence& seq) {
  std::erase(running_, &seq);
  seq.running = false;
  seq.mask = {};
  if (std::exchange(seq.in_batch, false)) DropEntry(seq);
  if (seq.WantsScores()) seq.task->prompt_scores.clear();  // they come again with the prompt
  admission_blocked_ = false;                              // there are pages again
  pages_.GiveBack(seq.task->request.cache_salt, seq.tokens, seq.pages);
}

bool Scheduler::EmptyCache() {
  const SchedulerCounters now = counters();
  if (now.running > 0 || now.waiting > 0) return false;
  pages_.EmptyCache();
  return true;
}

}  // namespace quire
