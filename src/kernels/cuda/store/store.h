// Store kernels on the device; contract in kernels/store.h.
//
// Spans and views hold device pointers. A slot outside the pool is found on the device: it is
// reported (DeviceFault::kSlot, index: which row), a write to it dropped, and a read of it reads the
// scratch page. What is written is bit for bit what cpu::StoreWrite writes.
#ifndef QUIRE_KERNELS_CUDA_STORE_STORE_H_
#define QUIRE_KERNELS_CUDA_STORE_STORE_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "base/units.h"
#include "device/cuda/cuda.h"
#include "kernels/ops.h"
#include "kernels/row_ops.h"
#include "kernels/store.h"

namespace quire::cuda {

void StoreWrite(const StoreWriteArgs& args, const Stream& stream, StatusWord status = {});
void StoreGather(const StoreGatherArgs& args, const Stream& stream, StatusWord status = {});
// A row whose source is outside the pool is not written anywhere.
void StoreMove(const StoreMoveArgs& args, const Stream& stream, StatusWord status = {});

// A layer's new cache rows in one pass:
//
//   [c | k] = kv[i];  row of slots[i] <- encode(c / sqrt(mean(c^2) + eps) * norm_weight, rotate(k))
//
// Pairs are rotated as RopeArgs says, by row positions[i] of the tables. A position outside them is
// reported (DeviceFault::kCapacity) and its row dropped. Norm and rotation are in f32; the sum of
// squares has an order of its own (value i in sum (i / 4) mod 32, ascending, then a tree).
struct RopeStoreArgs {
  const KvStore& store;                        // a latent format
  std::span<const Slot> slots = {};            // [num_tokens], distinct but for the scratch page
  std::span<const TokenCount> positions = {};  // [num_tokens]
  ConstTensorView kv = {};                     // [num_tokens, latent_dim + rope_dim] f32 or bf16
  std::span<const float> norm_weight = {};     // [latent_dim]
  float eps = 1e-6f;                           // finite, >= 0
  ConstTensorView cos = {};  // [max_positions, rope_dim / 2] f32; none if rope_dim 0
  ConstTensorView sin = {};  // as cos
  RopePairs pairs = RopePairs::kInterleaved;
};

void RopeStore(const RopeStoreArgs& args, const Stream& stream, StatusWord status = {});

// A layer's new index keys in one pass. The norm is in f32; its sums have the order of RopeStore's.
void WriteIndexKeys(const WriteIndexKeysArgs& args, const Stream& stream, StatusWord status = {});

// Throw Error(kInvalidArgument) naming the argument, the expected and the actual value. The first
// three see what quire::Validate sees except for the slots, which lie on the device.
void ValidateShapes(const StoreWriteArgs& args);
void ValidateShapes(const StoreGatherArgs& args);
void ValidateShapes(const StoreMoveArgs& args);
void Validate(const RopeStoreArgs& args);
void Validate(const WriteIndexKeysArgs& args);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_STORE_STORE_H_
