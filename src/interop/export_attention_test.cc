// Other engines' kernels, given our exported arrays and our store's rows, compute our attention.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/thread_pool.h"
#include "interop/export.h"
#include "interop/prefill_plan.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/export_kernels.h"
#include "testing/paged_batch.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::AttentionInputs;
using testing::AttentionOutput;
using testing::AttentionResult;
using testing::KeyMask;
using testing::kScale;
using testing::PagedBatch;
using testing::PagedBatchShape;

constexpr KvDims kDims{64, 16};

std::vector<int32_t> Array(int64_t size) { return std::vector<int32_t>(static_cast<size_t>(size)); }

// A causal batch, our attention of it, and what another engine's kernel is given besides indices.
class ExportedStep {
 public:
  explicit ExportedStep(int page_size)
      : batch_({{1, 100, {}, 3}, {20, 150, {}, 4}, {1, 0, {}, 5}, {5, 3, {}, 6}, {64, 64, {}, 7}},
               {.page_size = PageSize(page_size), .dims = kDims, .num_heads = 3}),
        rows_(static_cast<size_t>(batch_.pool_pages().raw() * page_size * kDims.values())) {
    for (size_t b = 0; b < batch_.seqs().size(); ++b) {
      for (int64_t p = 0; p < batch_.seqs()[b].kv_len.raw(); ++p) {
        const Slot slot = batch_.SlotAt(b, p);
        const std::vector<double> row =
            testing::ReferenceRow(batch_.pool(), batch_.store().layout(), slot);
        std::copy(row.begin(), row.end(), rows_.begin() + slot.raw() * kDims.values());
      }
      qo_indptr_.push_back(qo_indptr_.back() + static_cast<int32_t>(batch_.seqs()[b].q_len.raw()));
    }
    ours_ = testing::RunMla(batch_, {.scale = kScale, .num_workers = 2, .faults = ActiveFaults()},
                            executor_);
    reference_ = testing::ReferenceMla(batch_.seqs(), batch_.Rows(), batch_.q(), 3, kDims, kScale);
  }

  const PagedBatch& batch() const { return batch_; }
  StepCapacity capacity() const { return batch_.Capacity(); }
  Executor& executor() { return executor_; }
  std::span<const int32_t> qo_indptr() const { return qo_indptr_; }
  AttentionInputs inputs() const {
    return {.rows = rows_,
            .queries = batch_.q(),
            .num_heads = 3,
            .values_per_row = kDims.values(),
            .latent_dim = kDims.latent_dim,
            .scale = double{kScale}};
  }

  // Within the rounding of our f32 arithmetic: theirs is in double.
  void ExpectOurs(const AttentionOutput& theirs) const {
    EXPECT_EQ(testing::Mismatch(ours_.out, theirs.out, reference_.out_bound), "");
    EXPECT_EQ(testing::Mismatch(ours_.lse, theirs.lse, reference_.lse_bound), "");
  }

 private:
  ThreadPool executor_{2};
  PagedBatch batch_;
  std::vector<float> rows_;
  std::vector<int32_t> qo_indptr_ = {0};
  AttentionResult ours_;
  testing::ReferenceAttention reference_;
};

template <class Fn>
void ForEachPageSize(Fn fn) {
  for (int page_size : {1, 2, 3, 16, 61, 64, 128, 256}) {
    SCOPED_TRACE("page size " + std::to_string(page_size));
    ExportedStep step(page_size);
    fn(step);
  }
}

TEST(ExportAttentionTest, FlatIndicesReproduceOurAttention) {
  ForEachPageSize([](ExportedStep& step) {
    std::vector<int32_t> indptr = Array(IndptrEntries(step.capacity()));
    std::vector<int32_t> indices = Array(FlatIndexEntries(step.capacity(), ActiveFaults()).raw());
    ExportFlatIndices(step.batch().seqs(), step.capacity(),
                      {.kv_indptr = indptr, .kv_indices = indices}, step.executor(),
                      ActiveFaults());
    step.ExpectOurs(testing::FlatIndexAttention(step.inputs(), step.qo_indptr(), indptr, indices,
                                                KeyMask::kCausal));
  });
}

