#include "runner/batch_checks.h"

#include <algorithm>
#include <iterator>

#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/units.h"
#include "runner/logit_rows.h"
#include "runner/step_inputs.h"

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

void CheckMove(const StepSlotMove& move, const RunnerLimits& limits) {
  const int64_t first = limits.page_size.raw();
  const int64_t end = limits.pool_pages.raw() * first;
  const auto in_pool = [&](Slot slot) { return slot.raw() >= first && slot.raw() < end; };
  Require(in_pool(move.from) && in_pool(move.to),
          "step: move from slot {} to {}: expected slots {}..{}", move.from, move.to, first,
          end - 1);
}

// Slots and positions: tokens, nodes and lookahead within the limits and the context.
void CheckLengths(size_t index, const StepSequence& seq, const RunnerLimits& limits) {
  Require(seq.position >= TokenCount(0), "step: sequence {}: position: expected >= 0, got {}",
          index, seq.position);
  const TokenCount nodes(seq.tree_parents.size());
  Require(seq.lookahead >= TokenCount(0) && seq.lookahead <= limits.max_tree_nodes - nodes,
          "step: sequence {}: {} tree nodes and a lookahead of {}: expected 0..{} together", index,
          nodes, seq.lookahead, limits.max_tree_nodes);
  // Nodes of a tree stand beside each other, so the deepest counts, and not the last.
  const bool is_within = seq.position <= limits.context + limits.max_tree_nodes;
  TokenCount end{0};
  for (size_t i = 0; is_within && i < seq.tokens.size(); ++i) {
    end = Max(end, PositionOf(seq, i) + TokenCount(1));
  }
  Require(is_within && end <= limits.context,
          "step: sequence {}: {} tokens in the cache and {} more exceed the context length of {}",
          index, seq.position, seq.tokens.size(), limits.context);
}

void CheckTree(size_t index, const StepSequence& seq, const RunnerLimits& limits) {
  if (seq.tree_parents.empty()) return;
  const int64_t num_nodes = std::ssize(seq.tree_parents);
  const int64_t num_tokens = std::ssize(seq.tokens);
  Require(num_nodes >= num_tokens && num_nodes <= seq.position.raw() + num_tokens &&
              num_nodes <= limits.max_tree_nodes.raw(),
          "step: sequence {}: tree nodes: expected {}..{}, got {}", index, num_tokens,
          std::min(seq.position.raw() + num_tokens, limits.max_tree_nodes.raw()), num_nodes);
  for (int64_t i = 0; i < num_nodes; ++i) {
    const int32_t parent = seq.tree_parents[static_cast<size_t>(i)];
    Require(parent >= kTreeRoot && parent < i,
            "step: sequence {}: parent of tree node {}: expected {}..{}, got {}", index, i,
            kTreeRoot, i - 1, parent);
  }
  Require(
      seq.want != Want::kNextToken || !HasPenalties(seq.sampling) || num_nodes == num_tokens,
      "step: sequence {}: penalties: expected all {} nodes of the tree among the tokens, got {}",
      index, num_nodes, num_tokens);
  Require(seq.want != Want::kScores || seq.next_token == kNoToken,
          "step: sequence {}: next token: expected none for a tree, got {}", index, seq.next_token);
}

// Returns how many pages were looked at.
PageCount CheckPages(size_t index, const StepSequence& seq, const RunnerLimits& limits) {
  const TokenCount length = seq.position + TokenCount(seq.tokens.size()) + seq.lookahead;
  const PageCount listed(seq.pages.size());
  const PageCount need = limits.page_size.PagesFor(length);
  Require(listed >= need, "step: sequence {}: pages: expected at least {} for {} tokens, got {}",
          index, need, length, listed);
  const PageCount most_kept = seq.id == 0 ? PageCount(0) : listed;
  Require(seq.kept_pages >= PageCount(0) && seq.kept_pages <= most_kept,
          "step: sequence {}: kept pages: expected 0..{}, got {}", index, most_kept,
          seq.kept_pages);
  for (int64_t i = seq.kept_pages.raw(); i < listed.raw(); ++i) {
    const PageId page = seq.pages[static_cast<size_t>(i)];
    Require(page.raw() >= 1 && page.raw() < limits.pool_pages.raw(),
            "step: sequence {}: page {}: expected 1..{}, got {}", index, i,
            limits.pool_pages.raw() - 1, page);
  }
  return listed - seq.kept_pages;
}

PageCount CheckSequence(size_t index, const StepSequence& seq, const RunnerLimits& limits) {
  Require(!seq.tokens.empty(), "step: sequence {}: no tokens", index);
  for (size_t i = 0; i < seq.tokens.size(); ++i) {
    Require(seq.tokens[i] >= 0 && seq.tokens[i] < limits.vocab_size,
            "step: sequence {}: token {}: expected 0..{}, got {}", index, i, limits.vocab_size - 1,
            seq.tokens[i]);
  }
  CheckTree(index, seq, limits);
  CheckLengths(index, seq, limits);
  const PageCount looked_at = CheckPages(index, seq, limits);
  const int64_t words = MaskWords(limits.vocab_size);
  Require(seq.mask.empty() || std::ssize(seq.mask) == words,
          "step: sequence {}: mask: expected {} words, got {}", index, words, seq.mask.size());
  Require(seq.mask.empty() || (seq.tree_parents.empty() && seq.lookahead == TokenCount(0)),
          "step: sequence {}: mask: expected none with a tree or a lookahead", index);
  if (seq.want == Want::kNothing) return looked_at;
  Validate(seq.sampling, limits.vocab_size);
  Require(seq.want != Want::kNextToken || seq.num_samples >= 1,
          "step: sequence {}: samples: expected at least 1, got {}", index, seq.num_samples);
  Require(seq.want != Want::kScores ||
              (seq.next_token >= kNoToken && seq.next_token < limits.vocab_size),
          "step: sequence {}: next token: expected 0..{} or none, got {}", index,
          limits.vocab_size - 1, seq.next_token);
  return looked_at;
}

}  // namespace

PageCount CheckBatch(const StepBatch& batch, const RunnerLimits& limits) {
  const int64_t num_seqs = std::ssize(batch.sequences);
  Require(num_seqs >= 1 && num_seqs <= limits.max_seqs, "step: sequences: expected 1..{}, got {}",
          limits.max_seqs, num_seqs);
  int64_t num_tokens = 0;
  int64_t num_samples = 0;
  PageCount looked_at{0};
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    looked_at += CheckSequence(i, seq, limits);
    num_tokens += std::ssize(seq.tokens);
    if (seq.want == Want::kNextToken)
      num_samples += int64_t{seq.num_samples} * TokensPerAnswer(seq);
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
  const int64_t most_moves = (limits.max_tree_nodes * limits.max_seqs).raw();
  Require(std::ssize(batch.moves) <= most_moves, "step: moves: expected at most {}, got {}",
          most_moves, batch.moves.size());
  for (const StepSlotMove& move : batch.moves) CheckMove(move, limits);
  return looked_at;
}

PageCount CheckBatchOfGroup(const StepBatch& batch, const RunnerLimits& limits,
                            int32_t num_groups) {
  if (num_groups > 1 && batch.sequences.empty()) return PageCount(0);
  return CheckBatch(batch, limits);
}

}  // namespace quire
