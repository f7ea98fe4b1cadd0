// KV pages of one payload of one layer, with their layout: what every writer, reader and mover
// takes.
#ifndef QUIRE_ATTN_KV_STORE_H_
#define QUIRE_ATTN_KV_STORE_H_

#include <cstddef>
#include <span>

#include "attn/kv_layout.h"
#include "base/faults.h"
#include "base/units.h"

namespace quire {

// Bytes of a pool of `num_pages` pages, the scratch page included.
ByteOffset KvStoreBytes(const KvLayout& layout, PageCount num_pages);

// Where a store's memory begins: on a multiple of this, so that scales and values are aligned.
inline constexpr size_t kKvAlignment = 4;

// A view: the memory belongs to the caller and outlives it. Copies view the same pages.
class KvStore {
 public:
  // Throws Error(kInvalidArgument) if `memory` is not KvStoreBytes(layout, num_pages) long and
  // aligned to kKvAlignment.
  KvStore(std::span<std::byte> memory, PageCount num_pages, const KvLayout& layout,
          Faults faults = {});

  const KvLayout& layout() const { return layout_; }
  // What readers use. The same as layout() unless a fault makes reader and writer disagree.
  const KvLayout& read_layout() const { return read_layout_; }
  PageSize page_size() const { return layout_.page_size(); }
  PageCount num_pages() const { return num_pages_; }

  std::byte* Page(PageId page) const {
    return memory_ + (layout_.page_bytes() * int64_t{page.raw()}).raw();
  }

  // Throws Error(kInvalidArgument) naming `what`, the index and the pool unless every slot lies in
  // the pool.
  void RequireInPool(const char* what, std::span<const Slot> slots) const;

 private:
  std::byte* memory_;
  PageCount num_pages_;
  KvLayout layout_;
  KvLayout read_layout_;
};

}  // namespace quire

#endif  // QUIRE_ATTN_KV_STORE_H_
