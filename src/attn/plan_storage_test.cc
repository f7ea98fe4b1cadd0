// Where plans are made: what is refused, what they take, and rows that outlive a step.
#include "attn/plan_storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "attn/checks.h"
#include "attn/test_plans.h"
#include "base/executor.h"
#include "device/thread_pool.h"
#include "testing/active_faults.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::ErrorMessage;

// ---- Bad input ----

// Copies of what a plan views.
struct PlanValues {
  explicit PlanValues(const Plan& plan)
      : page_rows(plan.page_rows.begin(), plan.page_rows.end()),
        row_of(plan.row_of.begin(), plan.row_of.end()),
        kv_len(plan.kv_len.begin(), plan.kv_len.end()),
        q_offset(plan.q_offset.begin(), plan.q_offset.end()),
        tiles(plan.tiles.begin(), plan.tiles.end()),
        workers(plan.workers.begin(), plan.workers.end()) {}
  friend bool operator==(const PlanValues&, const PlanValues&) = default;

  std::vector<PageId> page_rows;
  std::vector<int32_t> row_of;
  std::vector<TokenCount> kv_len, q_offset;
  std::vector<QueryTile> tiles;
  std::vector<WorkerStart> workers;
};

class BadPlan : public ::testing::Test {
 protected:
  BadPlan() : storage_(kPlanCapacity, kWork), pages_(Pages(1, 188)) {
    good_ = {.q_len = TokenCount(2), .kv_len = TokenCount(40), .pages = pages_};
    plan_ = &storage_.Make({&good_, 1}, executor_);
  }

  // The message of the Error; and the plan made before is still whole.
  std::string MessageOf(const std::vector<SequenceStep>& seqs) {
    const PlanValues before(*plan_);
    const std::string message = ErrorMessage([&] { storage_.Make(seqs, executor_); });
    EXPECT_TRUE(PlanValues(*plan_) == before) << "the plan changed: " << message;
    return message;
  }

  SerialExecutor executor_;
  PlanStorage storage_;
  std::vector<PageId> pages_;
  SequenceStep good_;
  const Plan* plan_;
};

TEST_F(BadPlan, APageOutsideThePoolIsRefused) {
  std::vector<PageId> pages = pages_;
  SequenceStep seq = good_;
  seq.pages = pages;
  pages[2] = PageId(1000);
  EXPECT_EQ(MessageOf({seq}),
            "plan: sequence 0: page ids: expected 1..999 (a pool of 1000 pages), got 1000");
  pages[2] = kScratchPage;
  EXPECT_EQ(MessageOf({seq}),
            "plan: sequence 0: page ids: expected 1..999 (a pool of 1000 pages), got 0");
  pages[2] = PageId(-7);
  EXPECT_EQ(MessageOf({seq}),
            "plan: sequence 0: page ids: expected 1..999 (a pool of 1000 pages), got -7");
  pages[2] = PageId(3);
  pages[3] = PageId(5000);  // past the row's last page: ignored
  storage_.Make({&seq, 1}, executor_).CheckInvariants();
}

TEST_F(BadPlan, TooFewPagesAreRefused) {
  SequenceStep seq = good_;
  seq.pages = seq.pages.first(2);
  EXPECT_EQ(MessageOf({seq}),
            "plan: sequence 0: pages: expected 3 (kv_len 40, page_size 16), got 2");
}

