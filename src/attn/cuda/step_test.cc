// Plans of attn/cuda equal the host's, entry for entry: attn/plan.h is the truth. Runs on the machine
// that the binary links (attn/cuda/test_machine.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "attn/cuda/test_machine.h"
#include "attn/cuda/test_plan_bench.h"
#include "attn/plan.h"
#include "attn/plan_build.h"
#include "attn/plan_storage.h"
#include "base/error.h"
#include "base/executor.h"
#include "testing/error_message.h"
#include "testing/invariants/random_config.h"
#include "testing/invariants/serving.h"

namespace quire::cuda {
namespace {

using ::quire::Index;
using testing::ErrorMessage;

// ---- Rows, pages and replays ----

// The batches of attn/plan_test.cc, one after the other through the same memory.
TEST(CudaPlanTest, BatchesOfThePlansOwnTests) {
  QUIRE_NEEDS_MACHINE();
  PlanBench bench(SmallShape());
  const SmallBatches small;
  const auto& batches = small.batches();
  for (int round : {0, 1}) {
    for (size_t i = 0; i < batches.size(); ++i) {
      SCOPED_TRACE(fmt::format("round {}, batch {}", round, i));
      bench.Make(batches[i]);
      bench.ExpectPlan();
    }
  }
}

TEST(CudaPlanTest, WorkThatReadsSomeOfTheKeys) {
  QUIRE_NEEDS_MACHINE();
  MachineShape choosing = SmallShape(), chosen = SmallShape();
  choosing.work.unread = TokenCount(100);
  choosing.work.even = true;
  chosen.work.most_keys = TokenCount(100);
  for (const MachineShape& shape : {choosing, chosen}) {
    PlanBench bench(shape);
    const SmallBatches small;
    for (const auto& batch : small.batches()) {
      bench.Make(batch);
      bench.ExpectPlan();
    }
  }
}

TEST(CudaPlanTest, RowsGrowShrinkMoveAndAreGivenToOthers) {
  QUIRE_NEEDS_MACHINE();
  PlanBench bench(SmallShape());
  std::vector<PageId> a = Pages(1, 10), b = Pages(100, 30);
  const auto make = [&](std::vector<RowUse> uses, int64_t a_len, int64_t b_len, bool swapped) {
    std::vector<SequenceStep> seqs = {
        {.q_len = TokenCount(1), .kv_len = TokenCount(a_len), .pages = a},
        {.q_len = TokenCount(2), .kv_len = TokenCount(b_len), .pages = b}};
    if (swapped) std::swap(seqs[0], seqs[1]), std::swap(uses[0], uses[1]);
    bench.Make(seqs, uses);
    bench.ExpectPlan();
    EXPECT_FALSE(::testing::Test::HasFailure());
  };
  make({{3, PageCount(0)}, {1, PageCount(0)}}, 150, 20, false);  // b has pages in reserve
  make({{3, PageCount(10)}, {1, PageCount(30)}}, 151, 21, false);
  b.resize(28);
  b.push_back(PageId(700));  // the last two are other pages now, and not reached yet
  make({{3, PageCount(10)}, {1, PageCount(28)}}, 152, 22, false);
  make({{3, PageCount(10)}, {1, PageCount(29)}}, 153, 29 * 16, false);
  make({{3, PageCount(10)}, {1, PageCount(29)}}, 153, 29 * 16 - 40, true);  // other places
  a = Pages(800, 12);
  make({{3, PageCount(0)}, {1, PageCount(29)}}, 180, 5, false);  // row 3 is another sequence's
  a.resize(4);
  make({{3, PageCount(4)}, {1, PageCount(29)}}, 64, 6, false);
  a.push_back(PageId(900));
  make({{3, PageCount(4)}, {1, PageCount(29)}}, 65, 7, false);
}

// More than PlanNear has room for, and than the CTAs have threads.
TEST(CudaPlanTest, MoreOfEverythingThanOneCtaHasNear) {
  QUIRE_NEEDS_MACHINE();
  constexpr int64_t kSeqs = PlanNear::kSeqs + 50, kLongest = 7400;
  const StepCapacity capacity{.num_seqs = kSeqs,
                              .query_tokens = TokenCount(3 * kSeqs),
                              .context = TokenCount(kLongest),
                              .page_size = PageSize(1),
                              .pool_pages = PageCount(20'000)};
  PlanBench bench({.capacity = capacity,
                   .work = {.query_tile = TokenCount(1),
                            .split = TokenCount(256),
                            .num_workers = 400,
                            .exact = false},
                   .new_pages = PageCount(20'000),
                   .num_rows = kSeqs,
                   .row_width = PageCount(kLongest),
                   .threads = 3});
  std::vector<std::vector<PageId>> pages;
  std::vector<SequenceStep> seqs;
  for (int64_t b = 0, first = 1; b < kSeqs; ++b) {
    const int64_t kv_len = b == 7 ? kLongest : b * 11 % 40;
    pages.push_back(Pages(static_cast<int32_t>(first), kv_len));
    seqs.push_back({.q_len = TokenCount(b % 4), .kv_len = TokenCount(kv_len)});
    first += kv_len;
  }
  for (size_t b = 0; b < seqs.size(); ++b) seqs[b].pages = pages[b];
  bench.Make(seqs);
  ASSERT_GT(bench.host_plan().tiles.size(), Index(PlanNear::kSeqs));
  bench.ExpectPlan();
  bench.Make(std::span(seqs).first(5));  // all the others' rows are cleared
  bench.ExpectPlan();
}

TEST(CudaPlanTest, AStepBringsOnlyNewPagesAndLooksAtNoOthers) {
  std::vector<PageId> store(Index(PageRows::Entries(2, PageCount(188))));
  const PageRows rows{.num_rows = 2, .width = PageCount(188), .pages = store};
  const StepCapacity capacity = SmallShape().capacity;
  std::vector<PackedHeader> block(Index(PackedStepBytes(capacity, PageCount(400)).raw() / 16 + 1));
  StepPacker packer(capacity, PageCount(400), rows, std::as_writable_bytes(std::span(block)));
  const PackedStep packed = PackedAt(std::as_writable_bytes(std::span(block)).data(), capacity);
  std::vector<PageId> pages = Pages(1, 188);
  SequenceStep seq{
      .q_len = TokenCount(1), .kv_len = TokenCount(160), .pages = std::span(pages).first(10)};
  const RowUse first{.row = 1};
  packer.Pack({&seq, 1}, {&first, 1});
  EXPECT_EQ(packed.header->num_new, 10);
  EXPECT_EQ(packed.seqs[3], PackedSequence{}) << "padding";
  std::fill(pages.begin(), pages.begin() + 10, PageId(-5));  // nobody may look at them
  seq.kv_len = TokenCount(161);
  seq.pages = std::span(pages).first(11);
  const RowUse next{.row = 1, .unchanged = PageCount(10)};
  const ByteOffset bytes = packer.Pack({&seq, 1}, {&next, 1});
  EXPECT_EQ(packed.seqs[0], (PackedSequence{.row = 1, .q_len = 1, .kv_len = 161, .num_pages = 11}));
  EXPECT_EQ(packed.header->num_new, 1);
  EXPECT_EQ(NewPageAt(packed.words + packed.header->new_begin, 0),
            (NewPage{.seq = 0, .index = 10, .page = 11}));
  EXPECT_EQ(bytes, PackedStepBytes(capacity, PageCount(0)) + ByteOffset(sizeof(NewPage)) -
                       ByteOffset(sizeof(int32_t)) * PackedWords(capacity, PageCount(0)));
  seq.kv_len = TokenCount(162);
  const RowUse same{.row = 1, .unchanged = PageCount(11)};
  packer.Pack({&seq, 1}, {&same, 1});
  EXPECT_EQ(packed.header->num_new, 0);
}

// ---- Bad input ----

TEST(CudaPlanTest, RowsThatCannotBeAreRefusedByName) {
  QUIRE_NEEDS_MACHINE();
  PlanBench bench(SmallShape());
  const std::vector<PageId> pages = Pages(1, 188), wild = Pages(1000, 1);
  const SequenceStep seq{.q_len = TokenCount(1), .kv_len = TokenCount(40), .pages = pages};
  const auto message = [&](const std::vector<SequenceStep>& seqs, std::vector<RowUse> uses) {
    return ErrorMessage([&] { bench.machine().Pack(seqs, uses); });
  };
  EXPECT_EQ(message({seq}, {}), "plan: expected the rows of 1 sequences, got 0");
  EXPECT_EQ(message({seq}, {{}}), "plan: sequence 0: expected a row for kv_len 40, got none");
  EXPECT_EQ(message({seq}, {{.row = 5}}), "plan: sequence 0: row: expected 0..4, got 5");
  EXPECT_EQ(message({seq, seq}, {{.row = 2}, {.row = 2}}),
            "plan: sequence 1: row 2 is another sequence's of this step");
  EXPECT_EQ(message({seq}, {{.row = 2, .unchanged = PageCount(189)}}),
            "plan: sequence 0: unchanged: expected 0..188 (pages listed), got 189");
  SequenceStep bad = seq;
  bad.pages = wild;
  EXPECT_EQ(message({bad}, {{.row = 0}}),
            "plan: sequence 0: pages: expected 3 (kv_len 40, page_size 16), got 1");
  bad.kv_len = TokenCount(16);
  EXPECT_EQ(message({bad}, {{.row = 0}}),
            "plan: sequence 0: page ids: expected 1..999 (a pool of 1000 pages), got 1000");
  EXPECT_EQ(
      message({seq, seq, seq, seq}, {{.row = 0}, {.row = 1}, {.row = 2}, {.row = 3}}).substr(0, 73),
      "plan.new_pages: need 752 = new pages of 4 sequences, capacity 600 = new_p");
  bench.Make({&seq, 1});
  bench.ExpectPlan();
}

// A packed step that something has written over gives an empty plan, and no wild write.
TEST(CudaPlanTest, AStepOutOfBoundsIsReportedAndGivesAnEmptyPlan) {
  QUIRE_NEEDS_MACHINE();
  const std::vector<PageId> pages = Pages(1, 188);
  const std::vector<int32_t> parents = {-1, 0};
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(20), .kv_len = TokenCount(40), .pages = pages},
      {.q_len = TokenCount(2), .kv_len = TokenCount(40), .pages = pages, .tree_parents = parents}};
  struct Change {
    const char* fault;
    void (*apply)(const PackedStep&);
  };
  const Change changes[] = {
      {"capacity", [](const PackedStep& step) { step.header->num_seqs = 5; }},
      {"capacity", [](const PackedStep& step) { step.header->num_seqs = -1; }},
      {"capacity", [](const PackedStep& step) { step.seqs[0].kv_len = 3009; }},
      {"capacity", [](const PackedStep& step) { step.seqs[0].kv_len = -1; }},
      {"capacity", [](const PackedStep& step) { step.seqs[0].q_len = 39; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].num_nodes = 9; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].parents_begin = 1 << 30; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].row = 5; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].num_pages = 2; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].num_pages = -1; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].num_pages = 1 << 30; }},
      {"capacity", [](const PackedStep& step) { step.seqs[1].row = -2; }},
      {"capacity", [](const PackedStep& step) { step.seqs[0].row = kNoRow; }},
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    SCOPED_TRACE(i);
    PlanBench bench(SmallShape());
    bench.machine().Pack(seqs, bench.ChooseRows(seqs));
    bench.machine().Corrupt(changes[i].apply);
    bench.machine().Run();
    const PlanCopy copy = bench.machine().Copy();
    EXPECT_EQ(bench.machine().TakeFault(), changes[i].fault);
    EXPECT_EQ(copy.seq_counts, SequenceCounts{});
    EXPECT_EQ(copy.counts, ScheduleCounts{});
    EXPECT_TRUE(std::all_of(copy.workers.begin(), copy.workers.end(),
                            [](const WorkerStart& start) { return start == WorkerStart{}; }));
  }
  PlanBench tree(SmallShape());
  tree.machine().Pack(seqs, tree.ChooseRows(seqs));
  tree.machine().Corrupt([](const PackedStep& step) {
    step.words[step.seqs[1].parents_begin + 1] = 1;  // its own parent
  });
  tree.machine().Run();
  EXPECT_EQ(tree.machine().TakeFault(), "tree");
  PlanBench page(SmallShape());
  page.machine().Pack(seqs, page.ChooseRows(seqs));
  page.machine().Corrupt([](const PackedStep& step) {
    step.words[step.header->new_begin + 2] = 1000;  // page 0 of sequence 0
  });
  page.machine().Run();
  EXPECT_EQ(page.machine().TakeFault(), "page");
  const PlanCopy copy = page.machine().Copy();
  EXPECT_EQ(copy.page_rows[Index(copy.row_of[0] * SmallShape().row_width.raw())], kScratchPage);
}

