#include "kernels/mha_prefill.h"

#include "base/error.h"
#include "kernels/plan_store.h"

namespace quire {

void Validate(const MhaPrefillArgs& args, ByteOffset workspace_bytes) {
  const MhaShape& shape = args.shape;
  RequireLatentStore(args.plan, args.store);
  Require(shape.dims == args.store.layout().dims(),
          "shape.dims: expected the store's {} + {}, got {} + {}",
          args.store.layout().dims().latent_dim, args.store.layout().dims().rope_dim,
          shape.dims.latent_dim, shape.dims.rope_dim);
  Require(shape.num_heads >= 1 && shape.nope_dim >= 1 && shape.value_dim >= 1,
          "shape: expected positive num_heads, nope_dim and value_dim, got {}, {} and {}",
          shape.num_heads, shape.nope_dim, shape.value_dim);
  Require(args.chunk > TokenCount(0) && args.chunk.raw() % kKeyTile.raw() == 0,
          "chunk: expected a positive multiple of {}, got {}", kKeyTile, args.chunk);
  for (int32_t b = 0; b < args.plan.num_seqs; ++b) {
    Require(!args.plan.IsTree(b), "sequence {}: a tree; expected a causal sequence", b);
  }
  const int64_t num_tokens = args.plan.num_query_tokens.raw();
  RequireShape("q", args.q, {num_tokens, shape.num_heads, shape.nope_dim + shape.dims.rope_dim});
  RequireShape(
      "w_kv_b", args.w_kv_b,
      {int64_t{shape.num_heads} * (shape.nope_dim + shape.value_dim), shape.dims.latent_dim});
  RequireShape("out", args.out, {num_tokens, shape.num_heads, shape.value_dim});
  RequireLse(args.lse, num_tokens, shape.num_heads);
  Require(ByteOffset(args.workspace.size()) >= workspace_bytes,
          "workspace: expected {} bytes, got {}", workspace_bytes, args.workspace.size());
}

}  // namespace quire
