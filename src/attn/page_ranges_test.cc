#include "attn/page_ranges.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/executor.h"
#include "base/format.h"
#include "device/thread_pool.h"
#include "testing/active_faults.h"
#include "testing/export_kernels.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::RowLengths;
using testing::ScatteredBatch;

TEST(PageRangesTest, CellsPartitionARowAndNoneWalksMoreThanTheBound) {
  for (int64_t pages : {0, 1, 1023, 1024, 1025, 2560, 5000}) {
    const PageGrid grid{.num_rows = 1, .longest_row = PageCount(pages), .faults = ActiveFaults()};
    PageCount next{0};
    for (int64_t cell = 0; cell < grid.CellsPerRow(); ++cell) {
      const PageRange range = FillRange(grid, PageCount(pages), cell);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      EXPECT_LE(range.size(), kMaxPagesPerRange)
          << "one worker walks " << range.size() << " pages of a row; the bound is "
          << kMaxPagesPerRange;
    }
    EXPECT_EQ(next, PageCount(pages));
  }
}

TEST(PageRangesTest, CellsPastAShortRowAreEmpty) {
  const PageGrid grid{.num_rows = 2, .longest_row = PageCount(5000)};
  EXPECT_TRUE(FillRange(grid, PageCount(1024), 1).empty());
  EXPECT_TRUE(FillRange(grid, PageCount(0), 0).empty());
  EXPECT_EQ(FillRange(grid, PageCount(1025), 1),
            (PageRange{.begin = PageCount(1024), .end = PageCount(1025)}));
}

TEST(PageRangesTest, TokenFormsWriteABoundedNumberOfEntriesPerCell) {
  for (int page_size : {1, 2, 3, 16, 61, 64, 128, 256}) {
    const PageCount pages = TokenRangePages(PageSize(page_size));
    EXPECT_GE(pages, PageCount(8));
    EXPECT_LE(pages, kMaxPagesPerRange);
    EXPECT_LE(PageSize(page_size).TokensIn(pages), kMaxTokensPerRange);
  }
}

TEST(PageRangesTest, LongRowsAreHandedOutRangeByRange) {
  const RowLengths rows[] = {{.kv_len = 80000}, {.kv_len = 0}, {.kv_len = 1030}};
  const ScatteredBatch batch(PageSize(1), rows, 1);
  ThreadPool pool(3);
  std::mutex mutex;
  std::map<int32_t, int64_t> walked;
  ForEachPageRange({.seqs = batch.seqs, .page_size = PageSize(1), .faults = ActiveFaults()}, pool,
                   [&](int32_t row, PageCount begin, PageCount end) {
                     const std::lock_guard lock(mutex);
                     walked[row] += (end - begin).raw();
                     EXPECT_LE(end - begin, kMaxPagesPerRange)
                         << "one worker walks " << (end - begin) << " pages of a row; the bound is "
                         << kMaxPagesPerRange;
                   });
  EXPECT_EQ(walked, (std::map<int32_t, int64_t>{{0, 80000}, {2, 1030}}));
}

class ForbiddenExecutor final : public Executor {
 public:
  void Run(int64_t, FunctionRef<void(int64_t)>) override { ADD_FAILURE() << "woke other threads"; }
  int num_threads() const override { return 8; }
};

// Runs serially, and counts the cells it was asked to run.
class CountingExecutor final : public Executor {
 public:
  void Run(int64_t count, FunctionRef<void(int64_t)> fn) override {
    cells += count;
    for (int64_t i = 0; i < count; ++i) fn(i);
  }
  int num_threads() const override { return 4; }
  int64_t cells = 0;
};

TEST(PageRangesTest, OneLongRowAmongShortOnesCostsItsPagesOnly) {
  std::vector<RowLengths> rows(256, RowLengths{.kv_len = 100});
  rows[77].kv_len = 131072;
  const ScatteredBatch batch(PageSize(1), rows, 1);
  CountingExecutor executor;
  std::map<int32_t, int64_t> walked;
  int64_t calls = 0;
  ForEachPageRange({.seqs = batch.seqs, .page_size = PageSize(1)}, executor,
                   [&](int32_t row, PageCount begin, PageCount end) {
                     ++calls;
                     walked[row] += (end - begin).raw();
                   });
  EXPECT_EQ(calls, 255 + 128);  // one for each range there is
  EXPECT_LE(executor.cells, 4 * 8);
  EXPECT_EQ(walked[77], 131072);
  EXPECT_EQ(walked[78], 100);
  EXPECT_EQ(walked.size(), 256u);
}

TEST(PageRangesTest, ShortWorkStaysOnTheCallingThread) {
  const RowLengths rows[] = {{.kv_len = 1000}, {.kv_len = 64 * 1024 - 1000}};
  const ScatteredBatch batch(PageSize(1), rows, 1);
  ForbiddenExecutor executor;
  int64_t pages = 0;
  ForEachPageRange({.seqs = batch.seqs, .page_size = PageSize(1)}, executor,
                   [&](int32_t, PageCount begin, PageCount end) { pages += (end - begin).raw(); });
  EXPECT_EQ(pages, 64 * 1024);
}

}  // namespace
}  // namespace quire
