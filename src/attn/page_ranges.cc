#include "attn/page_ranges.h"

#include "base/error.h"

namespace quire {
namespace {

bool IsShort(const PageGrid& grid, FunctionRef<PageCount(int64_t)> pages_of_row) {
  PageCount total{0};
  for (int64_t row = 0; row < grid.num_rows; ++row) {
    total += pages_of_row(row);
    if (total > grid.bound * kInlineRanges) return false;
  }
  return true;
}

}  // namespace

void ForEachPageRange(const PageGrid& grid, FunctionRef<PageCount(int64_t)> pages_of_row,
                      Executor& executor, FunctionRef<void(int64_t, PageCount, PageCount)> fn) {
  QUIRE_CHECK(grid.bound >= PageCount(1), "bound {}", grid.bound);
  const int64_t cells_per_row = grid.CellsPerRow();
  const auto run_cell = [&](int64_t index) {
    const int64_t row = index / cells_per_row;
    const PageCount row_pages = pages_of_row(row);
    QUIRE_DCHECK(row_pages <= grid.longest_row, "row {} has {} pages, longest {}", row, row_pages,
                 grid.longest_row);
    const PageRange range = FillRange(grid, row_pages, index % cells_per_row);
    if (!range.empty()) fn(row, range.begin, range.end);
  };
  const int64_t num_cells = grid.num_rows * cells_per_row;
  if (IsShort(grid, pages_of_row)) {
    for (int64_t index = 0; index < num_cells; ++index) run_cell(index);
  } else {
    executor.Run(num_cells, run_cell);
  }
}

void ForEachPageRange(const SequenceRows& rows, Executor& executor,
                      FunctionRef<void(int32_t, PageCount, PageCount)> fn) {
  const auto pages_of_row = [&](int64_t row) {
    return rows.page_size.PagesFor(rows.seqs[static_cast<size_t>(row)].kv_len);
  };
  PageGrid grid{.num_rows = static_cast<int64_t>(rows.seqs.size()),
                .bound = rows.bound,
                .faults = rows.faults};
  for (int64_t row = 0; row < grid.num_rows; ++row) {
    grid.longest_row = Max(grid.longest_row, pages_of_row(row));
  }
  ForEachPageRange(grid, pages_of_row, executor, [&](int64_t row, PageCount begin, PageCount end) {
    fn(static_cast<int32_t>(row), begin, end);
  });
}

}  // namespace quire
