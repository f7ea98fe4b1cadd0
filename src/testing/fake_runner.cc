#include "testing/fake_runner.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "testing/splitmix64.h"

namespace quire::testing {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

uint64_t Mix(uint64_t hash, int64_t value) {
  return SplitMix64(hash ^ static_cast<uint64_t>(value));
}

uint64_t HashOf(std::span<const int32_t> tokens) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) hash = Mix(hash, token);
  return hash;
}

// `is_held` is not true of all tokens.
template <class IsHeld>
int32_t Draw(uint64_t hash, int32_t sample, int64_t vocab_size, IsHeld is_held) {
  auto token = static_cast<int32_t>(Mix(hash, sample) % static_cast<uint64_t>(vocab_size));
  for (int64_t i = 0; is_held(token); ++i) {
    QUIRE_CHECK(i < vocab_size, "no token can be drawn");
    token = static_cast<int32_t>((token + 1) % vocab_size);
  }
  return token;
}

bool IsIn(std::span<const int32_t> tokens, int32_t token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

// -10 .. 0
float Logprob(uint64_t hash, int32_t token) {
  return -static_cast<float>(Mix(hash, ~int64_t{token}) % 10'000) * 1e-3f;
}

std::vector<int32_t> HeldTokens(const SamplingParams& sampling) {
  std::map<int32_t, float> biases;
  for (const LogitBias& bias : sampling.logit_bias) biases[bias.token] += bias.bias;
  std::vector<int32_t> held;
  for (const auto& [token, bias] : biases) {
    if (bias <= kFakeLowBias) held.push_back(token);
  }
  return held;
}

bool IsAllowed(const StepSequence& seq, int32_t token) {
  return seq.mask.empty() || (seq.mask[Size(token / 32)] >> (token % 32) & 1u) != 0;
}

// A number that changes with whatever the batch borrows.
uint64_t Digest(const StepBatch& batch) {
  uint64_t hash = 0;
  for (const StepPageCopy& copy : batch.copies) {
    for (const int32_t value : {copy.from.raw(), copy.to.raw(), copy.count}) {
      hash = Mix(hash, value);
    }
  }
  for (const StepSequence& seq : batch.sequences) {
    for (const int32_t token : seq.tokens) hash = Mix(hash, token);
    for (const PageId page : seq.pages) hash = Mix(hash, page.raw());
    for (const int32_t token : seq.prompt) hash = Mix(hash, token);
    for (const int32_t token : seq.output) hash = Mix(hash, token);
    for (const LogitBias& bias : seq.sampling.logit_bias) hash = Mix(hash, bias.token);
    hash = Mix(Mix(hash, seq.position.raw()), seq.num_samples);
    hash = Mix(Mix(hash, seq.lookahead.raw()), seq.kept_pages.raw());
  }
  return hash;
}

}  // namespace

int32_t ExpectedToken(std::span<const int32_t> tokens, int32_t sample, int64_t vocab_size,
                      std::span<const int32_t> held) {
  return Draw(HashOf(tokens), sample, vocab_size, [&](int32_t token) { return IsIn(held, token); });
}

float ExpectedLogprob(std::span<const int32_t> tokens, int32_t token) {
  return Logprob(HashOf(tokens), token);
}

FakeRunner::FakeRunner(const RunnerLimits& limits)
    : limits_(limits),
      rows_(Size(limits.page_size.TokensIn(limits.pool_pages).raw())),
      touched_(rows_.size()) {}

void FakeRunner::FailStep(int64_t number, std::string message) {
  failing_step_ = number;
  failure_ = std::move(message);
}

void FakeRunner::Submit(const StepBatch& batch) {
  QUIRE_CHECK(!batch_, "a step is still to be collected");
  CheckBatch(batch);
  ++num_steps_;
  MarkTouched(batch);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    CheckReads(i, batch.sequences[i]);
    CheckKept(i, batch.sequences[i]);
    num_new_pages_ += std::ssize(batch.sequences[i].pages) - batch.sequences[i].kept_pages.raw();
  }
  batch_ = batch;
  batch_digest_ = Digest(batch);
}

