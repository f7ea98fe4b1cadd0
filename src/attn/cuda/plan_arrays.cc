#include "attn/cuda/plan_arrays.h"

#include <algorithm>

#include "attn/checks.h"
#include "attn/cuda/plan_view.cuh"
#include "base/error.h"

namespace quire::cuda {
namespace {

// CTAs of the page table's grid, for all rows together: enough to fill any device several times.
// Rows of more ranges are walked by their CTAs in turns, so that a step that adds a page or two to
// each of many long rows does not wait for thousands of CTAs with nothing to do.
constexpr int64_t kMaxFillCtas = 2048;

int32_t ToInt32(const char* what, int64_t value) {
  RequireInt32("plan", what, value);
  return static_cast<int32_t>(value);
}

PlanBounds BoundsOf(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
                    const PageRows& rows) {
  return {.num_seqs = capacity.num_seqs,
          .query_tokens = ToInt32("query_tokens", capacity.query_tokens.raw()),
          .kv_tokens = ToInt32("context + tree_nodes", capacity.KvTokens().raw()),
          .tree_nodes = ToInt32("tree_nodes", capacity.tree_nodes.raw()),
          .mask_words = TreeMaskWords(capacity),
          .tiles = ToInt32("query tiles", MaxQueryTiles(capacity, shape)),
          .partials = ToInt32("partials", MaxPartials(capacity, shape)),
          .num_words = ToInt32("packed words", PackedWords(capacity, new_pages)),
          .page_rows = rows.num_rows(),
          .row_width = ToInt32("width of the page rows", rows.width().raw()),
          .table_width = ToInt32("width of the page table", PageTableWidth(capacity).raw()),
          .pool_pages = ToInt32("pages of the pool", capacity.pool_pages.raw()),
          .pages = DividerOf(capacity.page_size)};
}

}  // namespace

PageDivider DividerOf(PageSize page_size) {
  PageDivider divider{.page_size = page_size.raw(), .shift = -1};
  for (int32_t bits = 0; bits <= 8; ++bits) {
    if (1 << bits == page_size.raw()) divider.shift = bits;
  }
  return divider;
}

PlanView ViewOf(const Plan& plan) {
  Require(plan.counts != nullptr, "plan: expected one in device memory, got one without counts");
  return {.page_size = plan.page_size,
          .pool_pages = plan.pool_pages,
          .work = plan.work,
          .counts = plan.counts,
          .table_width = plan.table_width,
          .page_table = plan.page_table.data(),
          .kv_len = plan.kv_len.data(),
          .committed = plan.committed.data(),
          .q_offset = plan.q_offset.data(),
          .mask_words = plan.mask_words,
          .tree_masks = plan.tree_masks.data(),
          .tiles = plan.tiles.data(),
          .workers = plan.workers.data(),
          .merges = plan.merges.data(),
          .max_seqs = plan.num_seqs,
          .max_query_tokens = static_cast<int32_t>(plan.num_query_tokens.raw()),
          .max_tiles = static_cast<int32_t>(plan.tiles.size()),
          .max_merges = static_cast<int32_t>(plan.merges.size()),
          .max_partials = plan.num_partials};
}

PlanArrays::PlanArrays(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
                       Carver& device) {
  Validate(capacity);
  Validate(shape);
  const int64_t tiles_entries = MaxQueryTiles(capacity, shape);
  packed = device.TakeBytes(PackedStepBytes(capacity, new_pages));
  counts = device.Take<PlanCounts>(1);
  page_table = device.Take<PageId>(PageTableEntries(capacity));
  kv_len = device.Take<TokenCount>(capacity.num_seqs);
  committed = device.Take<TokenCount>(capacity.num_seqs);
  q_offset = device.Take<TokenCount>(int64_t{capacity.num_seqs} + 1);
  offsets = device.Take<SequenceOffsets>(int64_t{capacity.num_seqs} + 1);
  tree_masks = device.Take<uint64_t>(TreeMaskEntries(capacity));
  tiles = device.Take<QueryTile>(tiles_entries);
  cost_before = device.Take<int64_t>(tiles_entries + 1);
  workers = device.Take<WorkerStart>(int64_t{shape.num_workers} + 1);
  merges = device.Take<Merge>(shape.num_workers);
}

StepView StepOf(const PlanArrays& arrays, const StepCapacity& capacity, const WorkShape& shape,
                PageCount new_pages, const PageRows& rows) {
  return {.step = PackedAt(arrays.packed.data(), capacity),
          .offsets = arrays.offsets.data(),
          .rows = rows.pages(),
          .bounds = BoundsOf(capacity, shape, new_pages, rows)};
}

PlanBuild BuildOf(const PlanArrays& arrays, const StepView& step, const WorkShape& shape) {
  return {.step = step.step,
          .bounds = step.bounds,
          .work = shape,
          .counts = arrays.counts.data(),
          .kv_len = arrays.kv_len.data(),
          .committed = arrays.committed.data(),
          .q_offset = arrays.q_offset.data(),
          .offsets = arrays.offsets.data(),
          .tree_masks = arrays.tree_masks.data(),
          .tiles = arrays.tiles.data(),
          .cost_before = arrays.cost_before.data(),
          .workers = arrays.workers.data(),
          .merges = arrays.merges.data()};
}

PageFill FillOf(const PlanArrays& arrays, const StepView& step, const PageRows& rows) {
  // A row may bring pages behind those of the table.
  const int64_t ranges = std::max<int64_t>(1, CeilDiv(rows.width(), PageCount(kFillRange)));
  const int64_t most = std::max<int64_t>(1, kMaxFillCtas / std::max(1, step.bounds.num_seqs));
  return {.step = step.step,
          .bounds = step.bounds,
          .rows = rows.pages(),
          .table = arrays.page_table.data(),
          .cells = static_cast<int32_t>(std::min(ranges, most))};
}

Plan PlanOf(const PlanArrays& arrays, const StepCapacity& capacity, const WorkShape& shape) {
  Plan plan;
  plan.page_size = capacity.page_size;
  plan.pool_pages = capacity.pool_pages;
  plan.work = shape;
  plan.num_seqs = capacity.num_seqs;
  plan.num_query_tokens = capacity.query_tokens;
  plan.table_width = PageTableWidth(capacity);
  plan.page_table = arrays.page_table;
  plan.kv_len = arrays.kv_len;
  plan.committed = arrays.committed;
  plan.q_offset = arrays.q_offset;
  plan.mask_words = TreeMaskWords(capacity);
  plan.tree_masks = arrays.tree_masks;
  plan.tiles = arrays.tiles;
  plan.workers = arrays.workers;
  // A merge is of a query tile.
  plan.merges = arrays.merges.first(
      std::min(arrays.merges.size(), static_cast<size_t>(MaxQueryTiles(capacity, shape))));
  plan.num_partials = static_cast<int32_t>(MaxPartials(capacity, shape));
  plan.counts = arrays.counts.data();
  return plan;
}

}  // namespace quire::cuda
