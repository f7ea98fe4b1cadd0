#include "runner/adaptive_drafter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {

TreeShape ShapeAround(std::span<const TreeShape> shapes) {
  QUIRE_CHECK(!shapes.empty(), "no shapes");
  TreeShape around = shapes.front();
  for (const TreeShape& shape : shapes) {
    around.steps = std::max(around.steps, shape.steps);
    around.branches = std::max(around.branches, shape.branches);
    around.nodes = std::max(around.nodes, shape.nodes);
  }
  return around;
}

AdaptiveDrafter::AdaptiveDrafter(std::unique_ptr<Drafter> drafter, UseShape use_shape,
                                 std::vector<TreeShape> shapes, int32_t max_seqs)
    : drafter_(std::move(drafter)),
      use_shape_(std::move(use_shape)),
      shapes_(std::move(shapes)),
      guests_(static_cast<size_t>(max_seqs)) {
  fed_.reserve(guests_.size());
}

void AdaptiveDrafter::ChooseBy(ShapeCosts costs) {
  fixed_ = 0;
  if (!costs.steps.empty()) chooser_.emplace(shapes_, std::move(costs));
}

size_t AdaptiveDrafter::Choose(size_t num_seqs) const {
  return chooser_ ? chooser_->Choose(static_cast<int64_t>(num_seqs)) : fixed_;
}

// Sequences that run have been seen in one of the last steps, and there are not more of them.
AdaptiveDrafter::Guest& AdaptiveDrafter::FindOrTake(uint64_t id, size_t choice) {
  auto guest = std::ranges::find(guests_, id, &Guest::id);
  if (guest == guests_.end()) {
    guest = std::ranges::min_element(guests_, {}, &Guest::used_in);
    NoteTokens(*guest);
    *guest = {.id = id, .is_fed = choice != 0};
  }
  guest->used_in = ++num_uses_;
  return *guest;
}

void AdaptiveDrafter::AddNodes(const StepBatch& batch, std::span<Draft> drafts) {
  drafted_ = Choose(batch.sequences.size());
  if (drafted_ == 0) return;
  const TreeShape& shape = shapes_[drafted_ - 1];
  if (use_shape_) use_shape_(shape);
  for (Draft& draft : drafts) {
    const size_t room = std::min(draft.tokens.size(), static_cast<size_t>(shape.nodes));
    draft.tokens = draft.tokens.first(room);
    draft.parents = draft.parents.first(room);
  }
  drafter_->AddNodes(batch, drafts);
  if (!chooser_ && shape.branches == 1) std::ranges::for_each(drafts, FillUp);
}

void AdaptiveDrafter::FillUp(Draft& draft) {
  for (; draft.num_nodes < draft.tokens.size(); ++draft.num_nodes) {
    draft.tokens[draft.num_nodes] = draft.tokens[0];
    draft.parents[draft.num_nodes] = static_cast<int32_t>(draft.num_nodes) - 1;
  }
}

// Whether a prompt's cost was worth it is known when its sequence has left: one that begins has drawn nothing.
void AdaptiveDrafter::Take(std::span<const StepOutcome> outcomes) {
  const size_t choice = Choose(outcomes.size());
  const int64_t first_use = num_uses_ + 1;
  fed_.clear();
  for (const StepOutcome& outcome : outcomes) {
    NoteDraft(outcome);
    const uint64_t id = outcome.sequence->id;
    if (id == 0) continue;
    Guest& guest = FindOrTake(id, choice);
    CountTokens(outcome, guest);
    const bool begins = outcome.sequence->position == TokenCount(0);  // again, perhaps
    guest.is_fed = choice != 0 && (guest.is_fed || begins);
    if (guest.is_fed) fed_.push_back(outcome);
  }
  for (Guest& guest : guests_) {
    if (guest.used_in < first_use) NoteTokens(guest);
  }
  if (chooser_ && choice == 0) chooser_->NotePlain(static_cast<int64_t>(outcomes.size()));
  drafted_ = 0;
  if (!fed_.empty()) drafter_->Take(fed_);
}

void AdaptiveDrafter::CountTokens(const StepOutcome& outcome, Guest& guest) {
  const StepSequence& seq = *outcome.sequence;
  if (outcome.path.empty() && seq.output.empty()) guest.of_prompt += std::ssize(seq.tokens);
  if (outcome.next_token != kNoToken) guest.drawn += std::max<int64_t>(1, std::ssize(outcome.path));
}

// One that has drawn nothing yet waits with its prompt.
void AdaptiveDrafter::NoteTokens(Guest& guest) {
  if (guest.drawn == 0) return;
  if (chooser_) chooser_->NoteTokens(guest.of_prompt, guest.drawn);
  guest.of_prompt = guest.drawn = 0;
}

// Of a tree that had to be smaller nothing can be said: it lacks what a whole one has.
void AdaptiveDrafter::NoteDraft(const StepOutcome& outcome) {
  if (!chooser_ || drafted_ == 0 || outcome.path.empty()) return;
  const StepSequence& seq = *outcome.sequence;
  const TreeShape& shape = shapes_[drafted_ - 1];
  const auto num_nodes = std::ssize(seq.tokens);
  const int64_t accepted = std::ssize(outcome.path) - 1;
  if (shape.branches == 1) {
    chooser_->NoteDraft(drafted_, num_nodes - 1, accepted);
  } else if (num_nodes == shape.nodes) {
    chooser_->NoteDraft(drafted_, shape.steps, accepted);
  }
}

}  // namespace quire
