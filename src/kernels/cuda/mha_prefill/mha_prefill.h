// Multi-head prefill on the device; contract in kernels/mha_prefill.h.
//
// Chunk by chunk of a sequence's keys:
//   gather   latent and rope parts of the chunk, as bf16                       [chunk, values]
//   expand   [k_nope | v] of all heads: one matrix product (cuda::Gemm)        [chunk, outputs] bf16
//   attend   64 queries of one head per CTA over the chunk, on the tensor cores
// Sums of a row stay in f32 from chunk to chunk and keys come in tiles of 64 at absolute positions, so
// neither the chunk's length nor that of the step's queries changes a bit, nor does the page size.
//
// Everything the tensor cores read is rounded to bf16: queries, cache rows, expanded keys and values,
// weights of keys (docs/numerics.md). A row of the cache with a value that is not finite makes the
// whole output of those queries NaN that see it. Key heads (nope + rope) and value heads have up to
// 256 values.
#ifndef QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_H_
#define QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_H_

#include <cstdint>
#include <span>

#include "attn/plan_elements.h"
#include "device/cuda/cuda.h"
#include "kernels/mha_prefill.h"

namespace quire::cuda {

// The widest key or value head.
inline constexpr int32_t kMaxHeadDim = 256;

// For sequences of up to max_q_len queries in a step and chunks of `chunk` keys.
ByteOffset MhaPrefillWorkspace(const MhaShape& shape, TokenCount max_q_len, TokenCount chunk);

// Launches and returns. `lengths`, on the host, are the plan's, sequence by sequence: how many
// launches there are depends on them, so this is no op for graphs. Throws Error(kInvalidArgument)
// as quire::Validate, for a tree, for heads wider than kMaxHeadDim and for w_kv_b that is not bf16.
void MhaPrefill(const MhaPrefillArgs& args, std::span<const SequenceLengths> lengths,
                const Stream& stream, StatusWord status = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_H_
