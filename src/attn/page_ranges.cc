#include "attn/page_ranges.h"

#include <algorithm>

#include "base/error.h"

namespace quire {
namespace {

// Shares of the work per thread: enough to even out, few enough that finding a share's first row by
// walking from row 0 costs nothing.
constexpr int64_t kSharesPerThread = 8;

// All ranges of all rows, in one line. A row without pages has none.
class RangeLine {
 public:
  RangeLine(const PageGrid& grid, FunctionRef<PageCount(int64_t)> pages_of_row)
      : grid_(grid), pages_of_row_(pages_of_row) {
    for (int64_t row = 0; row < grid.num_rows; ++row) {
      const PageCount pages = pages_of_row(row);
      QUIRE_DCHECK(pages <= grid.longest_row, "row {} has {} pages, longest {}", row, pages,
                   grid.longest_row);
      num_pages_ += pages;
      num_ranges_ += RangesOf(pages);
    }
  }

  PageCount num_pages() const { return num_pages_; }
  int64_t num_ranges() const { return num_ranges_; }

  // Calls fn for ranges [first, last) of the line.
  void Walk(int64_t first, int64_t last,
            FunctionRef<void(int64_t, PageCount, PageCount)> fn) const {
    int64_t begin = 0;  // of the row, in the line
    for (int64_t row = 0; row < grid_.num_rows && begin < last; ++row) {
      const PageCount pages = pages_of_row_(row);
      const int64_t end = begin + RangesOf(pages);
      for (int64_t i = std::max(first, begin); i < std::min(last, end); ++i) {
        const PageRange range = FillRange(grid_, pages, i - begin);
        fn(row, range.begin, range.end);
      }
      begin = end;
    }
  }

 private:
  int64_t RangesOf(PageCount pages) const {
    if (grid_.faults.Has(Fault::kSerialPageTableFill)) return pages > PageCount(0) ? 1 : 0;
    return CeilDiv(pages, grid_.bound);
  }

  const PageGrid& grid_;
  FunctionRef<PageCount(int64_t)> pages_of_row_;
  PageCount num_pages_{0};
  int64_t num_ranges_ = 0;
};

}  // namespace

void ForEachPageRange(const PageGrid& grid, FunctionRef<PageCount(int64_t)> pages_of_row,
                      Executor& executor, FunctionRef<void(int64_t, PageCount, PageCount)> fn) {
  QUIRE_CHECK(grid.bound >= PageCount(1), "bound {}", grid.bound);
  const RangeLine line(grid, pages_of_row);
  const int64_t total = line.num_ranges();
  if (line.num_pages() <= grid.bound * kInlineRanges) {
    line.Walk(0, total, fn);
    return;
  }
  const int64_t shares = std::min(total, executor.num_threads() * kSharesPerThread);
  executor.Run(shares, [&](int64_t share) {
    line.Walk(total * share / shares, total * (share + 1) / shares, fn);
  });
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
