// Filling a plan's page table from the rows of pages and a packed step, by many CTAs: what one thread
// of one of them does. For host and device, like attn/cuda/plan_build.h.
//
// Only entries that change are written: a decode step writes the pages that its sequences have got.
#ifndef QUIRE_ATTN_CUDA_PAGE_FILL_H_
#define QUIRE_ATTN_CUDA_PAGE_FILL_H_

#include <cstdint>

#include "attn/cuda/plan_build.h"
#include "attn/cuda/step_pack.h"
#include "base/host_device.h"
#include "base/units.h"

namespace quire::cuda {

// Entries that a CTA fills at once. A context of 128k tokens in pages of 64, and what is drafted behind
// it, are two of these.
inline constexpr int32_t kFillRange = 1056;

struct PageFill {
  PackedStep step;
  PlanBounds bounds;
  PageId* rows = nullptr;   // [page_rows, row_width]
  PageId* table = nullptr;  // [num_seqs, table_width]
  int32_t cells = 1;        // CTAs per row: of every kFillRange entries one, or in turns
};

// What is to be done for one row of the step.
struct RowFill {
  PackedSequence seq;
  int32_t pages = 0;  // of the table row; behind them come zeros
  int32_t begin = 0;  // entries to walk, in the table or in the row of pages
  int32_t end = 0;
};

// Out of bounds: the table row becomes empty. What has nothing to do with pages is not looked at, nor
// is the header: where those are bad the plan is empty, and nobody reads the table.
QUIRE_HD inline RowFill RowFillOf(const PageFill& fill, int32_t b) {
  RowFill row{.seq = fill.step.seqs[b]};
  bool is_good = PagesWithinBounds(row.seq, fill.bounds);
  is_good &= row.seq.fill_begin >= 0;
  is_good &= row.seq.fill_end <= fill.bounds.table_width;
  if (!is_good) row.seq = {.fill_begin = 0, .fill_end = fill.bounds.table_width};
  row.pages = fill.bounds.pages.PagesFor(row.seq.kv_len);
  const int32_t new_end = row.seq.num_new > 0 ? row.seq.first_new + row.seq.num_new : 0;
  row.end = row.seq.fill_end > new_end ? row.seq.fill_end : new_end;
  row.begin = row.seq.fill_begin < row.end ? row.seq.fill_begin : row.end;
  return row;
}

QUIRE_HD inline bool IsNew(const PackedSequence& seq, int32_t j) {
  // Neither is negative: what is before first_new becomes a large number.
  return static_cast<uint32_t>(j - seq.first_new) < static_cast<uint32_t>(seq.num_new);
}

// Page j: the new one, or the one that the row has; the scratch page behind them. One load from one
// of two places, not one of two loads: those of a batch are to be on their way together.
QUIRE_HD inline PageId LoadPage(const PageFill& fill, const RowFill& row, int32_t j,
                                const PageId* pages) {
  const PageId* brought = reinterpret_cast<const PageId*>(fill.step.words) + row.seq.new_begin;
  const bool is_new = IsNew(row.seq, j);
  const PageId* from = is_new ? brought : pages + row.seq.first_new;
  return is_new || j < row.pages ? from[j - row.seq.first_new] : PageId(kScratchPage.raw());
}

// Stores it in the row if it is new, and in the table where that is to be filled. False for a page
// that is not in the pool: the table then has the scratch page.
QUIRE_HD inline bool StorePage(const PageFill& fill, const RowFill& row, int32_t j, PageId page,
                               PageId* pages, PageId* table) {
  if (IsNew(row.seq, j)) pages[j] = page;
  const bool is_filled = j < row.seq.fill_end;  // and fill_begin <= row.begin <= j
  const bool has_page = j < row.pages;
  const bool is_page = page.raw() > kScratchPage.raw() && page.raw() < fill.bounds.pool_pages;
  if (is_filled) table[j] = has_page && is_page ? page : PageId(kScratchPage.raw());
  return !is_filled || !has_page || is_page;
}

// What one thread of CTA `cell` of row `b` does, of num_seqs * cells CTAs. A row of pages is named by
// one row of the step, and an entry handled by one thread: nobody reads what another writes.
template <class OnFault>
QUIRE_HD void FillPageTable(const PageFill& fill, int32_t b, int32_t cell, int32_t thread,
                            int32_t threads, const OnFault& on_fault) {
  const RowFill row = RowFillOf(fill, b);
  // A row without pages of its own reads and writes none; any address does.
  const int32_t page_row = row.seq.row == kNoRow ? 0 : row.seq.row;
  PageId* pages = fill.rows + int64_t{page_row} * fill.bounds.row_width;
  PageId* table = fill.table + int64_t{b} * fill.bounds.table_width;
  constexpr int kBatch = 5;
  bool is_good = true;
  for (int32_t begin = row.begin + kFillRange * cell; begin < row.end;
       begin += kFillRange * fill.cells) {
    const int32_t end = row.end - begin < kFillRange ? row.end : begin + kFillRange;
    for (int32_t first = begin + thread; first < end; first += kBatch * threads) {
      // All loads, then all stores: they may not pass each other, and would wait one by one.
      PageId page[kBatch];
      for (int i = 0; i < kBatch; ++i) {
        const int32_t j = first + i * threads;
        if (j < end) page[i] = LoadPage(fill, row, j, pages);
      }
      for (int i = 0; i < kBatch; ++i) {
        const int32_t j = first + i * threads;
        if (j < end) is_good &= StorePage(fill, row, j, page[i], pages, table);
      }
    }
  }
  if (!is_good) on_fault(StepFault::kPage, b);
}

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_PAGE_FILL_H_
