// Latent attention over chosen keys: MlaAttention (kernels/mla_attention.h), with a list of keys for
// every query instead of all that it sees.
//
// Tiles and splits are counted along the list, whose positions ascend. So a query that chose all keys
// it sees has the bits of dense attention in exact mode, and its bits depend on its own sequence,
// position and choice alone.
#ifndef QUIRE_KERNELS_SPARSE_ATTENTION_H_
#define QUIRE_KERNELS_SPARSE_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/mla_attention.h"

namespace quire {

struct SparseAttentionArgs {
  const Plan& plan;
  const KvStore& store;    // a latent format
  ConstTensorView q = {};  // [num_query_tokens, num_heads, latent_dim + rope_dim] f32 or bf16
  // [num_query_tokens, top_k] as SelectKeys leaves it: positions that the query sees, ascending, up to
  // the first -1. One that it does not see throws Error(kInvalidArgument).
  std::span<const int32_t> chosen = {};
  int32_t top_k = 0;
  TensorView out = {};  // [num_query_tokens, num_heads, latent_dim] f32 or bf16
  TensorView lse = {};  // [num_query_tokens, num_heads] f32; may be empty
  float scale = 1.0f;   // > 0
  // As large as the backend says for the plan's work and the shape, aligned to kWorkspaceAlignment.
  std::span<std::byte> workspace = {};
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const SparseAttentionArgs& args, ByteOffset workspace_bytes);

}  // namespace quire

#endif  // QUIRE_KERNELS_SPARSE_ATTENTION_H_
