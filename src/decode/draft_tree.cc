#include "decode/draft_tree.h"

#include <algorithm>
#include <numeric>

#include "attn/sequence_step.h"
#include "base/error.h"

namespace quire {
namespace {

void Check(const DraftCandidates& candidates, int32_t num_nodes) {
  const int64_t count = std::ssize(candidates.scores);
  Require(candidates.branches >= 1, "branches: expected >= 1, got {}", candidates.branches);
  Require(std::ssize(candidates.tokens) == count, "tokens: expected {} (one per score), got {}",
          count, candidates.tokens.size());
  Require(num_nodes >= 1 && num_nodes <= count + 1,
          "num_nodes: expected 1..{} (the root and {} candidates), got {}", count + 1, count,
          num_nodes);
  const int64_t parents_needed = (count + candidates.branches - 1) / candidates.branches;
  Require(std::ssize(candidates.continued) >= parents_needed,
          "continued: expected {} ({} candidates of {} branches), got {}", parents_needed, count,
          candidates.branches, candidates.continued.size());
}

// The root and the numbers of the best `count` candidates, ascending.
void SelectBest(std::span<const float> scores, int32_t count, std::vector<int32_t>& numbers) {
  numbers.resize(scores.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::partial_sort(numbers.begin(), numbers.begin() + count, numbers.end(),
                    [&](int32_t a, int32_t b) { return IsBetterCandidate(scores.data(), a, b); });
  numbers.resize(static_cast<size_t>(count));
  numbers.push_back(-1);
  std::sort(numbers.begin(), numbers.end());
}

// The node that candidate `number` hangs on, among those before it.
int32_t ParentOf(const DraftCandidates& candidates, const DraftTree& tree, int32_t number) {
  const int32_t place = number / candidates.branches;
  if (place == 0) return 0;
  const int32_t parent = candidates.continued[static_cast<size_t>(place)];
  const auto at = std::lower_bound(tree.candidates.begin(), tree.candidates.end(), parent);
  Require(at != tree.candidates.end() && *at == parent,
          "candidate {}: its parent {} scored less and was left out", number, parent);
  return static_cast<int32_t>(at - tree.candidates.begin());
}

}  // namespace

void DraftTree::Reserve(size_t num_candidates) {
  tokens.reserve(num_candidates + 1);
  parents.reserve(num_candidates + 1);
  candidates.reserve(num_candidates + 1);
}

void SelectTree(const DraftCandidates& candidates, int32_t root_token, int32_t num_nodes,
                DraftTree& tree) {
  Check(candidates, num_nodes);
  SelectBest(candidates.scores, num_nodes - 1, tree.candidates);
  tree.tokens.assign(1, root_token);
  tree.parents.assign(1, kTreeRoot);
  for (const int32_t number : std::span(tree.candidates).subspan(1)) {
    tree.parents.push_back(ParentOf(candidates, tree, number));
    tree.tokens.push_back(candidates.tokens[static_cast<size_t>(number)]);
  }
}

}  // namespace quire
