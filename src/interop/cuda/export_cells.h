// The exports of interop/cuda/export.h, cell by cell: what one thread of one CTA does. For host and
// device, like attn/plan_build.h: a test walks all cells on a host.
//
// A cell is a range of a row (attn/page_ranges.h). What does not fit its buffer is not cut off: the
// whole export becomes empty (offsets and lengths 0) and the fault is reported, for half an index
// array is a wrong one.
#ifndef QUIRE_INTEROP_CUDA_EXPORT_CELLS_H_
#define QUIRE_INTEROP_CUDA_EXPORT_CELLS_H_

#include <cstdint>

#include "attn/capacity.h"
#include "attn/page_ranges.h"
#include "attn/plan.h"
#include "attn/plan_build.h"
#include "base/host_device.h"
#include "base/units.h"
#include "interop/capacity.h"
#include "interop/export.h"
#include "interop/export_rows.h"

namespace quire::cuda {

// ---- Slots ----

// The pages of a row, and how far they may be believed.
struct SlotRow {
  const PageId* pages = nullptr;
  int32_t num_pages = 0;
  int32_t pool_pages = 0;
  PageDivider divider;
};

// Walks the slots of a row from position to position; the page is read where it is entered.
class SlotCursor {
 public:
  QUIRE_HD explicit SlotCursor(const SlotRow& row) : row_(row) {}

  QUIRE_HD void Seek(int32_t position) {
    page_ = row_.divider.PageOf(position);
    offset_ = position - page_ * row_.divider.page_size;
    Load();
  }
  QUIRE_HD void Next() {
    if (++offset_ < row_.divider.page_size) return;
    offset_ = 0;
    ++page_;
    Load();
  }
  QUIRE_HD int32_t slot() const { return first_ + offset_; }
  // False once a page was not listed or not in the pool; the scratch page stood in for it.
  QUIRE_HD bool is_good() const { return is_good_; }

 private:
  QUIRE_HD void Load() {
    const int32_t id = page_ < row_.num_pages ? row_.pages[page_].raw() : -1;
    const bool is_page = id > 0 && id < row_.pool_pages;
    first_ = is_page ? id * row_.divider.page_size : 0;
    is_good_ = is_good_ && is_page;
  }

  const SlotRow& row_;
  int32_t page_ = 0, offset_ = 0, first_ = 0;
  bool is_good_ = true;
};

// Entries of a row: entry p is the slot of position p, but from `jump` on that of p - jump + target.
struct SlotEntries {
  SlotRow row;
  int32_t jump = 0;
  int32_t target = 0;

