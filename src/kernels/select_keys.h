// Choosing the keys of sparse attention: the top_k that an indexer scores highest, for every query.
//
//   score(t, j) = sum over heads h of (scale * gates[t, h]) * relu(dot(q[t, h], key_j))
//
// over the keys j that t sees; key_j is the store's row after rounding, the step's own included, so a
// step's index keys are written before this runs. Of two keys the one with the higher score comes
// first; -0 equals +0, NaN is below everything, and of equals the lower position comes first. So the
// choice is one set, however the work is cut. Positions are those of the sequence; in a tree, those of
// the query's own path, as if it lay contiguously.
//
// A query that sees at most top_k keys gets them all, and none is scored. Scores are streamed into the
// choice, a tile of keys at a time: memory does not grow with the context. Nothing behind a query's
// end, and no other branch of a tree, is read.
#ifndef QUIRE_KERNELS_SELECT_KEYS_H_
#define QUIRE_KERNELS_SELECT_KEYS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/host_device.h"
#include "base/tensor_view.h"
#include "base/units.h"

namespace quire {

struct IndexShape {
  int32_t num_heads = 0;  // 0: there is no indexer
  int32_t head_dim = 0;
  int32_t top_k = 0;
  // Always chosen: the first and the last keys that a query sees. At most top_k together.
  int32_t init_tokens = 0;
  int32_t local_tokens = 0;
};
// Throws Error(kInvalidArgument) naming the field and its value.
void Validate(const IndexShape& shape);

struct SelectKeysArgs {
  const Plan& plan;
  const KvStore& store;  // an index-key format
  IndexShape shape = {};
  ConstTensorView q = {};      // [num_query_tokens, num_heads, head_dim] f32 or bf16, rotated
  ConstTensorView gates = {};  // [num_query_tokens, num_heads] f32
  float scale = 1.0f;          // finite
  // [num_query_tokens, top_k]: positions ascending, and -1 behind them. Every entry is written.
  std::span<int32_t> chosen = {};
  // As large as the backend says for the plan's work and the shape, aligned to kWorkspaceAlignment.
  std::span<std::byte> workspace = {};
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const SelectKeysArgs& args, ByteOffset workspace_bytes);

// ---- The order ----

// A key's score and position as one number: of two keys the one with the larger number comes first.
// Positions are below 2^32 - 1.
QUIRE_HD inline uint64_t RankOf(float score, int64_t position) {
#ifdef __CUDA_ARCH__
  const uint32_t bits = __float_as_uint(score);
#else
  const uint32_t bits = std::bit_cast<uint32_t>(score);
#endif
  uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (score == 0.0f) ascending = 0x80000000u;
  if (score != score) ascending = 0;  // -inf is 0x007fffff
  return uint64_t{ascending} << 32 | (0xffffffffu - static_cast<uint32_t>(position));
}
// The number of a key that is always chosen: above those of all scores, +inf among them.
QUIRE_HD inline uint64_t RankOfForced(int64_t position) {
  return uint64_t{0xffffffffu} << 32 | (0xffffffffu - static_cast<uint32_t>(position));
}
QUIRE_HD inline int32_t PositionOfRank(uint64_t rank) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
}

}  // namespace quire

#endif  // QUIRE_KERNELS_SELECT_KEYS_H_
