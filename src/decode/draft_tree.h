// The tree of drafted tokens that one verification step looks at.
#ifndef QUIRE_DECODE_DRAFT_TREE_H_
#define QUIRE_DECODE_DRAFT_TREE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.h"

namespace quire {

// What drafting left behind for one sequence. Level 0 has `branches` candidates, every later level
// branches * branches: those of each of the `branches` candidates that went on. Candidates are
// numbered through: level 0 first, then level by level.
struct DraftCandidates {
  int32_t branches = 1;
  std::span<const float> scores;    // probability of the candidate and all before it on its path
  std::span<const int32_t> tokens;  // as many
  // The candidates that went on: -1 for the root, then 0 .. branches - 1 of level 0, then, for every
  // later level but the last, the numbers of the `branches` that went on. Candidate c hangs on
  // continued[c / branches].
  std::span<const int32_t> continued;
};

// Node 0 is the root: the token that is known but not yet in the cache.
struct DraftTree {
  // Memory for trees that are selected of so many candidates.
  void Reserve(size_t num_candidates);

  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;     // a SequenceStep's tree_parents: parents[0] is kTreeRoot
  std::vector<int32_t> candidates;  // number of each node's candidate; -1 for the root
};

// Whether candidate a goes before b: that of the higher score, or of the lower number.
QUIRE_HD inline bool IsBetterCandidate(const float* scores, int32_t a, int32_t b) {
  return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
}

// Makes `tree` the root and the num_nodes - 1 candidates of the highest score, ties to the lower number,
// in the order of their numbers. A candidate's score is never above its parent's, so parents are among
// them. Throws Error(kInvalidArgument) if the arrays do not fit each other or a parent was left out; the
// tree is then of no use. Allocates nothing where memory was reserved.
void SelectTree(const DraftCandidates& candidates, int32_t root_token, int32_t num_nodes,
                DraftTree& tree);

}  // namespace quire

#endif  // QUIRE_DECODE_DRAFT_TREE_H_
