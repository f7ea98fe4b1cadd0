#include "attn/plan_storage.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "attn/checks.h"
#include "attn/page_ranges.h"
#include "attn/plan_build.h"
#include "base/error.h"

namespace quire {
namespace {

// The host copies new pages to their rows by itself: none travel with the packed step.
constexpr PageCount kNoNewPages{0};

PageRows TakeRows(const StepCapacity& capacity, Carver& memory) {
  return {.num_rows = capacity.num_seqs,
          .width = PageTableWidth(capacity),
          .pages = memory.Take<PageId>(PageTableEntries(capacity))};
}

Buffer MemoryWithRows(const StepCapacity& capacity, const WorkShape& shape) {
  Carver rows;
  TakeRows(capacity, rows);
  return Buffer("plan", rows.used() + PlanStorageBytes(capacity, shape));
}

}  // namespace

PlanStorage::Arrays::Arrays(const StepCapacity& capacity, const WorkShape& shape, Carver& memory)
    : plan(capacity, shape, kNoNewPages, memory),
      steps(memory.Take<SequenceStep>(capacity.num_seqs)),
      uses(memory.Take<RowUse>(capacity.num_seqs)) {}

ByteOffset PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape) {
  Carver counter;
  const PlanStorage::Arrays counted(capacity, shape, counter);
  return counter.used();
}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape, const PageRows& rows,
                         Carver& memory)
    : capacity_(capacity),
      shape_(shape),
      rows_(rows),
      arrays_(capacity, shape, memory),
      packer_(capacity, kNoNewPages, rows, arrays_.plan.packed),
      plan_(PlanOf(arrays_.plan, capacity, shape, rows, MemorySide::kHost)) {}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape)
    : PlanStorage(capacity, shape, MemoryWithRows(capacity, shape)) {}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape, Buffer memory)
    : PlanStorage(capacity, shape, Carver(memory.bytes())) {
  memory_ = std::move(memory);
}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape, Carver memory)
    : PlanStorage(capacity, shape, TakeRows(capacity, memory), memory) {}

const Plan& PlanStorage::Make(std::span<const SequenceStep> seqs, Executor& executor,
                              Faults faults) {
  CheckPlanLengths(seqs, capacity_);
  CheckPages("plan", seqs, capacity_, executor);
  const std::span<SequenceStep> steps = arrays_.steps.first(seqs.size());
  const std::span<RowUse> uses = arrays_.uses.first(seqs.size());
  for (size_t b = 0; b < seqs.size(); ++b) {
    const PageCount needed = capacity_.page_size.PagesFor(seqs[b].kv_len);
    steps[b] = seqs[b];
    steps[b].pages = seqs[b].pages.first(Index(needed.raw()));
    uses[b] = {.row = needed > PageCount(0) ? static_cast<int32_t>(b) : kNoRow};
  }
  return MakeChecked(steps, uses, executor, faults);
}

const Plan& PlanStorage::Make(std::span<const SequenceStep> seqs, std::span<const RowUse> uses,
                              Executor& executor, Faults faults) {
  packer_.Check(seqs, uses);
  return MakeChecked(seqs, uses, executor, faults);
}

// Once the pages are in their rows, nothing is new for the packer, and it looks at none of them.
const Plan& PlanStorage::MakeChecked(std::span<const SequenceStep> seqs,
                                     std::span<const RowUse> uses, Executor& executor,
                                     Faults faults) {
  CopyPages(seqs, uses, executor, faults);
  const std::span<RowUse> held = arrays_.uses.first(seqs.size());
  for (size_t b = 0; b < seqs.size(); ++b) {
    held[b] = {.row = uses[b].row, .unchanged = PageCount(seqs[b].pages.size())};
  }
  packer_.Pack(seqs, held);
  const auto on_fault = [](StepFault fault, int32_t index) {
    QUIRE_CHECK(false, "fault {} of sequence {}", static_cast<int>(fault), index);
  };
  OneThread block;
  const SequencesBuild build = BuildOf(arrays_.plan, capacity_, kNoNewPages, rows_);
  const SequenceTotals totals = BuildSequences(build, nullptr, block, on_fault);
  BuildSchedule(build, BuildOf(arrays_.plan.schedule, capacity_, shape_, faults), totals, nullptr,
                block, on_fault);
  View();
  return plan_;
}

// In ranges, so that a long row is copied by as many threads as it has ranges.
void PlanStorage::CopyPages(std::span<const SequenceStep> seqs, std::span<const RowUse> uses,
                            Executor& executor, Faults faults) const {
  const auto new_pages = [&](int64_t b) {
    if (uses[Index(b)].row == kNoRow) return PageCount(0);
    return PageCount(seqs[Index(b)].pages.size()) - uses[Index(b)].unchanged;
  };
  PageGrid grid{.num_rows = std::ssize(seqs), .faults = faults};
  for (int64_t b = 0; b < grid.num_rows; ++b) {
    grid.longest_row = Max(grid.longest_row, new_pages(b));
  }
  ForEachPageRange(grid, new_pages, executor, [&](int64_t b, PageCount begin, PageCount end) {
    const RowUse& use = uses[Index(b)];
    const PageId* pages = seqs[Index(b)].pages.data() + use.unchanged.raw();
    std::copy(pages + begin.raw(), pages + end.raw(),
              rows_.pages.data() + (rows_.width * use.row + use.unchanged + begin).raw());
  });
}

// What the step uses of the arrays.
void PlanStorage::View() {
  const PlanArrays& arrays = arrays_.plan;
  const SequenceCounts& seqs = arrays.seqs.counts[0];
  const ScheduleCounts& schedule = arrays.schedule.counts[0];
  const size_t n = Index(seqs.num_seqs);
  plan_.num_seqs = seqs.num_seqs;
  plan_.num_query_tokens = TokenCount(seqs.num_query_tokens);
  plan_.row_of = arrays.seqs.row_of.first(n);
  plan_.kv_len = arrays.seqs.kv_len.first(n);
  plan_.committed = arrays.seqs.committed.first(n);
  plan_.q_offset = arrays.seqs.q_offset.first(n + 1);
  plan_.tiles = arrays.schedule.tiles.first(Index(schedule.num_tiles));
  plan_.merges = arrays.schedule.merges.first(Index(schedule.num_merges));
  plan_.num_partials = schedule.num_partials;
}

}  // namespace quire
