// Plans and exports of attn/cuda equal the host's, entry for entry: attn/plan.h and attn/export.h are
// the truth. Runs on the machine that the binary links (attn/cuda/test_machine.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "attn/cuda/test_machine.h"
#include "attn/export.h"
#include "attn/plan.h"
#include "attn/plan_build.h"
#include "attn/plan_storage.h"
#include "base/error.h"
#include "base/executor.h"
#include "testing/error_message.h"
#include "testing/export_kernels.h"
#include "testing/invariants/random_config.h"
#include "testing/invariants/serving.h"

namespace quire::cuda {
namespace {

using ::quire::Index;
using testing::ErrorMessage;
using testing::RowLengths;
using testing::ScatteredBatch;

#define QUIRE_NEEDS_MACHINE() \
  if (!MachineProblem().empty()) GTEST_SKIP() << MachineProblem()

// A machine, the host's plans beside it, and what its rows of pages hold.
class Bench {
 public:
  explicit Bench(const MachineShape& shape)
      : shape_(shape),
        machine_(MakeMachine(shape)),
        host_(shape.capacity, shape.work),
        rows_(Index(shape.num_rows)) {}

  TestMachine& machine() { return *machine_; }
  const Plan& host_plan() const { return *plan_; }

  // Each sequence takes the free row that has most of its pages already.
  std::vector<RowUse> ChooseRows(std::span<const SequenceStep> seqs) {
    std::vector<RowUse> uses;
    std::vector<bool> taken(rows_.size());
    for (const SequenceStep& seq : seqs) {
      RowUse best;
      if (seq.kv_len > TokenCount(0)) {
        for (size_t row = 0; row < rows_.size(); ++row) {
          if (taken[row]) continue;
          const PageCount common = Common(rows_[row], seq.pages);
          if (best.row != kNoRow && common <= best.unchanged) continue;
          best = {.row = static_cast<int32_t>(row), .unchanged = common};
        }
        taken[Index(best.row)] = true;
      }
      uses.push_back(best);
    }
    return uses;
  }

  void Make(std::span<const SequenceStep> seqs) { Make(seqs, ChooseRows(seqs)); }
  void Make(std::span<const SequenceStep> seqs, const std::vector<RowUse>& uses) {
    machine_->Pack(seqs, uses);
    for (size_t b = 0; b < seqs.size(); ++b) {
      if (uses[b].row == kNoRow) continue;
      rows_[Index(uses[b].row)].assign(seqs[b].pages.begin(), seqs[b].pages.end());
    }
    machine_->Run();
    plan_ = &host_.Make(seqs, executor_);
  }

  void ExpectPlan() {
    const PlanCopy copy = machine_->Copy();
    const Plan& plan = *plan_;
    const auto n = Index(plan.num_seqs);
    EXPECT_EQ(machine_->TakeFault(), "");
    ASSERT_EQ(copy.seq_counts, *plan.seq_counts);
    ASSERT_EQ(copy.counts, *plan.counts);
    ExpectRows(copy);
    ExpectSame("kv_len", First(copy.kv_len, n), plan.kv_len);
    ExpectSame("committed", First(copy.committed, n), plan.committed);
    ExpectSame("q_offset", First(copy.q_offset, n + 1), plan.q_offset);
    for (size_t b = n; b < copy.kv_len.size(); ++b) {
      EXPECT_EQ(copy.kv_len[b], TokenCount(0)) << "padding row " << b;
      EXPECT_EQ(copy.q_offset[b + 1], plan.num_query_tokens) << "padding row " << b;
    }
    ExpectSame("tiles", First(copy.tiles, plan.tiles.size()), plan.tiles);
    ExpectSame("workers", copy.workers, plan.workers);
    ExpectSame("merges", First(copy.merges, plan.merges.size()), plan.merges);
    ExpectView(copy);
  }

