#include "testing/invariants/serving_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace quire::testing {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

std::vector<int32_t> TokensOf(const ServedRequest& served, const ServedAnswer& answer) {
  std::vector<int32_t> tokens = served.request.prompt;
  tokens.insert(tokens.end(), answer.report.output.begin(), answer.report.output.end());
  return tokens;
}

}  // namespace

ServingLoop::ServingLoop(MeteredRunner& runner, LoneAnswers& lone, const RunnerLimits& limits,
                         Pages pages, SchedulerOptions options)
    : runner_(runner),
      lone_(lone),
      limits_(limits),
      pages_(pages),
      options_(options),
      scheduler_(limits, options),
      cached_(limits.page_size),
      chunks_(limits.page_size) {}

RequestId ServingLoop::Add(Request request) {
  request.sampling.seed = by_seed_.size() + 1;
  const RequestId id = scheduler_.Add(request).value();
  by_seed_.emplace(request.sampling.seed, id);
  queue_.emplace(static_cast<int64_t>(id) - request.priority * options_.priority_weight, id);
  ServedRequest served;
  served.answers.resize(Index(request.num_samples));
  served.request = std::move(request);
  served_.emplace(id, std::move(served));
  return id;
}

bool ServingLoop::Step() {
  std::vector<TokenEvent> events;
  const StepBatch batch = scheduler_.Schedule({}, events);
  Take(events);  // first: what ends here is in the cache before anybody is admitted
  NoteAdmissions();
  See(batch);
  if (!batch.sequences.empty()) {
    runner_.Submit(batch);
    scheduler_.PrepareNext();
    NoteAdmissions();
    const StepResult& result = runner_.Collect();
    seen_.copies += runner_.last_step().copied_pages;
    AdvanceComputed();
    scheduler_.Commit(result, events);
    Take(events);
  }
  scheduler_.CheckInvariants();
  return !batch_.empty();
}

