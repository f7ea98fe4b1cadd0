// Exports of interop/cuda equal the host's, entry for entry: interop/export.h is the truth. Runs on the
// machine that the binary links (interop/cuda/test_exports.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "attn/cuda/test_plan_bench.h"
#include "base/executor.h"
#include "base/format.h"
#include "interop/cuda/test_exports.h"
#include "interop/export.h"
#include "testing/export_kernels.h"
#include "testing/invariants/random_config.h"
#include "testing/invariants/serving.h"

namespace quire::cuda {
namespace {

using ::quire::Index;
using testing::RowLengths;
using testing::ScatteredBatch;

class ExportBench : public PlanBench {
 public:
  explicit ExportBench(const MachineShape& shape)
      : PlanBench(shape), exports_(MakeExports(machine())) {}

  TestExports& exports() { return *exports_; }

  void ExpectExports(std::span<const SequenceStep> seqs, const StepCapacity& capacity, int skew) {
    ExpectFlat(seqs, capacity, skew);
    ExpectTable(seqs, capacity, BlockTableRule::kCeil, -1);
    if (capacity.page_size == PageSize(64)) {
      ExpectTable(seqs, capacity, BlockTableRule::kTrtllm, -1);
      ExpectTable(seqs, capacity, BlockTableRule::kFlashMlaGraph, 1);
    }
    EXPECT_EQ(machine().TakeFault(), "");
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
    const DraftCopy copy = exports_->Drafts(capacity, shape, skew);
    EXPECT_EQ(copy.damage, "");
    EXPECT_EQ(machine().TakeFault(), "");
    ExpectSame("draft indptr", copy.indptr, std::span<const int32_t>(indptr));
    ExpectSame("draft indices", copy.indices, std::span<const int32_t>(indices));
    ExpectSame("write_slots", copy.write_slots, std::span<const int64_t>(slots));
  }

 private:
  void ExpectFlat(std::span<const SequenceStep> seqs, const StepCapacity& capacity, int skew) {
    std::vector<int32_t> indptr(Index(IndptrEntries(capacity)));
    std::vector<int32_t> indices(Index(FlatIndexEntries(capacity).raw()), kUnwrittenEntry);
    ExportFlatIndices(seqs, capacity, {.kv_indptr = indptr, .kv_indices = indices}, executor_);
    const FlatCopy copy = exports_->Flat(capacity, skew);
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
    const TableCopy copy = exports_->Table(capacity, rule, fill);
    EXPECT_EQ(copy.damage, "");
    ExpectSame(BlockTableRuleName(rule), copy.table, std::span<const int32_t>(table));
    ExpectSame("kv_lens", copy.kv_lens, std::span<const int32_t>(kv_lens));
  }

