#include "runner/speculative_runner.h"

#include <algorithm>
#include <utility>

#include "attn/sequence_step.h"
#include "base/error.h"
#include "decode/acceptance.h"
#include "runner/batch_checks.h"
#include "runner/draft_runner.h"

namespace quire {
namespace {

size_t AsSize(int64_t n) { return static_cast<size_t>(n); }

// The step before must have drawn the last token: behind a prompt nothing has been said yet.
bool CanSpeculate(const StepSequence& seq) {
  return seq.want == Want::kNextToken && seq.lookahead > TokenCount(0) && seq.tokens.size() == 1 &&
         seq.num_samples == 1 && seq.tree_parents.empty() && seq.mask.empty() &&
         !seq.output.empty();
}

Slot SlotAt(const StepSequence& seq, PageSize page_size, TokenCount place) {
  return page_size.SlotOf(seq.pages[AsSize(page_size.FullPages(place).raw())],
                          page_size.OffsetOf(place));
}

}  // namespace

RunnerOptions TargetOptions(const RunnerOptions& options, const DraftRoom& room) {
  Require(room.nodes >= 2 && room.nodes <= kMaxDraftNodes, "draft nodes: expected 2..{}, got {}",
          kMaxDraftNodes, room.nodes);
  QUIRE_CHECK(room.slots >= room.nodes && room.rows >= room.nodes, "{} nodes, {} slots, {} rows",
              room.nodes, room.slots, room.rows);
  RunnerOptions target = options;
  target.tree_nodes = TokenCount(room.slots);
  target.max_step_tokens += TokenCount(room.rows - 1) * options.max_seqs;
  return target;
}

SpeculativeRunner::SpeculativeRunner(std::unique_ptr<MeteredRunner> target,
                                     std::unique_ptr<Drafter> drafter, const DraftRoom& room)
    : RunnerOver(std::move(target)),
      drafter_(std::move(drafter)),
      num_nodes_(AsSize(room.nodes)),
      draft_runner_(target_->draft_runner()),
      grower_(draft_runner_ == nullptr ? nullptr : draft_runner_->grower()),
      limits_(target_->limits()) {
  QUIRE_CHECK(limits_.max_tree_nodes == TokenCount(room.slots), "{} slots, and the target has {}",
              room.slots, limits_.max_tree_nodes);
  const auto max_seqs = AsSize(limits_.max_seqs);
  limits_.lookahead = TokenCount(room.slots - 1);
  limits_.max_step_tokens -= TokenCount(room.rows - 1) * limits_.max_seqs;
  limits_.max_samples = limits_.max_seqs;
  QUIRE_CHECK(limits_.max_step_tokens >= TokenCount(1), "steps have no room for drafts");
  sequences_.reserve(max_seqs);
  drafts_.reserve(max_seqs);
  tokens_.resize(max_seqs * num_nodes_);
  parents_.resize(max_seqs * num_nodes_);
  moves_.reserve(max_seqs * num_nodes_);
  drawn_.resize(num_nodes_);
  paths_.resize(max_seqs * num_nodes_);
  outcomes_.reserve(max_seqs);
  accepted_.reserve(max_seqs * num_nodes_);
  answers_.reserve(max_seqs);
  results_.reserve(max_seqs);
}

void SpeculativeRunner::Submit(const StepBatch& batch) {
  CheckBatchOfGroup(batch, limits_, memory_plan().num_groups);
  Require(batch.moves.empty(), "step: moves: expected none, got {}", batch.moves.size());
  sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  MakeDrafts(batch);
  if (draft_runner_ != nullptr) draft_runner_->EndPasses();
  for (const Draft& draft : drafts_) Expand(draft);
  if (grower_ != nullptr) grower_->UseTrees(drafts_);
  // If it throws, nothing was written, and rows are still to be moved.
  target_->Submit({.moves = moves_, .copies = batch.copies, .sequences = sequences_});
}

// Those that are empty are dropped: their sequences decode as ever.
void SpeculativeRunner::MakeDrafts(const StepBatch& batch) {
  drafts_.clear();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    if (!CanSpeculate(seq)) continue;
    // Of as many nodes none lies beyond the context.
    const size_t room = std::min({num_nodes_, AsSize(seq.lookahead.raw()) + 1,
                                  AsSize((limits_.context - seq.position).raw())});
    const size_t begin = drafts_.size() * num_nodes_;
    drafts_.push_back({.sequence = i,
                       .tokens = std::span(tokens_).subspan(begin, room),
                       .parents = std::span(parents_).subspan(begin, room)});
    drafts_.back().tokens[0] = seq.tokens[0];
    drafts_.back().parents[0] = kTreeRoot;
  }
  if (!drafts_.empty()) drafter_->AddNodes(batch, drafts_);
  std::erase_if(drafts_, [](const Draft& draft) { return draft.num_nodes == 1; });
}