void ServingLoop::RunAll() {
  for (int i = 0; scheduler_.HasWork() && !::testing::Test::HasFailure(); ++i) {
    ASSERT_LT(i, 10'000) << "it does not end";
    Step();
  }
  CheckEnd();
}

// ---- What is computed ----

void ServingLoop::See(const StepBatch& batch) {
  batch_.clear();
  for (const StepSequence& seq : batch.sequences) SeeSequence(seq);
  cached_.AddAll(std::exchange(chunks_, CachedPrefixes(limits_.page_size)));
  if (batch_.empty()) return;
  ++seen_.steps;
  // The first output may be that of a sample which waited for its pages: it comes in as a prompt does.
  const bool decodes = std::ranges::any_of(batch.sequences, [](const auto& seq) {
    return seq.tokens.size() == 1 && seq.output.size() > 1;
  });
  const bool prefills =
      std::ranges::any_of(batch.sequences, [](const auto& seq) { return seq.tokens.size() > 1; });
  if (decodes && prefills) ++seen_.mixed_steps;
}

void ServingLoop::SeeSequence(const StepSequence& seq) {
  const RequestId id = by_seed_.at(seq.sampling.seed);
  ServedRequest& served = served_.at(id);
  batch_.push_back({.request = id,
                    .first_sample = seq.first_sample,
                    .num_samples = seq.want == Want::kNextToken ? seq.num_samples : 0,
                    .position = seq.position.raw(),
                    .q_len = std::ssize(seq.tokens),
                    .pages = {seq.pages.begin(), seq.pages.end()}});
  if (served.position < 0) {
    served.position = seq.position.raw();
    NoteFirstStep(served);
  }
  NoteChunk(seq, served);
  if (seq.position.raw() < served.answers[Index(seq.first_sample)].computed) ++seen_.went_back;
}

bool ServingLoop::LooksUp(const ServedRequest& served) const {
  return options_.prefix_cache == PrefixCache::kOn && !served.request.score_prompt;
}

// What is found then: of chunks of this step whole pages only.
void ServingLoop::NoteFirstStep(ServedRequest& served) const {
  if (!LooksUp(served)) return;
  const Request& request = served.request;
  const bool drafts = limits_.has_draft_rows;
  const int64_t before = cached_.Find(request.cache_salt, request.prompt, drafts);
  const int64_t now = chunks_.Find(request.cache_salt, request.prompt, drafts);
  const int64_t whole = now - now % limits_.page_size.raw();
  auto& [least, most] = served.expected_cached.value();
  least = std::max(least, now < before ? before : whole);
  most = std::max(most, now <= before ? before : whole);
}

// A chunk is in the cache, page by page, for those behind it in the step. Of a draft layer the last row is
// still missing.
void ServingLoop::NoteChunk(const StepSequence& seq, const ServedRequest& served) {
  const bool decodes =
      seq.tokens.size() == 1 && !seq.output.empty() && seq.want == Want::kNextToken;
  if (options_.prefix_cache == PrefixCache::kOff || decodes) return;
  std::vector<int32_t> tokens(seq.prompt.begin(), seq.prompt.end());
  tokens.insert(tokens.end(), seq.output.begin(), seq.output.end());
  const size_t end = Index(seq.position.raw()) + seq.tokens.size();
  chunks_.AddWholePages(served.request.cache_salt,
                        std::span(tokens).first(end - (limits_.has_draft_rows ? 1 : 0)));
}

// Requests are admitted in the order of the queue, so how many wait tells which do. Prefixes are
// looked up at this moment.
void ServingLoop::NoteAdmissions() {
  while (std::ssize(queue_) > scheduler_.counters().waiting) {
    ServedRequest& served = served_.at(queue_.begin()->second);
    queue_.erase(queue_.begin());
    const int64_t found =
        LooksUp(served)
            ? cached_.Find(served.request.cache_salt, served.request.prompt, limits_.has_draft_rows)
            : 0;
    served.expected_cached = {found, found};
  }
}

// The whole pages of a prompt are cached once all of it has been computed. A preempted sequence's
// tokens are cached too, at a moment that is not seen from here: when pages are scarce, whatever has
// been computed may be there.
void ServingLoop::AdvanceComputed() {
  for (const SeenSequence& seq : batch_) {
    const ServedRequest& served = served_.at(seq.request);
    ServedAnswer& answer = served_.at(seq.request).answers[Index(seq.first_sample)];
    answer.computed = seq.position + seq.q_len;
    if (options_.prefix_cache == PrefixCache::kOff) continue;
    if (seq.num_samples > 0 && answer.report.output.empty()) {
      cached_.AddWholePages(served.request.cache_salt, served.request.prompt);
    }
    if (pages_ == Pages::kScarce) Publish(served, answer);
  }
}

void ServingLoop::Publish(const ServedRequest& served, const ServedAnswer& answer) {
  if (options_.prefix_cache == PrefixCache::kOff) return;
  const std::vector<int32_t> tokens = TokensOf(served, answer);
  cached_.Add(served.request.cache_salt, std::span(tokens).first(Index(answer.computed)));
}

// ---- What is answered ----

void ServingLoop::Take(std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events) {
    SCOPED_TRACE(::testing::Message() << "request " << event.request << " sample " << event.sample
                                      << " finish " << FinishReasonName(event.finish));
    TakeEvent(event);
  }
  events.clear();
}

