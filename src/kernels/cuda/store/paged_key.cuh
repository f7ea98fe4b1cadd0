// Where a key of a sequence lies.
#ifndef QUIRE_KERNELS_CUDA_STORE_PAGED_KEY_CUH_
#define QUIRE_KERNELS_CUDA_STORE_PAGED_KEY_CUH_

#include <cstdint>

#include "attn/plan.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/store/store_row.cuh"

namespace quire::cuda {

// The slot of the key at `position` of sequence `seq`, whose pages are `pages`. A page outside the pool
// is reported, and the slot is one of the scratch page.
__device__ inline int64_t SlotOfKey(const Sequences& seqs, const StoreView& store, int32_t seq,
                                    const PageId* pages, int32_t position, Launch launch,
                                    StatusWord status) {
  const int32_t index = position / store.page_size;
  const int32_t offset = position - index * store.page_size;
  const int32_t page = index < seqs.row_width.raw() ? pages[index].raw() : -1;
  const int64_t slot = int64_t{page} * store.page_size + offset;
  if (store.Holds(slot)) return slot;
  Report(status, DeviceFault::kPage, launch, static_cast<uint32_t>(seq));
  return offset;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_STORE_PAGED_KEY_CUH_
