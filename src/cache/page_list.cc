#include "cache/page_list.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace quire {
namespace {

void RequireDistinctLists(std::span<const ExtendRequest> requests) {
  std::vector<const PageList*> lists;
  lists.reserve(requests.size());
  for (const ExtendRequest& request : requests) lists.push_back(request.list);
  std::sort(lists.begin(), lists.end(), std::less<>());
  Require(std::adjacent_find(lists.begin(), lists.end()) == lists.end(),
          "extend requests: expected each page list once, got one twice among {}", lists.size());
}

}  // namespace

PageCount NewPagesFor(std::span<const ExtendRequest> requests) {
  RequireDistinctLists(requests);
  PageCount needed(0);
  for (const auto& [list, new_length] : requests) {
    list->RequireExtensible(new_length);
    needed += list->page_size_.PagesFor(new_length) - list->page_size_.PagesFor(list->length_);
  }
  return needed;
}

std::optional<PageCount> ExtendLists(PagePool& pool, std::span<const ExtendRequest> requests) {
  for (const ExtendRequest& request : requests) {
    Require(request.list->page_size() == pool.page_size(),
            "page list: expected the pool's page_size {}, got {}", pool.page_size(),
            request.list->page_size());
  }
  const PageCount needed = NewPagesFor(requests);
  std::optional<std::vector<PageLease>> pages = pool.Allocate(needed);
  if (!pages.has_value()) return std::nullopt;
  auto next = pages->begin();
  for (const auto& [list, new_length] : requests) {
    const PageCount last = pool.page_size().PagesFor(new_length);
    while (PageCount(list->leases_.size()) < last) list->Append(std::move(*next++));
    list->length_ = new_length;
  }
  return needed;
}

PageList::PageList(PageSize page_size, std::vector<PageLease> full_pages)
    : page_size_(page_size), length_(page_size.TokensIn(PageCount(full_pages.size()))) {
  leases_.reserve(full_pages.size());
  page_ids_.reserve(full_pages.size());
  for (PageLease& page : full_pages) Append(std::move(page));
}

PageList::PageList(PageList&& other) noexcept
    : page_size_(other.page_size_),
      length_(std::exchange(other.length_, TokenCount(0))),
      leases_(std::exchange(other.leases_, {})),
      page_ids_(std::exchange(other.page_ids_, {})) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    KeepPages(0);
    page_size_ = other.page_size_;
    length_ = std::exchange(other.length_, TokenCount(0));
    leases_ = std::exchange(other.leases_, {});
    page_ids_ = std::exchange(other.page_ids_, {});
  }
  return *this;
}

PageList::~PageList() { KeepPages(0); }

Slot PageList::SlotAt(TokenCount position) const {
  Require(position >= TokenCount(0) && position < length_,
          "position: expected 0 or more and less than the list's {} tokens, got {}", length_,
          position);
  const auto index = static_cast<size_t>(page_size_.FullPages(position).raw());
  return page_size_.SlotOf(page_ids_[index], page_size_.OffsetOf(position));
}

void PageList::AppendSlots(TokenCount begin, std::vector<Slot>& slots) const {
  Require(begin >= TokenCount(0) && begin <= length_,
          "first position: expected 0..{} (the list's tokens), got {}", length_, begin);
  for (TokenCount position = begin; position < length_; position += TokenCount(1)) {
    slots.push_back(SlotAt(position));
  }
}

void PageList::Truncate(TokenCount new_length) {
  Require(new_length >= TokenCount(0) && new_length <= length_,
          "new length: expected 0..{} (the list's tokens), got {}", length_, new_length);
  KeepPages(static_cast<size_t>(page_size_.PagesFor(new_length).raw()));
  length_ = new_length;
}

PageLease PageList::SharePage(PageCount index) const {
  Require(index >= PageCount(0) && index < PageCount(leases_.size()),
          "page index: expected 0 or more and less than the list's {} pages, got {}",
          leases_.size(), index);
  return leases_[static_cast<size_t>(index.raw())].Share();
}

void PageList::RequireExtensible(TokenCount new_length) const {
  Require(new_length >= length_, "new length: expected {} or more (the list's tokens), got {}",
          length_, new_length);
  const bool fills_last_page = new_length > length_ && page_size_.OffsetOf(length_) != 0;
  QUIRE_CHECK(!fills_last_page || !leases_.back().IsShared(),
              "page {} has {} of {} tokens and another holder", page_ids_.back(),
              page_size_.OffsetOf(length_), page_size_);
}

void PageList::Append(PageLease page) {
  page_ids_.push_back(page.page());
  leases_.push_back(std::move(page));
}

void PageList::KeepPages(size_t count) noexcept {
  while (leases_.size() > count) leases_.pop_back();
  page_ids_.resize(count);
}

void PageList::CheckInvariants() const {
  QUIRE_CHECK(PageCount(leases_.size()) == page_size_.PagesFor(length_),
              "{} leases for {} tokens, page_size {}", leases_.size(), length_, page_size_);  // 1
  QUIRE_CHECK(page_ids_.size() == leases_.size(), "{} page ids, {} leases", page_ids_.size(),
              leases_.size());  // 2
  for (size_t i = 0; i < leases_.size(); ++i) {
    QUIRE_CHECK(page_ids_[i] == leases_[i].page(), "index {}: page id {}, lease on {}", i,
                page_ids_[i], leases_[i].page());  // 2
  }
}

}  // namespace quire
