#include "attn/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "attn/plan_storage.h"
#include "attn/test_plans.h"
#include "attn/work.h"
#include "base/error.h"
#include "base/executor.h"
#include "testing/active_faults.h"

namespace quire {
namespace {

using testing::ActiveFaults;

TEST(PlanTest, RowsHoldTheirPages) {
  SerialExecutor executor;
  PlanStorage storage(kPlanCapacity, kWork);
  const std::vector<PageId> pages = Pages(5, 10);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(33), .pages = pages},
      {.q_len = TokenCount(1), .kv_len = TokenCount(0)}};
  const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
  plan.CheckInvariants();
  EXPECT_EQ(plan.row_width, PageCount(188));  // 3008 tokens at 16
  EXPECT_EQ(plan.Row(0)[2], PageId(7));
  EXPECT_EQ(plan.Row(0)[3], kScratchPage);  // the list is longer than the row needs
  EXPECT_EQ(plan.SlotAt(0, TokenCount(32)), Slot(7 * 16));
}

TEST(PlanTest, NothingOfAnEarlierPlanIsLeft) {
  SerialExecutor executor;
  PlanStorage storage(kPlanCapacity, kWork);
  const std::vector<PageId> pages = Pages(1, 188);
  const std::vector<int32_t> parents = {-1, 0, 1};
  const std::vector<SequenceStep> large = {
      {.q_len = TokenCount(30), .kv_len = TokenCount(3000), .pages = pages},
      {.q_len = TokenCount(3), .kv_len = TokenCount(90), .pages = pages, .tree_parents = parents},
      {.q_len = TokenCount(1), .kv_len = TokenCount(3008), .pages = pages}};
  const std::vector<SequenceStep> small = {
      {.q_len = TokenCount(2), .kv_len = TokenCount(17), .pages = pages}};
  storage.Make(large, executor, ActiveFaults()).CheckInvariants();
  const Plan& reused = storage.Make(small, executor, ActiveFaults());
  PlanStorage fresh_storage(kPlanCapacity, kWork);
  const Plan& fresh = fresh_storage.Make(small, executor, ActiveFaults());
  EXPECT_TRUE(std::equal(reused.kv_len.begin(), reused.kv_len.end(), fresh.kv_len.begin(),
                         fresh.kv_len.end()));
  EXPECT_TRUE(std::equal(fresh.Row(0), fresh.Row(0) + 2, reused.Row(0)));
  EXPECT_TRUE(
      std::equal(reused.tiles.begin(), reused.tiles.end(), fresh.tiles.begin(), fresh.tiles.end()));
  EXPECT_TRUE(std::equal(reused.workers.begin(), reused.workers.end(), fresh.workers.begin(),
                         fresh.workers.end()));
  EXPECT_EQ(reused.num_partials, fresh.num_partials);
  EXPECT_EQ(reused.merges.size(), fresh.merges.size());
}

TEST(PlanTest, ATileEndsWhereItsLastQuerysSightEnds) {
  SerialExecutor executor;
  PlanStorage storage(kPlanCapacity, kWork);
  const std::vector<PageId> pages = Pages(1, 188);
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 3};  // depths 1 2 2 3 4
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(6), .kv_len = TokenCount(100), .pages = pages},
      {.q_len = TokenCount(5), .kv_len = TokenCount(105), .pages = pages, .tree_parents = parents},
      {.q_len = TokenCount(3), .kv_len = TokenCount(1), .pages = pages}};
  const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
  plan.CheckInvariants();
  ASSERT_EQ(plan.tiles.size(), 5u);
  auto tile = [](int32_t seq, int32_t count, int64_t q_begin, int64_t kv_end) {
    return QueryTile{
        .seq = seq, .q_count = count, .q_begin = TokenCount(q_begin), .kv_end = TokenCount(kv_end)};
  };
  EXPECT_EQ(plan.tiles[0], tile(0, 4, 0, 98));
  EXPECT_EQ(plan.tiles[1], tile(0, 2, 4, 100));
  EXPECT_EQ(plan.tiles[2], tile(1, 4, 6, 103));
  EXPECT_EQ(plan.tiles[3], tile(1, 1, 10, 104));
  EXPECT_EQ(plan.tiles[4], tile(2, 3, 11, 1));
  // The last node's path: 0, 1, 3, 4.
  const int64_t path[] = {100, 101, 103, 104};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.KeyPosition(1, TokenCount(10), TokenCount(100 + i)), TokenCount(path[i]));
  }
  EXPECT_EQ(plan.KeyPosition(1, TokenCount(10), TokenCount(99)), TokenCount(99));
}

