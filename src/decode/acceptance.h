// Which drafted tokens the target model agrees with.
#ifndef QUIRE_DECODE_ACCEPTANCE_H_
#define QUIRE_DECODE_ACCEPTANCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "decode/draft_tree.h"

namespace quire {

struct Acceptance {
  std::vector<int32_t> nodes;  // the accepted path, the root first
  int32_t next_token = 0;      // the target's own token behind the last of them
};

// Follows the target's choice at every node: target[i] is the token it would put behind node i. At
// most max_nodes nodes, the root included. Throws Error(kInvalidArgument) if the sizes do not fit.
Acceptance AcceptGreedy(const DraftTree& tree, std::span<const int32_t> target, int32_t max_nodes);

struct TargetSampling {
  std::span<const float> probabilities;  // [num_nodes, vocab] of the token behind each node
  std::span<const float> coins;          // [num_nodes] uniform in 0..1: accept below this node
  float last_coin = 0;                   // uniform in 0..1: the token behind the path
};

// Accepts a child with the target's probability of its token, siblings in order; what is left of the
// distribution gives the next token. Tokens come out distributed as the target would draw them.
Acceptance AcceptSampled(const DraftTree& tree, const TargetSampling& target, int32_t max_nodes);

}  // namespace quire

#endif  // QUIRE_DECODE_ACCEPTANCE_H_
