// What the host and the kernels of multi-head prefill agree on, and the launches themselves.
#ifndef QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_LAUNCH_H_
#define QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_LAUNCH_H_

#include "device/cuda/cuda.h"
#include "kernels/cuda/mha_prefill/mha_prefill.h"

namespace quire::cuda {

// The columns of a panel of shared memory: 128 bytes.
inline constexpr int32_t kPanelColumns = 64;

// Cache rows of the expansion's blocks to keys.latent and keys.rope.
void LaunchMhaGather(const AttendExpandedArgs& args, const ExpandedKeys& keys, const Stream& stream,
                     StatusWord status);
// Attention over keys.keys, keys.rope and keys.values.
void LaunchMhaAttend(const AttendExpandedArgs& args, const ExpandedKeys& keys,
                     const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_LAUNCH_H_