  QUIRE_HD int32_t PositionOf(int32_t p) const { return p < jump ? p : p - jump + target; }
};

// Entries [begin, end) of a row: what a cell writes.
struct EntryRange {
  int32_t begin = 0;
  int32_t end = 0;
};
QUIRE_HD inline EntryRange EntriesOf(const PageGrid& grid, const PageDivider& divider, int32_t keys,
                                     int32_t cell) {
  const PageRange pages = FillRange(grid, PageCount(divider.PagesFor(keys)), cell);
  const auto end = static_cast<int32_t>(pages.end.raw() * divider.page_size);
  return {.begin = static_cast<int32_t>(pages.begin.raw() * divider.page_size),
          .end = end < keys ? end : keys};
}

struct alignas(16) FourSlots {
  int32_t slot[4];
};

// Writes the range's entries to out[begin .. end). Consecutive threads write consecutive groups of
// four, each with one 16-byte store; a group that lies on the edge of the range, entry by entry.
// False for a bad page.
QUIRE_HD inline bool WriteEntries(const SlotEntries& entries, const EntryRange& range, int32_t* out,
                                  int32_t thread, int32_t threads) {
  const int32_t begin = range.begin, end = range.end;
  // Groups begin on 16-byte addresses: where entry 0 stands in its group.
  const auto lead = static_cast<int32_t>(reinterpret_cast<uintptr_t>(out) / sizeof(int32_t) % 4);
  bool is_good = true;
  for (int32_t group = (begin + lead) / 4 + thread; group * 4 - lead < end; group += threads) {
    const int32_t first = group * 4 - lead;
    SlotCursor cursor(entries.row);
    if (first >= begin && first + 4 <= end) {
      FourSlots four;
      cursor.Seek(entries.PositionOf(first));
      four.slot[0] = cursor.slot();
      for (int i = 1; i < 4; ++i) {
        if (first + i == entries.jump) {
          cursor.Seek(entries.target);
        } else {
          cursor.Next();
        }
        four.slot[i] = cursor.slot();
      }
      *reinterpret_cast<FourSlots*>(out + first) = four;
    } else {
      const int32_t last = first + 4 < end ? first + 4 : end;
      for (int32_t p = first > begin ? first : begin; p < last; ++p) {
        cursor.Seek(entries.PositionOf(p));
        out[p] = cursor.slot();
      }
    }
    is_good = is_good && cursor.is_good();
  }
  return is_good;
}

// ---- Flat token indices ----

struct FlatExport {
  Sequences seqs;
  const SequenceOffsets* offsets = nullptr;
  PageDivider divider;
  int32_t num_seqs = 0;  // of the buffers' capacity
  int64_t sized = 0;     // entries of indices
  int32_t* indptr = nullptr;
  int32_t* indices = nullptr;
  PageGrid grid;
  int32_t cells = 1;  // CTAs per row
};

// CTA `cta` of num_seqs * cells.
template <class OnFault>
QUIRE_HD void ExportFlatCell(const FlatExport& to, int32_t cta, int32_t thread, int32_t threads,
                             const OnFault& on_fault) {
  const int32_t num_seqs = to.seqs.seq_counts->num_seqs;
  const bool fits = num_seqs <= to.num_seqs && to.offsets[num_seqs].kv <= to.sized;
  if (cta == 0) {
    for (int32_t i = thread; i <= to.num_seqs; i += threads) {
      const int64_t begin = fits ? to.offsets[i < num_seqs ? i : num_seqs].kv : 0;
      to.indptr[i] = static_cast<int32_t>(begin);
    }
    if (!fits && thread == 0) on_fault(StepFault::kCapacity, num_seqs);
  }
  const int32_t b = cta / to.cells;
  if (!fits || b >= num_seqs) return;
  const auto kv_len = static_cast<int32_t>(to.seqs.kv_len[b].raw());
  const EntryRange range = EntriesOf(to.grid, to.divider, kv_len, cta % to.cells);
  if (range.begin >= range.end) return;
  const SlotEntries entries{.row = {.pages = to.seqs.Row(b),
                                    .num_pages = static_cast<int32_t>(to.seqs.row_width.raw()),
                                    .pool_pages = static_cast<int32_t>(to.seqs.pool_pages.raw()),
                                    .divider = to.divider},
                            .jump = kv_len};
  if (!WriteEntries(entries, range, to.indices + to.offsets[b].kv, thread, threads)) {
    on_fault(StepFault::kPage, b);
  }
}

// ---- Flat page indices ----

struct FlatPagesExport {
  Sequences seqs;
  PageDivider divider;
  int32_t num_seqs = 0;  // of the buffers' capacity
  int64_t sized = 0;     // entries of pages
  int32_t* indptr = nullptr;
  int32_t* pages = nullptr;
  int32_t* last_page_len = nullptr;
  PageGrid grid;
  int32_t cells = 1;  // CTAs per row
};

// The pages of the sequences before one, and of all.
struct PageSums {
  int64_t before = 0;
  int64_t total = 0;
};

// Every CTA sums for itself: a plan has no offsets in pages, since no kernel of ours reads them, and
// the lengths of a step are a load or two for each thread. All threads of the block arrive.
template <class Block>
QUIRE_HD PageSums SumPages(const FlatPagesExport& to, int32_t num_seqs, int32_t seq, Block& block) {
  int64_t sums[2] = {0, 0}, before[2], total[2];
  for (int32_t b = block.thread(); b < num_seqs; b += block.threads()) {
    const auto kv_len = static_cast<int32_t>(to.seqs.kv_len[b].raw());
    const int32_t pages = SequencePages(kv_len, to.divider).count;
    sums[0] += b < seq ? pages : 0;
    sums[1] += pages;
  }
  block.Scan(sums, before, total);
  return {.before = total[0], .total = total[1]};
}

// CTA `cta` of num_seqs * cells; a Block is a CTA's threads, as for attn/plan_build.h.
template <class Block, class OnFault>
QUIRE_HD void ExportFlatPagesCell(const FlatPagesExport& to, int32_t cta, Block& block,
                                  const OnFault& on_fault) {
  const int32_t b = cta / to.cells;
  const int32_t cell = cta % to.cells;
  const int32_t num_seqs = to.seqs.seq_counts->num_seqs;
  const PageSums sums = SumPages(to, num_seqs, b, block);
  const bool fits = num_seqs <= to.num_seqs && sums.total <= to.sized;
  const bool has_row = fits && b < num_seqs;
  const int32_t kv_len = has_row ? static_cast<int32_t>(to.seqs.kv_len[b].raw()) : 0;
  if (cell == 0 && block.thread() == 0) {
    to.indptr[b] = static_cast<int32_t>(fits ? sums.before : 0);
    to.last_page_len[b] = LastPageLen(kv_len, to.divider);
    if (b + 1 == to.num_seqs) to.indptr[b + 1] = static_cast<int32_t>(fits ? sums.total : 0);
    if (b == 0 && !fits) on_fault(StepFault::kCapacity, num_seqs);
  }
  if (kv_len == 0) return;
  const int32_t pages = SequencePages(kv_len, to.divider).count;
  const PageRange range = FillRange(to.grid, PageCount(pages), cell);
  WritePages(EntriesOf(to.seqs.Row(b), pages, range, /*fill=*/0),
             to.pages + sums.before + range.begin.raw(), block.thread(), block.threads());
}

// ---- Padded tables ----

enum class TableRows {
  kSequences,  // the pages of kv_len
  kPrefixes,   // the pages that the committed tokens fill
};

struct TableExport {
  Sequences seqs;
  TableRows rows = TableRows::kSequences;
  PageDivider divider;
  int32_t num_seqs = 0;  // of the buffers' capacity
  int32_t width = 0;
  int32_t fill = 0;
  int32_t* table = nullptr;
  int32_t* lens = nullptr;
  PageGrid grid;
  int32_t cells = 1;  // CTAs per row
};

// What row b is to hold, which may be more than it has room for; nothing for padding.
QUIRE_HD inline RowPages TableRow(const TableExport& to, int32_t b) {
  if (b >= to.seqs.seq_counts->num_seqs) return {};
  if (to.rows == TableRows::kPrefixes) {
    return PrefixPages(static_cast<int32_t>(to.seqs.committed[b].raw()), to.divider);
  }
  return SequencePages(static_cast<int32_t>(to.seqs.kv_len[b].raw()), to.divider);
}

QUIRE_HD inline bool TableRowFits(const TableExport& to, const RowPages& row) {
  return to.seqs.seq_counts->num_seqs <= to.num_seqs && row.count <= to.width;
}

// CTA `cta` of num_seqs * cells: whole rows are written, the fill value behind the pages.
template <class OnFault>
QUIRE_HD void ExportTableCell(const TableExport& to, int32_t cta, int32_t thread, int32_t threads,
                              const OnFault& on_fault) {
  const int32_t b = cta / to.cells;
  const int32_t cell = cta % to.cells;
  RowPages row = TableRow(to, b);
  const bool fits = TableRowFits(to, row);
  if (!fits) row = {};
  if (cell == 0 && thread == 0) {
    to.lens[b] = row.keys;
    if (!fits) on_fault(StepFault::kCapacity, b);
  }
  const PageRange range = FillRange(to.grid, PageCount(to.width), cell);
  const PageId* pages = row.count > 0 ? to.seqs.Row(b) : nullptr;
  WritePages(EntriesOf(pages, row.count, range, to.fill),
             to.table + int64_t{b} * to.width + range.begin.raw(), thread, threads);
}

// ---- Draft rows ----

struct DraftExport {
  Sequences seqs;
  const SequenceOffsets* offsets = nullptr;
  const PackedSequence* packed = nullptr;  // how long page lists are, which go on behind kv_len
  PageDivider divider;
  DraftShape shape;
  int32_t num_seqs = 0;     // of the buffers' capacity
  int64_t row_entries = 0;  // of one step
  int32_t* indptr = nullptr;
  int32_t* indices = nullptr;
  int64_t* write_slots = nullptr;
  PageGrid grid;
  int32_t cells = 1;  // CTAs per row
};

// Entries of a step before branch row z of the capacity; z up to num_seqs * branches.
QUIRE_HD inline int64_t DraftOffset(const DraftExport& to, int32_t num_seqs, int32_t step,
                                    int32_t z) {
  const int32_t branches = to.shape.branches;
  const int32_t b = z / branches < num_seqs ? z / branches : num_seqs;
  const SequenceOffsets& before = to.offsets[b];
  const int64_t whole = before.committed + int64_t{before.running} * (step + 1);
  if (b == num_seqs || to.seqs.kv_len[b] == TokenCount(0)) return whole * branches;
  return whole * branches + (z - b * branches) * (to.seqs.committed[b].raw() + step + 1);
}

// The offset of row z of the step, and with the last row the end; for step 0 the slots that the row's
// drafts are written to.
QUIRE_HD inline bool WriteDraftHeads(const DraftExport& to, const SlotEntries& entries,
                                     int32_t num_seqs, int32_t step, int32_t z, int32_t thread,
                                     int32_t threads) {
  const int32_t rows = to.num_seqs * to.shape.branches;
  int32_t* indptr = to.indptr + int64_t{step} * (rows + 1);
  if (thread == 0) indptr[z] = static_cast<int32_t>(DraftOffset(to, num_seqs, step, z));
  if (thread == 0 && z + 1 == rows) {
    indptr[rows] = static_cast<int32_t>(DraftOffset(to, num_seqs, step, rows));
  }
  if (step > 0) return true;
  bool is_good = true;
  for (int32_t i = thread; i < to.shape.steps; i += threads) {
    int32_t slot = 0;
    if (entries.row.pages != nullptr) {
      SlotCursor cursor(entries.row);
      cursor.Seek(entries.target + i);
      slot = cursor.slot();
      is_good = is_good && cursor.is_good();
    }
    to.write_slots[int64_t{z} * to.shape.steps + i] = slot;
  }
  return is_good;
}

// The row of branch z % branches of a sequence: empty (no pages) for padding.
QUIRE_HD inline SlotEntries DraftEntries(const DraftExport& to, int32_t num_seqs, int32_t z) {
  const int32_t b = z / to.shape.branches;
  if (b >= num_seqs || to.seqs.kv_len[b] == TokenCount(0)) return {};
  const TokenCount committed = to.seqs.committed[b];
  const TokenCount start =
      DraftStart(committed, z % to.shape.branches, to.shape, to.seqs.page_size);
  return {.row = {.pages = to.seqs.Row(b),
                  .num_pages = to.packed[b].num_pages,
                  .pool_pages = static_cast<int32_t>(to.seqs.pool_pages.raw()),
                  .divider = to.divider},
          .jump = static_cast<int32_t>(committed.raw()),
          .target = static_cast<int32_t>(start.raw())};
}

// CTA `cta` of steps * num_seqs * branches * cells.
template <class OnFault>
QUIRE_HD void ExportDraftCell(const DraftExport& to, int32_t cta, int32_t thread, int32_t threads,
                              const OnFault& on_fault) {
  const int32_t rows = to.num_seqs * to.shape.branches;
  const int32_t cell = cta % to.cells;
  const int32_t step = cta / to.cells / rows;
  const int32_t z = cta / to.cells % rows;
  const int32_t listed = to.seqs.seq_counts->num_seqs;
  const SequenceOffsets& total = to.offsets[listed];
  const int64_t need =
      (total.committed + int64_t{total.running} * to.shape.steps) * to.shape.branches;
  const bool fits = listed <= to.num_seqs && need <= to.row_entries;
  if (!fits && cta == 0 && thread == 0) on_fault(StepFault::kCapacity, listed);
  // An export that does not fit is that of a step without sequences: offsets[0] is all zeros.
  const int32_t num_seqs = fits ? listed : 0;
  const SlotEntries entries = DraftEntries(to, num_seqs, z);
  bool is_good = true;
  if (cell == 0) is_good = WriteDraftHeads(to, entries, num_seqs, step, z, thread, threads);
  if (entries.row.pages != nullptr) {
    const EntryRange range = EntriesOf(to.grid, to.divider, entries.jump + step + 1, cell);
    int32_t* out = to.indices + step * to.row_entries + DraftOffset(to, num_seqs, step, z);
    is_good = WriteEntries(entries, range, out, thread, threads) && is_good;
  }
  if (!is_good) on_fault(StepFault::kPage, z / to.shape.branches);
}

// ---- Draft tables ----

// The table of full pages, and the branches' behind it in the same launch.
struct DraftTablesExport {
  TableExport prefix;
  const PackedSequence* packed = nullptr;  // how long page lists are, which go on behind kv_len
  DraftShape shape;
  int32_t width = 0;         // of a branch's row
  int32_t num_entries = 0;   // of all branches' rows
  int32_t prefix_ctas = 0;   // the first ones of the launch
  int32_t* table = nullptr;  // [steps, num_seqs * branches, width]
  int32_t* lens = nullptr;   // [steps, num_seqs * branches]
};

// Entries of the branches' table that one CTA writes: their rows are a page or two, and far too many
// for a CTA each.
inline constexpr int32_t kBranchEntriesPerCta = 1024;

// What a branch's row holds; nothing for padding, nor where the prefix does not fit its table: half of
// a sequence's keys are wrong keys.
QUIRE_HD inline RowPages BranchRowPages(const DraftTablesExport& to, int32_t b, int32_t branch,
                                        int32_t step) {
  const Sequences& seqs = to.prefix.seqs;
  if (b >= seqs.seq_counts->num_seqs || seqs.kv_len[b] == TokenCount(0)) return {};
  if (!TableRowFits(to.prefix, TableRow(to.prefix, b))) return {};
  return BranchPages({.committed = seqs.committed[b], .branch = branch, .step = step}, to.shape,
                     seqs.page_size);
}

template <class OnFault>
QUIRE_HD void ExportBranchEntry(const DraftTablesExport& to, int32_t entry,
                                const OnFault& on_fault) {
  const int32_t rows_per_step = to.prefix.num_seqs * to.shape.branches;
  const int32_t row = entry / to.width, j = entry % to.width;
  const int32_t z = row % rows_per_step, b = z / to.shape.branches;
  const RowPages pages = BranchRowPages(to, b, z % to.shape.branches, row / rows_per_step);
  if (j == 0) to.lens[row] = pages.keys;
  int32_t value = to.prefix.fill;
  if (j < pages.count) {
    const bool is_listed = pages.first + j < to.packed[b].num_pages;
    value = is_listed ? to.prefix.seqs.Row(b)[pages.first + j].raw() : kScratchPage.raw();
    if (!is_listed) on_fault(StepFault::kPage, b);
  }
  to.table[entry] = value;
}

// CTA `cta` of prefix_ctas and those of the branches.
template <class OnFault>
QUIRE_HD void ExportDraftTablesCell(const DraftTablesExport& to, int32_t cta, int32_t thread,
                                    int32_t threads, const OnFault& on_fault) {
  if (cta < to.prefix_ctas) {
    ExportTableCell(to.prefix, cta, thread, threads, on_fault);
    return;
  }
  const int32_t begin = (cta - to.prefix_ctas) * kBranchEntriesPerCta;
  const int32_t left = to.num_entries - begin;
  const int32_t count = left < kBranchEntriesPerCta ? left : kBranchEntriesPerCta;
  for (int32_t i = thread; i < count; i += threads) ExportBranchEntry(to, begin + i, on_fault);
}

}  // namespace quire::cuda

#endif  // QUIRE_INTEROP_CUDA_EXPORT_CELLS_H_