TEST(PlanTest, ATileEndsWhereItsKernelStopsReading) {
  SerialExecutor executor;
  const std::vector<PageId> pages = Pages(1, 188);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(64), .pages = pages},
      {.q_len = TokenCount(1), .kv_len = TokenCount(65), .pages = pages},
      {.q_len = TokenCount(1), .kv_len = TokenCount(3000), .pages = pages}};
  const auto ends = [&](const WorkShape& work) {
    PlanStorage storage(kPlanCapacity, work);
    const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
    plan.CheckInvariants();
    std::vector<int64_t> found;
    for (const QueryTile& tile : plan.tiles) found.push_back(tile.kv_end.raw());
    return found;
  };
  WorkShape choosing = kWork, chosen = kWork;
  choosing.unread = TokenCount(64);
  chosen.most_keys = TokenCount(64);
  EXPECT_EQ(ends(choosing), (std::vector<int64_t>{0, 65, 3000}));
  EXPECT_EQ(ends(chosen), (std::vector<int64_t>{64, 64, 64}));
  EXPECT_EQ(MaxSplits(kPlanCapacity, chosen), 1);
}

TEST(PlanTest, TilesThatAreAlikeAreCutIntoEqualParts) {
  SerialExecutor executor;
  const std::vector<PageId> pages = Pages(1, 188);
  std::vector<SequenceStep> seqs(
      3, {.q_len = TokenCount(1), .kv_len = TokenCount(3000), .pages = pages});
  const WorkShape work{.split = TokenCount(64), .num_workers = 7, .exact = false, .even = true};
  PlanStorage storage(kPlanCapacity, work);
  const auto starts = [&] {
    const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
    plan.CheckInvariants();
    std::vector<std::pair<int32_t, int32_t>> found;
    for (const WorkerStart& start : plan.workers) found.emplace_back(start.tile, start.split);
    return found;
  };
  using Starts = std::vector<std::pair<int32_t, int32_t>>;
  EXPECT_EQ(starts(), (Starts{{0, 0}, {0, 23}, {1, 0}, {1, 23}, {2, 0}, {2, 23}, {3, 0}, {3, 0}}));
  // Where they are not, by their cost.
  seqs[2].kv_len = TokenCount(1000);
  EXPECT_EQ(starts()[1], (std::pair{0, 16}));
}

// A draft tree of 2 branches and 3 steps, cut to six nodes, behind ten committed tokens.
TEST(PlanTest, MasksAndPositionsOfTheWorkedExample) {
  SerialExecutor executor;
  PlanStorage storage(kPlanCapacity, kWork);
  const std::vector<PageId> pages = Pages(1, 1);
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 2, 3};
  const SequenceStep seq{
      .q_len = TokenCount(6), .kv_len = TokenCount(16), .pages = pages, .tree_parents = parents};
  const Plan& plan = storage.Make({&seq, 1}, executor, ActiveFaults());
  const int masks[6][6] = {{1, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0}, {1, 0, 1, 0, 0, 0},
                           {1, 1, 0, 1, 0, 0}, {1, 0, 1, 0, 1, 0}, {1, 1, 0, 1, 0, 1}};
  const int64_t positions[6] = {10, 11, 11, 12, 12, 13};
  for (int64_t node = 0; node < 6; ++node) {
    for (int64_t other = 0; other < 6; ++other) {
      EXPECT_EQ((plan.TreeMask(TokenCount(node))[0] >> other) & 1,
                static_cast<uint64_t>(masks[node][other]))
          << node << " sees " << other;
    }
    // A node sees the tokens before its position, and itself.
    EXPECT_EQ(plan.Visible(0, TokenCount(node)), TokenCount(positions[node] + 1));
  }
}

TEST(PlanTest, ALongSequenceIsSharedByAllWorkers) {
  SerialExecutor executor;
  const StepCapacity capacity{.num_seqs = 1,
                              .query_tokens = TokenCount(1),
                              .context = TokenCount(131072),
                              .page_size = PageSize(64),
                              .pool_pages = PageCount(3000)};
  const WorkShape work{.split = TokenCount(1024), .num_workers = 8};
  PlanStorage storage(capacity, work);
  const std::vector<PageId> pages = Pages(1, 2048);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(131072), .pages = pages}};
  const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
  plan.CheckInvariants();
  for (int32_t w = 0; w < 8; ++w) EXPECT_EQ(plan.workers[static_cast<size_t>(w)].split, 16 * w);
  ASSERT_EQ(plan.merges.size(), 1u);
  EXPECT_EQ(plan.merges[0].num_partials, 1 + 112);
  EXPECT_LE(plan.num_partials, MaxPartials(capacity, work));

  WorkShape loose = work;
  loose.exact = false;
  PlanStorage loose_storage(capacity, loose);
  const Plan& loose_plan = loose_storage.Make(seqs, executor, ActiveFaults());
  loose_plan.CheckInvariants();
  ASSERT_EQ(loose_plan.merges.size(), 1u);
  EXPECT_EQ(loose_plan.merges[0].num_partials, 8);  // one of each worker
}

