// Multi-head prefill on the device: attention of the sequences of a step that are expanded
// (attn/expansion.h), from their rows of the cache; contract in kernels/mha_prefill.h.
//
//   gather   cache rows of the expanded sequences, as bf16, block by block        MhaGather
//   expand   keys and values of all heads: two products (cuda::ExpertGemm)
//   attend   128 queries of one head at a time, by warpgroups                     MhaAttend
//
// How many rows and tiles there are is read on the device, so a graph may record all of it.
//
// Everything the tensor cores read is rounded to bf16: cache rows, expanded keys and values, weights of
// keys (docs/numerics.md). A row of the cache with a value that is not finite makes the whole output of
// those queries NaN that see it, and of no others.
#ifndef QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_H_
#define QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_H_

#include <cstdint>
#include <span>

#include "attn/expansion.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/mha_prefill.h"

namespace quire::cuda {

inline constexpr int32_t kMaxExpandedLatent = 512;
// Rows of which one flag says whether any is poisoned.
inline constexpr int32_t kPoisonRows = 64;

// Whether there is a kernel for heads of this shape: those of DeepSeek-V2 and V3 and Kimi-K2 (128 + 64
// and 128), GLM-4.7-Flash (192 + 64 and 256) and MiniCPM3 (64 + 32 and 64).
bool CanExpand(const MhaShape& shape);

// Rows that keys are brought up to, in device memory.
struct ExpandedKeys {
  TensorView latent = {};             // [rows, latent_dim] bf16
  TensorView rope = {};               // [rows, 64] bf16, zeros behind rope_dim
  TensorView keys = {};               // [rows, num_heads * nope_dim] bf16
  TensorView values = {};             // [rows, num_heads * value_dim] bf16
  std::span<uint8_t> poison = {};     // [rows]: 1 where the cache row was not finite; it is 0 then
  std::span<int32_t> next_item = {};  // [1]: what CTAs that attend take next
  std::span<int32_t> poisoned = {};   // [rows / kPoisonRows]: 1 where one of the rows is
};
// Sizes, or takes, rows for `rows` keys, a multiple of kExpandedBlock.
ExpandedKeys LayOutExpandedKeys(const MhaShape& shape, TokenCount rows, Carver& carver);
// What a key takes of them.
ByteOffset ExpandedKeyBytes(const MhaShape& shape);

// Launches and returns. Throws Error(kInvalidArgument) naming the argument, the expected and the actual
// value.
void AttendExpanded(const AttendExpandedArgs& args, const ExpandedKeys& keys, const Stream& stream,
                    StatusWord status = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_H_
