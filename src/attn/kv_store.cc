#include "attn/kv_store.h"

#include "base/error.h"

namespace quire {
namespace {

KvLayout ReadLayout(const KvLayout& layout, Faults faults) {
  if (faults.Has(Fault::kIndexKeyLayoutMismatch) &&
      layout.format() == KvFormat::kIndexKeyFp8Preshuffled) {
    return KvLayout(KvFormat::kIndexKeyFp8, layout.dims(), layout.page_size());
  }
  return layout;
}

}  // namespace

ByteOffset KvStoreBytes(const KvLayout& layout, PageCount num_pages) {
  return layout.page_bytes() * num_pages.raw();
}

KvStore::KvStore(std::span<std::byte> memory, PageCount num_pages, const KvLayout& layout,
                 Faults faults)
    : memory_(memory.data()),
      num_pages_(num_pages),
      layout_(layout),
      read_layout_(ReadLayout(layout, faults)) {
  Require(num_pages >= PageCount(1), "kv store: expected at least the scratch page, got {} pages",
          num_pages);
  Require(ByteOffset(memory.size()) == KvStoreBytes(layout, num_pages),
          "kv store: expected {} bytes ({} pages of {} bytes, {}, page_size {}), got {}",
          KvStoreBytes(layout, num_pages), num_pages, layout.page_bytes(),
          KvFormatName(layout.format()), layout.page_size(), memory.size());
  Require(reinterpret_cast<uintptr_t>(memory.data()) % kKvAlignment == 0,
          "kv store: expected an address that is a multiple of {}, got {}", kKvAlignment,
          fmt::ptr(memory.data()));
}

void KvStore::RequireInPool(const char* what, std::span<const Slot> slots) const {
  const Slot end(page_size().TokensIn(num_pages_).raw());
  for (size_t i = 0; i < slots.size(); ++i) {
    Require(slots[i] >= Slot(0) && slots[i] < end,
            "{}[{}]: expected a slot in 0..{} ({} pages of {}), got {}", what, i, end.raw() - 1,
            num_pages_, page_size(), slots[i]);
  }
}

}  // namespace quire