// Kernels count in the plan, and leave 0; what one that was stopped has left, the next plan does not have.
TEST(PlanTest, NobodyHasArrivedWhenAPlanIsMade) {
  SerialExecutor executor;
  WorkShape work{.split = TokenCount(64), .num_workers = 5, .exact = false};
  const std::vector<PageId> pages = Pages(1, 188);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(3000), .pages = pages}};
  PlanStorage alone(kPlanCapacity, work);
  EXPECT_TRUE(alone.Make(seqs, executor, ActiveFaults()).arrived.empty());
  work.ctas = 8;
  work.exact = true;  // a CTA is a worker there, and nobody counts
  PlanStorage exact(kPlanCapacity, work);
  EXPECT_TRUE(exact.Make(seqs, executor, ActiveFaults()).arrived.empty());
  work.exact = false;
  PlanStorage storage(kPlanCapacity, work);
  const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
  plan.CheckInvariants();
  ASSERT_EQ(plan.arrived.size(), 40u);
  plan.arrived[39] = 3;
  EXPECT_THROW(plan.CheckInvariants(), InternalError);
  storage.Make(seqs, executor, ActiveFaults()).CheckInvariants();
  EXPECT_EQ(plan.arrived[39], 0);
}

// 15 clusters of 8 CTAs, as many as a device runs at once that would have room for 16: each has an equal share of a long
// sequence, to a split, and a short one is cut as far as it has splits.
TEST(PlanTest, AnyNumberOfClustersSharesASequence) {
  SerialExecutor executor;
  const WorkShape work{
      .split = TokenCount(256), .num_workers = 15, .exact = false, .cut_cost = 4, .ctas = 8};
  for (const auto& [keys, busy] : {std::pair{150, 1}, {1024, 4}, {2900, 12}, {3000, 12}}) {
    const std::vector<PageId> pages = Pages(1, 188);
    const std::vector<SequenceStep> seqs = {
        {.q_len = TokenCount(1), .kv_len = TokenCount(keys), .pages = pages}};
    PlanStorage storage(kPlanCapacity, work);
    const Plan& plan = storage.Make(seqs, executor, ActiveFaults());
    plan.CheckInvariants();
    EXPECT_EQ(plan.arrived.size(), 120u);
    int32_t pieces = 0, most = 0;
    for (int32_t worker = 0; worker < work.num_workers; ++worker) {
      ForEachPiece(plan, worker, [&](const Piece& piece) {
        ++pieces;
        most = std::max(most, piece.last - piece.first);
      });
    }
    EXPECT_EQ(pieces, busy) << keys << " keys";
    EXPECT_EQ(plan.merges.size(), busy > 1 ? 1u : 0u);
    EXPECT_LE(most, 1) << keys << " keys";
  }
}