TEST_F(BadPlan, MoreThanTheCapacityIsRefusedWithEveryFactor) {
  const std::string factors =
      "num_seqs 4, query_tokens 40, context 3000, tree_nodes 8, page_size 16, pool_pages 1000";
  EXPECT_EQ(MessageOf(std::vector<SequenceStep>(5, good_)),
            "plan: need 5 = num_seqs, capacity 4 = num_seqs (" + factors + ")");
  SequenceStep wide = good_;
  wide.q_len = TokenCount(20);
  wide.kv_len = TokenCount(20);
  EXPECT_EQ(MessageOf({wide, wide, good_}),
            "plan.query_tokens: need 42 = sum of q_len over 3 sequences, capacity 40 = "
            "query_tokens (" +
                factors + ")");
  const std::vector<PageId> many = Pages(1, 189);
  SequenceStep deep = good_;
  deep.kv_len = TokenCount(3009);
  deep.pages = many;
  EXPECT_EQ(MessageOf({deep}),
            "plan.page_table: need 3009 = kv_len of sequence 0, capacity 3008 = context + "
            "tree_nodes (" +
                factors + ")");
  const std::vector<int32_t> parents(9, kTreeRoot);
  SequenceStep tree = good_;
  tree.tree_parents = parents;
  EXPECT_EQ(MessageOf({tree}),
            "plan.tree_masks: need 9 = tree nodes of sequence 0, capacity 8 = tree_nodes (" +
                factors + ")");
}

TEST_F(BadPlan, LengthsAndTreesThatCannotBeAreRefused) {
  SequenceStep seq = good_;
  seq.q_len = TokenCount(-1);
  EXPECT_EQ(MessageOf({seq}), "plan: sequence 0: q_len: expected >= 0, got -1");
  seq = good_;
  seq.kv_len = TokenCount(-2);
  EXPECT_EQ(MessageOf({good_, seq}), "plan: sequence 1: kv_len: expected >= 0, got -2");
  seq = good_;
  const std::vector<int32_t> cycle = {-1, 1};
  seq.tree_parents = cycle;
  EXPECT_EQ(MessageOf({seq}), "plan: sequence 0: tree_parents[1]: expected -1..0, got 1");
  const std::vector<int32_t> one = {-1};
  seq.tree_parents = one;
  EXPECT_EQ(MessageOf({seq}), "plan: sequence 0: tree nodes: expected at least q_len 2, got 1");
  const std::vector<int32_t> many(41, kTreeRoot);
  seq.tree_parents = many;
  EXPECT_EQ(MessageOf({seq}), "plan: sequence 0: tree nodes: expected at most kv_len 40, got 41");
}

TEST(PlanStorageTest, ParallelPlansEqualSerialOnes) {
  const StepCapacity capacity{.num_seqs = 8,
                              .query_tokens = TokenCount(8),
                              .context = TokenCount(19000),
                              .page_size = PageSize(1),
                              .pool_pages = PageCount(20000)};
  const std::vector<PageId> pages = Pages(1, 19000);
  std::vector<SequenceStep> seqs;
  for (int64_t b = 0; b < 8; ++b) {
    seqs.push_back(
        {.q_len = TokenCount(1), .kv_len = TokenCount(19000 - 1000 * b), .pages = pages});
  }
  ThreadPool pool(3);
  SerialExecutor serial;
  PlanStorage a(capacity, kWork), b(capacity, kWork);
  const Plan& parallel = a.Make(seqs, pool, ActiveFaults());
  const Plan& expected = b.Make(seqs, serial, ActiveFaults());
  parallel.CheckInvariants();
  EXPECT_TRUE(std::equal(parallel.page_rows.begin(), parallel.page_rows.end(),
                         expected.page_rows.begin(), expected.page_rows.end()));
}

TEST(PlanStorageTest, TakesWhatItsSizingFunctionSays) {
  for (const int64_t factor : {1, 7, 64}) {
    const StepCapacity capacity{.num_seqs = static_cast<int32_t>(3 * factor),
                                .query_tokens = TokenCount(5 * factor),
                                .context = TokenCount(100 * factor),
                                .tree_nodes = TokenCount(factor),
                                .page_size = PageSize(16),
                                .pool_pages = PageCount(1000)};
    const WorkShape work{.num_workers = 3};
    std::vector<PageId> pages(Index(PageTableEntries(capacity)));
    const PageRows rows{
        .num_rows = capacity.num_seqs, .width = PageTableWidth(capacity), .pages = pages};
    const Buffer memory("plan", PlanStorageBytes(capacity, work));
    Carver carver(memory.bytes());
    const PlanStorage storage(capacity, work, rows, carver);
    EXPECT_EQ(carver.used(), memory.size()) << factor;
  }
}