// A tree of all nodes, of which the root alone is known to be output.
void SpeculativeRunner::Expand(const Draft& draft) {
  StepSequence& seq = sequences_[draft.sequence];
  QUIRE_CHECK(draft.num_nodes <= draft.tokens.size(), "{} nodes in room for {}", draft.num_nodes,
              draft.tokens.size());
  seq.tokens = draft.tokens.first(draft.num_nodes);
  seq.tree_parents = draft.parents.first(draft.num_nodes);
  seq.lookahead -= TokenCount(draft.num_nodes - 1);
  seq.output = seq.output.first(seq.output.size() - 1);
}

const StepResult& SpeculativeRunner::Collect() {
  const StepResult* result = nullptr;
  try {
    result = &target_->Collect();
  } catch (...) {
    moves_.clear();  // what is in the cache is of no use any more
    throw;
  }
  moves_.clear();
  accepted_.clear();
  answers_.clear();
  results_.assign(result->sequences.begin(), result->sequences.end());
  outcomes_.clear();
  size_t row = 0;
  for (const StepSequence& seq : sequences_) {
    outcomes_.push_back({.sequence = &seq, .first_row = row});
    row += seq.tokens.size();
  }
  std::span<int32_t> paths = paths_;
  for (const Draft& draft : drafts_) {
    results_[draft.sequence] = Accept(draft, result->sequences[draft.sequence],
                                      paths.first(num_nodes_), outcomes_[draft.sequence]);
    paths = paths.subspan(num_nodes_);
  }
  try {
    ReportOutcomes();
  } catch (...) {
    moves_.clear();
    throw;
  }
  result_.sequences = results_;
  return result_;
}

// Of what was no draft the next token is that of the first sample, which is the sequence's own.
void SpeculativeRunner::ReportOutcomes() {
  size_t count = 0;
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    StepOutcome outcome = outcomes_[i];
    const StepSequence& seq = *outcome.sequence;
    if (results_[i].fault != RowFault::kNone) continue;
    if (outcome.path.empty()) {
      if (!seq.tree_parents.empty()) continue;
      if (seq.want == Want::kScores) outcome.next_token = seq.next_token;
      if (seq.want == Want::kNextToken) {
        outcome.next_token = results_[i].answers[0].tokens[0].chosen.token;
      }
    }
    outcomes_[count++] = outcome;
  }
  drafter_->Take(std::span(outcomes_).first(count));
  if (draft_runner_ != nullptr) draft_runner_->EndPasses();
}

StepSequenceResult SpeculativeRunner::Accept(const Draft& draft, const StepSequenceResult& result,
                                             std::span<int32_t> room_of_path,
                                             StepOutcome& outcome) {
  const StepSequence& seq = sequences_[draft.sequence];
  const std::span<const StepToken> tokens = result.answers[0].tokens;
  const std::span<int32_t> drawn = std::span(drawn_).first(draft.num_nodes);
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = tokens[i].chosen.token;
  if (drawn[0] == kNoToken) return {.fault = RowFault::kLogitsNotFinite};
  size_t count =
      AcceptPath({.tokens = seq.tokens, .parents = seq.tree_parents}, drawn, room_of_path);
  // Logits behind the last one that are not finite are found again, and reported, by the next step.
  if (drawn[AsSize(room_of_path[count - 1])] == kNoToken) --count;
  const std::span<const int32_t> path = room_of_path.first(count);
  outcome.path = path;
  outcome.next_token = drawn[AsSize(path.back())];
  const size_t first = accepted_.size();
  for (size_t i = 0; i < count; ++i) {
    accepted_.push_back(tokens[AsSize(path[i])]);
    if (AsSize(path[i]) == i) continue;
    moves_.push_back({.from = SlotAt(seq, limits_.page_size, seq.position + TokenCount(path[i])),
                      .to = SlotAt(seq, limits_.page_size, seq.position + TokenCount(i))});
  }
  answers_.push_back({.tokens = std::span(accepted_).subspan(first, count)});
  return {.answers = std::span(answers_).last(1),
          .num_drafted = static_cast<int32_t>(draft.num_nodes) - 1};
}

}  // namespace quire
