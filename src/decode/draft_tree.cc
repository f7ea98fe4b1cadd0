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

// The numbers of the best `count` candidates, ascending.
std::vector<int32_t> BestCandidates(std::span<const float> scores, size_t count) {
  std::vector<int32_t> numbers(scores.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::stable_sort(numbers.begin(), numbers.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  numbers.resize(count);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The node that candidate `number` hangs on, among those selected so far.
int32_t ParentOf(const DraftCandidates& candidates, const DraftTree& tree, int32_t number) {
  const int32_t place = number / candidates.branches;
  if (place == 0) return 0;
  const int32_t parent = candidates.continued[static_cast<size_t>(place)];
  const auto at = std::find(tree.candidates.begin(), tree.candidates.end(), parent);
  Require(at != tree.candidates.end(), "candidate {}: its parent {} scored less and was left out",
          number, parent);
  return static_cast<int32_t>(at - tree.candidates.begin());
}

}  // namespace

DraftTree SelectTree(const DraftCandidates& candidates, int32_t root_token, int32_t num_nodes) {
  Check(candidates, num_nodes);
  DraftTree tree{.tokens = {root_token},
                 .parents = {kTreeRoot},
                 .first_child = std::vector<int32_t>(static_cast<size_t>(num_nodes), -1),
                 .next_sibling = std::vector<int32_t>(static_cast<size_t>(num_nodes), -1),
                 .candidates = {-1}};
  for (int32_t number : BestCandidates(candidates.scores, static_cast<size_t>(num_nodes - 1))) {
    tree.parents.push_back(ParentOf(candidates, tree, number));
    tree.tokens.push_back(candidates.tokens[static_cast<size_t>(number)]);
    tree.candidates.push_back(number);
  }
  // Backwards, so that each parent ends with its lowest child first.
  for (size_t node = static_cast<size_t>(num_nodes) - 1; node > 0; --node) {
    int32_t& first_child = tree.first_child[static_cast<size_t>(tree.parents[node])];
    tree.next_sibling[node] = first_child;
    first_child = static_cast<int32_t>(node);
  }
  return tree;
}

}  // namespace quire
