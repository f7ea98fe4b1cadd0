// Store kernels: rows into KV pages, out of them, and between them, in the store's own layout.
//
//   Write   row of slots[i] <- encode(latent[i], rope[i])
//   Gather  latent[i], rope[i] <- decode(row of slots[i])
//   Move    row of to[i] <- row of from[i], as bytes, as if all were read before any is written
//
// A row written to the scratch page is dropped: nothing reads it, and padded rows may all name it.
#ifndef QUIRE_KERNELS_STORE_H_
#define QUIRE_KERNELS_STORE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/kv_store.h"
#include "base/tensor_view.h"
#include "base/units.h"

namespace quire {

struct StoreWriteArgs {
  const KvStore& store;
  std::span<const Slot> slots;  // [num_tokens], distinct but for the scratch page
  ConstTensorView latent;       // [num_tokens, latent_dim] f32 or bf16
  ConstTensorView rope = {};    // [num_tokens, rope_dim] f32 or bf16; empty if rope_dim is 0
};

struct StoreGatherArgs {
  const KvStore& store;
  std::span<const Slot> slots;  // [num_tokens]
  TensorView latent;            // [num_tokens, latent_dim] f32 or bf16
  TensorView rope = {};         // [num_tokens, rope_dim] f32 or bf16; empty if rope_dim is 0
};

struct StoreMoveArgs {
  const KvStore& store;
  std::span<const Slot> from;  // [num_rows]
  std::span<const Slot> to;    // [num_rows], distinct but for the scratch page; may overlap from
  std::span<std::byte> workspace;  // StoreMoveWorkspace(layout, num_rows)
};

ByteOffset StoreMoveWorkspace(const KvLayout& layout, int64_t num_rows);

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const StoreWriteArgs& args);
void Validate(const StoreGatherArgs& args);
void Validate(const StoreMoveArgs& args);

}  // namespace quire

#endif  // QUIRE_KERNELS_STORE_H_
