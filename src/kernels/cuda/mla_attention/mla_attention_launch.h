// What the host and the kernels of latent attention agree on, and the launches themselves.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_LAUNCH_H_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_LAUNCH_H_

#include <cstdint>

#include "base/host_device.h"
#include "base/maths.h"
#include "device/cuda/cuda.h"
#include "kernels/mla_attention.h"

namespace quire::cuda {

// Rows (query heads) that a CTA on tensor cores holds.
inline constexpr int32_t kMlaRows = 64;

// A state of running softmax in the workspace: m [rows], l [rows], o [rows, MlaStateStride].
QUIRE_HD constexpr int64_t MlaStateStride(int64_t latent_dim) { return (latent_dim + 3) / 4 * 4; }
QUIRE_HD constexpr int64_t MlaStateFloats(int64_t rows, int64_t latent_dim) {
  const int64_t padded = (rows + 3) / 4 * 4;
  return padded * (2 + MlaStateStride(latent_dim));
}

// What maxima in a state are in: scores, or scores times log2(e).
enum class MlaExponent { kNatural, kBase2 };

// The keys that queries read instead of all that they see, tiles being of one query then.
struct KeyLists {
  const int32_t* chosen = nullptr;  // [tokens, top_k], or null: all keys
  int32_t top_k = 0;
};

void LaunchMlaPlain(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                    StatusWord status);
void LaunchMlaWarpgroup(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                        StatusWord status);
// Folds the partials of cut tiles and writes their rows.
void LaunchMlaMerge(const MlaAttentionArgs& args, MlaExponent exponent, const Stream& stream,
                    StatusWord status);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_LAUNCH_H_
