// How the pages of many rows are shared out: in ranges of a bounded number of pages.
//
// A long row is walked by as many workers as it has ranges (sglang #27320: one worker per row took
// 15 us where one per range takes 1-2). A device maps a grid of rows x ranges over its CTAs, and
// cells past a row's end do nothing; the host lines up the ranges that exist and cuts the line into
// even shares, so one long row among many short ones costs no more than its pages.
#ifndef QUIRE_ATTN_PAGE_RANGES_H_
#define QUIRE_ATTN_PAGE_RANGES_H_

#include <cstdint>
#include <span>

#include "attn/sequence_step.h"
#include "base/executor.h"
#include "base/faults.h"
#include "base/host_device.h"
#include "base/units.h"

namespace quire {

// The most pages of a row that one cell handles: 4 KiB of int32 page entries.
inline constexpr PageCount kMaxPagesPerRange{1024};
// The most tokens of a row that one cell handles where it writes one entry per token.
inline constexpr TokenCount kMaxTokensPerRange{2048};
// Up to this many ranges' worth of pages, of all rows together, are walked by the calling thread:
// that takes it 10 to 40 us, about what it takes to wake others and wait for them.
inline constexpr int64_t kInlineRanges = 64;

// Pages [begin, end) of a row, by position in the row.
struct PageRange {
  PageCount begin;
  PageCount end;

  QUIRE_HD constexpr PageCount size() const { return end - begin; }
  QUIRE_HD constexpr bool empty() const { return !(begin < end); }
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

// The bound for writers of one entry per token: both constants hold. At least 8.
QUIRE_HD constexpr PageCount TokenRangePages(PageSize page_size) {
  return Min(kMaxPagesPerRange, page_size.FullPages(kMaxTokensPerRange));
}

struct PageGrid {
  int64_t num_rows = 0;
  PageCount longest_row{0};             // in pages
  PageCount bound = kMaxPagesPerRange;  // pages per cell, >= 1
  Faults faults = {};

  // Ranges that cover the longest row.
  QUIRE_HD constexpr int64_t CellsPerRow() const {
    if (faults.Has(Fault::kSerialPageTableFill)) return 1;
    return CeilDiv(longest_row, bound);
  }
};

// What cell `cell` handles of a row of `row_pages` <= grid.longest_row pages: at most grid.bound of
// them, none past the row. The cells 0 .. CellsPerRow() - 1 partition the row in order.
QUIRE_HD constexpr PageRange FillRange(const PageGrid& grid, PageCount row_pages, int64_t cell) {
  if (grid.faults.Has(Fault::kSerialPageTableFill)) {
    return {.begin = PageCount(0), .end = cell == 0 ? row_pages : PageCount(0)};
  }
  const PageCount begin = Min(grid.bound * cell, row_pages);
  return {.begin = begin, .end = Min(begin + grid.bound, row_pages)};
}

// Calls fn(row, begin, end) once for every non-empty cell, in any order and possibly at the same
// time. pages_of_row(row) is the row's own page count, at most grid.longest_row. If all rows
// together are no longer than kInlineRanges ranges, the calls come in order on this thread.
void ForEachPageRange(const PageGrid& grid, FunctionRef<PageCount(int64_t row)> pages_of_row,
                      Executor& executor,
                      FunctionRef<void(int64_t row, PageCount begin, PageCount end)> fn);

// Rows of the pages that hold each sequence's kv_len tokens.
struct SequenceRows {
  std::span<const SequenceStep> seqs = {};
  PageSize page_size{64};
  PageCount bound = kMaxPagesPerRange;  // pages per cell, >= 1
  Faults faults = {};
};

// The same over these rows.
void ForEachPageRange(const SequenceRows& rows, Executor& executor,
                      FunctionRef<void(int32_t row, PageCount begin, PageCount end)> fn);

}  // namespace quire

#endif  // QUIRE_ATTN_PAGE_RANGES_H_