TEST(ExportAttentionTest, BlockTablesReproduceOurAttention) {
  ForEachPageSize([](ExportedStep& step) {
    for (BlockTableRule rule : {BlockTableRule::kCeil, BlockTableRule::kFlashMlaGraph,
                                BlockTableRule::kCutlassGraph, BlockTableRule::kTrtllm}) {
      const StepCapacity capacity = step.capacity();
      const int page_size = capacity.page_size.raw();
      if (rule == BlockTableRule::kFlashMlaGraph && page_size != 64) continue;
      if (rule == BlockTableRule::kCutlassGraph && page_size != 128) continue;
      if (rule == BlockTableRule::kTrtllm && page_size != 64) continue;
      SCOPED_TRACE(BlockTableRuleName(rule));
      std::vector<int32_t> table = Array(BlockTableEntries(rule, capacity));
      std::vector<int32_t> lens = Array(capacity.num_seqs);
      ExportBlockTable(step.batch().seqs(), capacity,
                       {.rule = rule, .fill = -1, .table = table, .kv_lens = lens}, step.executor(),
                       ActiveFaults());
      step.ExpectOurs(testing::BlockTableAttention(step.inputs(), step.qo_indptr(),
                                                   {.table = table,
                                                    .kv_lens = lens,
                                                    .width = BlockTableWidth(rule, capacity).raw(),
                                                    .page_size = capacity.page_size},
                                                   KeyMask::kCausal));
    }
  });
}

TEST(ExportAttentionTest, ThePrefillPlanReproducesOurAttention) {
  ForEachPageSize([](ExportedStep& step) {
    const StepCapacity capacity = step.capacity();
    const PrefillShape shape{.num_heads_k = 1,
                             .heads_per_key_head = 3,
                             .num_workers = 5,
                             .max_q_len = TokenCount(64),
                             .query_granularity = TokenCount(16)};
    std::vector<int32_t> qo = Array(capacity.num_seqs + 1), kv = qo,
                         lens = Array(capacity.num_seqs);
    std::vector<int32_t> work_indptr = Array(shape.num_workers + 1);
    std::vector<int32_t> works = Array(PrefillWorks(capacity, shape) * kNumWorkFields);
    std::vector<int32_t> reduce_indptr = Array(PrefillQueryTiles(capacity, shape) + 1);
    std::vector<int32_t> final_map = Array(PrefillQueryTiles(capacity, shape) * 2);
    std::vector<int32_t> partial_map = Array(PrefillPartials(capacity, shape));
    const PrefillPlan<TokenBlocks> plan{.shape = shape,
                                        .arrays = {.qo_indptr = qo,
                                                   .kv_indptr = kv,
                                                   .kv_lens = lens,
                                                   .work_indptr = work_indptr,
                                                   .work_info = works,
                                                   .reduce_indptr = reduce_indptr,
                                                   .reduce_final_map = final_map,
                                                   .reduce_partial_map = partial_map}};
    PlanPrefill(step.batch().seqs(), capacity, plan, ActiveFaults());
    std::vector<int32_t> indptr = Array(IndptrEntries(capacity));
    std::vector<int32_t> indices = Array(FlatIndexEntries(capacity).raw());
    ExportFlatIndices(step.batch().seqs(), capacity, {.kv_indptr = indptr, .kv_indices = indices},
                      step.executor());
    step.ExpectOurs(testing::PrefillAttention(step.inputs(), plan, indices));
  });
}

TEST(ExportAttentionTest, UnifiedTablesReproduceOurAttention) {
  ForEachPageSize([](ExportedStep& step) {
    const StepCapacity capacity = step.capacity();
    std::vector<int32_t> table = Array(UnifiedPageTableEntries(capacity));
    std::vector<int32_t> lens = Array(capacity.num_seqs);
    ExportUnifiedPageTable(step.batch().seqs(), capacity, {.table = table, .kv_lens = lens},
                           step.executor(), ActiveFaults());
    step.ExpectOurs(testing::BlockTableAttention(step.inputs(), step.qo_indptr(),
                                                 {.table = table,
                                                  .kv_lens = lens,
                                                  .width = UnifiedPageTableWidth(capacity).raw(),
                                                  .page_size = capacity.page_size},
                                                 KeyMask::kCausal));
  });
}

