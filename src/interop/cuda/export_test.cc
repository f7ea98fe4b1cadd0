// Exports of interop/cuda equal the host's, entry for entry: interop/export.h is the truth. Runs on the
// machine that the binary links (interop/cuda/test_exports.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "attn/cuda/test_plan_bench.h"
#include "base/format.h"
#include "interop/cuda/test_exports.h"
#include "interop/export.h"
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

bool Untouched(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kUnwritten; });
}

// Entry by entry, megabytes take a sanitizer a second: only where something differs.
void ExpectSameBytes(const char* what, const std::vector<std::byte>& actual,
                     const std::vector<std::byte>& expected) {
  const bool are_same = actual.size() == expected.size() &&
                        std::memcmp(actual.data(), expected.data(), actual.size()) == 0;
  if (!are_same) ExpectSame(what, actual, expected);
}

template <class T>
std::vector<T> Values(std::span<T> entries) {
  return {entries.begin(), entries.end()};
}

class ExportBench : public PlanBench {
 public:
  explicit ExportBench(const MachineShape& shape)
      : PlanBench(shape), exports_(MakeExports(machine())) {}

  TestExports& exports() { return *exports_; }

  // The block of a form is the host's, byte for byte: outputs, what they leave unwritten, and guards.
  void ExpectSequenceForms(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                           int skew) {
    ForEachSequenceForm(capacity, skew, [&](const char* name, const auto& layout) {
      ExpectForm(name, seqs, capacity, layout);
    });
  }
  void ExpectDraftForms(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                        const DraftShape& shape, int skew) {
    ForEachDraftForm(capacity, shape, skew, [&](const char* name, const auto& layout) {
      ExpectForm(name, seqs, capacity, layout);
    });
  }

  template <class Out>
  void ExpectForm(const char* name, std::span<const SequenceStep> seqs,
                  const StepCapacity& capacity, const Layout<Out>& layout) {
    const Exported<Out> expected = RunExport(*MakeReference(seqs), capacity, layout);
    const Exported<Out> actual = RunExport(*exports_, capacity, layout);
    EXPECT_EQ(actual.damage, "") << name;
    EXPECT_EQ(machine().TakeFault(), "") << name;
    ExpectSameBytes(name, actual.bytes, expected.bytes);
  }

 private:
  std::unique_ptr<TestExports> exports_;
};

// ---- Bad input ----

// Two sequences of which the first is too long for NarrowCapacity.
class LongAndShort {
 public:
  std::span<const SequenceStep> seqs() const { return seqs_; }

 private:
  const std::vector<PageId> a_ = Pages(1, 188), b_ = Pages(300, 188);
  const std::vector<SequenceStep> seqs_ = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(1000), .pages = a_},
      {.q_len = TokenCount(1), .kv_len = TokenCount(60), .pages = b_}};
};

StepCapacity NarrowCapacity() {
  StepCapacity narrow = SmallShape().capacity;
  narrow.context = TokenCount(256);
  narrow.num_seqs = 3;
  return narrow;
}

constexpr DraftShape kTwoByTwo{.branches = 2, .steps = 2};

TEST(CudaExportTest, AnOutputShorterThanItsSizingFunctionIsRefusedInTheHostsWords) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const LongAndShort batch;
  const StepCapacity capacity = SmallShape().capacity;
  bench.Make(batch.seqs());
  const auto expect_refused = [&](const char* name, const auto& layout) {
    const auto reference = MakeReference(batch.seqs());
    OutputBlock counted(nullptr);
    layout(counted);
    for (size_t i = 0; i < counted.num_outputs(); ++i) {
      SCOPED_TRACE(fmt::format("{}, output {}", name, i));
      const std::string expected = ErrorMessage(
          ErrorCode::kInvalidArgument, [&] { RunExport(*reference, capacity, layout, i); });
      EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                             [&] { RunExport(bench.exports(), capacity, layout, i); }),
                expected);
      EXPECT_NE(expected.find("expected a span of"), std::string::npos) << expected;
      EXPECT_TRUE(Untouched(bench.exports().CopyBlock()));
    }
  };
  ForEachSequenceForm(capacity, 0, expect_refused);
  ForEachDraftForm(capacity, kTwoByTwo, 0, expect_refused);
  EXPECT_EQ(bench.machine().TakeFault(), "");
}

