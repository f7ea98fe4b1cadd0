#include "kernels/mla_attention.h"

#include "base/error.h"
#include "kernels/attention_checks.h"

namespace quire {

void Validate(const MlaShape& shape) {
  Require(shape.num_heads >= 1, "shape.num_heads: expected >= 1, got {}", shape.num_heads);
  Require(shape.dims.latent_dim >= 1 && shape.dims.rope_dim >= 0,
          "shape.dims: expected latent_dim >= 1 and rope_dim >= 0, got {} and {}",
          shape.dims.latent_dim, shape.dims.rope_dim);
}

void Validate(const MlaAttentionArgs& args, ByteOffset workspace_bytes) {
  RequireLatentAttention(args);
  RequireWorkspace(args.workspace, workspace_bytes, [&] {
    const KvDims dims = args.store.layout().dims();
    return fmt::format("{} workers, {} heads, {} + {} values, {} partials",
                       args.plan.work.num_workers, args.q.dim(1), dims.latent_dim, dims.rope_dim,
                       args.plan.num_partials);
  });
}

ByteOffset MlaAttentionBytes(const Plan& plan, const KvStore& store, const MlaShape& shape,
                             DType q_and_out) {
  const ByteOffset row_bytes(store.layout().packed_row_bytes());
  ByteOffset bytes{0};
  for (int32_t b = 0; b < plan.num_seqs; ++b) {
    if (plan.QLen(b) > TokenCount(0)) {
      bytes += row_bytes * plan.kv_len[static_cast<size_t>(b)].raw();
    }
  }
  const int64_t values_per_head = shape.dims.values() + shape.dims.latent_dim;
  return bytes + ByteOffset(DTypeBytes(q_and_out) * values_per_head * shape.num_heads) *
                     plan.num_query_tokens.raw();
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
