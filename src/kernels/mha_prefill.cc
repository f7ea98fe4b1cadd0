#include "kernels/mha_prefill.h"

#include <tuple>

#include "base/error.h"
#include "kernels/attention_checks.h"

namespace quire {

void Validate(const MhaShape& shape) {
  Require(shape.num_heads >= 1, "shape.num_heads: expected >= 1, got {}", shape.num_heads);
  // kMaxRowValues keeps sums and products of dims far inside 32 bits.
  for (const auto& [name, dim, least] :
       {std::tuple("nope_dim", shape.nope_dim, 1), std::tuple("value_dim", shape.value_dim, 1),
        std::tuple("latent_dim", shape.dims.latent_dim, 1),
        std::tuple("rope_dim", shape.dims.rope_dim, 0)}) {
    Require(dim >= least && dim <= kMaxRowValues, "shape.{}: expected {}..{}, got {}", name, least,
            kMaxRowValues, dim);
  }
}

void Validate(const MhaPrefillArgs& args, ByteOffset workspace_bytes) {
  const MhaShape& shape = args.shape;
  Validate(shape);
  RequireLatentStore(args.plan, args.store);
  Require(shape.dims == args.store.layout().dims(),
          "shape.dims: expected the store's {} + {}, got {} + {}",
          args.store.layout().dims().latent_dim, args.store.layout().dims().rope_dim,
          shape.dims.latent_dim, shape.dims.rope_dim);
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
  RequireWorkspace(args.workspace, workspace_bytes, [&] {
    return fmt::format("{} heads, {} + {} -> {} + {} values", shape.num_heads,
                       shape.dims.latent_dim, shape.dims.rope_dim, shape.nope_dim, shape.value_dim);
  });
}

bool PaysToExpand(const MhaShape& shape, TokenCount q_len, TokenCount kv_len) {
  const auto queries = static_cast<double>(q_len.raw()), keys = static_cast<double>(kv_len.raw());
  const double pairs = queries * (keys - queries / 2);
  // A query is brought to latent form by its nope part, and its sum back to a value.
  const double up = double(shape.dims.latent_dim) * (shape.nope_dim + shape.value_dim);
  const double latent = 2.0 * shape.dims.latent_dim + shape.dims.rope_dim;
  const double heads = shape.nope_dim + shape.dims.rope_dim + shape.value_dim;
  return pairs * heads + keys * up < pairs * latent + queries * up;
}

}  // namespace quire