TEST(CudaExportTest, CapacitiesAndShapesThatCannotBeAreRefusedByName) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const LongAndShort batch;
  bench.Make(batch.seqs());
  const auto message_of = [&](ErrorCode code, const StepCapacity& capacity, const auto& layout) {
    return ErrorMessage(code, [&] { RunExport(bench.exports(), capacity, layout); });
  };
  StepCapacity capacity = SmallShape().capacity;
  for (const DraftShape shape : {DraftShape{.branches = 0}, DraftShape{.steps = 0}}) {
    ForEachDraftForm(capacity, shape, 0, [&](const char* name, const auto& layout) {
      EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, capacity, layout),
                ErrorMessage(ErrorCode::kInvalidArgument,
                             [&] { RunExport(*MakeReference(batch.seqs()), capacity, layout); }))
          << name;
    });
  }
  capacity.page_size = PageSize(32);
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, capacity, FlatPagesOf(capacity)),
            "flat_page_indices: expected the plan's page_size 16, got 32");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, capacity, UnifiedTableOf(capacity)),
            "unified_page_table: expected the plan's page_size 16, got 32");
  capacity = SmallShape().capacity;
  capacity.pool_pages = PageCount(999);
  EXPECT_EQ(
      message_of(ErrorCode::kInvalidArgument, capacity, DraftTablesOf(capacity, kTwoByTwo, -1)),
      "draft_prefix_table: expected the plan's pool of 1000 pages, got 999");
}

// A packed step that something has written over gives an empty plan, and so empty exports.
TEST(CudaExportTest, AStepOutOfBoundsGivesEmptyExports) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const LongAndShort batch;
  const StepCapacity capacity = SmallShape().capacity;
  bench.machine().Pack(batch.seqs(), bench.ChooseRows(batch.seqs()));
  bench.machine().Corrupt([](const PackedStep& step) { step.header->num_seqs = 5; });
  bench.machine().Run();
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  bench.ExpectSequenceForms({}, capacity, 1);
  bench.ExpectDraftForms({}, capacity, kTwoByTwo, 1);
}

// Flat forms are empty then, and rows that are too long have no keys.
TEST(CudaExportTest, MoreThanTheBuffersIsReportedAndNothingIsWrittenOutside) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const LongAndShort batch;
  const StepCapacity narrow = NarrowCapacity();
  bench.Make(batch.seqs());
  const auto run = [&](const auto& layout) {
    auto result = RunExport(bench.exports(), narrow, layout);
    EXPECT_EQ(bench.machine().TakeFault(), "capacity");
    EXPECT_EQ(result.damage, "");
    return result;
  };
  const auto flat = run(FlatIndicesOf(narrow, 1));
  EXPECT_EQ(Values(flat.out.kv_indptr), (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(std::count(flat.out.kv_indices.begin(), flat.out.kv_indices.end(), kUnwrittenEntry),
            std::ssize(flat.out.kv_indices));
  const auto pages = run(FlatPagesOf(narrow));
  EXPECT_EQ(Values(pages.out.kv_indptr), (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(Values(pages.out.last_page_len), (std::vector{0, 0, 0}));
  EXPECT_EQ(std::count(pages.out.kv_pages.begin(), pages.out.kv_pages.end(), kUnwrittenEntry),
            std::ssize(pages.out.kv_pages));
  const auto table = run(BlockTableOf(narrow, BlockTableRule::kCeil, -1));
  EXPECT_EQ(Values(table.out.kv_lens), (std::vector{0, 60, 0}));
  EXPECT_EQ(table.out.table[0], -1);
  EXPECT_EQ(table.out.table[17], 300);
  const auto unified = run(UnifiedTableOf(narrow));
  EXPECT_EQ(Values(unified.out.kv_lens), (std::vector{0, 60, 0}));
  EXPECT_EQ(unified.out.table[0], 0);
  EXPECT_EQ(unified.out.table[17], 300);
  const auto rows = run(DraftRowsOf(narrow, kTwoByTwo));
  EXPECT_EQ(Values(rows.out.kv_indptr), std::vector<int32_t>(14, 0));
  EXPECT_EQ(Values(rows.out.write_slots), std::vector<int64_t>(12, 0));
  const auto tables = run(DraftTablesOf(narrow, kTwoByTwo, -1));
  EXPECT_EQ(Values(tables.out.prefix_lens), (std::vector{0, 48, 0}));
  EXPECT_EQ(Values(tables.out.branch_lens), (std::vector{0, 0, 13, 13, 0, 0, 0, 0, 14, 14, 0, 0}));
  EXPECT_EQ(tables.out.branch_table[0], -1);
  EXPECT_EQ(tables.out.branch_table[4], 303);
}

TEST(CudaExportTest, MoreSequencesThanTheBuffersHaveRowsForGiveEmptyExports) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const LongAndShort batch;
  StepCapacity one = SmallShape().capacity;
  one.num_seqs = 1;
  bench.Make(batch.seqs());
  const auto expect_empty = [&](const char* name, const auto& layout) {
    const auto actual = RunExport(bench.exports(), one, layout);
    EXPECT_EQ(bench.machine().TakeFault(), "capacity") << name;
    ExpectSameBytes(name, actual.bytes, RunExport(*MakeReference({}), one, layout).bytes);
  };
  ForEachSequenceForm(one, 0, expect_empty);
  ForEachDraftForm(one, kTwoByTwo, 0, expect_empty);
}

TEST(CudaExportTest, ADraftPastThePageListIsReported) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const std::vector<PageId> pages = Pages(7, 1);
  const SequenceStep seq{.q_len = TokenCount(1), .kv_len = TokenCount(15), .pages = pages};
  bench.Make({&seq, 1});
  const StepCapacity capacity = SmallShape().capacity;
  const DraftShape shape{.steps = 2};
  const auto rows = RunExport(bench.exports(), capacity, DraftRowsOf(capacity, shape));
  EXPECT_EQ(bench.machine().TakeFault(), "page");
  EXPECT_EQ(rows.damage, "");
  EXPECT_EQ(rows.out.write_slots[0], 7 * 16 + 15);
  EXPECT_EQ(rows.out.write_slots[1], 0) << "the scratch page";
  const auto tables = RunExport(bench.exports(), capacity, DraftTablesOf(capacity, shape, -1));
  EXPECT_EQ(bench.machine().TakeFault(), "page");
  EXPECT_EQ(tables.damage, "");
  EXPECT_EQ(Values(tables.out.branch_lens), (std::vector{16, 0, 0, 0, 17, 0, 0, 0}));
  EXPECT_EQ(Values(tables.out.branch_table.subspan(8, 2)), (std::vector{7, 0}));
}

// ---- Forms ----

TEST(CudaExportTest, FormsOfThePlansOwnBatches) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const SmallBatches small;
  for (size_t i = 0; i < small.batches().size(); ++i) {
    SCOPED_TRACE(i);
    bench.Make(small.batches()[i]);
    bench.ExpectSequenceForms(small.batches()[i], SmallShape().capacity, static_cast<int>(i % 4));
  }
}

