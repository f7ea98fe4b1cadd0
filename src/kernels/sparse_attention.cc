#include "kernels/sparse_attention.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/attention_checks.h"

namespace quire {

void Validate(const SparseAttentionArgs& args, ByteOffset workspace_bytes) {
  RequireLatentAttention(args);
  const int64_t num_tokens = args.plan.num_query_tokens.raw();
  Require(args.top_k >= 1, "top_k: expected >= 1, got {}", args.top_k);
  Require(std::ssize(args.chosen) == num_tokens * args.top_k,
          "chosen: expected {} entries, {} for each of {} tokens, got {}", num_tokens * args.top_k,
          args.top_k, num_tokens, args.chosen.size());
  RequireWorkspace(args.workspace, workspace_bytes, [&] {
    const KvDims dims = args.store.layout().dims();
    return fmt::format("{} workers, {} heads, {} + {} values", args.plan.work.num_workers,
                       args.q.dim(1), dims.latent_dim, dims.rope_dim);
  });
}

}  // namespace quire