  void ExpectExports(std::span<const SequenceStep> seqs, const StepCapacity& capacity, int skew) {
    ExpectFlat(seqs, capacity, skew);
    ExpectTable(seqs, capacity, BlockTableRule::kCeil, -1);
    if (capacity.page_size == PageSize(64)) {
      ExpectTable(seqs, capacity, BlockTableRule::kTrtllm, -1);
      ExpectTable(seqs, capacity, BlockTableRule::kFlashMlaGraph, 1);
    }
    EXPECT_EQ(machine_->TakeFault(), "");
  }

  void ExpectDrafts(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                    const DraftShape& shape, int skew) {
    std::vector<int32_t> indptr(Index(DraftIndptrEntries(capacity, shape) * shape.steps));
    std::vector<int32_t> indices(Index((DraftRowEntries(capacity, shape) * shape.steps).raw()),
                                 kUnwrittenEntry);
    std::vector<int64_t> slots(Index(DraftSlotEntries(capacity, shape)));
    ExportDraftRows(
        seqs, capacity,
        {.shape = shape, .kv_indptr = indptr, .kv_indices = indices, .write_slots = slots},
        executor_);
    const DraftCopy copy = machine_->Drafts(capacity, shape, skew);
    EXPECT_EQ(copy.damage, "");
    EXPECT_EQ(machine_->TakeFault(), "");
    ExpectSame("draft indptr", copy.indptr, std::span<const int32_t>(indptr));
    ExpectSame("draft indices", copy.indices, std::span<const int32_t>(indices));
    ExpectSame("write_slots", copy.write_slots, std::span<const int64_t>(slots));
  }

 private:
  static PageCount Common(std::span<const PageId> a, std::span<const PageId> b) {
    return PageCount(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  }
  template <class T>
  static std::span<const T> First(const std::vector<T>& values, size_t count) {
    return std::span(values).first(count);
  }
  template <class A, class B>
  static void ExpectSame(const char* what, const A& actual, const B& expected) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    const auto at = std::mismatch(actual.begin(), actual.end(), expected.begin()).first;
    EXPECT_TRUE(at == actual.end()) << what << " differs at entry " << at - actual.begin();
  }

  // Each sequence's row holds its pages, and every other what it held.
  void ExpectRows(const PlanCopy& copy) {
    for (int32_t b = 0; b < plan_->num_seqs; ++b) {
      const size_t pages = Index(plan_->page_size.PagesFor(plan_->kv_len[Index(b)]).raw());
      const PageId* row = copy.page_rows.data() + copy.row_of[Index(b)] * shape_.row_width.raw();
      ExpectSame("pages of a sequence", std::span(row, pages), std::span(plan_->Row(b), pages));
    }
    for (size_t row = 0; row < rows_.size(); ++row) {
      ExpectSame(
          "a row",
          std::span(copy.page_rows).subspan(row * Index(shape_.row_width.raw()), rows_[row].size()),
          rows_[row]);
    }
  }

  // The copied arrays answer as the host's plan does.
  void ExpectView(const PlanCopy& copy) {
    Sequences view = *plan_;
    view.row_width = shape_.row_width;
    view.page_rows = copy.page_rows;
    view.row_of = copy.row_of;
    view.kv_len = copy.kv_len;
    view.committed = copy.committed;
    view.q_offset = copy.q_offset;
    view.tree_masks = copy.tree_masks;
    for (const QueryTile& tile : plan_->tiles) {
      for (int32_t i = 0; i < tile.q_count; ++i) {
        const TokenCount query = tile.q_begin + TokenCount(i);
        const TokenCount visible = plan_->Visible(tile.seq, query);
        ASSERT_EQ(view.Visible(tile.seq, query), visible) << "query " << query;
        TokenCount p = plan_->IsTree(tile.seq) ? plan_->committed[Index(tile.seq)] : visible;
        for (p = Max(TokenCount(0), p - TokenCount(2)); p < visible; p += TokenCount(1)) {
          const TokenCount position = plan_->KeyPosition(tile.seq, query, p);
          ASSERT_EQ(view.KeyPosition(tile.seq, query, p), position);
          ASSERT_EQ(view.SlotAt(tile.seq, position), plan_->SlotAt(tile.seq, position));
        }
      }
    }
  }

