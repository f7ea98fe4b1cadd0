#include "interop/export.h"

#include <algorithm>

#include "attn/checks.h"
#include "attn/page_ranges.h"
#include "attn/plan_build.h"
#include "base/format.h"
#include "interop/export_checks.h"
#include "interop/export_rows.h"

namespace quire {
namespace {

int64_t Size(std::span<const SequenceStep> seqs) { return static_cast<int64_t>(seqs.size()); }
int32_t ToInt32(TokenCount tokens) { return static_cast<int32_t>(tokens.raw()); }

bool IsPadding(const SequenceStep& seq) { return seq.kv_len == TokenCount(0); }

// What every exporter checks of a step, before the first write.
void CheckStep(const char* buffer, std::span<const SequenceStep> seqs,
               const StepCapacity& capacity) {
  Validate(capacity);
  CheckNumSeqs(buffer, seqs, capacity);
  RequireInt32(buffer, "slots of the pool",
               capacity.page_size.TokensIn(capacity.pool_pages).raw() - 1);
  CheckLengths(buffer, seqs);
  for (const SequenceStep& seq : seqs) RequireInt32(buffer, "kv_len", seq.kv_len.raw());
}

// ---- Writers ----

// The slots of positions [begin, end) of a row. Plain numbers inside: at page size 1 the checked
// ones cost more than the copy, and the pool's last slot was found to fit int32.
void WriteSlots(std::span<const PageId> pages, PageSize page_size, TokenCount begin, TokenCount end,
                int32_t* out) {
  const PageId* page = pages.data() + page_size.FullPages(begin).raw();
  if (page_size == PageSize(1)) {  // a page is a slot: a plain copy, five times faster than runs
    std::transform(page, page + (end - begin).raw(), out, [](PageId id) { return id.raw(); });
    return;
  }
  int64_t offset = page_size.OffsetOf(begin);
  for (int64_t left = (end - begin).raw(); left > 0; ++page, offset = 0) {
    const int64_t run = std::min(left, page_size.raw() - offset);
    const auto first = static_cast<int32_t>(page->raw() * page_size.raw() + offset);
    for (int64_t i = 0; i < run; ++i) *out++ = first + static_cast<int32_t>(i);
    left -= run;
  }
}

// Running sums of length(0) .. length(num_rows - 1); the total is repeated up to the end.
void WriteIndptr(int64_t num_rows, FunctionRef<int64_t(int64_t)> length,
                 std::span<int32_t> indptr) {
  int64_t sum = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    indptr[Index(row)] = static_cast<int32_t>(sum);
    sum += length(row);
  }
  std::fill(indptr.begin() + num_rows, indptr.end(), static_cast<int32_t>(sum));
}

void WriteKvLens(std::span<const SequenceStep> seqs, std::span<int32_t> kv_lens) {
  for (size_t b = 0; b < seqs.size(); ++b) kv_lens[b] = ToInt32(seqs[b].kv_len);
  std::fill(kv_lens.begin() + Size(seqs), kv_lens.end(), 0);
}

// Entries `range` of a row, its pages and then the fill value, to out[begin .. end).
void WriteRange(std::span<const PageId> pages, const PageRange& range, int32_t fill, int32_t* out) {
  WritePages(EntriesOf(pages.data(), static_cast<int32_t>(pages.size()), range, fill),
             out + range.begin.raw(), /*thread=*/0, /*threads=*/1);
}

std::span<const PageId> PagesOf(const SequenceStep& seq, const RowPages& row) {
  return seq.pages.subspan(Index(row.first), Index(row.count));
}

struct PaddedTable {
  std::span<int32_t> entries;  // [num_rows, width]
  int64_t num_rows = 0;
  PageCount width{0};
  int32_t fill = 0;
};

// Each row: pages_of_row(row), at most `width` of them, then the fill value.
void WriteTable(const PaddedTable& table,
                FunctionRef<std::span<const PageId>(int64_t)> pages_of_row, Executor& executor,
                Faults faults) {
  const PageGrid grid{.num_rows = table.num_rows, .longest_row = table.width, .faults = faults};
  const auto whole_row = [&](int64_t) { return table.width; };
  ForEachPageRange(grid, whole_row, executor, [&](int64_t row, PageCount begin, PageCount end) {
    WriteRange(pages_of_row(row), {.begin = begin, .end = end}, table.fill,
               table.entries.data() + (table.width * row).raw());
  });
}

void ExportTable(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                 const SequenceTable& out, Executor& executor, Faults faults) {
  const PageSize page_size = capacity.page_size;
  const PageDivider divider = DividerOf(page_size);
  CheckStep(out.name, seqs, capacity);
  for (size_t b = 0; b < seqs.size(); ++b) {
    const PageCount need = page_size.PagesFor(seqs[b].kv_len);
    if (need > out.width) {
      ThrowCapacity(
          out.name, need.raw(),
          fmt::format("pages of kv_len {} at page_size {} (row {})", seqs[b].kv_len, page_size, b),
          out.width.raw(), fmt::format("width ({})", ToString(capacity)));
    }
  }
  RequireOutputs(out, capacity);
  CheckPages(out.name, seqs, capacity, executor);

  WriteKvLens(seqs, out.kv_lens.first(Index(capacity.num_seqs)));
  const auto pages_of_row = [&](int64_t row) -> std::span<const PageId> {
    if (row >= Size(seqs)) return {};
    const SequenceStep& seq = seqs[Index(row)];
    return PagesOf(seq, SequencePages(ToInt32(seq.kv_len), divider));
  };
  WriteTable(
      {.entries = out.table, .num_rows = capacity.num_seqs, .width = out.width, .fill = out.fill},
      pages_of_row, executor, faults);
}

// ---- Drafting ----

TokenCount SumOfCommitted(std::span<const SequenceStep> seqs) {
  TokenCount sum{0};
  for (const SequenceStep& seq : seqs) sum += seq.committed();
  return sum;
}

// Pages of the row up to the last branch's last draft.
PageCount DraftPages(const SequenceStep& seq, const DraftShape& shape, PageSize page_size) {
  if (IsPadding(seq)) return PageCount(0);
  return page_size.PagesFor(DraftStart(seq.committed(), shape.branches - 1, shape, page_size) +
                            TokenCount(shape.steps));
}

// Keys of a branch at step `step`: its prefix and its drafts so far.
TokenCount DraftKeys(const SequenceStep& seq, int32_t step) {
  return IsPadding(seq) ? TokenCount(0) : seq.committed() + TokenCount(step + 1);
}

void CheckDraftRows(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                    const DraftRows& out, Executor& executor, Faults faults) {
  const char* buffer = "draft_rows";
  const DraftShape& shape = out.shape;
  Validate(shape);
  CheckStep(buffer, seqs, capacity);
  const TokenCount committed = SumOfCommitted(seqs);
  const TokenCount need =
      (committed + TokenCount(shape.steps) * seqs.size()) * int64_t{shape.branches};
  const TokenCount sized = DraftRowEntries(capacity, shape, faults);
  RequireInt32(buffer, "entries of one step", need.raw());
  if (need > sized) {
    ThrowCapacity(buffer, need.raw(),
                  fmt::format("branches {} * (sum of committed {} + num_seqs {} * steps {})",
                              shape.branches, committed, seqs.size(), shape.steps),
                  sized.raw(),
                  fmt::format("DraftRowEntries (branches {}, steps {}, {})", shape.branches,
                              shape.steps, ToString(capacity)));
  }
  RequireOutputs(out, capacity, faults);
  const auto pages_of = [&](int64_t b) {
    return DraftPages(seqs[Index(b)], shape, capacity.page_size);
  };
  CheckPages({.consumer = buffer, .reach = "drafts behind kv_len", .pages_of_row = pages_of}, seqs,
             capacity, executor);
}

// A branch's row: the slots of the prefix, then of the drafts.
struct DraftRow {
  const SequenceStep& seq;
  PageSize page_size;
  TokenCount draft_start;
  int32_t* out;
};

void WriteDraftEntries(const DraftRow& row, TokenCount begin, TokenCount end) {
  const TokenCount committed = row.seq.committed();
  if (begin < committed) {
    WriteSlots(row.seq.pages, row.page_size, begin, Min(end, committed), row.out + begin.raw());
  }
  if (end > committed) {
    const TokenCount first = Max(begin, committed);
    WriteSlots(row.seq.pages, row.page_size, row.draft_start + (first - committed),
               row.draft_start + (end - committed), row.out + first.raw());
  }
}

void WriteDraftSlots(std::span<const SequenceStep> seqs, PageSize page_size,
                     const DraftShape& shape, std::span<int64_t> write_slots) {
  size_t next = 0;
  for (const SequenceStep& seq : seqs) {
    for (int32_t t = 0; t < shape.branches; ++t) {
      const TokenCount start = DraftStart(seq.committed(), t, shape, page_size);
      for (int32_t s = 0; s < shape.steps; ++s) {
        const TokenCount position = start + TokenCount(s);
        const PageId page =
            IsPadding(seq) ? kScratchPage : seq.pages[Index(page_size.FullPages(position).raw())];
        const int32_t offset = IsPadding(seq) ? 0 : page_size.OffsetOf(position);
        write_slots[next++] = page_size.SlotOf(page, offset).raw();
      }
    }
  }
  std::fill(write_slots.begin() + static_cast<int64_t>(next), write_slots.end(), 0);
}

void CheckDraftTables(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                      const DraftTables& out, Executor& executor) {
  const char* buffer = "draft_prefix_table";
  const DraftShape& shape = out.shape;
  const PageSize page_size = capacity.page_size;
  Validate(shape);
  CheckStep(buffer, seqs, capacity);
  const PageCount width = DraftPrefixWidth(capacity);
  for (size_t b = 0; b < seqs.size(); ++b) {
    const PageCount need = page_size.FullPages(seqs[b].committed());
    if (need > width) {
      ThrowCapacity(buffer, need.raw(),
                    fmt::format("full pages of committed {} at page_size {} (row {})",
                                seqs[b].committed(), page_size, b),
                    width.raw(), fmt::format("width ({})", ToString(capacity)));
    }
  }
  RequireOutputs(out, capacity);
  const auto pages_of = [&](int64_t b) { return DraftPages(seqs[Index(b)], shape, page_size); };
  CheckPages({.consumer = buffer, .reach = "drafts behind kv_len", .pages_of_row = pages_of}, seqs,
             capacity, executor);
}

}  // namespace

