#include "runner/page_row_book.h"

#include <algorithm>

#include "base/error.h"

namespace quire {

PageRowBook::PageRowBook(int32_t num_rows, PageCount width)
    : ids_(static_cast<size_t>(num_rows), 0),
      used_in_(static_cast<size_t>(num_rows), 0),
      pages_(static_cast<size_t>(num_rows)) {
  for (std::vector<PageId>& row : pages_) row.reserve(static_cast<size_t>(width.raw()));
}

void PageRowBook::Assign(std::span<const StepSequence> batch, std::span<const SequenceStep> seqs,
                         std::span<RowUse> uses) {
  QUIRE_CHECK(seqs.size() <= ids_.size(), "{} sequences, {} rows", seqs.size(), ids_.size());
  ++num_steps_;
  // Those that have a row first: nobody is to take it from them.
  for (size_t i = 0; i < seqs.size(); ++i) {
    uses[i] = {};
    const uint64_t id = batch[i].id;
    const auto found = id == 0 ? ids_.end() : std::ranges::find(ids_, id);
    if (found == ids_.end()) continue;
    const auto row = static_cast<size_t>(found - ids_.begin());
    if (used_in_[row] == num_steps_) continue;  // an id that came twice in one step
    used_in_[row] = num_steps_;
    uses[i].row = static_cast<int32_t>(row);
    uses[i].unchanged = UnchangedPages(uses[i].row, batch[i].kept_pages, seqs[i].pages);
  }
  for (size_t i = 0; i < seqs.size(); ++i) {
    if (uses[i].row != kNoRow) continue;
    uses[i].row = LongestUnused();
    ids_[static_cast<size_t>(uses[i].row)] = batch[i].id;
    used_in_[static_cast<size_t>(uses[i].row)] = num_steps_;
  }
}

void PageRowBook::Set(int32_t row, PageCount unchanged, std::span<const PageId> pages) {
  std::vector<PageId>& to = pages_[static_cast<size_t>(row)];
  const auto kept = static_cast<size_t>(unchanged.raw());
  QUIRE_CHECK(kept <= to.size() && kept <= pages.size() && pages.size() <= to.capacity(),
              "row {}: {} of {} pages unchanged, {} now, room for {}", row, kept, to.size(),
              pages.size(), to.capacity());
  to.resize(kept);
  to.insert(to.end(), pages.begin() + static_cast<std::ptrdiff_t>(kept), pages.end());
}

void PageRowBook::ForgetPages() {
  for (std::vector<PageId>& row : pages_) row.clear();
}

PageCount PageRowBook::UnchangedPages(int32_t row, PageCount kept,
                                      std::span<const PageId> pages) const {
  const std::vector<PageId>& held = pages_[static_cast<size_t>(row)];
  const size_t count = std::min({static_cast<size_t>(kept.raw()), held.size(), pages.size()});
  QUIRE_DCHECK(std::ranges::equal(std::span(held).first(count), pages.first(count)),
               "row {}: the {} pages kept are not those of the last step", row, count);
  return PageCount(count);
}

int32_t PageRowBook::LongestUnused() const {
  return static_cast<int32_t>(std::ranges::min_element(used_in_) - used_in_.begin());
}

}  // namespace quire