  void ExpectFlat(std::span<const SequenceStep> seqs, const StepCapacity& capacity, int skew) {
    std::vector<int32_t> indptr(Index(IndptrEntries(capacity)));
    std::vector<int32_t> indices(Index(FlatIndexEntries(capacity).raw()), kUnwrittenEntry);
    ExportFlatIndices(seqs, capacity, {.kv_indptr = indptr, .kv_indices = indices}, executor_);
    const FlatCopy copy = machine_->Flat(capacity, skew);
    EXPECT_EQ(copy.damage, "");
    ExpectSame("flat indptr", copy.indptr, std::span<const int32_t>(indptr));
    ExpectSame("flat indices", copy.indices, std::span<const int32_t>(indices));
  }
  void ExpectTable(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                   BlockTableRule rule, int32_t fill) {
    std::vector<int32_t> table(Index(BlockTableEntries(rule, capacity)));
    std::vector<int32_t> kv_lens(Index(capacity.num_seqs));
    ExportBlockTable(seqs, capacity,
                     {.rule = rule, .fill = fill, .table = table, .kv_lens = kv_lens}, executor_);
    const TableCopy copy = machine_->Table(capacity, rule, fill);
    EXPECT_EQ(copy.damage, "");
    ExpectSame(BlockTableRuleName(rule), copy.table, std::span<const int32_t>(table));
    ExpectSame("kv_lens", copy.kv_lens, std::span<const int32_t>(kv_lens));
  }