void ExportFlatIndices(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                       const FlatIndices& out, Executor& executor, Faults faults) {
  const char* buffer = "flat_token_indices";
  const PageSize page_size = capacity.page_size;
  CheckStep(buffer, seqs, capacity);
  TokenCount need{0};
  for (const SequenceStep& seq : seqs) need += seq.kv_len;
  const TokenCount sized = FlatIndexEntries(capacity, faults);
  RequireInt32(buffer, "entries", need.raw());
  if (need > sized) {
    ThrowCapacity(buffer, need.raw(), fmt::format("sum of kv_len over num_seqs {}", seqs.size()),
                  sized.raw(), fmt::format("FlatIndexEntries ({})", ToString(capacity)));
  }
  RequireOutputs(out, capacity, faults);
  CheckPages(buffer, seqs, capacity, executor);

  WriteIndptr(
      Size(seqs), [&](int64_t b) { return seqs[Index(b)].kv_len.raw(); },
      out.kv_indptr.first(Index(IndptrEntries(capacity))));
  const SequenceRows rows{
      .seqs = seqs, .page_size = page_size, .bound = TokenRangePages(page_size), .faults = faults};
  ForEachPageRange(rows, executor, [&](int32_t b, PageCount first, PageCount last) {
    const SequenceStep& seq = seqs[Index(b)];
    const TokenCount begin = page_size.TokensIn(first);
    const TokenCount end = Min(page_size.TokensIn(last), seq.kv_len);
    WriteSlots(seq.pages, page_size, begin, end,
               out.kv_indices.data() + out.kv_indptr[Index(b)] + begin.raw());
  });
}