const StepResult& FakeRunner::Collect() {
  QUIRE_CHECK(batch_.has_value(), "no step was submitted");
  const StepBatch batch = *std::exchange(batch_, std::nullopt);
  QUIRE_CHECK(Digest(batch) == batch_digest_, "the batch has changed since it was submitted");
  if (failing_step_ == num_steps_ - 1) {
    std::ranges::fill(rows_, Row{});
    kept_.clear();
    throw InternalError(failure_);
  }
  CopyPages(batch.copies);
  for (const StepSequence& seq : batch.sequences) {
    Write(seq);
    if (seq.id != 0) kept_[seq.id].assign(seq.pages.begin(), seq.pages.end());
  }
  top_.clear();
  tokens_.clear();
  answers_.clear();
  sequences_.clear();
  // So that growing moves nothing that a span points to.
  int64_t num_results = 0, num_top = 0;
  for (const StepSequence& seq : batch.sequences) {
    const int64_t results =
        std::max<int64_t>(std::ssize(seq.tokens), seq.num_samples) + seq.lookahead.raw();
    num_results += results;
    num_top += results * seq.sampling.top_logprobs;
  }
  tokens_.reserve(Size(num_results));
  answers_.reserve(Size(num_results));
  top_.reserve(Size(num_top));
  for (size_t i = 0; i < batch.sequences.size(); ++i) Answer(i, batch.sequences[i]);
  result_ = {.sequences = sequences_};
  return result_;
}

// ---- What CpuRunner checks ----

void FakeRunner::CheckBatch(const StepBatch& batch) const {
  const int64_t num_seqs = std::ssize(batch.sequences);
  Require(num_seqs >= 1 && num_seqs <= limits_.max_seqs, "step: sequences: expected 1..{}, got {}",
          limits_.max_seqs, num_seqs);
  TokenCount num_tokens{0};
  int64_t num_samples = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    CheckSequence(i, seq);
    num_tokens += TokenCount(seq.tokens.size());
    if (seq.want == Want::kNextToken) num_samples += seq.num_samples;
    for (size_t j = 0; j < i; ++j) {
      QUIRE_CHECK(seq.id == 0 || seq.id != batch.sequences[j].id,
                  "sequences {} and {} have the same id {}", j, i, seq.id);
    }
  }
  Require(num_tokens <= limits_.max_step_tokens,
          "step: tokens of all sequences: expected at most {}, got {}", limits_.max_step_tokens,
          num_tokens);
  Require(num_samples <= limits_.max_samples,
          "step: samples of all sequences: expected at most {}, got {}", limits_.max_samples,
          num_samples);
  Require(std::ssize(batch.copies) <= limits_.max_seqs,
          "step: page copies: expected at most {}, got {}", limits_.max_seqs, batch.copies.size());
  for (const StepPageCopy& copy : batch.copies) CheckCopy(copy);
  Require(batch.moves.empty(), "step: moves: expected none, got {}", batch.moves.size());
}

void FakeRunner::CheckCopy(const StepPageCopy& copy) const {
  const int64_t last_page = limits_.pool_pages.raw() - 1;
  const auto in_pool = [&](PageId page) { return page > kScratchPage && page.raw() <= last_page; };
  Require(in_pool(copy.from) && in_pool(copy.to),
          "step: page copy from {} to {}: expected pages 1..{}", copy.from, copy.to, last_page);
  Require(copy.count >= 1 && copy.count <= limits_.page_size.raw(),
          "step: page copy from {} to {}: tokens: expected 1..{}, got {}", copy.from, copy.to,
          limits_.page_size.raw(), copy.count);
}

