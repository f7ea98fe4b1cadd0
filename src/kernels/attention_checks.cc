#include "kernels/attention_checks.h"

#include "base/error.h"

namespace quire {

namespace {

void RequirePagesOf(const Sequences& plan, const KvStore& store) {
  Require(plan.page_size == store.page_size(), "store: expected the plan's page_size {}, got {}",
          plan.page_size, store.page_size());
  Require(plan.pool_pages <= store.num_pages(),
          "store: expected the plan's pool of {} pages, got {}", plan.pool_pages,
          store.num_pages());
}

}  // namespace

void RequireLatentStore(const Sequences& plan, const KvStore& store) {
  Require(!store.layout().is_index_key(), "store: expected a latent format, got {}",
          KvFormatName(store.layout().format()));
  RequirePagesOf(plan, store);
}

void RequireIndexStore(const Sequences& plan, const KvStore& store) {
  Require(store.layout().is_index_key(), "store: expected a format of index keys, got {}",
          KvFormatName(store.layout().format()));
  RequirePagesOf(plan, store);
}

void RequireLse(const TensorView& lse, int64_t num_tokens, int64_t num_heads) {
  if (lse.empty()) return;
  RequireShape("lse", lse, {num_tokens, num_heads});
  Require(lse.dtype() == DType::kF32, "lse: expected f32, got {}", DTypeName(lse.dtype()));
}

void RequireWorkspace(std::span<const std::byte> workspace, ByteOffset bytes,
                      FunctionRef<std::string()> factors) {
  if (ByteOffset(workspace.size()) < bytes) {
    throw Error(ErrorCode::kInvalidArgument, "workspace: expected {} bytes ({}), got {}", bytes,
                factors(), workspace.size());
  }
  Require(reinterpret_cast<uintptr_t>(workspace.data()) % kWorkspaceAlignment == 0,
          "workspace: expected an address that is a multiple of {}, got {}", kWorkspaceAlignment,
          fmt::ptr(workspace.data()));
}

}  // namespace quire