void ExportFlatPages(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                     const FlatPages& out, Executor& executor, Faults faults) {
  const char* buffer = "flat_page_indices";
  const PageSize page_size = capacity.page_size;
  const PageDivider divider = DividerOf(page_size);
  CheckStep(buffer, seqs, capacity);
  const auto row_pages = [&](int64_t b) {
    return SequencePages(ToInt32(seqs[Index(b)].kv_len), divider);
  };
  PageCount need{0};
  for (int64_t b = 0; b < Size(seqs); ++b) need += PageCount(row_pages(b).count);
  const PageCount sized = FlatPageEntries(capacity);
  RequireInt32(buffer, "entries", need.raw());
  if (need > sized) {
    ThrowCapacity(buffer, need.raw(), fmt::format("pages of kv_len over num_seqs {}", seqs.size()),
                  sized.raw(), fmt::format("FlatPageEntries ({})", ToString(capacity)));
  }
  RequireOutputs(out, capacity);
  CheckPages(buffer, seqs, capacity, executor);

  WriteIndptr(
      Size(seqs), [&](int64_t b) { return int64_t{row_pages(b).count}; },
      out.kv_indptr.first(Index(IndptrEntries(capacity))));
  for (int64_t b = 0; b < Size(seqs); ++b) {
    out.last_page_len[Index(b)] = LastPageLen(ToInt32(seqs[Index(b)].kv_len), divider);
  }
  std::fill(out.last_page_len.begin() + Size(seqs), out.last_page_len.begin() + capacity.num_seqs,
            0);
  const SequenceRows rows{.seqs = seqs, .page_size = page_size, .faults = faults};
  ForEachPageRange(rows, executor, [&](int32_t b, PageCount begin, PageCount end) {
    WriteRange(seqs[Index(b)].pages, {.begin = begin, .end = end}, /*fill=*/0,
               out.kv_pages.data() + out.kv_indptr[Index(b)]);
  });
}

