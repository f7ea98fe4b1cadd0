#include "kernels/select_keys.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "kernels/attention_checks.h"

namespace quire {

void Validate(const IndexShape& shape) {
  Require(shape.num_heads >= 1, "index.num_heads: expected >= 1, got {}", shape.num_heads);
  Require(shape.head_dim >= 1, "index.head_dim: expected >= 1, got {}", shape.head_dim);
  Require(shape.top_k >= 1, "index.top_k: expected >= 1, got {}", shape.top_k);
  Require(shape.init_tokens >= 0 && shape.local_tokens >= 0 &&
              int64_t{shape.init_tokens} + shape.local_tokens <= shape.top_k,
          "index.init_tokens + index.local_tokens: expected 0..{} (top_k), got {} + {}",
          shape.top_k, shape.init_tokens, shape.local_tokens);
}

void Validate(const SelectKeysArgs& args, ByteOffset workspace_bytes) {
  Validate(args.shape);
  RequireIndexStore(args.plan, args.store);
  const KvDims dims = args.store.layout().dims();
  Require(dims.latent_dim == args.shape.head_dim, "store: expected keys of {} values, got {}",
          args.shape.head_dim, dims.latent_dim);
  const int64_t num_tokens = args.plan.num_query_tokens.raw();
  RequireShape("q", args.q, {num_tokens, args.shape.num_heads, args.shape.head_dim});
  RequireShape("gates", args.gates, {num_tokens, args.shape.num_heads});
  Require(args.gates.dtype() == DType::kF32, "gates: expected f32");
  Require(std::isfinite(args.scale), "scale: expected a finite number, got {}", args.scale);
  Require(std::ssize(args.chosen) == num_tokens * args.shape.top_k,
          "chosen: expected {} entries, {} for each of {} tokens, got {}",
          num_tokens * args.shape.top_k, args.shape.top_k, num_tokens, args.chosen.size());
  RequireWorkspace(args.workspace, workspace_bytes, [&] {
    return fmt::format("{} workers, {} heads of {} values, top_k {}", args.plan.work.num_workers,
                       args.shape.num_heads, args.shape.head_dim, args.shape.top_k);
  });
}

}  // namespace quire
