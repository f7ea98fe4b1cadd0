// Checks that every attention op makes of a plan, a store and an lse output.
#ifndef QUIRE_KERNELS_PLAN_STORE_H_
#define QUIRE_KERNELS_PLAN_STORE_H_

#include <cstdint>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/tensor_view.h"

namespace quire {

// Throws Error(kInvalidArgument) unless the store holds latent rows in the plan's pages.
void RequireLatentStore(const Plan& plan, const KvStore& store);

// Throws Error(kInvalidArgument) unless lse is empty or [num_tokens, num_heads] f32.
void RequireLse(const TensorView& lse, int64_t num_tokens, int64_t num_heads);

}  // namespace quire

#endif  // QUIRE_KERNELS_PLAN_STORE_H_
