#include "runner/shape_chooser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// A guess that nothing is known of is taken to be right so often, and that weighs as this many drafts. Fewer
// than one in ten wrong is seldom seen: what does not pay so is not worth a try.
constexpr double kHopedFor = 0.9;
constexpr double kHopeWeight = 4;
// Drafts that count: older ones fade.
constexpr double kMostDrafts = 256;
// After as many tokens without drafts what is known counts for a quarter. What was known of 256 drafts is
// all but gone after 24576 tokens; a try takes some ten drafts.
constexpr int64_t kForgetEvery = 4096;
constexpr double kForgetTo = 0.25;
// A shape has to be so much faster than plain steps: costs are measured, and not exact.
constexpr double kWorthIt = 1.03;
// Prompts are taken to be as long as answers until some were seen: tokens that this weighs, and those that
// count.
constexpr double kFirstTokens = 64;
constexpr double kMostTokens = 8192;

}  // namespace

std::vector<TreeShape> CandidateShapes(int64_t most_branches, int64_t most_nodes) {
  std::vector<TreeShape> shapes = {
      {.steps = 1, .branches = 1, .nodes = 2},  {.steps = 2, .branches = 1, .nodes = 3},
      {.steps = 3, .branches = 1, .nodes = 4},  {.steps = 5, .branches = 1, .nodes = 6},
      {.steps = 3, .branches = 4, .nodes = 8},  {.steps = 4, .branches = 4, .nodes = 16},
      {.steps = 5, .branches = 8, .nodes = 32},
  };
  std::erase_if(shapes, [&](const TreeShape& shape) {
    return shape.branches > most_branches || shape.nodes > most_nodes;
  });
  return shapes;
}

ShapeChooser::ShapeChooser(std::vector<TreeShape> shapes, ShapeCosts costs)
    : shapes_(std::move(shapes)),
      costs_(std::move(costs)),
      trees_(shapes_.size()),
      prompt_tokens_(kFirstTokens),
      drawn_tokens_(kFirstTokens) {
  QUIRE_CHECK(!costs_.steps.empty(), "no costs");
  for (const ShapeCost& cost : costs_.steps) {
    QUIRE_CHECK(cost.seconds.size() == shapes_.size() + 1, "{} costs of {} shapes",
                cost.seconds.size(), shapes_.size());
  }
}

void ShapeChooser::Depths::Scale(double factor) {
  for (double& count : reached) count *= factor;
  for (double& count : right) count *= factor;
}

ShapeChooser::Depths& ShapeChooser::DepthsOf(size_t number) {
  return IsChain(shape(number)) ? chains_ : trees_[number - 1];
}

double ShapeChooser::Cost(int64_t num_seqs, size_t number) const {
  const std::vector<ShapeCost>& costs = costs_.steps;
  const auto above =
      std::ranges::find_if(costs, [&](const ShapeCost& cost) { return cost.num_seqs >= num_seqs; });
  if (above == costs.end()) {  // as if the last one's time were its sequences'
    const ShapeCost& last = costs.back();
    return last.seconds[number] * static_cast<double>(num_seqs) /
           static_cast<double>(last.num_seqs);
  }
  if (above == costs.begin()) return above->seconds[number];
  const ShapeCost& below = *(above - 1);
  if (std::isinf(below.seconds[number])) return below.seconds[number];
  const double part = static_cast<double>(num_seqs - below.num_seqs) /
                      static_cast<double>(above->num_seqs - below.num_seqs);
  return below.seconds[number] + part * (above->seconds[number] - below.seconds[number]);
}

// A tree's guesses are hoped to be right where one of two chains would be.
double ShapeChooser::MeanTokens(size_t number) const {
  if (number == 0) return 1;
  const TreeShape& of = shape(number);
  double tokens = 1, all_right = 1, of_chain = kHopedFor;
  for (int64_t depth = 0; depth < of.steps; ++depth) {
    const auto i = static_cast<size_t>(depth);
    const auto rate = [&](const Depths& depths, double hoped) {
      return (depths.right[i] + kHopeWeight * hoped) / (depths.reached[i] + kHopeWeight);
    };
    of_chain = rate(chains_, of_chain);
    const double of_two = 1 - (1 - of_chain) * (1 - of_chain);
    all_right *= IsChain(of) ? of_chain : rate(trees_[number - 1], of_two);
    tokens += all_right;
  }
  return tokens;
}

size_t ShapeChooser::Choose(int64_t num_seqs) const {
  const auto seqs = static_cast<double>(num_seqs);
  const double of_prompts = costs_.prompt_token_seconds * prompt_tokens_ / drawn_tokens_;
  size_t best = 0;
  double least = Cost(num_seqs, 0) / seqs / kWorthIt;  // seconds of a token
  for (size_t number = 1; number <= shapes_.size(); ++number) {
    const double seconds = Cost(num_seqs, number) / seqs / MeanTokens(number) + of_prompts;
    if (seconds >= least) continue;
    best = number;
    least = seconds;
  }
  return best;
}

void ShapeChooser::NoteTokens(int64_t of_prompts, int64_t drawn) {
  prompt_tokens_ += static_cast<double>(of_prompts);
  drawn_tokens_ += static_cast<double>(drawn);
  if (drawn_tokens_ < kMostTokens) return;
  prompt_tokens_ *= 0.5;
  drawn_tokens_ *= 0.5;
}

void ShapeChooser::NoteDraft(size_t number, int64_t depth, int64_t accepted) {
  QUIRE_CHECK(accepted <= depth && depth <= kMaxDraftSteps, "{} of {} levels", accepted, depth);
  Depths& depths = DepthsOf(number);
  if (depths.reached[0] >= kMostDrafts) depths.Scale(0.5);
  for (int64_t i = 0; i < std::min(depth, accepted + 1); ++i) {
    depths.reached[static_cast<size_t>(i)] += 1;
    if (i < accepted) depths.right[static_cast<size_t>(i)] += 1;
  }
}

void ShapeChooser::NotePlain(int64_t num_seqs) {
  num_plain_ += num_seqs;
  if (num_plain_ < kForgetEvery) return;
  num_plain_ = 0;
  chains_.Scale(kForgetTo);
  for (Depths& depths : trees_) depths.Scale(kForgetTo);
}

}  // namespace quire