void FakeRunner::CheckSequence(size_t index, const StepSequence& seq) const {
  Require(!seq.tokens.empty(), "step: sequence {}: no tokens", index);
  for (const int32_t token : seq.tokens) {
    Require(token >= 0 && token < limits_.vocab_size, "step: sequence {}: token {}: expected 0..{}",
            index, token, limits_.vocab_size - 1);
  }
  const TokenCount kv_len = seq.position + TokenCount(seq.tokens.size());
  Require(seq.position >= TokenCount(0) && kv_len <= limits_.context,
          "step: sequence {}: {} tokens behind {} in a context of {}", index, seq.tokens.size(),
          seq.position, limits_.context);
  Require(seq.tree_parents.empty(), "step: sequence {}: tree nodes: expected none", index);
  Require(seq.lookahead >= TokenCount(0) && seq.lookahead <= limits_.max_tree_nodes,
          "step: sequence {}: lookahead: expected 0..{}, got {}", index, limits_.max_tree_nodes,
          seq.lookahead);
  const PageCount need = limits_.page_size.PagesFor(kv_len + seq.lookahead);
  Require(PageCount(seq.pages.size()) >= need,
          "step: sequence {}: pages: expected at least {}, got {}", index, need, seq.pages.size());
  for (const PageId page : seq.pages.first(Size(need.raw()))) {
    Require(page > kScratchPage && page.raw() < limits_.pool_pages.raw(),
            "step: sequence {}: page: expected 1..{}, got {}", index, limits_.pool_pages.raw() - 1,
            page);
  }
  QUIRE_CHECK(seq.mask.empty() || (std::ssize(seq.mask) == MaskWords(limits_.vocab_size) &&
                                   seq.lookahead == TokenCount(0)),
              "sequence {}: a mask of {} words", index, seq.mask.size());
  if (seq.want == Want::kNothing) return;
  Validate(seq.sampling, limits_.vocab_size);
  Require(seq.want != Want::kNextToken || seq.num_samples >= 1,
          "step: sequence {}: samples: expected at least 1, got {}", index, seq.num_samples);
  Require(seq.want != Want::kScores ||
              (seq.next_token >= kNoToken && seq.next_token < limits_.vocab_size),
          "step: sequence {}: next token: got {}", index, seq.next_token);
}

// ---- What only pages that are kept apart allow ----

size_t FakeRunner::SlotIndex(const StepSequence& seq, TokenCount position) const {
  const PageId page = seq.pages[Size(limits_.page_size.FullPages(position).raw())];
  return Size(limits_.page_size.SlotOf(page, limits_.page_size.OffsetOf(position)).raw());
}

void FakeRunner::CheckKept(size_t index, const StepSequence& seq) const {
  const auto count = Size(seq.kept_pages.raw());
  if (count == 0) return;
  const auto found = kept_.find(seq.id);
  QUIRE_CHECK(found != kept_.end() && count <= found->second.size() && count <= seq.pages.size() &&
                  std::ranges::equal(std::span(found->second).first(count), seq.pages.first(count)),
              "sequence {}: the {} pages that it kept are not those of its last step", index,
              count);
}

void FakeRunner::MarkTouched(const StepBatch& batch) {
  for (const StepPageCopy& copy : batch.copies) {
    for (int32_t i = 0; i < copy.count; ++i) {
      Touch& touch = touched_[Size(limits_.page_size.SlotOf(copy.to, i).raw())];
      QUIRE_CHECK(touch.copied_in != num_steps_, "two copies to page {}", copy.to);
      touch = {.copied_in = num_steps_};
    }
  }
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    for (size_t t = 0; t < seq.tokens.size() + Size(seq.lookahead.raw()); ++t) {
      const size_t slot = SlotIndex(seq, seq.position + TokenCount(t));
      Touch& touch = touched_[slot];
      QUIRE_CHECK(touch.written_in != num_steps_, "slot {}: written by sequences {} and {}", slot,
                  touch.writer, i);
      QUIRE_CHECK(touch.copied_in != num_steps_, "slot {}: copied to, and written by sequence {}",
                  slot, i);
      touch = {.written_in = num_steps_, .writer = i};
    }
  }
}

// What stands before this step's tokens is written by nobody, or by sequences before this one. Two that
// have one page copied to would both write to it.
void FakeRunner::CheckReads(size_t index, const StepSequence& seq) const {
  for (TokenCount p{0}; p < seq.position; p += TokenCount(1)) {
    const size_t slot = SlotIndex(seq, p);
    const Touch& touch = touched_[slot];
    QUIRE_CHECK(touch.written_in != num_steps_ || touch.writer < index,
                "sequence {} position {}: slot {} is written by sequence {}", index, p, slot,
                touch.writer);
  }
}

// ---- The step ----

