// A PagePool knows who holds which page.
//
// A pool hands out the page ids 1..num_pages as leases. A page is free again when its last lease is
// gone; there is no other way to give a page back, so none can be lost or given back twice. Page 0,
// the scratch page, is never handed out.
//
// One thread at a time uses a pool and its leases.
#ifndef QUIRE_CACHE_PAGE_POOL_H_
#define QUIRE_CACHE_PAGE_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.h"

namespace quire {

namespace internal {
struct PageBooks;
}  // namespace internal

// One reference on one page. It keeps the pool's books alive, so a lease that outlives its pool is
// harmless, though its page can no longer be handed out.
class PageLease {
 public:
  PageLease(PageLease&& other) noexcept = default;
  PageLease& operator=(PageLease&& other) noexcept;
  ~PageLease();

  // A lease that was moved from holds no page and may only be assigned to or destroyed.
  PageId page() const { return page_; }

  // Another reference on the same page.
  PageLease Share() const;
  // Whether somebody else holds the page too.
  bool IsShared() const;

 private:
  friend class PagePool;
  // Adopts a reference that the books already count.
  PageLease(std::shared_ptr<internal::PageBooks> books, PageId page) noexcept;

  void GiveBack() noexcept;

  std::shared_ptr<internal::PageBooks> books_;  // null when moved from
  PageId page_;
};

class PagePool {
 public:
  // Throws Error(kInvalidArgument) unless num_pages fits 1..2^31 - 1, the range of PageId.
  PagePool(PageCount num_pages, PageSize page_size);

  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // `count` pages, or nullopt and no change when fewer are free: running out is a scheduling
  // outcome. Pages come from the head of the free list, which starts as 1, 2, ... num_pages; a page
  // given back goes to the head, for every page size, because the page freed last is the one most
  // likely still in a cache. Throws Error(kInvalidArgument) if count < 0.
  std::optional<std::vector<PageLease>> Allocate(PageCount count);

  PageSize page_size() const;
  PageCount num_pages() const;
  PageCount num_free() const;
  // Pages with at least one lease.
  PageCount num_used() const;
  // The number of leases on `page`, 0 if it is free. Throws Error(kInvalidArgument) unless it is
  // one of the pages this pool hands out.
  int32_t refcount(PageId page) const;

  // Throws InternalError unless the invariants of PageBooks hold. Walks all pages.
  void CheckInvariants() const;

 private:
  std::shared_ptr<internal::PageBooks> books_;
};

}  // namespace quire

#endif  // QUIRE_CACHE_PAGE_POOL_H_
