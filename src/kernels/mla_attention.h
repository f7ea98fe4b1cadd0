// Paged attention in latent form: every query head against one shared row per key.
//
//   score(t, h, j) = scale * dot(q[t, h], row_j)          over latent_dim + rope_dim values
//   lse(t, h)      = log sum_j exp(score(t, h, j))        over the keys that t sees
//   out(t, h)      = sum_j exp(score - lse) * row_j[0 .. latent_dim)
//
// A query that sees nothing gets zeros and lse -inf. Keys are read as the store returns them, after
// rounding, the step's own included, so a step's rows are written before this runs. The order of
// summation is the plan's (attn/plan.h): a row's bits depend on its own sequence and
// position alone.
#ifndef QUIRE_KERNELS_MLA_ATTENTION_H_
#define QUIRE_KERNELS_MLA_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/tensor_view.h"
#include "base/units.h"

namespace quire {

struct MlaShape {
  int32_t num_heads = 1;
  KvDims dims = {};
};
// Throws Error(kInvalidArgument) naming the field and its value.
void Validate(const MlaShape& shape);

struct MlaAttentionArgs {
  const Plan& plan;
  const KvStore& store;    // a latent format
  ConstTensorView q = {};  // [num_query_tokens, num_heads, latent_dim + rope_dim] f32 or bf16
  TensorView out = {};     // [num_query_tokens, num_heads, latent_dim] f32 or bf16
  TensorView lse = {};     // [num_query_tokens, num_heads] f32; may be empty
  float scale = 1.0f;      // > 0
  // As large as the backend says for the plan's capacity, aligned to kWorkspaceAlignment.
  std::span<std::byte> workspace = {};
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const MlaAttentionArgs& args, ByteOffset workspace_bytes);

// What the op must read and compute, for benchmarks: the keys that a sequence's queries see, each
// once, plus q and out of the given type; two multiply-adds per (query head, seen key) and value.
ByteOffset MlaAttentionBytes(const Plan& plan, const KvStore& store, const MlaShape& shape,
                             DType q_and_out);
double MlaAttentionFlops(const Plan& plan, const MlaShape& shape);

}  // namespace quire

#endif  // QUIRE_KERNELS_MLA_ATTENTION_H_
