#include "cli/simulated_acceptance.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace quire::cli {
namespace {

size_t AsSize(int64_t n) { return static_cast<size_t>(n); }

// The nodes from the root to the deepest one, of several the first.
std::vector<int32_t> DeepestPath(std::span<const int32_t> parents) {
  std::vector<int32_t> depths(parents.size(), 1);
  for (size_t i = 1; i < parents.size(); ++i) depths[i] = depths[AsSize(parents[i])] + 1;
  const auto deepest = std::ranges::max_element(depths);
  std::vector<int32_t> path(AsSize(*deepest));
  auto node = static_cast<int32_t>(deepest - depths.begin());
  for (auto place = path.rbegin(); place != path.rend(); ++place, node = parents[AsSize(node)]) {
    *place = node;
  }
  return path;
}

}  // namespace

SimulatedAcceptance::SimulatedAcceptance(std::unique_ptr<MeteredRunner> target, double length)
    : RunnerOver(std::move(target)), length_(length) {}

void SimulatedAcceptance::Submit(const StepBatch& batch) {
  target_->Submit(batch);
  step_ = batch.sequences;
}

const StepResult& SimulatedAcceptance::Collect() {
  const StepResult& result = target_->Collect();
  results_.assign(result.sequences.begin(), result.sequences.end());
  drawn_.assign(results_.size(), {});
  answers_.assign(results_.size(), {});
  for (size_t i = 0; i < results_.size(); ++i) {
    if (step_[i].tree_parents.empty() || results_[i].fault != RowFault::kNone) continue;
    const std::span<const StepToken> tokens = results_[i].answers[0].tokens;
    drawn_[i].assign(tokens.begin(), tokens.end());
    Decree(step_[i], drawn_[i]);
    answers_[i] = {.tokens = drawn_[i]};
    results_[i].answers = {&answers_[i], 1};
  }
  result_.sequences = results_;
  return result_;
}

// What is drawn at a node is right if it is the token of the next one on the path.
void SimulatedAcceptance::Decree(const StepSequence& seq, std::span<StepToken> drawn) {
  const std::vector<int32_t> path = DeepestPath(seq.tree_parents);
  owed_ += length_;
  const auto count = std::clamp<int64_t>(std::llround(std::floor(owed_)), 1, std::ssize(path));
  owed_ -= static_cast<double>(count);
  for (size_t i = 0; i + 1 < AsSize(count); ++i) {
    drawn[AsSize(path[i])].chosen.token = seq.tokens[AsSize(path[i + 1])];
  }
  drawn[AsSize(path[AsSize(count - 1)])].chosen.token = TokenUnlike(seq.tokens);
}

int32_t SimulatedAcceptance::TokenUnlike(std::span<const int32_t> others) {
  const auto vocab_size = static_cast<uint32_t>(limits().vocab_size);
  int32_t token = 0;
  do {
    token = static_cast<int32_t>(random_() % vocab_size);
  } while (std::ranges::find(others, token) != others.end());
  return token;
}

void AnyChains::AddNodes(const StepBatch&, std::span<Draft> drafts) {
  for (Draft& draft : drafts) {
    for (; draft.num_nodes < draft.tokens.size(); ++draft.num_nodes) {
      draft.tokens[draft.num_nodes] = static_cast<int32_t>(random_() % vocab_size_);
      draft.parents[draft.num_nodes] = static_cast<int32_t>(draft.num_nodes) - 1;
    }
  }
}

}  // namespace quire::cli
