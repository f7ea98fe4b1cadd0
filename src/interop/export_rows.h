// What the rows of exported arrays hold, for host and device: which pages of its sequence a row lists,
// how many keys they hold, and how threads write them. The exporters of both (interop/export.cc,
// interop/cuda/export_cells.h) walk rows their own way and have this in common.
#ifndef QUIRE_INTEROP_EXPORT_ROWS_H_
#define QUIRE_INTEROP_EXPORT_ROWS_H_

#include <cstdint>

#include "attn/page_ranges.h"
#include "attn/plan_build.h"
#include "base/host_device.h"
#include "base/units.h"
#include "interop/capacity.h"
#include "interop/export.h"

namespace quire {

// A row's part of its sequence's page list. Lengths fit int32: both sides check that before.
struct RowPages {
  int32_t first = 0;  // of the sequence's list
  int32_t count = 0;
  int32_t keys = 0;
};

// Every page of a row of `kv_len` keys, a number up to INT32_MAX: nothing is added to it.
QUIRE_HD inline RowPages SequencePages(int32_t kv_len, const PageDivider& divider) {
  const int32_t full = divider.PageOf(kv_len);
  return {.first = 0, .count = full + (full * divider.page_size < kv_len ? 1 : 0), .keys = kv_len};
}

// Keys in the last page of a row, 0 where it has none.
QUIRE_HD inline int32_t LastPageLen(int32_t kv_len, const PageDivider& divider) {
  const int32_t pages = SequencePages(kv_len, divider).count;
  return pages == 0 ? 0 : kv_len - (pages - 1) * divider.page_size;
}

// The first pass of paged drafting: the pages that the committed tokens fill.
QUIRE_HD inline RowPages PrefixPages(int32_t committed, const PageDivider& divider) {
  const int32_t full = divider.PageOf(committed);
  return {.first = 0, .count = full, .keys = full * divider.page_size};
}

// A branch's row of one step.
struct BranchRow {
  TokenCount committed;
  int32_t branch = 0;
  int32_t step = 0;
};

// The second pass: from the page that the branch begins in to its draft of this step. The keys are what
// full pages leave of the prefix, and the drafts so far.
QUIRE_HD inline RowPages BranchPages(const BranchRow& row, const DraftShape& shape,
                                     PageSize page_size) {
  const TokenCount start = DraftStart(row.committed, row.branch, shape, page_size);
  const TokenCount keys(page_size.OffsetOf(row.committed) + row.step + 1);
  return {.first = static_cast<int32_t>(page_size.FullPages(start).raw()),
          .count = static_cast<int32_t>(page_size.PagesFor(keys).raw()),
          .keys = static_cast<int32_t>(keys.raw())};
}

// Entries of a row: the first `listed` are pages, the others, up to `count`, the fill value.
struct PageEntries {
  const PageId* pages = nullptr;
  int32_t listed = 0;
  int32_t count = 0;
  int32_t fill = 0;
};

// Entries `range` of a row that lists `num_pages` pages from `pages` on.
QUIRE_HD inline PageEntries EntriesOf(const PageId* pages, int32_t num_pages,
                                      const PageRange& range, int32_t fill) {
  const PageCount first = Min(range.begin, PageCount(num_pages));
  const PageCount last = Min(range.end, PageCount(num_pages));
  return {.pages = pages + first.raw(),
          .listed = static_cast<int32_t>((last - first).raw()),
          .count = static_cast<int32_t>(range.size().raw()),
          .fill = fill};
}

// Writes out[0 .. count), every threads-th entry from `thread` on. A batch is all loads, then all
// stores, which a compiler may not let pass each other.
QUIRE_HD inline void WritePages(const PageEntries& entries, int32_t* out, int32_t thread,
                                int32_t threads) {
  constexpr int kBatch = 4;
  const int32_t whole = entries.listed - (kBatch - 1) * threads;
  int32_t i = thread;
  for (; i < whole; i += kBatch * threads) {
    int32_t page[kBatch];
    for (int k = 0; k < kBatch; ++k) page[k] = entries.pages[i + k * threads].raw();
    for (int k = 0; k < kBatch; ++k) out[i + k * threads] = page[k];
  }
  for (; i < entries.listed; i += threads) out[i] = entries.pages[i].raw();
  for (; i < entries.count; i += threads) out[i] = entries.fill;
}

}  // namespace quire

#endif  // QUIRE_INTEROP_EXPORT_ROWS_H_