TEST(CudaExportTest, FormsEqualTheHostsAtEveryPageSize) {
  QUIRE_NEEDS_MACHINE();
  for (int page_size : {1, 16, 61, 64, 128}) {
    for (const DraftShape shape :
         {DraftShape{.branches = 1, .steps = 3}, DraftShape{.branches = 3, .steps = 2},
          DraftShape{.branches = 2, .steps = 70}}) {
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
      ExportBench bench({.capacity = capacity,
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
      bench.ExpectSequenceForms(batch.seqs, capacity, 0);
      bench.ExpectDraftForms(batch.seqs, capacity, shape, 0);
      for (int skew : {1, 2, 3}) {
        bench.ExpectForm("flat", batch.seqs, capacity, FlatIndicesOf(capacity, skew));
        bench.ExpectForm("draft rows", batch.seqs, capacity, DraftRowsOf(capacity, shape, skew));
      }
    }
  }
}

// Drafts hang behind the committed tokens: a step's own tree nodes do not count.
TEST(CudaExportTest, DraftFormsOfTreesBeginAtTheCommittedTokens) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const std::vector<PageId> a = Pages(1, 188), b = Pages(300, 188);
  const std::vector<int32_t> tree = {-1, 0, 0, 1, 3};
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(5), .kv_len = TokenCount(105), .pages = a, .tree_parents = tree},
      {.q_len = TokenCount(1), .kv_len = TokenCount(0)},
      {.q_len = TokenCount(5), .kv_len = TokenCount(5), .pages = b, .tree_parents = tree}};
  bench.Make(seqs);
  bench.ExpectDraftForms(seqs, SmallShape().capacity, {.branches = 3, .steps = 4}, 2);
}

// ---- Random configurations (testing/invariants) ----

class CudaRandomExportTest : public ::testing::TestWithParam<int> {};

// Steps to draft behind: what the others are about to write is not there yet.
std::vector<SequenceStep> CommittedSteps(const testing::Batch& batch) {
  std::vector<SequenceStep> steps = batch.seqs;
  for (size_t b = 0; b < steps.size(); ++b) {
    if (steps[b].tree_parents.empty()) steps[b].kv_len = TokenCount(batch.committed[b]);
  }
  return steps;
}

TEST_P(CudaRandomExportTest, ExportsEqualTheHosts) {
  QUIRE_NEEDS_MACHINE();
  for (int i = 0; i < 20; ++i) {
    const uint64_t seed = 40'000 + Index(GetParam()) * 20 + Index(i);
    const testing::RandomConfig config = testing::DrawConfig(seed);
    SCOPED_TRACE(ToString(config));
    testing::Facts facts;
    testing::Serving serving(config, facts);
    ExportBench bench(ShapeOf(config, /*threads=*/1));  // races are looked for above
    for (int32_t batch_number = 0; batch_number < config.num_batches; ++batch_number) {
      const testing::Batch batch = serving.Next();
      bench.Make(batch.seqs);
      bench.ExpectSequenceForms(batch.seqs, config.BucketCapacity(), i % 4);
      if (HasFailure()) return;
      const std::vector<SequenceStep> committed = CommittedSteps(batch);
      bench.Make(committed);
      bench.ExpectDraftForms(committed, config.BucketCapacity(), config.draft, i % 4);
      if (HasFailure()) return;
    }
    serving.End();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRandomExportTest, ::testing::Range(0, 10));

}  // namespace
}  // namespace quire::cuda
