// One sequence's part in a step. A step is data, not a mode: decode is q_len 1, a prefill chunk is
// q_len n, drafting and verification are q_len n with parents (a tree).
#ifndef QUIRE_ATTN_SEQUENCE_STEP_H_
#define QUIRE_ATTN_SEQUENCE_STEP_H_

#include <cstdint>
#include <span>

#include "base/units.h"

namespace quire {

// The parent of a tree node that hangs on the committed tokens themselves.
inline constexpr int32_t kTreeRoot = -1;

struct SequenceStep {
  // The queries are the last q_len of the kv_len tokens. A padded row has kv_len 0, and then its
  // queries see nothing; so do the first q_len - kv_len queries of any row with q_len > kv_len.
  TokenCount q_len = {};
  TokenCount kv_len = {};  // tokens in the cache once this step's own are written

  // The pages of the row in position order; at least PagesFor(kv_len), more are ignored.
  std::span<const PageId> pages = {};

  // Empty: causal, query j sees the first kv_len - q_len + j + 1 tokens.
  // Otherwise the last tree_parents.size() >= q_len tokens of the row are tree nodes, and
  // tree_parents[i] < i is the node that node i hangs on, or kTreeRoot. A query sees every
  // committed token (those before the first node), its own node, and the node's ancestors.
  std::span<const int32_t> tree_parents = {};

  // It attends in multi-head form (attn/expansion.h), or is padding of a step that has such sequences:
  // no schedule of latent form has its queries. Never a tree.
  bool expanded = false;

  TokenCount num_nodes() const { return TokenCount(tree_parents.size()); }
  TokenCount committed() const { return kv_len - num_nodes(); }
};

}  // namespace quire

#endif  // QUIRE_ATTN_SEQUENCE_STEP_H_
