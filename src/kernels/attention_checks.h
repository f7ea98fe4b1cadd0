// Checks that every attention op makes of its plan, store, lse output and workspace.
#ifndef QUIRE_KERNELS_ATTENTION_CHECKS_H_
#define QUIRE_KERNELS_ATTENTION_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "attn/kv_store.h"
#include "attn/plan.h"
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

// Workspaces hold vectors of floats; a Buffer is aligned far better than this.
inline constexpr size_t kWorkspaceAlignment = 16;

// Throws Error(kInvalidArgument) with the factors unless there are `bytes` aligned bytes.
void RequireWorkspace(std::span<const std::byte> workspace, ByteOffset bytes,
                      FunctionRef<std::string()> factors);

}  // namespace quire

#endif  // QUIRE_KERNELS_ATTENTION_CHECKS_H_
