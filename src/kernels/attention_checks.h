// Checks that every attention op makes of its plan, store, lse output and workspace.
#ifndef QUIRE_KERNELS_ATTENTION_CHECKS_H_
#define QUIRE_KERNELS_ATTENTION_CHECKS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/error.h"
#include "base/executor.h"
#include "base/tensor_view.h"
#include "base/units.h"

namespace quire {

// Throws Error(kInvalidArgument) unless the store holds latent rows in the plan's pages.
void RequireLatentStore(const Sequences& plan, const KvStore& store);
// The same of index keys.
void RequireIndexStore(const Sequences& plan, const KvStore& store);

// Throws Error(kInvalidArgument) unless lse is empty or [num_tokens, num_heads] f32.
void RequireLse(const TensorView& lse, int64_t num_tokens, int64_t num_heads);

// What latent attention computes with, dense or sparse: the plan, store, q, out, lse and scale of its
// arguments. Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
template <class Args>
void RequireLatentAttention(const Args& args) {
  RequireLatentStore(args.plan, args.store);
  const KvDims dims = args.store.layout().dims();
  const int64_t num_tokens = args.plan.num_query_tokens.raw();
  const int64_t num_heads = std::max<int64_t>(1, args.q.dim(1));
  RequireShape("q", args.q, {num_tokens, num_heads, dims.values()});
  RequireShape("out", args.out, {num_tokens, num_heads, dims.latent_dim});
  RequireLse(args.lse, num_tokens, num_heads);
  // Kernels look for the highest score before they scale it.
  Require(args.scale > 0 && std::isfinite(args.scale), "scale: expected > 0 and finite, got {}",
          args.scale);
}

// Workspaces hold vectors of floats; a Buffer is aligned far better than this.
inline constexpr size_t kWorkspaceAlignment = 16;

// Throws Error(kInvalidArgument) with the factors unless there are `bytes` aligned bytes.
void RequireWorkspace(std::span<const std::byte> workspace, ByteOffset bytes,
                      FunctionRef<std::string()> factors);

}  // namespace quire

#endif  // QUIRE_KERNELS_ATTENTION_CHECKS_H_
