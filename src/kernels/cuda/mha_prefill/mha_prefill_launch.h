// What the host and the kernels of multi-head prefill agree on, and the launches themselves.
#ifndef QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_LAUNCH_H_
#define QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_LAUNCH_H_

#include <cstdint>

#include "base/narrow_float.h"
#include "device/cuda/cuda.h"
#include "kernels/mha_prefill.h"

namespace quire::cuda {

// One chunk of one sequence, in device memory.
struct MhaChunk {
  int32_t seq = 0;
  int32_t begin = 0;     // its first key's position
  int32_t num_keys = 0;  // may be 0: then queries that see nothing are written
  int64_t q_begin = 0;   // the sequence's first query, counted over the step
  int32_t q_len = 0;
  int32_t kv_len = 0;

  Bf16* latent = nullptr;     // [num_keys, latent_dim]
  Bf16* rope = nullptr;       // [num_keys, rope_dim]
  uint8_t* poison = nullptr;  // [num_keys]: 1 where a value of the row was not finite; it is 0 then
  Bf16* expanded = nullptr;   // [num_keys, num_heads, nope_dim + value_dim]
  float* sums = nullptr;      // [q_len, num_heads, value_dim + 2]: o, m, l of rows not finished
};

void LaunchMhaGather(const MhaPrefillArgs& args, const MhaChunk& chunk, const Stream& stream,
                     StatusWord status);
void LaunchMhaAttend(const MhaPrefillArgs& args, const MhaChunk& chunk, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_LAUNCH_H_