void ExportBlockTable(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                      const BlockTable& out, Executor& executor, Faults faults) {
  ExportTable(seqs, capacity, TableOf(out, capacity), executor, faults);
}

void ExportUnifiedPageTable(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                            const UnifiedPageTable& out, Executor& executor, Faults faults) {
  ExportTable(seqs, capacity, TableOf(out, capacity), executor, faults);
}

void ExportDraftRows(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                     const DraftRows& out, Executor& executor, Faults faults) {
  CheckDraftRows(seqs, capacity, out, executor, faults);
  const DraftShape& shape = out.shape;
  const PageSize page_size = capacity.page_size;
  const int64_t indptr_stride = DraftIndptrEntries(capacity, shape);
  const int64_t row_stride = DraftRowEntries(capacity, shape, faults).raw();
  WriteDraftSlots(seqs, page_size, shape,
                  out.write_slots.first(Index(DraftSlotEntries(capacity, shape))));

  const int64_t rows_per_step = Size(seqs) * shape.branches;
  const auto keys_of = [&](int64_t row) {
    return DraftKeys(seqs[Index(row % rows_per_step / shape.branches)],
                     static_cast<int32_t>(row / rows_per_step));
  };
  const auto pages_of = [&](int64_t row) { return page_size.PagesFor(keys_of(row)); };
  for (int64_t step = 0; step < shape.steps; ++step) {
    WriteIndptr(
        rows_per_step, [&](int64_t z) { return keys_of(step * rows_per_step + z).raw(); },
        out.kv_indptr.subspan(Index(step * indptr_stride), Index(indptr_stride)));
  }
  PageGrid grid{.num_rows = rows_per_step * shape.steps,
                .bound = TokenRangePages(page_size),
                .faults = faults};
  for (int64_t row = grid.num_rows - rows_per_step; row < grid.num_rows; ++row) {
    grid.longest_row = Max(grid.longest_row, pages_of(row));
  }
  ForEachPageRange(grid, pages_of, executor, [&](int64_t row, PageCount first, PageCount last) {
    const int64_t step = row / rows_per_step;
    const int64_t z = row % rows_per_step;
    const SequenceStep& seq = seqs[Index(z / shape.branches)];
    const auto branch = static_cast<int32_t>(z % shape.branches);
    const int32_t offset = out.kv_indptr[Index(step * indptr_stride + z)];
    WriteDraftEntries({.seq = seq,
                       .page_size = page_size,
                       .draft_start = DraftStart(seq.committed(), branch, shape, page_size),
                       .out = out.kv_indices.data() + step * row_stride + offset},
                      page_size.TokensIn(first), Min(page_size.TokensIn(last), keys_of(row)));
  });
}

void ExportDraftTables(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                       const DraftTables& out, Executor& executor, Faults faults) {
  CheckDraftTables(seqs, capacity, out, executor);
  const DraftShape& shape = out.shape;
  const PageSize page_size = capacity.page_size;
  const PageDivider divider = DividerOf(page_size);
  const auto prefix_of = [&](int64_t b) {
    if (b >= Size(seqs)) return RowPages{};
    return PrefixPages(ToInt32(seqs[Index(b)].committed()), divider);
  };
  for (int64_t b = 0; b < capacity.num_seqs; ++b) out.prefix_lens[Index(b)] = prefix_of(b).keys;
  const auto full_pages = [&](int64_t b) -> std::span<const PageId> {
    if (b >= Size(seqs)) return {};
    return PagesOf(seqs[Index(b)], prefix_of(b));
  };
  WriteTable({.entries = out.prefix_table,
              .num_rows = capacity.num_seqs,
              .width = DraftPrefixWidth(capacity),
              .fill = out.fill},
             full_pages, executor, faults);

  // A branch's row is a page or two: this thread is done before another would have begun.
  const PageCount width = DraftBranchWidth(capacity, shape);
  const int64_t rows_per_step = int64_t{capacity.num_seqs} * shape.branches;
  for (int64_t row = 0; row < rows_per_step * shape.steps; ++row) {
    const int64_t b = row % rows_per_step / shape.branches;
    RowPages pages;
    std::span<const PageId> listed;
    if (b < Size(seqs) && !IsPadding(seqs[Index(b)])) {
      const SequenceStep& seq = seqs[Index(b)];
      pages = BranchPages({.committed = seq.committed(),
                           .branch = static_cast<int32_t>(row % shape.branches),
                           .step = static_cast<int32_t>(row / rows_per_step)},
                          shape, page_size);
      listed = PagesOf(seq, pages);
    }
    out.branch_lens[Index(row)] = pages.keys;
    WriteRange(listed, {.begin = PageCount(0), .end = width}, out.fill,
               out.branch_table.data() + (width * row).raw());
  }
}

}  // namespace quire
