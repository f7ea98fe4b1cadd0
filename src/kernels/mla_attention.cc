#include "kernels/mla_attention.h"

#include "base/error.h"
#include "kernels/plan_store.h"

namespace quire {

void Validate(const MlaAttentionArgs& args, ByteOffset workspace_bytes) {
  const KvDims dims = args.store.layout().dims();
  RequireLatentStore(args.plan, args.store);
  Require(args.q.rank() == 3, "q: expected [num_query_tokens, num_heads, {}], got {}",
          dims.values(), args.q.ShapeString());
  const int64_t num_tokens = args.plan.num_query_tokens.raw();
  const int64_t num_heads = args.q.dim(1);
  Require(num_heads >= 1, "q: expected at least one head, got {}", args.q.ShapeString());
  RequireShape("q", args.q, {num_tokens, num_heads, dims.values()});
  RequireShape("out", args.out, {num_tokens, num_heads, dims.latent_dim});
  RequireLse(args.lse, num_tokens, num_heads);
  Require(
      ByteOffset(args.workspace.size()) >= workspace_bytes,
      "workspace: expected {} bytes ({} workers, {} heads, {} + {} values, {} partials), got {}",
      workspace_bytes, args.plan.work.num_workers, num_heads, dims.latent_dim, dims.rope_dim,
      args.plan.num_partials, args.workspace.size());
}

ByteOffset MlaAttentionBytes(const Plan& plan, const KvStore& store, const MlaShape& shape) {
  const int64_t row_bytes = store.layout().packed_row_bytes();
  ByteOffset bytes{0};
  for (TokenCount kv_len : plan.kv_len) bytes += ByteOffset(row_bytes) * kv_len.raw();
  const int64_t values_per_head = shape.dims.values() + shape.dims.latent_dim;
  return bytes + ByteOffset(4 * values_per_head * shape.num_heads) * plan.num_query_tokens.raw();
}

double MlaAttentionFlops(const Plan& plan, const MlaShape& shape) {
  double seen_keys = 0;
  for (const QueryTile& tile : plan.tiles) {
    for (int32_t i = 0; i < tile.q_count; ++i) {
      seen_keys += static_cast<double>(plan.Visible(tile.seq, tile.q_begin + TokenCount(i)).raw());
    }
  }
  return 2.0 * seen_keys * shape.num_heads * (shape.dims.values() + shape.dims.latent_dim);
}

}  // namespace quire