// Drafting in our form is one tree query per sequence; in SGLang's it is an index row per branch,
// over slots of its own. Both see the same keys, so they give the same answer, at every step.
TEST(ExportAttentionTest, DraftRowsReproduceOurTreeQueries) {
  constexpr int32_t kBranches = 3, kSteps = 4;
  constexpr int64_t kCommitted = 77;
  const DraftShape shape{.branches = kBranches, .steps = kSteps};
  ThreadPool executor(2);
  for (int page_size : {1, 3, 16, 64}) {
    const testing::RowLengths lengths[] = {
        {.kv_len = kCommitted, .room = DraftReserve(PageSize(page_size), shape).raw()}};
    const testing::ScatteredBatch list(PageSize(page_size), lengths, 3);
    std::vector<int32_t> indptr = Array(kSteps * DraftIndptrEntries(list.capacity, shape));
    const int64_t row_entries = DraftRowEntries(list.capacity, shape, ActiveFaults()).raw();
    std::vector<int32_t> indices = Array(kSteps * row_entries);
    std::vector<int64_t> slots(static_cast<size_t>(DraftSlotEntries(list.capacity, shape)));
    ExportDraftRows(
        list.seqs, list.capacity,
        {.shape = shape, .kv_indptr = indptr, .kv_indices = indices, .write_slots = slots},
        executor, ActiveFaults());
    for (int32_t level = 0; level < kSteps; ++level) {
      SCOPED_TRACE(fmt::format("page size {}, step {}", page_size, level));
      // Node s * branches + t is draft s of branch t; the queries are the last level.
      std::vector<int32_t> parents;
      for (int32_t node = 0; node < kBranches * (level + 1); ++node) {
        parents.push_back(node < kBranches ? kTreeRoot : node - kBranches);
      }
      const int64_t nodes = static_cast<int64_t>(parents.size());
      const PagedBatch tree({{kBranches, kCommitted + nodes, parents, 3}},
                            {.page_size = PageSize(page_size), .dims = kDims, .num_heads = 3});
      const AttentionResult ours =
          testing::RunMla(tree, {.scale = kScale, .faults = ActiveFaults()}, executor);
      // The same rows where the draft indices point.
      const auto contents = tree.Rows();
      std::vector<float> rows(
          static_cast<size_t>(list.capacity.pool_pages.raw() * page_size * kDims.values()));
      auto put = [&](int64_t slot, int64_t position) {
        const std::vector<double>& row = contents[0][static_cast<size_t>(position)];
        std::copy(row.begin(), row.end(), rows.begin() + slot * kDims.values());
      };
      for (int64_t p = 0; p < kCommitted; ++p) put(list.SlotAt(0, p).raw(), p);
      for (int64_t t = 0; t < kBranches; ++t) {
        for (int64_t s = 0; s <= level; ++s) {
          put(slots[static_cast<size_t>(t * kSteps + s)], kCommitted + s * kBranches + t);
        }
      }
      const std::vector<int32_t> qo_indptr = {0, 1, 2, 3};
      const AttentionOutput theirs = testing::FlatIndexAttention(
          {.rows = rows,
           .queries = tree.q(),
           .num_heads = 3,
           .values_per_row = kDims.values(),
           .latent_dim = kDims.latent_dim,
           .scale = double{kScale}},
          qo_indptr,
          std::span<const int32_t>(indptr).subspan(
              static_cast<size_t>(level * DraftIndptrEntries(list.capacity, shape)),
              static_cast<size_t>(kBranches + 1)),
          std::span<const int32_t>(indices).subspan(static_cast<size_t>(level * row_entries),
                                                    static_cast<size_t>(row_entries)),
          KeyMask::kFull);
      const testing::ReferenceAttention reference =
          testing::ReferenceMla(tree.seqs(), contents, tree.q(), 3, kDims, kScale);
      EXPECT_EQ(testing::Mismatch(ours.out, theirs.out, reference.out_bound), "");
      EXPECT_EQ(testing::Mismatch(ours.lse, theirs.lse, reference.lse_bound), "");
    }
  }
}

}  // namespace
}  // namespace quire
