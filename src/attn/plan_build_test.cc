#include "attn/plan_build.h"

#include <gtest/gtest.h>

#include <vector>

#include "attn/plan_arrays.h"
#include "attn/plan_storage.h"
#include "attn/work.h"
#include "base/executor.h"
#include "device/buffer.h"

namespace quire {
namespace {

// A second kernel over the same sequences cuts its work another way, and gets the schedule that it
// would have had alone.
TEST(PlanBuildTest, SeveralSchedulesShareTheSequencesOfAStep) {
  const StepCapacity capacity{.num_seqs = 3,
                              .query_tokens = TokenCount(64),
                              .context = TokenCount(5000),
                              .page_size = PageSize(16),
                              .pool_pages = PageCount(1000)};
  const WorkShape shapes[] = {
      {.query_tile = TokenCount(4), .split = TokenCount(1024), .num_workers = 3},
      {.query_tile = TokenCount(1), .split = TokenCount(64), .num_workers = 7, .exact = false}};
  std::vector<PageId> pages;
  for (int32_t i = 1; i <= 313; ++i) pages.emplace_back(i);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(5000), .pages = pages},
      {.q_len = TokenCount(9), .kv_len = TokenCount(700), .pages = pages},
      {.q_len = TokenCount(2)}};
  const std::vector<RowUse> uses = {{.row = 1}, {.row = 0}, {}};

  std::vector<PageId> table(static_cast<size_t>(PageTableEntries(capacity)));
  const PageRows rows{.num_rows = 3, .width = PageTableWidth(capacity), .pages = table};
  const PageCount new_pages(2 * 313);
  Buffer memory("plan", ByteOffset(1 << 20));
  Carver carver(memory.bytes());
  const PlanArrays arrays(capacity, shapes[0], new_pages, carver);
  const ScheduleArrays second(capacity, shapes[1], carver);
  StepPacker(capacity, new_pages, rows, arrays.packed).Pack(seqs, uses);
  const auto on_fault = [](StepFault, int32_t index) { FAIL() << "sequence " << index; };
  OneThread block;
  const SequencesBuild build = BuildOf(arrays, capacity, new_pages, rows);
  BringPages(build, 0, 1, on_fault);
  const SequenceTotals totals = BuildSequences(build, nullptr, block, on_fault);
  const ScheduleArrays* schedules[] = {&arrays.schedule, &second};
  for (size_t i = 0; i < 2; ++i) {
    BuildSchedule(build, BuildOf(*schedules[i], capacity, shapes[i]), totals, nullptr, block,
                  on_fault);
  }
  SerialExecutor executor;
  for (size_t i = 0; i < 2; ++i) {
    PlanStorage storage(capacity, shapes[i]);
    const Plan& alone = storage.Make(seqs, executor);
    Plan plan = alone;  // with the arrays of this step
    plan.page_rows = table;
    plan.row_of = arrays.seqs.row_of;
    plan.kv_len = arrays.seqs.kv_len;
    plan.tiles = schedules[i]->tiles.first(alone.tiles.size());
    plan.workers = schedules[i]->workers;
    plan.merges = schedules[i]->merges.first(alone.merges.size());
    plan.CheckInvariants();
    EXPECT_EQ(schedules[i]->counts[0], *alone.counts) << "schedule " << i;
    EXPECT_TRUE(std::equal(plan.tiles.begin(), plan.tiles.end(), alone.tiles.begin()));
    EXPECT_TRUE(std::equal(plan.workers.begin(), plan.workers.end(), alone.workers.begin()));
    EXPECT_TRUE(std::equal(plan.merges.begin(), plan.merges.end(), alone.merges.begin()));
  }
}

// What the pieces of all workers are, together: every split of every tile, once and in order.
TEST(PlanBuildTest, PiecesOfAllWorkersAreEverySplitOnce) {
  std::vector<PageId> pages;
  for (int32_t i = 1; i <= 500; ++i) pages.emplace_back(i);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(7000), .pages = pages},
      {.q_len = TokenCount(30), .kv_len = TokenCount(900), .pages = pages},
      {.q_len = TokenCount(1)}};
  const StepCapacity capacity = CapacityOf(seqs, PageSize(16), PageCount(1000));
  for (const bool exact : {true, false}) {
    const WorkShape work{
        .query_tile = TokenCount(8), .split = TokenCount(128), .num_workers = 5, .exact = exact};
    PlanStorage storage(capacity, work);
    SerialExecutor executor;
    const Plan& plan = storage.Make(seqs, executor);
    int64_t tile = 0, split = 0, partials = 0;
    for (int32_t worker = 0; worker < work.num_workers; ++worker) {
      ForEachPiece(plan, worker, [&](const Piece& piece) {
        ASSERT_EQ(piece.tile, plan.tiles[static_cast<size_t>(tile)]);
        ASSERT_EQ(piece.first, split);
        ASSERT_EQ(piece.partial, partials);
        const bool is_whole = piece.first == 0 && piece.last == piece.num_splits;
        const bool is_later = piece.first > 0;
        if (!is_whole) partials += is_later ? (piece.last - piece.first) / piece.Step(work) : 1;
        split = piece.last;
        if (piece.last == piece.num_splits) ++tile, split = 0;
      });
    }
    EXPECT_EQ(tile, std::ssize(plan.tiles));
    EXPECT_EQ(partials, plan.num_partials);
    EXPECT_GT(partials, 0);
  }
}

}  // namespace
}  // namespace quire
