#include "kernels/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/attention_checks.h"

namespace quire {

void Validate(const SparseAttentionArgs& args, ByteOffset workspace_bytes) {
  const KvDims dims = args.store.layout().dims();
  RequireLatentStore(args.plan, args.store);
  const int64_t num_tokens = args.plan.num_query_tokens.raw();
  const int64_t num_heads = std::max<int64_t>(1, args.q.dim(1));
  RequireShape("q", args.q, {num_tokens, num_heads, dims.values()});
  RequireShape("out", args.out, {num_tokens, num_heads, dims.latent_dim});
  RequireLse(args.lse, num_tokens, num_heads);
  Require(args.scale > 0 && std::isfinite(args.scale), "scale: expected > 0 and finite, got {}",
          args.scale);
  Require(args.top_k >= 1, "top_k: expected >= 1, got {}", args.top_k);
  Require(std::ssize(args.chosen) == num_tokens * args.top_k,
          "chosen: expected {} entries, {} for each of {} tokens, got {}", num_tokens * args.top_k,
          args.top_k, num_tokens, args.chosen.size());
  RequireWorkspace(args.workspace, workspace_bytes, [&] {
    return fmt::format("{} workers, {} heads, {} + {} values", args.plan.work.num_workers,
                       num_heads, dims.latent_dim, dims.rope_dim);
  });
}

}  // namespace quire
