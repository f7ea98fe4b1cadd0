#include "runner/layer_drafter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "attn/sequence_step.h"
#include "base/error.h"

namespace quire {
namespace {

size_t SizeOf(int64_t n) { return static_cast<size_t>(n); }

// Whether some page of the sequence is yet to be filled by the step: nothing can be read there.
bool WaitsForCopy(const StepBatch& batch, const StepSequence& seq) {
  return std::ranges::any_of(batch.copies, [&](const StepPageCopy& copy) {
    return std::ranges::find(seq.pages, copy.to) != seq.pages.end();
  });
}

}  // namespace

DraftRoom TreeShape::Room() const {
  return {.nodes = nodes,
          .slots = std::max(branches * steps, nodes),
          .rows = std::max(branches, nodes)};
}

void Validate(const TreeShape& shape) {
  Require(shape.steps >= 1 && shape.steps <= kMaxDraftSteps,
          "speculation: steps: expected 1..{}, got {}", kMaxDraftSteps, shape.steps);
  Require(shape.branches >= 1 && shape.branches <= kMaxDraftBranches,
          "speculation: branches: expected 1..{}, got {}", kMaxDraftBranches, shape.branches);
  Require(shape.branches > 1 || shape.nodes == shape.steps + 1,
          "speculation: draft tokens: expected {} for a chain of {} steps, got {}", shape.steps + 1,
          shape.steps, shape.nodes);
  const int64_t most = std::min(shape.candidates() + 1, kMaxDraftNodes);
  Require(shape.nodes >= 2 && shape.nodes <= most,
          "speculation: draft tokens: expected 2..{} with {} steps of {} branches, got {}", most,
          shape.steps, shape.branches, shape.nodes);
}

RunnerOptions LayerTargetOptions(const RunnerOptions& options, const TreeShape& shape) {
  Validate(shape);
  RunnerOptions target = TargetOptions(options, shape.Room());
  target.draft_layer = true;
  target.draft_branches = static_cast<int32_t>(shape.branches);
  return target;
}

LayerDrafter::LayerDrafter(DraftRunner& runner, const RunnerLimits& limits, const TreeShape& shape,
                           Faults faults)
    : runner_(runner),
      limits_(limits),
      room_(shape),
      shape_(shape),
      faults_(faults),
      grower_(runner.grower()),
      first_kept_(runner.num_step_states()),
      first_row_(runner.first_row_state()),
      places_(SizeOf(limits.max_seqs)) {
  const size_t max_seqs = places_.size();
  const auto most_rows = SizeOf(limits.max_step_tokens.raw());
  const size_t level_rows = num_branches() * SizeOf(shape.steps - 1);
  sequences_.reserve(max_seqs);
  tokens_.reserve(most_rows);
  state_of_.reserve(most_rows);
  last_rows_.reserve(max_seqs);
  last_states_.reserve(most_rows);
  wanted_.reserve(std::max(most_rows, max_seqs * num_branches()));
  waiting_.reserve(max_seqs);
  kept_.reserve(max_seqs);
  growing_.reserve(max_seqs);
  growths_.reserve(max_seqs);
  scores_.resize(max_seqs * SizeOf(shape.candidates()));
  candidate_tokens_.resize(scores_.size());
  continued_.resize(max_seqs * (1 + level_rows));
  row_tokens_.resize(max_seqs * level_rows);
  row_parents_.resize(max_seqs * level_rows);
  order_.resize(num_branches() * num_branches());
  tree_.Reserve(SizeOf(shape.candidates()));
}

void LayerDrafter::UseShape(const TreeShape& shape) {
  QUIRE_CHECK(
      shape.steps <= room_.steps && shape.branches <= room_.branches && shape.nodes <= room_.nodes,
      "{}-{}-{} in room for {}-{}-{}", shape.steps, shape.branches, shape.nodes, room_.steps,
      room_.branches, room_.nodes);
  shape_ = shape;
}

LayerDrafter::Place* LayerDrafter::Find(uint64_t id) {
  const auto found = std::ranges::find(places_, id, &Place::id);
  return id == 0 || found == places_.end() ? nullptr : &*found;
}

// The one that was not used for the longest time, where the sequence has none.
LayerDrafter::Place& LayerDrafter::FindOrTake(uint64_t id) {
  Place* place = Find(id);
  if (place == nullptr) {
    place = &*std::ranges::min_element(places_, {}, &Place::used_in);
    *place = {.id = id};
  }
  place->used_in = ++num_uses_;
  return *place;
}

int32_t LayerDrafter::KeptState(const Place& place) const {
  return first_kept_ + static_cast<int32_t>(&place - places_.data());
}

// ---- After a step ----

void LayerDrafter::Take(std::span<const StepOutcome> outcomes) {
  for (const StepOutcome& outcome : outcomes) {
    if (outcome.sequence->id != 0) Extend(outcome);
  }
  RunExtension();
}

// Adds the rows of the sequence's tokens, but for the last one's where nobody knows what follows it.
void LayerDrafter::Extend(const StepOutcome& outcome) {
  const StepSequence& seq = *outcome.sequence;
  const bool is_draft = !outcome.path.empty();
  const size_t count = is_draft ? outcome.path.size() : seq.tokens.size();
  const auto node = [&](size_t i) { return is_draft ? SizeOf(outcome.path[i]) : i; };
  const auto state = [&](size_t i) { return static_cast<int32_t>(outcome.first_row + node(i)); };
  if (std::ssize(tokens_) + std::ssize(seq.tokens) >= limits_.max_step_tokens.raw()) RunExtension();

  Place& place = FindOrTake(seq.id);
  const size_t begin = tokens_.size();
  TokenCount first = seq.position;
  if (place.kept == Kept::kTargetState && place.position == seq.position) {
    first -= TokenCount(1);
    tokens_.push_back(seq.tokens[node(0)]);
    state_of_.push_back(KeptState(place));
  }
  for (size_t i = 0; i < count; ++i) {
    const int32_t next = i + 1 < count ? seq.tokens[node(i + 1)] : outcome.next_token;
    if (next == kNoToken) break;
    tokens_.push_back(next);
    state_of_.push_back(state(i));
  }
  Waiting waiting{.place = SizeOf(&place - places_.data()), .state = state(count - 1)};
  if (outcome.next_token != kNoToken) waiting.wanted = static_cast<int32_t>(wanted_.size());
  AddSequence(seq, first, std::span(tokens_).subspan(begin), waiting.wanted >= 0);
  waiting_.push_back(waiting);
  place.kept = outcome.next_token == kNoToken ? Kept::kTargetState : Kept::kDraftState;
  place.position = seq.position + TokenCount(count);
  place.token = outcome.next_token;
}

// Rows of a sequence from `first` on, whose states are the last ones; what comes of the last row may be wanted.
void LayerDrafter::AddSequence(const StepSequence& seq, TokenCount first,
                               std::span<const int32_t> tokens, bool is_wanted) {
  const auto rows = [&](size_t begin, size_t count) -> StepSequence {
    return {.id = seq.id,
            .tokens = tokens.subspan(begin, count),
            .position = first + TokenCount(begin),
            .pages = seq.pages,
            .kept_pages = PageCount(seq.pages.size())};
  };
  const size_t num_apart = is_wanted && runner_.keys_cost_little() ? 1 : 0;
  const size_t num_others = tokens.size() - num_apart;
  if (num_others > 0) sequences_.push_back(rows(0, num_others));
  if (num_apart > 0) {
    wanted_.push_back(static_cast<int32_t>(last_rows_.size()));
    last_rows_.push_back(rows(num_others, num_apart));
    last_states_.push_back(state_of_.back());
    state_of_.pop_back();
  } else if (is_wanted) {
    wanted_.push_back(static_cast<int32_t>(state_of_.size()) - 1);
  }
}

// A kept state is read by the pass, and written behind it. The next draft may have any shape.
void LayerDrafter::RunExtension() {
  if (grower_ != nullptr) return ExtendOnDevice();
  std::span<const TokenLogprob> top;
  if (runner_.keys_cost_little()) {
    if (!sequences_.empty()) runner_.Draft({.sequences = sequences_, .state_of = state_of_});
    std::swap(sequences_, last_rows_);
    std::swap(state_of_, last_states_);
  }
  if (!sequences_.empty()) {
    top = runner_.Draft({.sequences = sequences_,
                         .state_of = state_of_,
                         .wanted = wanted_,
                         .num_top = static_cast<int32_t>(room_.branches)});
  }
  for (const Waiting& waiting : waiting_) {
    Place& place = places_[waiting.place];
    const bool is_draft = waiting.wanted >= 0;
    runner_.CopyState(is_draft ? first_row_ + waiting.wanted : waiting.state, KeptState(place));
    if (!is_draft) continue;
    std::ranges::copy(top.subspan(SizeOf(waiting.wanted) * kMaxTopLogprobs, SizeOf(room_.branches)),
                      place.best.begin());
  }
  ClearExtension();
}

// What comes of it stays there.
void LayerDrafter::ExtendOnDevice() {
  if (waiting_.empty()) return;
  kept_.clear();
  for (const Waiting& waiting : waiting_) {
    const bool is_draft = waiting.wanted >= 0;
    kept_.push_back({.from = is_draft ? first_row_ + waiting.wanted : waiting.state,
                     .to = KeptState(places_[waiting.place]),
                     .top = waiting.wanted,
                     .place = static_cast<int32_t>(waiting.place)});
  }
  grower_->Extend({.sequences = sequences_,
                   .state_of = state_of_,
                   .wanted = wanted_,
                   .num_top = static_cast<int32_t>(room_.branches)},
                  kept_);
  ClearExtension();
}

void LayerDrafter::ClearExtension() {
  sequences_.clear();
  last_rows_.clear();
  tokens_.clear();
  state_of_.clear();
  last_states_.clear();
  wanted_.clear();
  waiting_.clear();
}

// ---- Before a step ----

void LayerDrafter::AddNodes(const StepBatch& batch, std::span<Draft> drafts) {
  growths_.clear();
  for (Draft& draft : drafts) {
    Growth growth;
    if (Begin(batch, draft, growth)) growths_.push_back(growth);
  }
  for (int64_t level = 1; level < shape_.steps; ++level) AddLevel(batch);
  for (Growth& growth : growths_) grower_ == nullptr ? Select(growth) : LeaveOpen(growth);
}

// False where nothing is known of what follows.
bool LayerDrafter::Begin(const StepBatch& batch, Draft& draft, Growth& growth) {
  const StepSequence& seq = batch.sequences[draft.sequence];
  const Place* place = Find(seq.id);
  if (place == nullptr || place->kept != Kept::kDraftState || place->position != seq.position ||
      place->token != seq.tokens[0] || draft.tokens.size() < 2 || WaitsForCopy(batch, seq)) {
    return false;
  }
  const size_t number = growths_.size();
  const auto part = [&](auto& memory) {
    const size_t size = memory.size() / places_.size();
    return std::span(memory).subspan(number * size, size);
  };
  // A level has a node of the draft, or more; and rows but for the last, which lie where the root and
  // what is behind it will.
  const int64_t by_nodes = std::ssize(draft.tokens) - 1;
  const int64_t by_slots = (seq.lookahead.raw() + 1) / shape_.branches + 1;
  growth = {.draft = &draft,
            .levels = SizeOf(std::min({shape_.steps, by_nodes, by_slots})),
            .first_state = KeptState(*place),
            .scores = part(scores_),
            .tokens = part(candidate_tokens_),
            .continued = part(continued_),
            .row_tokens = part(row_tokens_),
            .row_parents = part(row_parents_)};
  growth.grown = {.growth = static_cast<int32_t>(number),
                  .place = static_cast<int32_t>(place - places_.data()),
                  .branches = static_cast<int32_t>(shape_.branches)};
  if (grower_ != nullptr) return true;
  growth.continued[0] = -1;
  return AddCandidates(std::span(place->best).first(num_branches()), 1.0f, 0, growth);
}

size_t LayerDrafter::NumCandidates(size_t num_levels) const {
  return SizeOf(quire::NumCandidates(static_cast<int32_t>(shape_.branches),
                                     static_cast<int32_t>(num_levels)));
}

// False, and nothing added, for what came of logits that are not finite.
bool LayerDrafter::AddCandidates(std::span<const TokenLogprob> best, float score, size_t first,
                                 const Growth& growth) {
  for (const TokenLogprob& token : best) {
    if (!std::isfinite(token.logprob)) return false;
    growth.scores[first] = score * std::exp(std::min(token.logprob, 0.0f));
    growth.tokens[first++] = token.token;
  }
  return true;
}

void LayerDrafter::AddLevel(const StepBatch& batch) {
  for (Growth& growth : growths_) {
    growth.in_pass = growth.num_levels < growth.levels;
    if (growth.in_pass) AddRows(batch.sequences[growth.draft->sequence], growth);
  }
  if (sequences_.empty()) return;
  wanted_.resize(state_of_.size());
  std::iota(wanted_.begin(), wanted_.end(), 0);
  const DraftPass pass{.sequences = sequences_,
                       .state_of = state_of_,
                       .wanted = wanted_,
                       .num_top = static_cast<int32_t>(num_branches())};
  std::span<const TokenLogprob> top;
  if (grower_ == nullptr) {
    top = runner_.Draft(pass);
  } else {
    grower_->Grow(pass, growing_, faults_.Has(Fault::kDraftsNotSeen));
  }
  int32_t first_state = first_row_;
  for (Growth& growth : growths_) {
    if (!growth.in_pass) continue;
    growth.first_state = first_state;
    first_state += static_cast<int32_t>(num_branches());
    if (grower_ != nullptr) {
      ++growth.num_levels;
      continue;
    }
    TakeLevel(top.first(num_branches() * kMaxTopLogprobs), growth);
    top = top.subspan(num_branches() * kMaxTopLogprobs);
  }
  growing_.clear();
  sequences_.clear();
  state_of_.clear();
  wanted_.clear();
}

void LayerDrafter::AddRows(const StepSequence& seq, Growth& growth) {
  const size_t branches = num_branches();
  const size_t num_rows = branches * (growth.num_levels - 1);  // that it has
  grower_ == nullptr ? ContinueBest(growth) : AddPlaceholders(growth);
  sequences_.push_back(
      {.id = seq.id,
       .tokens = growth.row_tokens.subspan(num_rows, branches),
       .position = seq.position + TokenCount(num_rows),
       .pages = seq.pages,
       .kept_pages = growth.num_levels == 1 ? seq.kept_pages : PageCount(seq.pages.size()),
       .tree_parents = growth.row_parents.first(num_rows + branches)});
}

// For rows that the device fills in: a chain of each branch, of any token.
void LayerDrafter::AddPlaceholders(Growth& growth) {
  const size_t branches = num_branches();
  const size_t num_rows = branches * (growth.num_levels - 1);
  growing_.push_back({.growth = growth.grown.growth,
                      .place = growth.grown.place,
                      .num_levels = static_cast<int32_t>(growth.num_levels),
                      .sequence = static_cast<int32_t>(sequences_.size()),
                      .first_row = static_cast<int32_t>(state_of_.size()),
                      .first_state = growth.first_state});
  for (size_t row = num_rows; row < num_rows + branches; ++row) {
    growth.row_tokens[row] = growth.draft->tokens[0];
    growth.row_parents[row] =
        row < branches ? kTreeRoot : static_cast<int32_t>(row) - static_cast<int32_t>(branches);
    state_of_.push_back(growth.first_state);
  }
}

// Rows of the best candidates of the last level: all of the first one's.
void LayerDrafter::ContinueBest(Growth& growth) {
  const size_t branches = num_branches();
  const size_t num_rows = branches * (growth.num_levels - 1);
  const std::span<int32_t> best =
      std::span(order_).first(growth.num_levels == 1 ? branches : branches * branches);
  std::iota(best.begin(), best.end(),
            static_cast<int32_t>(NumCandidates(growth.num_levels) - best.size()));
  if (growth.num_levels > 1) {
    std::partial_sort(
        best.begin(), best.begin() + static_cast<std::ptrdiff_t>(branches), best.end(),
        [&](int32_t a, int32_t b) { return IsBetterCandidate(growth.scores.data(), a, b); });
  }
  for (size_t i = 0; i < branches; ++i) {
    const auto row = num_rows + i;
    const int32_t parent = best[i] / static_cast<int32_t>(branches) - 1;  // kTreeRoot: the last row
    growth.continued[1 + row] = best[i];
    growth.row_tokens[row] = growth.tokens[SizeOf(best[i])];
    growth.row_parents[row] = parent;
    const int32_t place =
        parent == kTreeRoot ? 0 : parent - static_cast<int32_t>(num_rows - branches);
    state_of_.push_back(growth.first_state + place);
  }
  if (faults_.Has(Fault::kDraftsNotSeen)) {
    std::ranges::fill(growth.row_parents.first(num_rows + branches), kTreeRoot);
  }
}

void LayerDrafter::TakeLevel(std::span<const TokenLogprob> top, Growth& growth) const {
  const size_t branches = num_branches();
  size_t first = NumCandidates(growth.num_levels);
  for (size_t i = 0; i < branches; ++i, first += branches) {
    const int32_t parent = growth.continued[1 + branches * (growth.num_levels - 1) + i];
    if (!AddCandidates(top.subspan(i * kMaxTopLogprobs, branches), growth.scores[SizeOf(parent)],
                       first, growth)) {
      growth.levels = growth.num_levels;  // without this one
      return;
    }
  }
  ++growth.num_levels;
}

void LayerDrafter::Select(const Growth& growth) {
  Draft& draft = *growth.draft;
  const size_t count = NumCandidates(growth.num_levels);
  SelectTree({.branches = static_cast<int32_t>(shape_.branches),
              .scores = growth.scores.first(count),
              .tokens = growth.tokens.first(count),
              .continued = growth.continued.first(1 + num_branches() * (growth.num_levels - 1))},
             draft.tokens[0], static_cast<int32_t>(std::min(draft.tokens.size(), count + 1)),
             tree_);
  draft.num_nodes = tree_.tokens.size();
  std::ranges::copy(tree_.tokens, draft.tokens.begin());
  std::ranges::copy(tree_.parents, draft.parents.begin());
}

// As many nodes as Select would take, of which the device knows all but the root.
void LayerDrafter::LeaveOpen(Growth& growth) {
  Draft& draft = *growth.draft;
  draft.num_nodes = std::min(draft.tokens.size(), NumCandidates(growth.num_levels) + 1);
  for (size_t i = 1; i < draft.num_nodes; ++i) {
    draft.tokens[i] = draft.tokens[0];
    draft.parents[i] = static_cast<int32_t>(i) - 1;
  }
  growth.grown.num_levels = static_cast<int32_t>(growth.num_levels);
  growth.grown.num_nodes = static_cast<int32_t>(draft.num_nodes);
  draft.grown = &growth.grown;
}

}  // namespace quire
