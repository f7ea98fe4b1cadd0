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
// And those that are made for fewer.
inline constexpr int32_t kMlaNarrowRows = 16, kMlaFewRows = 16;
// CTAs of a cluster that is a worker of few rows.
inline constexpr int32_t kMlaFewCtas = 8;
// Rows of a tile that clusters take in exact mode, side by side, kMlaFewRows each.
inline constexpr int32_t kMlaExactRows = 2 * kMlaFewRows;

// A state of running softmax in the workspace: m [rows], l [rows], and sums in patches of 16 rows and 8
// columns, row of patches by row of patches. In a patch sums lie as tensor cores leave them in a warp, four
// of a lane beside each other, so that whoever stores or loads a patch has 512 bytes in one piece.
inline constexpr int64_t kPatchRows = 16, kPatchColumns = 8;
QUIRE_HD constexpr int64_t MlaStateRows(int64_t rows) { return RoundUp(rows, kPatchRows); }
QUIRE_HD constexpr int64_t MlaStateColumns(int64_t latent_dim) {
  return RoundUp(latent_dim, kPatchColumns);
}
QUIRE_HD constexpr int64_t MlaStateFloats(int64_t rows, int64_t latent_dim) {
  return MlaStateRows(rows) * (2 + MlaStateColumns(latent_dim));
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
// The same bits, for tiles of kMlaNarrowRows rows at most over bf16 rows.
void LaunchMlaNarrow(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                     StatusWord status);
// And over fp8 rows.
void LaunchMlaCodes(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                    StatusWord status);
// Tiles of a token, of kMlaFewRows rows at most, over bf16 rows, not in exact mode, and of trees that a word is
// enough for. A worker is a CTA or a cluster of kMlaFewCtas; clusters fold their partials, too.
void LaunchMlaFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                  StatusWord status);
// The bits of LaunchMlaNarrow, for tiles of a token over all keys, of kMlaExactRows rows at most, in exact mode. Workers
// are CTAs of clusters of kMlaFewCtas, one for every kMlaFewRows rows, and a cluster shares what one of them alone has.
void LaunchMlaFewExact(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                       StatusWord status);
// The worker that CTA `cta` of a cluster is there, of `num_workers`, a multiple of kMlaFewCtas. A worker begins at the
// boundary of splits that is nearest to its share, so all but the first split begin half a split early. Clusters begin half
// a cluster early too: of as many splits as there are clusters each has one.
QUIRE_HD constexpr int32_t MlaExactWorker(int32_t cluster, int32_t cta, int32_t num_workers) {
  return (cluster * kMlaFewCtas + cta + num_workers - kMlaFewCtas / 2) % num_workers;
}
// How many clusters of few rows the device at hand runs at once.
int32_t MostMlaClusters();
// Folds the partials of cut tiles and writes their rows.
void LaunchMlaMerge(const MlaAttentionArgs& args, MlaExponent exponent, const Stream& stream,
                    StatusWord status);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_LAUNCH_H_
