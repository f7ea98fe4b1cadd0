#include "attn/expansion.h"

#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/maths.h"

namespace quire {
namespace {

// The next element of an array that has so many already.
template <class T>
T& Next(std::span<T> array, int32_t& count, const char* what) {
  if (!std::cmp_less(count, array.size())) {
    throw Error(ErrorCode::kCapacityExceeded, "expanded sequences: more than {} {}", array.size(),
                what);
  }
  return array[static_cast<size_t>(count++)];
}

int32_t ToInt(TokenCount count) { return static_cast<int32_t>(count.raw()); }

}  // namespace

Expansion LayOutExpansion(int32_t num_seqs, TokenCount query_tokens, TokenCount keys,
                          Carver& carver) {
  const int64_t tiles = CeilDiv(query_tokens, kExpandedBlock) + num_seqs;
  return {.counts = carver.Take<ExpansionCounts>(1),
          .tiles = carver.Take<ExpandedTile>(tiles),
          .blocks = carver.Take<ExpandedBlock>(CeilDiv(keys, kExpandedBlock))};
}

void CutExpansion(std::span<const SequenceStep> seqs, const Expansion& to) {
  int32_t num_tiles = 0, num_blocks = 0;
  TokenCount q_begin{0};
  for (size_t b = 0; b < seqs.size(); q_begin += seqs[b++].q_len) {
    const SequenceStep& seq = seqs[b];
    if (!seq.expanded) continue;
    Require(seq.tree_parents.empty(), "sequence {}: a tree; expected a causal sequence", b);
    const TokenCount first_row = kExpandedBlock * num_blocks;
    for (TokenCount at{0}; at < seq.kv_len; at += kExpandedBlock) {
      Next(to.blocks, num_blocks, "blocks") = {
          .seq = static_cast<int32_t>(b),
          .position = ToInt(at),
          .count = ToInt(Min(kExpandedBlock, seq.kv_len - at))};
    }
    const int32_t first_tile = num_tiles;
    const auto count = static_cast<int32_t>(CeilDiv(seq.q_len, kExpandedBlock));
    for (int32_t i = count - 1; i >= 0; --i) {
      const TokenCount at = kExpandedBlock * i;
      Next(to.tiles, num_tiles, "tiles") = {.q_begin = ToInt(q_begin + at),
                                            .q_count = ToInt(Min(kExpandedBlock, seq.q_len - at)),
                                            .visible = ToInt(seq.kv_len - seq.q_len + at) + 1,
                                            .first_row = ToInt(first_row),
                                            .first_tile = first_tile,
                                            .num_tiles = count};
    }
  }
  to.counts[0] = {.num_tiles = num_tiles, .row_offsets = {0, num_blocks * ToInt(kExpandedBlock)}};
}

}  // namespace quire