// ---- Rows that outlive a step ----

// Two storages, as of two buckets, over one table of three rows.
class SharedRows : public ::testing::Test {
 protected:
  SharedRows()
      : pages_(Index(PageRows::Entries(3, PageCount(188))), PageId(-9)),
        rows_{.num_rows = 3, .width = PageCount(188), .pages = pages_},
        memory_("plans", PlanStorageBytes(kPlanCapacity, kWork) * 2),
        carver_(memory_.bytes()),
        one_(kPlanCapacity, kWork, rows_, carver_),
        other_(kPlanCapacity, kWork, rows_, carver_) {}

  SerialExecutor executor_;
  std::vector<PageId> pages_;
  PageRows rows_;
  Buffer memory_;
  Carver carver_;
  PlanStorage one_, other_;
};

TEST_F(SharedRows, OnlyNewPagesAreLookedAtAndCopied) {
  std::vector<PageId> a = Pages(1, 20), b = Pages(100, 30);
  std::vector<SequenceStep> seqs = {{.q_len = TokenCount(3), .kv_len = TokenCount(300), .pages = a},
                                    {.q_len = TokenCount(1), .kv_len = TokenCount(470), .pages = b},
                                    {.q_len = TokenCount(1)}};
  const std::vector<RowUse> first = {{.row = 2}, {.row = 0}, {}};
  const Plan& plan = one_.Make(seqs, first, executor_);
  plan.CheckInvariants();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), plan.Row(0)));
  EXPECT_TRUE(std::equal(b.begin(), b.end(), plan.Row(1)));
  EXPECT_EQ(plan.Row(0), pages_.data() + 2 * 188);
  EXPECT_EQ(pages_[2 * 188 + 20], PageId(-9)) << "behind the pages nothing is written";
  EXPECT_EQ(pages_[188], PageId(-9)) << "nobody's row";
  // In another place of another storage's step, with one page more; the old ones are not looked at.
  std::fill(b.begin(), b.end(), PageId(-5));
  b.push_back(PageId(700));
  std::swap(seqs[0], seqs[1]);
  seqs[0] = {.q_len = TokenCount(1), .kv_len = TokenCount(481), .pages = b};
  seqs[1] = {.q_len = TokenCount(1), .kv_len = TokenCount(301), .pages = a};
  const std::vector<RowUse> next = {
      {.row = 0, .unchanged = PageCount(30)}, {.row = 2, .unchanged = PageCount(20)}, {}};
  const Plan& second = other_.Make(seqs, next, executor_);
  second.CheckInvariants();
  EXPECT_EQ(second.Row(0)[29], PageId(129));
  EXPECT_EQ(second.Row(0)[30], PageId(700));
  EXPECT_EQ(second.SlotAt(1, TokenCount(300)), Slot(19 * 16 + 12));
}

TEST_F(SharedRows, WhatCannotBeIsRefusedAndNothingChanges) {
  const std::vector<PageId> good = Pages(1, 3);
  std::vector<PageId> bad = Pages(7, 3);
  bad[2] = PageId(1000);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(40), .pages = good},
      {.q_len = TokenCount(1), .kv_len = TokenCount(40), .pages = bad}};
  const std::vector<PageId> before = pages_;
  const auto message = [&](const std::vector<RowUse>& uses) {
    return ErrorMessage([&] { one_.Make(seqs, uses, executor_); });
  };
  EXPECT_EQ(message({{.row = 0}, {.row = 1}}),
            "plan: sequence 1: page ids: expected 1..999 (a pool of 1000 pages), got 1000");
  EXPECT_EQ(message({{.row = 0}, {.row = 0}}),
            "plan: sequence 1: row 0 is another sequence's of this step");
  EXPECT_EQ(message({{.row = 3}, {.row = 0}}), "plan: sequence 0: row: expected 0..2, got 3");
  EXPECT_EQ(message({{.row = 0}, {}}), "plan: sequence 1: expected a row for kv_len 40, got none");
  EXPECT_EQ(pages_, before);
}

}  // namespace
}  // namespace quire