  MachineShape shape_;
  std::unique_ptr<TestMachine> machine_;
  SerialExecutor executor_;
  ::quire::PlanStorage host_;
  const Plan* plan_ = nullptr;
  std::vector<std::vector<PageId>> rows_;
};

std::vector<PageId> Pages(int32_t first, int64_t count) {
  std::vector<PageId> pages;
  for (int64_t i = 0; i < count; ++i) pages.push_back(PageId(first + i));
  return pages;
}

// ---- Rows, pages and replays ----

// The capacity and shape of attn/plan_test.cc.
MachineShape SmallShape() {
  return {.capacity = {.num_seqs = 4,
                       .query_tokens = TokenCount(40),
                       .context = TokenCount(3000),
                       .tree_nodes = TokenCount(8),
                       .page_size = PageSize(16),
                       .pool_pages = PageCount(1000)},
          .work = {.query_tile = TokenCount(4), .split = TokenCount(1024), .num_workers = 3},
          .new_pages = PageCount(600),
          .num_rows = 5,
          .row_width = PageCount(190),
          .threads = 4};
}

// The batches of attn/plan_test.cc, one after the other through the same memory.
TEST(CudaPlanTest, BatchesOfThePlansOwnTests) {
  QUIRE_NEEDS_MACHINE();
  Bench bench(SmallShape());
  const std::vector<PageId> a = Pages(1, 188), b = Pages(200, 188), c = Pages(400, 188);
  const std::vector<int32_t> chain = {-1, 0, 1}, tree = {-1, 0, 0, 1, 3};
  const std::vector<int32_t> worked = {-1, 0, 0, 1, 2, 3};
  const auto step = [](int64_t q_len, int64_t kv_len, const std::vector<PageId>& pages,
                       std::span<const int32_t> parents = {}) {
    return SequenceStep{.q_len = TokenCount(q_len),
                        .kv_len = TokenCount(kv_len),
                        .pages = pages,
                        .tree_parents = parents};
  };
  const std::vector<std::vector<SequenceStep>> batches = {
      {step(1, 33, a), step(1, 0, {})},
      {step(30, 3000, a), step(3, 90, b, chain), step(1, 3008, c)},
      {step(2, 17, c)},
      {step(6, 100, a), step(5, 105, b, tree), step(3, 1, c)},
      {step(6, 16, a, worked)},
      {},
      {step(0, 50, a), step(0, 0, {}), step(4, 8, b), step(0, 3, c)},
      {step(40, 40, b)},
      {step(1, 3008, a), step(1, 3008, b), step(1, 3008, c), step(1, 0, {})},
  };
  for (int round : {0, 1}) {
    for (size_t i = 0; i < batches.size(); ++i) {
      SCOPED_TRACE(fmt::format("round {}, batch {}", round, i));
      bench.Make(batches[i]);
      bench.ExpectPlan();
      bench.ExpectExports(batches[i], SmallShape().capacity, static_cast<int>(i % 4));
    }
  }
}

TEST(CudaPlanTest, RowsGrowShrinkMoveAndAreGivenToOthers) {
  QUIRE_NEEDS_MACHINE();
  Bench bench(SmallShape());
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
  Bench bench({.capacity = capacity,
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
  Bench bench(SmallShape());
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
    Bench bench(SmallShape());
    bench.machine().Pack(seqs, bench.ChooseRows(seqs));
    bench.machine().Corrupt(changes[i].apply);
    bench.machine().Run();
    const PlanCopy copy = bench.machine().Copy();
    EXPECT_EQ(bench.machine().TakeFault(), changes[i].fault);
    EXPECT_EQ(copy.seq_counts, SequenceCounts{});
    EXPECT_EQ(copy.counts, ScheduleCounts{});
    EXPECT_TRUE(std::all_of(copy.workers.begin(), copy.workers.end(),
                            [](const WorkerStart& start) { return start == WorkerStart{}; }));
    const FlatCopy flat = bench.machine().Flat(SmallShape().capacity);
    EXPECT_EQ(flat.damage, "");
    EXPECT_EQ(flat.indptr, (std::vector{0, 0, 0, 0, 0}));
  }
  Bench tree(SmallShape());
  tree.machine().Pack(seqs, tree.ChooseRows(seqs));
  tree.machine().Corrupt([](const PackedStep& step) {
    step.words[step.seqs[1].parents_begin + 1] = 1;  // its own parent
  });
  tree.machine().Run();
  EXPECT_EQ(tree.machine().TakeFault(), "tree");
  Bench page(SmallShape());
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
    Bench bench(SmallShape());
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

TEST(CudaExportTest, MoreThanTheBuffersIsReportedAndNothingIsWrittenOutside) {
  QUIRE_NEEDS_MACHINE();
  Bench bench(SmallShape());
  const std::vector<PageId> a = Pages(1, 188), b = Pages(300, 188);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(1000), .pages = a},
      {.q_len = TokenCount(1), .kv_len = TokenCount(60), .pages = b}};
  bench.Make(seqs);
  StepCapacity narrow = SmallShape().capacity;
  narrow.context = TokenCount(256);
  narrow.num_seqs = 3;
  const FlatCopy flat = bench.machine().Flat(narrow, 1);
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  EXPECT_EQ(flat.damage, "");
  EXPECT_EQ(flat.indptr, (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(std::count(flat.indices.begin(), flat.indices.end(), kUnwrittenEntry),
            std::ssize(flat.indices));
  const TableCopy table = bench.machine().Table(narrow, BlockTableRule::kCeil, -1);
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  EXPECT_EQ(table.damage, "");
  EXPECT_EQ(table.kv_lens, (std::vector{0, 60, 0}));
  EXPECT_EQ(table.table[0], -1);
  EXPECT_EQ(table.table[17], 300);
  const DraftCopy drafts = bench.machine().Drafts(narrow, {.branches = 2, .steps = 2});
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  EXPECT_EQ(drafts.damage, "");
  EXPECT_EQ(drafts.indptr, std::vector<int32_t>(14, 0));
  EXPECT_EQ(drafts.write_slots, std::vector<int64_t>(12, 0));
  narrow.num_seqs = 1;
  narrow.context = TokenCount(3000);
  for (const std::string& damage :
       {bench.machine().Flat(narrow).damage,
        bench.machine().Table(narrow, BlockTableRule::kCeil, -1).damage,
        bench.machine().Drafts(narrow, {.branches = 2, .steps = 2}).damage}) {
    EXPECT_EQ(damage, "");
  }
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
}

// ---- Exports ----

TEST(CudaExportTest, FormsEqualTheHostsAtEveryPageSize) {
  QUIRE_NEEDS_MACHINE();
  for (int page_size : {1, 16, 61, 64, 128}) {
    for (const DraftShape shape :
         {DraftShape{.branches = 1, .steps = 3}, DraftShape{.branches = 3, .steps = 2}}) {
      SCOPED_TRACE(fmt::format("page size {}, {} branches", page_size, shape.branches));
      const int64_t room = DraftReserve(PageSize(page_size), shape).raw();
      const RowLengths lengths[] = {
          {.kv_len = 5000, .room = room},
          {.kv_len = 0},
          {.kv_len = page_size, .room = room},
          {.kv_len = page_size + 1, .room = room},
          {.q_len = 2, .kv_len = std::max(2, page_size - 1), .room = room},
          {.kv_len = 4097, .room = room}};
      const ScatteredBatch batch(PageSize(page_size), lengths, 7);
      StepCapacity capacity = batch.capacity;
      capacity.num_seqs += 2;
      PageCount width{0}, pages{0};
      for (const SequenceStep& seq : batch.seqs) {
        width = Max(width, PageCount(seq.pages.size()));
        pages += PageCount(seq.pages.size());
      }
      Bench bench({.capacity = capacity,
                   .work = {.query_tile = TokenCount(2),
                            .split = TokenCount(256),
                            .num_workers = 7,
                            .exact = false},
                   .new_pages = pages,
                   .num_rows = 8,
                   .row_width = Max(width, PageTableWidth(capacity)),
                   .threads = 3});
      bench.Make(batch.seqs);
      bench.ExpectPlan();
      for (int skew : {0, 1, 2, 3}) {
        bench.ExpectExports(batch.seqs, capacity, skew);
        bench.ExpectDrafts(batch.seqs, capacity, shape, skew);
      }
    }
  }
}

TEST(CudaExportTest, ADraftPastThePageListIsReported) {
  QUIRE_NEEDS_MACHINE();
  Bench bench(SmallShape());
  const std::vector<PageId> pages = Pages(1, 1);
  const SequenceStep seq{.q_len = TokenCount(1), .kv_len = TokenCount(15), .pages = pages};
  bench.Make({&seq, 1});
  const DraftCopy drafts = bench.machine().Drafts(SmallShape().capacity, {.steps = 2});
  EXPECT_EQ(bench.machine().TakeFault(), "page");
  EXPECT_EQ(drafts.damage, "");
  EXPECT_EQ(drafts.write_slots[0], 31);
  EXPECT_EQ(drafts.write_slots[1], 0) << "the scratch page";
}

// ---- Random configurations (testing/invariants) ----

class CudaRandomTest : public ::testing::TestWithParam<int> {};

TEST_P(CudaRandomTest, PlansAndExportsEqualTheHosts) {
  QUIRE_NEEDS_MACHINE();
  for (int i = 0; i < 20; ++i) {
    const uint64_t seed = 40'000 + Index(GetParam()) * 20 + Index(i);
    const testing::RandomConfig config = testing::DrawConfig(seed);
    SCOPED_TRACE(ToString(config));
    testing::Facts facts;
    testing::Serving serving(config, facts);
    const StepCapacity capacity = config.BucketCapacity();
    const PageCount width = config.page_size.PagesFor(
        TokenCount(config.ReservedTokens(config.context) + config.page_size.raw() * 16));
    Bench bench({.capacity = capacity,
                 .work = config.work,
                 .new_pages = width * capacity.num_seqs,
                 .num_rows = capacity.num_seqs + 2,
                 .row_width = width,
                 .threads = 1 + i % 3});
    for (int32_t batch_number = 0; batch_number < config.num_batches; ++batch_number) {
      const testing::Batch batch = serving.Next();
      bench.Make(batch.seqs);
      bench.ExpectPlan();
      bench.ExpectExports(batch.seqs, capacity, i % 4);
      if (HasFailure()) return;
    }
    serving.End();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRandomTest, ::testing::Range(0, 10));

}  // namespace
}  // namespace quire::cuda