// All sources are read before a target is written.
void FakeRunner::CopyPages(std::span<const StepPageCopy> copies) {
  std::vector<Row> staged;
  const auto row = [&](PageId page, int32_t offset) -> Row& {
    return rows_[Size(limits_.page_size.SlotOf(page, offset).raw())];
  };
  for (const StepPageCopy& copy : copies) {
    for (int32_t i = 0; i < copy.count; ++i) staged.push_back(row(copy.from, i));
  }
  auto next = staged.begin();
  for (const StepPageCopy& copy : copies) {
    for (int32_t i = 0; i < copy.count; ++i) row(copy.to, i) = *next++;
  }
  num_copies_ += std::ssize(copies);
}

void FakeRunner::Write(const StepSequence& seq) {
  for (size_t t = 0; t < seq.tokens.size(); ++t) {
    const TokenCount position = seq.position + TokenCount(t);
    rows_[SlotIndex(seq, position)] = {.token = seq.tokens[t], .position = position};
  }
  num_tokens_ += std::ssize(seq.tokens);
}

void FakeRunner::Answer(size_t index, const StepSequence& seq) {
  const size_t first = tokens_.size();
  const size_t first_answer = answers_.size();
  bool is_poisoned = false;
  const TokenCount kv_len = seq.position + TokenCount(seq.tokens.size());
  uint64_t hash = 0;
  for (TokenCount p{0}; p < kv_len; p += TokenCount(1)) {
    const size_t slot = SlotIndex(seq, p);
    const Row& row = rows_[slot];
    QUIRE_CHECK(row.position == p, "sequence {} position {}: slot {} holds position {}", index, p,
                slot, row.position);
    hash = Mix(hash, row.token);
    is_poisoned = is_poisoned || row.token == poison_;
    if (seq.want != Want::kScores || p < seq.position) continue;
    const size_t next = Size((p - seq.position).raw()) + 1;
    AddToken(hash, next < seq.tokens.size() ? seq.tokens[next] : seq.next_token,
             seq.sampling.top_logprobs);
  }
  if (is_poisoned) {
    sequences_.push_back({.answers = {}, .fault = RowFault::kLogitsNotFinite});
    return;
  }
  if (seq.want == Want::kNextToken) {
    for (int32_t i = 0; i < seq.num_samples; ++i) AddAnswer(seq, hash, seq.first_sample + i);
  } else if (seq.want == Want::kScores) {
    answers_.push_back({.tokens = std::span(tokens_).subspan(first)});
  }
  const bool drafts = seq.want == Want::kNextToken && seq.num_samples == 1;
  sequences_.push_back({.answers = std::span(answers_).subspan(first_answer),
                        .num_drafted = drafts ? static_cast<int32_t>(seq.lookahead.raw()) : 0});
}

// Tokens that are drawn are not read back, so poison among them shows in the next step.
void FakeRunner::AddAnswer(const StepSequence& seq, uint64_t hash, int32_t sample) {
  const std::vector<int32_t> held = HeldTokens(seq.sampling);
  const size_t first = tokens_.size();
  TokenCount position = seq.position + TokenCount(seq.tokens.size());
  for (uint64_t left = hash % (static_cast<uint64_t>(seq.lookahead.raw()) + 1);; --left) {
    const int32_t token = Draw(hash, sample, limits_.vocab_size, [&](int32_t drawn) {
      return !IsAllowed(seq, drawn) || IsIn(held, drawn);
    });
    AddToken(hash, token, seq.sampling.top_logprobs);
    if (left == 0) break;
    rows_[SlotIndex(seq, position)] = {.token = token, .position = position};
    position += TokenCount(1);
    hash = Mix(hash, token);
  }
  answers_.push_back({.tokens = std::span(tokens_).subspan(first)});
}

void FakeRunner::AddToken(uint64_t hash, int32_t token, int32_t num_top) {
  const size_t first = top_.size();
  for (int32_t i = 0; i < num_top; ++i) {
    top_.push_back({.token = Draw(hash, -1 - i, limits_.vocab_size, [](int32_t) { return false; }),
                    .logprob = -0.5f * static_cast<float>(i)});
  }
  tokens_.push_back({.chosen = {.token = token, .logprob = Logprob(hash, token)},
                     .top = std::span(top_).subspan(first)});
}

}  // namespace quire::testing
