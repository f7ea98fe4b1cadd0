#include "runner/batch_checks.h"

#include <iterator>

#include "base/error.h"
#include "base/units.h"

namespace quire {
namespace {

void CheckCopy(const StepPageCopy& copy, const RunnerLimits& limits) {
  const auto in_pool = [&](PageId page) {
    return page > kScratchPage && page.raw() < limits.pool_pages.raw();
  };
  Require(in_pool(copy.from) && in_pool(copy.to),
          "step: page copy from {} to {}: expected pages 1..{}", copy.from, copy.to,
          limits.pool_pages.raw() - 1);
  Require(copy.count >= 1 && copy.count <= limits.page_size.raw(),
          "step: page copy from {} to {}: tokens: expected 1..{}, got {}", copy.from, copy.to,
          limits.page_size.raw(), copy.count);
}

void CheckSequence(size_t index, const StepSequence& seq, const RunnerLimits& limits) {
  Require(!seq.tokens.empty(), "step: sequence {}: no tokens", index);
  for (size_t i = 0; i < seq.tokens.size(); ++i) {
    Require(seq.tokens[i] >= 0 && seq.tokens[i] < limits.vocab_size,
            "step: sequence {}: token {}: expected 0..{}, got {}", index, i, limits.vocab_size - 1,
            seq.tokens[i]);
  }
  Require(seq.position >= TokenCount(0), "step: sequence {}: position: expected >= 0, got {}",
          index, seq.position);
  Require(seq.position <= limits.context &&
              TokenCount(seq.tokens.size()) <= limits.context - seq.position,
          "step: sequence {}: {} tokens in the cache and {} more exceed the context length of {}",
          index, seq.position, seq.tokens.size(), limits.context);
  const PageCount need = limits.page_size.PagesFor(seq.position + TokenCount(seq.tokens.size()));
  Require(PageCount(seq.pages.size()) >= need,
          "step: sequence {}: pages: expected at least {} for {} tokens, got {}", index, need,
          seq.position + TokenCount(seq.tokens.size()), seq.pages.size());
  for (int64_t i = 0; i < need.raw(); ++i) {
    const PageId page = seq.pages[static_cast<size_t>(i)];
    Require(page.raw() >= 1 && page.raw() < limits.pool_pages.raw(),
            "step: sequence {}: page {}: expected 1..{}, got {}", index, i,
            limits.pool_pages.raw() - 1, page);
  }
  if (seq.want == Want::kNothing) return;
  Validate(seq.sampling, limits.vocab_size);
  Require(seq.want != Want::kNextToken || seq.num_samples >= 1,
          "step: sequence {}: samples: expected at least 1, got {}", index, seq.num_samples);
  Require(seq.want != Want::kScores ||
              (seq.next_token >= kNoToken && seq.next_token < limits.vocab_size),
          "step: sequence {}: next token: expected 0..{} or none, got {}", index,
          limits.vocab_size - 1, seq.next_token);
}

}  // namespace

void CheckBatch(const StepBatch& batch, const RunnerLimits& limits) {
  const int64_t num_seqs = std::ssize(batch.sequences);
  Require(num_seqs >= 1 && num_seqs <= limits.max_seqs, "step: sequences: expected 1..{}, got {}",
          limits.max_seqs, num_seqs);
  int64_t num_tokens = 0;
  int64_t num_samples = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    CheckSequence(i, batch.sequences[i], limits);
    num_tokens += std::ssize(batch.sequences[i].tokens);
    if (batch.sequences[i].want == Want::kNextToken) num_samples += batch.sequences[i].num_samples;
  }
  Require(num_tokens <= limits.max_step_tokens.raw(),
          "step: tokens of all sequences: expected at most {}, got {}", limits.max_step_tokens,
          num_tokens);
  Require(num_samples <= limits.max_samples,
          "step: samples of all sequences: expected at most {}, got {}", limits.max_samples,
          num_samples);
  Require(std::ssize(batch.copies) <= limits.max_seqs,
          "step: page copies: expected at most {}, got {}", limits.max_seqs, batch.copies.size());
  for (const StepPageCopy& copy : batch.copies) CheckCopy(copy, limits);
}

}  // namespace quire
