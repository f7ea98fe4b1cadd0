// What the host and the kernels that choose keys agree on, and the launches themselves.
#ifndef QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_LAUNCH_H_
#define QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/plan.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/select_keys.h"

namespace quire::cuda {

// Candidates that a CTA may be offered before it looks whether it has room for as many again.
inline constexpr int32_t kMostOffers = 4096;
// Candidates of a query that a CTA has room for. It throws out those that cannot be chosen when there
// is no more, which takes longer than to be offered some thousands.
constexpr int64_t CandidateRoom(int32_t top_k) {
  return top_k + int64_t{2} * (top_k > kMostOffers ? top_k : kMostOffers);
}
// They lie in shared memory where there is room for them.
inline constexpr int64_t kMostSharedCandidates = 12160;
constexpr bool CandidatesAreShared(int32_t top_k) {
  return CandidateRoom(top_k) <= kMostSharedCandidates;
}
// Ranks that a cut tile's worker keeps, those of its top_k among them: to find just these takes longer
// than to merge some more.
// An even number: they are copied 16 bytes at a time.
constexpr int64_t PartialRoom(int32_t top_k) { return top_k + top_k % 2 + int64_t{2048}; }

// Heads and values of the tensor-core kernel at most.
inline constexpr int32_t kCodeHeads = 64, kCodeValues = 128;

// What the kernels leave for each other.
struct SelectScratch {
  std::span<uint64_t> partials = {};    // [partials, PartialRoom]: what cut tiles have kept so far
  std::span<int32_t> counts = {};       // [partials]: how many each holds
  std::span<uint64_t> candidates = {};  // [workers, CandidateRoom], or none: in shared memory
};
// Takes, or counts, the memory of a plan with so many partials.
SelectScratch LayOutSelect(int64_t num_partials, int32_t num_workers, const IndexShape& shape,
                           Carver& carver);

void LaunchSelectPlain(const SelectKeysArgs& args, const SelectScratch& scratch,
                       const Stream& stream, StatusWord status);
void LaunchSelectWarpgroup(const SelectKeysArgs& args, const SelectScratch& scratch,
                           const Stream& stream, StatusWord status);
// Chooses from the partials of cut tiles.
void LaunchSelectMerge(const SelectKeysArgs& args, const SelectScratch& scratch,
                       const Stream& stream, StatusWord status);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_LAUNCH_H_
