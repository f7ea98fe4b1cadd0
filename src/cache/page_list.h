// A PageList holds the pages of one sequence, in the order of its positions.
//
// Token p of the sequence lies in page PageIds()[p / page_size] at offset p % page_size; nothing
// else says where a token is. A list holds a lease on each of its pages. Pages that come from the
// prefix tree are shared and full, so the tokens that follow begin in a page of the list's own; a
// list never grows into a page that somebody else holds.
#ifndef QUIRE_CACHE_PAGE_LIST_H_
#define QUIRE_CACHE_PAGE_LIST_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "cache/page_pool.h"

namespace quire {

class PageList;

// Makes `list` as long as `new_length`; for one step of decoding that is one token more.
struct ExtendRequest {
  PageList* list;
  TokenCount new_length;
};

// The pages that ExtendLists would take from a pool: the sum of PagesFor(new_length) - PagesFor(old
// length). Throws as ExtendLists does.
PageCount NewPagesFor(std::span<const ExtendRequest> requests);

// Extends every list or, when the pool has too few free pages, none (nullopt). Pages are taken from
// the head of the pool's free list in the order of the requests. Returns how many were taken.
//
// Each list appears once, has the pool's page size and is not longer than its new length: otherwise
// throws Error(kInvalidArgument). A list whose partly filled last page is shared would overwrite
// another's tokens: throws InternalError. Nothing has changed when it throws.
std::optional<PageCount> ExtendLists(PagePool& pool, std::span<const ExtendRequest> requests);

class PageList {
 public:
  // A sequence without tokens.
  explicit PageList(PageSize page_size) : page_size_(page_size) {}
  // A sequence that begins with `full_pages`, every token place of which is in use.
  PageList(PageSize page_size, std::vector<PageLease> full_pages);

  // A list that was moved from has no tokens.
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;
  // Gives back the last page first, so that the pool hands out the first page next.
  ~PageList();

  PageSize page_size() const { return page_size_; }
  // Tokens that have a slot, tokens reserved ahead included.
  TokenCount length() const { return length_; }
  // [PagesFor(length())] Valid until the list is extended, truncated or moved.
  std::span<const PageId> PageIds() const { return page_ids_; }

  // Throws Error(kInvalidArgument) unless 0 <= position < length().
  Slot SlotAt(TokenCount position) const;
  // Appends the slots of the positions begin..length() - 1 to `slots`. After an extension, with the
  // length before it as `begin`, these are the places its tokens are written to. Throws
  // Error(kInvalidArgument) unless 0 <= begin <= length().
  void AppendSlots(TokenCount begin, std::vector<Slot>& slots) const;

  // Drops the tokens from `new_length` on, e.g. rejected draft tokens, and gives back the pages
  // that hold none of the rest. Throws Error(kInvalidArgument) unless 0 <= new_length <= length().
  void Truncate(TokenCount new_length);

  // Another lease on page `index` of the list. Throws Error(kInvalidArgument) unless
  // 0 <= index < PagesFor(length()).
  PageLease SharePage(PageCount index) const;

  // Throws InternalError unless the invariants hold.
  void CheckInvariants() const;

 private:
  friend PageCount NewPagesFor(std::span<const ExtendRequest> requests);
  friend std::optional<PageCount> ExtendLists(PagePool& pool,
                                              std::span<const ExtendRequest> requests);

  // Throws unless the list may grow to `new_length`.
  void RequireExtensible(TokenCount new_length) const;
  void Append(PageLease page);
  void KeepPages(size_t count) noexcept;

  // Invariants:
  //   1. There are PagesFor(length_) leases.
  //   2. page_ids_[i] is the page of leases_[i].
  PageSize page_size_;
  TokenCount length_;
  std::vector<PageLease> leases_;
  std::vector<PageId> page_ids_;  // contiguous, because that is how planning reads them
};

}  // namespace quire

#endif  // QUIRE_CACHE_PAGE_LIST_H_
