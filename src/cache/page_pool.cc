#include "cache/page_pool.h"

#include <cstddef>
#include <limits>
#include <utility>

#include "base/error.h"

namespace quire {
namespace internal {

// Invariants:
//   1. The scratch page is neither free nor leased.
//   2. A page is in the free list, once, exactly when no lease holds it.
//   3. The free list has room for every page, so that giving a page back cannot throw.
struct PageBooks {
  PageSize page_size;
  std::vector<int32_t> refcounts;  // [num_pages + 1], by page id
  std::vector<PageId> free;        // the head of the free list is the last element
};

}  // namespace internal

namespace {

size_t IndexOf(PageId page) { return static_cast<size_t>(page.raw()); }

}  // namespace

PageLease::PageLease(std::shared_ptr<internal::PageBooks> books, PageId page) noexcept
    : books_(std::move(books)), page_(page) {}

PageLease& PageLease::operator=(PageLease&& other) noexcept {
  if (this != &other) {
    GiveBack();
    books_ = std::move(other.books_);
    page_ = other.page_;
  }
  return *this;
}

PageLease::~PageLease() { GiveBack(); }

void PageLease::GiveBack() noexcept {
  if (books_ == nullptr) return;
  if (--books_->refcounts[IndexOf(page_)] == 0) books_->free.push_back(page_);
  books_.reset();
}

PageLease PageLease::Share() const {
  QUIRE_CHECK(books_ != nullptr, "page {} was moved from", page_);
  ++books_->refcounts[IndexOf(page_)];
  return PageLease(books_, page_);
}

bool PageLease::IsShared() const {
  QUIRE_CHECK(books_ != nullptr, "page {} was moved from", page_);
  return books_->refcounts[IndexOf(page_)] > 1;
}

PagePool::PagePool(PageCount num_pages, PageSize page_size) {
  constexpr int32_t kMaxPages = std::numeric_limits<PageId::Rep>::max();
  Require(num_pages >= PageCount(1) && num_pages <= PageCount(kMaxPages),
          "num_pages: expected 1..{} pages in a pool, got {}", kMaxPages, num_pages);
  books_ = std::make_shared<internal::PageBooks>(
      internal::PageBooks{.page_size = page_size, .refcounts = {}, .free = {}});
  books_->refcounts.resize(static_cast<size_t>(num_pages.raw()) + 1);
  books_->free.reserve(static_cast<size_t>(num_pages.raw()));
  for (int64_t page = num_pages.raw(); page >= 1; --page) books_->free.emplace_back(page);
}

std::optional<std::vector<PageLease>> PagePool::Allocate(PageCount count) {
  Require(count >= PageCount(0), "page count: expected 0 or more pages, got {}", count);
  if (count > num_free()) return std::nullopt;
  std::vector<PageLease> leases;
  leases.reserve(static_cast<size_t>(count.raw()));
  for (PageCount taken(0); taken < count; taken += PageCount(1)) {
    const PageId page = books_->free.back();
    books_->free.pop_back();
    books_->refcounts[IndexOf(page)] = 1;
    leases.push_back(PageLease(books_, page));
  }
  return leases;
}

PageSize PagePool::page_size() const { return books_->page_size; }

PageCount PagePool::num_pages() const { return PageCount(books_->refcounts.size() - 1); }

PageCount PagePool::num_free() const { return PageCount(books_->free.size()); }

PageCount PagePool::num_used() const { return num_pages() - num_free(); }

int32_t PagePool::refcount(PageId page) const {
  Require(page > kScratchPage && page.raw() <= num_pages().raw(),
          "page id: expected 1..{} (page {} is the scratch page), got {}", num_pages(),
          kScratchPage, page);
  return books_->refcounts[IndexOf(page)];
}

void PagePool::CheckInvariants() const {
  const internal::PageBooks& books = *books_;
  std::vector<int32_t> times_free(books.refcounts.size(), 0);
  for (PageId page : books.free) {
    QUIRE_CHECK(page >= kScratchPage && IndexOf(page) < times_free.size(), "page {}", page);
    ++times_free[IndexOf(page)];
  }
  QUIRE_CHECK(books.refcounts[0] == 0 && times_free[0] == 0, "scratch page: {} leases, {} x free",
              books.refcounts[0], times_free[0]);  // 1
  for (size_t page = 1; page < times_free.size(); ++page) {
    QUIRE_CHECK(books.refcounts[page] >= 0, "page {}: {} leases", page, books.refcounts[page]);
    QUIRE_CHECK(times_free[page] == (books.refcounts[page] == 0 ? 1 : 0),
                "page {}: {} leases, {} x free", page, books.refcounts[page],
                times_free[page]);  // 2
  }
  QUIRE_CHECK(books.free.capacity() >= times_free.size() - 1, "room for {} of {} pages",
              books.free.capacity(), times_free.size() - 1);  // 3
}

}  // namespace quire