void ServingLoop::TakeEvent(const TokenEvent& event) {
  ServedRequest& served = served_.at(event.request);
  ServedAnswer& answer = served.answers[Index(event.sample)];
  ASSERT_EQ(answer.finish, FinishReason::kNone) << "an event behind the end of the answer";
  ASSERT_EQ(event.cached_tokens.has_value(), !answer.cached_tokens.has_value());
  if (event.cached_tokens) TakeFirst(event, served, answer);
  if (event.token != kNoToken) {
    answer.report.tokens.push_back({{event.token, event.logprob}, event.top});
    answer.report.output.push_back(event.token);
    // Of several tokens of a step all but the last are in the cache; the first may be another's step.
    if (answer.report.output.size() > 1) {
      answer.computed = std::ssize(served.request.prompt) + std::ssize(answer.report.output) - 1;
    }
  }
  answer.finish = event.finish;
  if (event.finish == FinishReason::kNone) return;
  Publish(served, answer);
  CheckAnswer(served, event.sample, event.token == kNoToken ? Cut::kShort : Cut::kNot);
  served.ended = event.last_of_request;
  if (!served.expected_cached) {  // ended while it waited: it is not admitted any more
    std::erase_if(queue_, [&](const auto& entry) { return entry.second == event.request; });
  }
}

void ServingLoop::TakeFirst(const TokenEvent& event, ServedRequest& served, ServedAnswer& answer) {
  answer.cached_tokens = event.cached_tokens;
  const int64_t cached = event.cached_tokens->raw();
  if (event.token == kNoToken && served.position < 0) {
    EXPECT_EQ(cached, 0) << "never begun";
  } else {
    const auto [least, most] = served.expected_cached.value();
    EXPECT_LE(cached, most);
    if (pages_ == Pages::kAmple) {
      EXPECT_GE(cached, least);
    }
  }
  // Preempted before its first step, it begins elsewhere.
  if (event.token != kNoToken && pages_ == Pages::kAmple) {
    EXPECT_EQ(cached, served.position);
  }
  if (event.token == kNoToken || event.sample > 0 || !served.request.score_prompt) {
    EXPECT_TRUE(event.prompt_scores.empty() || event.token == kNoToken);
    return;
  }
  JobReport scores;
  for (const auto& token : event.prompt_scores) scores.tokens.push_back({token.chosen, token.top});
  EXPECT_EQ(Difference(scores, lone_.PromptScores(served.request)), "") << "prompt scores";
}

void ServingLoop::CheckAnswer(const ServedRequest& served, int32_t sample, Cut cut) {
  const ServedAnswer& answer = served.answers[Index(sample)];
  const LoneAnswer& alone = lone_.Answer(served.request, sample, limits_.context);
  JobReport expected = alone.report;
  if (cut == Cut::kShort) {
    ASSERT_LT(answer.report.tokens.size(), expected.tokens.size());
    expected.tokens.resize(answer.report.tokens.size());
  } else {
    EXPECT_STREQ(FinishReasonName(answer.finish), FinishReasonName(alone.finish));
  }
  EXPECT_EQ(Difference(answer.report, expected), "");
}

void ServingLoop::CheckEnd() const {
  const SchedulerCounters now = scheduler_.counters();
  EXPECT_EQ(now.pages_free + now.pages_cached, now.pages_total);
  EXPECT_EQ(now.page_copies, seen_.copies);
  EXPECT_GE(now.mixed_steps, seen_.mixed_steps);
  EXPECT_EQ(now.steps, seen_.steps);
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  for (const auto& [id, served] : served_) {
    EXPECT_TRUE(served.ended) << "request " << id;
    if (!served.expected_cached) continue;
    prompt_tokens += std::ssize(served.request.prompt);
    cached_tokens += served.answers[0].cached_tokens.value().raw();
  }
  EXPECT_EQ(now.prompt_tokens, prompt_tokens);
  EXPECT_EQ(now.cached_tokens, cached_tokens);
  if (pages_ == Pages::kScarce) return;
  EXPECT_EQ(now.evicted_pages, 0);
  EXPECT_EQ(now.preemptions, 0);
  EXPECT_EQ(seen_.went_back, 0);
}

int64_t ServingLoop::NumDistinctTokens() const {
  std::set<int32_t> tokens;
  for (const auto& [id, served] : served_) {
    for (const ServedAnswer& answer : served.answers) {
      tokens.insert(answer.report.output.begin(), answer.report.output.end());
    }
  }
  return std::ssize(tokens);
}

}  // namespace quire::testing
