#include "attn/plan_arrays.h"

#include <algorithm>
#include <iterator>

#include "attn/checks.h"

namespace quire {
namespace {

int32_t Checked(const char* what, int64_t value) {
  RequireInt32("plan", what, value);
  return static_cast<int32_t>(value);
}

PlanBounds BoundsOf(const StepCapacity& capacity, PageCount new_pages, const PageRows& rows) {
  return {.num_seqs = capacity.num_seqs,
          .query_tokens = Checked("query_tokens", capacity.query_tokens.raw()),
          .kv_tokens = Checked("context + tree_nodes", capacity.KvTokens().raw()),
          .tree_nodes = Checked("tree_nodes", capacity.tree_nodes.raw()),
          .mask_words = TreeMaskWords(capacity),
          .num_words = Checked("packed words", PackedWords(capacity, new_pages)),
          .new_pages = Checked("new pages", new_pages.raw()),
          .page_rows = rows.num_rows,
          .row_width = Checked("width of the page rows", rows.width.raw()),
          .pool_pages = Checked("pages of the pool", capacity.pool_pages.raw()),
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

SequenceArrays::SequenceArrays(const StepCapacity& capacity, Carver& memory) {
  Validate(capacity);
  counts = memory.Take<SequenceCounts>(1);
  row_of = memory.Take<int32_t>(capacity.num_seqs);
  kv_len = memory.Take<TokenCount>(capacity.num_seqs);
  committed = memory.Take<TokenCount>(capacity.num_seqs);
  q_offset = memory.Take<TokenCount>(int64_t{capacity.num_seqs} + 1);
  offsets = memory.Take<SequenceOffsets>(int64_t{capacity.num_seqs} + 1);
  tree_masks = memory.Take<uint64_t>(TreeMaskEntries(capacity));
}

ScheduleArrays::ScheduleArrays(const StepCapacity& capacity, const WorkShape& shape,
                               Carver& memory) {
  Validate(capacity);
  Validate(shape);
  const int64_t max_tiles = MaxQueryTiles(capacity, shape);
  counts = memory.Take<ScheduleCounts>(1);
  first_tile = memory.Take<int32_t>(capacity.num_seqs);
  tiles = memory.Take<QueryTile>(max_tiles);
  cost_before = memory.Take<int64_t>(max_tiles + 1);
  workers = memory.Take<WorkerStart>(int64_t{shape.num_workers} + 1);
  merges = memory.Take<Merge>(shape.num_workers);
  arrived = memory.Take<int32_t>(shape.NumArrivals());
}

PlanArrays::PlanArrays(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
                       Carver& memory)
    : packed(memory.TakeBytes(PackedStepBytes(capacity, new_pages))),
      seqs(capacity, memory),
      schedule(capacity, shape, memory) {}

SequencesBuild BuildOf(const PlanArrays& arrays, const StepCapacity& capacity, PageCount new_pages,
                       const PageRows& rows) {
  const SequenceArrays& seqs = arrays.seqs;
  return {.step = PackedAt(arrays.packed.data(), capacity),
          .bounds = BoundsOf(capacity, new_pages, rows),
          .page_rows = rows.pages.data(),
          .counts = seqs.counts.data(),
          .row_of = seqs.row_of.data(),
          .kv_len = seqs.kv_len.data(),
          .committed = seqs.committed.data(),
          .q_offset = seqs.q_offset.data(),
          .offsets = seqs.offsets.data(),
          .tree_masks = seqs.tree_masks.data()};
}

ScheduleBuild BuildOf(const ScheduleArrays& arrays, const StepCapacity& capacity,
                      const WorkShape& shape, Faults faults) {
  return {.work = shape,
          .max_tiles = Checked("query tiles", MaxQueryTiles(capacity, shape)),
          .max_partials = Checked("partials", MaxPartials(capacity, shape)),
          .counts = arrays.counts.data(),
          .first_tile = arrays.first_tile.data(),
          .tiles = arrays.tiles.data(),
          .cost_before = arrays.cost_before.data(),
          .workers = arrays.workers.data(),
          .merges = arrays.merges.data(),
          .arrived = arrays.arrived.data(),
          .num_arrived = Checked("counts of arrivals", std::ssize(arrays.arrived)),
          .page_size = capacity.page_size,
          .faults = faults};
}

StepView StepOf(const SequencesBuild& build) {
  return {.step = build.step, .offsets = build.offsets, .bounds = build.bounds};
}

Schedule ScheduleOf(const ScheduleArrays& arrays, const StepCapacity& capacity,
                    const WorkShape& shape) {
  const size_t max_tiles = Index(MaxQueryTiles(capacity, shape));
  return {.work = shape,
          .tiles = arrays.tiles,
          .workers = arrays.workers,
          // A merge is of a query tile.
          .merges = arrays.merges.first(std::min(arrays.merges.size(), max_tiles)),
          .arrived = arrays.arrived,
          .num_partials = static_cast<int32_t>(MaxPartials(capacity, shape)),
          .counts = arrays.counts.data()};
}

Plan PlanOf(const PlanArrays& arrays, const StepCapacity& capacity, const WorkShape& shape,
            const PageRows& rows, MemorySide side) {
  Plan plan;
  plan.memory = side;
  plan.page_size = capacity.page_size;
  plan.pool_pages = capacity.pool_pages;
  plan.num_seqs = capacity.num_seqs;
  plan.num_query_tokens = capacity.query_tokens;
  plan.seq_counts = arrays.seqs.counts.data();
  plan.row_width = rows.width;
  plan.page_rows = rows.pages;
  plan.row_of = arrays.seqs.row_of;
  plan.kv_len = arrays.seqs.kv_len;
  plan.committed = arrays.seqs.committed;
  plan.q_offset = arrays.seqs.q_offset;
  plan.mask_words = TreeMaskWords(capacity);
  plan.tree_masks = arrays.seqs.tree_masks;
  static_cast<Schedule&>(plan) = ScheduleOf(arrays.schedule, capacity, shape);
  return plan;
}

}  // namespace quire