// Nor does a new page that has no place.
TEST(CudaPlanTest, NewPagesOutOfBoundsAreReportedAndDropped) {
  QUIRE_NEEDS_MACHINE();
  const std::vector<PageId> pages = Pages(1, 3);
  const SequenceStep seq{.q_len = TokenCount(1), .kv_len = TokenCount(40), .pages = pages};
  struct Change {
    const char* fault;
    int word;  // of the second new page, or of the header behind them
    int32_t value;
  };
  for (const Change& change :
       {Change{"capacity", 0, 4}, Change{"capacity", 0, -1},
        Change{"capacity", 0, 2},  // a sequence without a row
        Change{"capacity", 1, 190}, Change{"capacity", 1, -1}, Change{"page", 2, 1000},
        Change{"page", 2, -1}, Change{"page", 2, 0}, Change{"capacity", 3, 601},
        Change{"capacity", 3, -1}, Change{"capacity", 4, 1 << 30}, Change{"capacity", 4, -1}}) {
    SCOPED_TRACE(fmt::format("word {}, value {}", change.word, change.value));
    PlanBench bench(SmallShape());
    const std::vector<RowUse> uses = {{.row = 3}};
    bench.machine().Pack({&seq, 1}, uses);
    const std::vector<PageId> before = bench.machine().Copy().page_rows;
    bench.machine().Corrupt([&](const PackedStep& step) {
      if (change.word < 3) step.words[step.header->new_begin + 3 + change.word] = change.value;
      if (change.word == 3) step.header->num_new = change.value;
      if (change.word == 4) step.header->new_begin = change.value;
    });
    bench.machine().Run();
    EXPECT_EQ(bench.machine().TakeFault(), change.fault);
    const std::vector<PageId> after = bench.machine().Copy().page_rows;
    const size_t row = 3 * Index(SmallShape().row_width.raw());
    for (size_t i = 0; i < after.size(); ++i) {
      if (i >= row && i < row + 3) continue;
      ASSERT_EQ(after[i], before[i]) << "entry " << i;
    }
  }
}

// ---- Random configurations (testing/invariants) ----

class CudaRandomTest : public ::testing::TestWithParam<int> {};

TEST_P(CudaRandomTest, PlansEqualTheHosts) {
  QUIRE_NEEDS_MACHINE();
  for (int i = 0; i < 20; ++i) {
    const uint64_t seed = 40'000 + Index(GetParam()) * 20 + Index(i);
    const testing::RandomConfig config = testing::DrawConfig(seed);
    SCOPED_TRACE(ToString(config));
    testing::Facts facts;
    testing::Serving serving(config, facts);
    PlanBench bench(ShapeOf(config, 1 + i % 3));
    for (int32_t batch_number = 0; batch_number < config.num_batches; ++batch_number) {
      const testing::Batch batch = serving.Next();
      bench.Make(batch.seqs);
      bench.ExpectPlan();
      if (HasFailure()) return;
    }
    serving.End();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRandomTest, ::testing::Range(0, 10));

}  // namespace
}  // namespace quire::cuda