// Random batches: the schedule covers every split of every tile once, and is fair.
TEST(PlanTest, WorkersCoverEverySplitOnceAndEvenly) {
  std::mt19937_64 random(42);
  auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  SerialExecutor executor;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    const std::vector<PageId> pages = Pages(1, 999);
    std::vector<SequenceStep> seqs;
    for (int64_t b = draw(1, 20); b > 0; --b) {
      const int64_t kv_len = draw(0, 1) == 0 ? draw(0, 300) : draw(0, 15000);
      seqs.push_back(
          {.q_len = TokenCount(draw(0, 20)), .kv_len = TokenCount(kv_len), .pages = pages});
    }
    const StepCapacity capacity = CapacityOf(seqs, PageSize(16), PageCount(1000));
    const WorkShape work{.query_tile = TokenCount(draw(1, 8)),
                         .split = TokenCount(64 * draw(1, 20)),
                         .num_workers = static_cast<int32_t>(draw(1, 16)),
                         .exact = draw(0, 1) == 0,
                         .tile_cost = static_cast<int32_t>(draw(1, 6)),
                         .from_both_ends = draw(0, 1) == 0};
    PlanStorage storage(capacity, work);
    const Plan& plan = storage.Make(seqs, executor);
    plan.CheckInvariants();
    ASSERT_LE(plan.num_partials, MaxPartials(capacity, work));
    ASSERT_LE(static_cast<int64_t>(plan.tiles.size()), MaxQueryTiles(capacity, work));
    int64_t total = 0, dearest_split = 0;
    for (const QueryTile& tile : plan.tiles) {
      total += TileCost(tile, work);
      dearest_split = std::max(
          dearest_split, int64_t{tile.q_count} * (work.split.raw() / 64 + work.tile_cost + 1));
    }
    for (int32_t w = 0; w < work.num_workers; ++w) {
      const WorkerStart& begin = plan.workers[static_cast<size_t>(w)];
      const WorkerStart& end = plan.workers[static_cast<size_t>(w) + 1];
      int64_t cost = 0;
      for (int32_t i = begin.tile; i < std::min<int64_t>(end.tile + 1, std::ssize(plan.tiles));
           ++i) {
        const QueryTile& tile = plan.tiles[static_cast<size_t>(i)];
        const int64_t split_cost = int64_t{tile.q_count} * (work.split.raw() / 64);
        const int64_t before = (i == begin.tile ? begin.split : 0) * split_cost;
        const int64_t after = i == end.tile ? end.split * split_cost : TileCost(tile, work);
        cost += after - before;
      }
      ASSERT_LE(cost, total / work.num_workers + 2 * dearest_split) << "worker " << w;
    }
  }
}

// A prompt's tiles come from its end and its beginning in turn. Workers with few tiles, none of which is cut, have like
// shares then.
TEST(PlanTest, TilesOfAPromptAreDealtOutFromBothEnds) {
  const std::vector<PageId> pages = Pages(1, 64);
  SerialExecutor executor;
  const auto prompts_of = [&](const std::vector<int64_t>& lengths) {
    std::vector<SequenceStep> seqs;
    for (const int64_t length : lengths) {
      seqs.push_back({.q_len = TokenCount(length), .kv_len = TokenCount(length), .pages = pages});
    }
    return seqs;
  };
  const std::vector<SequenceStep> two = prompts_of({10, 17}), one = prompts_of({1024});
  for (const bool from_both_ends : {false, true}) {
    const WorkShape work{.query_tile = TokenCount(4),
                         .num_workers = 132,
                         .tile_cost = 4,
                         .from_both_ends = from_both_ends};
    PlanStorage storage_of_two(CapacityOf(two, PageSize(16), PageCount(1000)), work);
    const Plan& plan_of_two = storage_of_two.Make(two, executor);
    plan_of_two.CheckInvariants();
    std::vector<int64_t> begins;
    for (const QueryTile& tile : plan_of_two.tiles) begins.push_back(tile.q_begin.raw());
    EXPECT_EQ(begins, from_both_ends ? (std::vector<int64_t>{8, 0, 4, 26, 10, 22, 14, 18})
                                     : (std::vector<int64_t>{0, 4, 8, 10, 14, 18, 22, 26}));

    PlanStorage storage(CapacityOf(one, PageSize(16), PageCount(1000)), work);
    const Plan& plan = storage.Make(one, executor);
    plan.CheckInvariants();
    int64_t most = 0, total = 0;
    for (int32_t worker = 0; worker < work.num_workers; ++worker) {
      int64_t cost = 0;
      ForEachPiece(plan, worker,
                   [&](const Piece& piece) { cost += TileCost(piece.tile, work) / 4; });
      most = std::max(most, cost);
      total += cost;
    }
    EXPECT_EQ(total / work.num_workers, 24);  // key tiles
    EXPECT_EQ(most, from_both_ends ? 25 : 40);
  }
}

// What a plan's own check says of tiles that are in another place, there twice, or missing.
TEST(PlanTest, TilesThatAreNotWhereTheyBelongAreFound) {
  const std::vector<PageId> pages = Pages(1, 188);
  SerialExecutor executor;
  const SequenceStep seq{.q_len = TokenCount(10), .kv_len = TokenCount(10), .pages = pages};
  const std::vector<SequenceStep> seqs = {seq, seq};
  for (const bool from_both_ends : {false, true}) {
    WorkShape work = kWork;
    work.from_both_ends = from_both_ends;
    PlanStorage storage(kPlanCapacity, work);
    const Plan& plan = storage.Make(seqs, executor);
    const std::vector<QueryTile> good(plan.tiles.begin(), plan.tiles.end());
    ASSERT_EQ(good.size(), 6u);
    const auto check = [&](std::vector<QueryTile> tiles) {
      Plan changed = plan;
      changed.tiles = tiles;
      changed.CheckInvariants();
    };
    EXPECT_NO_THROW(check(good));
    std::vector<QueryTile> tiles = good;
    std::swap(tiles[0], tiles[1]);
    EXPECT_THROW(check(tiles), InternalError) << "of one sequence in another order";
    tiles = good;
    std::rotate(tiles.begin(), tiles.begin() + 3, tiles.end());
    EXPECT_THROW(check(tiles), InternalError) << "of the second sequence first";
    tiles = good;
    std::copy(good.begin(), good.begin() + 3, tiles.begin() + 3);
    EXPECT_THROW(check(tiles), InternalError) << "of the first sequence twice";
    tiles = good;
    tiles.pop_back();
    EXPECT_THROW(check(tiles), InternalError) << "one is missing";
    tiles = good;
    tiles[0].q_count = 1;
    EXPECT_THROW(check(tiles), InternalError) << "a tile that is not full";
  }
}

