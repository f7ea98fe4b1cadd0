// Where a key of a sequence lies.
#ifndef QUIRE_KERNELS_CUDA_STORE_PAGED_KEY_CUH_
#define QUIRE_KERNELS_CUDA_STORE_PAGED_KEY_CUH_

#include <cstdint>

#include "attn/plan.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/store/store_row.cuh"

namespace quire::cuda {

// A key's page, and its row there.
struct PagedKey {
  int32_t page;
  int32_t offset;
};

// The page is asked for, and needs to be there only for SlotOf.
__device__ inline PagedKey PagedKeyOf(const Sequences& seqs, const StoreView& store,
                                      const PageId* pages, int32_t position) {
  const int32_t index = position / store.page_size;
  const auto* page = reinterpret_cast<const std::byte*>(pages + index);
  return {.page = index < seqs.row_width.raw() ? LoadNear(page) : -1,
          .offset = position - index * store.page_size};
}

// The slot of a key of sequence `seq`. A page outside the pool is reported, and the slot is one of the scratch
// page.
__device__ inline int64_t SlotOf(const StoreView& store, PagedKey key, int32_t seq, Launch launch,
                                 StatusWord status) {
  const int64_t slot = int64_t{key.page} * store.page_size + key.offset;
  if (store.Holds(slot)) return slot;
  Report(status, DeviceFault::kPage, launch, static_cast<uint32_t>(seq));
  return key.offset;
}

// The same of the key at `position`, whose sequence has these pages.
__device__ inline int64_t SlotOfKey(const Sequences& seqs, const StoreView& store, int32_t seq,
                                    const PageId* pages, int32_t position, Launch launch,
                                    StatusWord status) {
  return SlotOf(store, PagedKeyOf(seqs, store, pages, position), seq, launch, status);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_STORE_PAGED_KEY_CUH_