  std::unique_ptr<TestExports> exports_;
  SerialExecutor executor_;
};

// ---- Bad input ----

// A packed step that something has written over gives an empty plan, and so an empty export.
TEST(CudaExportTest, AStepOutOfBoundsGivesAnEmptyExport) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const SmallBatches small;
  bench.machine().Pack(small.batches()[1], bench.ChooseRows(small.batches()[1]));
  bench.machine().Corrupt([](const PackedStep& step) { step.header->num_seqs = 5; });
  bench.machine().Run();
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  const FlatCopy flat = bench.exports().Flat(SmallShape().capacity);
  EXPECT_EQ(flat.damage, "");
  EXPECT_EQ(flat.indptr, (std::vector{0, 0, 0, 0, 0}));
}

TEST(CudaExportTest, MoreThanTheBuffersIsReportedAndNothingIsWrittenOutside) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const std::vector<PageId> a = Pages(1, 188), b = Pages(300, 188);
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(1000), .pages = a},
      {.q_len = TokenCount(1), .kv_len = TokenCount(60), .pages = b}};
  bench.Make(seqs);
  StepCapacity narrow = SmallShape().capacity;
  narrow.context = TokenCount(256);
  narrow.num_seqs = 3;
  const FlatCopy flat = bench.exports().Flat(narrow, 1);
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  EXPECT_EQ(flat.damage, "");
  EXPECT_EQ(flat.indptr, (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(std::count(flat.indices.begin(), flat.indices.end(), kUnwrittenEntry),
            std::ssize(flat.indices));
  const TableCopy table = bench.exports().Table(narrow, BlockTableRule::kCeil, -1);
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  EXPECT_EQ(table.damage, "");
  EXPECT_EQ(table.kv_lens, (std::vector{0, 60, 0}));
  EXPECT_EQ(table.table[0], -1);
  EXPECT_EQ(table.table[17], 300);
  const DraftCopy drafts = bench.exports().Drafts(narrow, {.branches = 2, .steps = 2});
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
  EXPECT_EQ(drafts.damage, "");
  EXPECT_EQ(drafts.indptr, std::vector<int32_t>(14, 0));
  EXPECT_EQ(drafts.write_slots, std::vector<int64_t>(12, 0));
  narrow.num_seqs = 1;
  narrow.context = TokenCount(3000);
  for (const std::string& damage :
       {bench.exports().Flat(narrow).damage,
        bench.exports().Table(narrow, BlockTableRule::kCeil, -1).damage,
        bench.exports().Drafts(narrow, {.branches = 2, .steps = 2}).damage}) {
    EXPECT_EQ(damage, "");
  }
  EXPECT_EQ(bench.machine().TakeFault(), "capacity");
}

// ---- Forms ----

TEST(CudaExportTest, FormsOfThePlansOwnBatches) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const SmallBatches small;
  for (size_t i = 0; i < small.batches().size(); ++i) {
    SCOPED_TRACE(i);
    bench.Make(small.batches()[i]);
    bench.ExpectExports(small.batches()[i], SmallShape().capacity, static_cast<int>(i % 4));
  }
}

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
      for (int skew : {0, 1, 2, 3}) {
        bench.ExpectExports(batch.seqs, capacity, skew);
        bench.ExpectDrafts(batch.seqs, capacity, shape, skew);
      }
    }
  }
}

TEST(CudaExportTest, ADraftPastThePageListIsReported) {
  QUIRE_NEEDS_MACHINE();
  ExportBench bench(SmallShape());
  const std::vector<PageId> pages = Pages(1, 1);
  const SequenceStep seq{.q_len = TokenCount(1), .kv_len = TokenCount(15), .pages = pages};
  bench.Make({&seq, 1});
  const DraftCopy drafts = bench.exports().Drafts(SmallShape().capacity, {.steps = 2});
  EXPECT_EQ(bench.machine().TakeFault(), "page");
  EXPECT_EQ(drafts.damage, "");
  EXPECT_EQ(drafts.write_slots[0], 31);
  EXPECT_EQ(drafts.write_slots[1], 0) << "the scratch page";
}

// ---- Random configurations (testing/invariants) ----

class CudaRandomExportTest : public ::testing::TestWithParam<int> {};

TEST_P(CudaRandomExportTest, ExportsEqualTheHosts) {
  QUIRE_NEEDS_MACHINE();
  for (int i = 0; i < 20; ++i) {
    const uint64_t seed = 40'000 + Index(GetParam()) * 20 + Index(i);
    const testing::RandomConfig config = testing::DrawConfig(seed);
    SCOPED_TRACE(ToString(config));
    testing::Facts facts;
    testing::Serving serving(config, facts);
    ExportBench bench(ShapeOf(config, 1 + i % 3));
    for (int32_t batch_number = 0; batch_number < config.num_batches; ++batch_number) {
      const testing::Batch batch = serving.Next();
      bench.Make(batch.seqs);
      bench.ExpectExports(batch.seqs, config.BucketCapacity(), i % 4);
      if (HasFailure()) return;
    }
    serving.End();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRandomExportTest, ::testing::Range(0, 10));

}  // namespace
}  // namespace quire::cuda