// Sequences of like length are not cut where equally many a worker take hardly longer than equal shares.
TEST(PlanTest, TilesOfLikeCostStayWhole) {
  const std::vector<PageId> pages = Pages(1, 999);
  SerialExecutor executor;
  int32_t cut_cost = WorkShape{}.cut_cost, enough_workers = 0;
  const auto cuts = [&](const std::vector<int64_t>& lengths, int32_t num_workers, bool exact) {
    std::vector<SequenceStep> seqs;
    for (const int64_t length : lengths) {
      seqs.push_back({.q_len = TokenCount(1), .kv_len = TokenCount(length), .pages = pages});
    }
    const WorkShape work{.split = TokenCount(exact ? 1024 : 64),
                         .num_workers = num_workers,
                         .exact = exact,
                         .cut_cost = cut_cost,
                         .enough_workers = enough_workers};
    PlanStorage storage(CapacityOf(seqs, PageSize(16), PageCount(1000)), work);
    const Plan& plan = storage.Make(seqs, executor);
    plan.CheckInvariants();
    return std::ssize(plan.merges);
  };
  for (const bool exact : {false, true}) {
    SCOPED_TRACE(exact);
    EXPECT_EQ(cuts(std::vector<int64_t>(128, 4096), 132, exact), 0);  // one a worker, four idle
    EXPECT_EQ(cuts(std::vector<int64_t>(128, 4096), 66, exact), 0);   // two a worker
    EXPECT_GT(cuts(std::vector<int64_t>(100, 4096), 132, exact), 0);  // 32 would be idle
    EXPECT_GT(cuts({4096, 4096, 8192, 4096}, 4, exact), 0);           // one takes twice as long
  }
  EXPECT_EQ(cuts({4096, 4000, 3950, 4032}, 4, false),
            0);  // lengths differ by less than a cut costs
  EXPECT_GT(cuts({4096, 3000, 3000, 3000}, 4, false), 0);
  // Two workers of 66 are idle for 258 key tiles, or all have 250 and a cut.
  EXPECT_GT(cuts(std::vector<int64_t>(128, 8192), 66, false), 0);
  cut_cost = 14;
  EXPECT_EQ(cuts(std::vector<int64_t>(128, 8192), 66, false), 0);
  EXPECT_GT(cuts(std::vector<int64_t>(128, 15936), 66, false), 0);  // 500, or 484
  // Where 80 of 132 workers have keys as fast as all, 32 idle ones are missed by nobody, and 68 where tiles are short.
  cut_cost = WorkShape{}.cut_cost;
  for (const bool exact : {false, true}) {
    SCOPED_TRACE(exact);
    for (const auto& [tiles, keys] : {std::pair{100, 4096}, {64, 1025}, {64, 1600}, {32, 512}}) {
      enough_workers = 80;
      EXPECT_EQ(cuts(std::vector<int64_t>(static_cast<size_t>(tiles), keys), 132, exact), 0);
      enough_workers = 0;
      EXPECT_EQ(cuts(std::vector<int64_t>(static_cast<size_t>(tiles), keys), 132, exact) > 0,
                !exact || keys > 1024);
    }
    enough_workers = 80;
    for (const auto& [tiles, keys] : {std::pair{64, 8192}, {32, 1025}, {1, 8192}}) {
      EXPECT_GT(cuts(std::vector<int64_t>(static_cast<size_t>(tiles), keys), 132, exact), 0);
    }
    enough_workers = 40;
    EXPECT_EQ(cuts(std::vector<int64_t>(128, 4096), 66, exact), 0);  // two a worker, as before
    EXPECT_GT(cuts(std::vector<int64_t>(67, 4096), 66, exact), 0);
  }
}

}  // namespace
}  // namespace quire
