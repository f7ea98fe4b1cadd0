// Paged prefill in multi-head form, for engines that want it: keys and values are expanded from the
// latent rows, a bounded chunk at a time, and chunks are merged by log-sum-exp.
//
//   [k_nope | v](j, h) = latent_j * w_kv_b[h]^T            k(j, h) = [k_nope(j, h) | rope_j]
//   score(t, h, j)     = scale * dot(q[t, h], k(j, h))     causal, as in kernels/mla_attention.h
//   out(t, h)          = sum_j softmax_j(score) * v(j, h)
//
// The same numbers as latent form, up to rounding; worth it when many queries share the expansion.
// Trees are refused: they are short, and latent form is the faster one for them. A row's bits
// depend on its own sequence and position alone, for one chunk length.
#ifndef QUIRE_KERNELS_MHA_PREFILL_H_
#define QUIRE_KERNELS_MHA_PREFILL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/expansion.h"
#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/weight.h"

namespace quire {

struct MhaShape {
  int32_t num_heads = 1;
  int32_t nope_dim = 128;   // of a query and key head, besides the rope part
  int32_t value_dim = 128;  // of a value head
  KvDims dims = {};         // of a cache row
};

// Throws Error(kInvalidArgument) naming the field and its value.
void Validate(const MhaShape& shape);

struct MhaPrefillArgs {
  const Plan& plan;
  const KvStore& store;  // a latent format
  MhaShape shape = {};
  ConstTensorView q = {};       // [num_query_tokens, num_heads, nope_dim + rope_dim] f32, bf16
  ConstTensorView w_kv_b = {};  // [num_heads * (nope_dim + value_dim), latent_dim] f32, bf16
  TensorView out = {};          // [num_query_tokens, num_heads, value_dim] f32, bf16
  TensorView lse = {};          // [num_query_tokens, num_heads] f32; may be empty
  float scale = 1.0f;
  TokenCount chunk{4096};               // keys per merged chunk, a positive multiple of kKeyTile
  std::span<std::byte> workspace = {};  // the backend's workspace size
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const MhaPrefillArgs& args, ByteOffset workspace_bytes);

// The same of those sequences of a step alone that are expanded (attn/expansion.h), from weights as a
// backend keeps them: what is an op of a step.
struct AttendExpandedArgs {
  const Plan& plan;
  const Expansion& expansion;  // of the plan's step
  const KvStore& store;        // a latent format
  MhaShape shape = {};
  ConstTensorView q = {};  // [num_query_tokens, num_heads, nope_dim + rope_dim]
  Weight key_up = {};      // [num_heads] latent_dim -> nope_dim
  Weight value_up = {};    // [num_heads] latent_dim -> value_dim
  TensorView out = {};  // [num_query_tokens, num_heads, value_dim]; rows of no others are written
  TensorView lse = {};  // [num_query_tokens, num_heads] f32; may be empty
  float scale = 1.0f;
};

// Whether multi-head form takes a sequence of q_len queries and kv_len keys less time than latent form:
// by the multiplications of both, with what a query and a key have to be brought to either form.
bool PaysToExpand(const MhaShape& shape, TokenCount q_len, TokenCount kv_len);

}  // namespace quire

#endif  // QUIRE_KERNELS_MHA_PREFILL_H_
