// The arrays of a plan, laid out in the memory of the host or of a device, and what builder and kernels
// are given of them. Addresses are handed around here, never used.
#ifndef QUIRE_ATTN_PLAN_ARRAYS_H_
#define QUIRE_ATTN_PLAN_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/plan.h"
#include "attn/plan_build.h"
#include "attn/plan_elements.h"
#include "attn/step_pack.h"
#include "base/faults.h"
#include "base/units.h"
#include "device/arena.h"

namespace quire {

struct SequenceArrays {
  SequenceArrays(const StepCapacity& capacity, Carver& memory);

  std::span<SequenceCounts> counts;
  std::span<int32_t> row_of;
  std::span<TokenCount> kv_len, committed, q_offset;
  std::span<SequenceOffsets> offsets;
  std::span<uint64_t> tree_masks;
};

struct ScheduleArrays {
  ScheduleArrays(const StepCapacity& capacity, const WorkShape& shape, Carver& memory);

  std::span<ScheduleCounts> counts;
  std::span<int32_t> first_tile;
  std::span<QueryTile> tiles;
  std::span<int64_t> cost_before;
  std::span<WorkerStart> workers;
  std::span<Merge> merges;
  std::span<int32_t> arrived;
};

// The packed step, its sequences, and one schedule.
struct PlanArrays {
  PlanArrays(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
             Carver& memory);

  std::span<std::byte> packed;  // PackedStepBytes
  SequenceArrays seqs;
  ScheduleArrays schedule;
};

// What the builder takes. Both throw Error(kOverflow) for a capacity whose counts do not fit int32.
SequencesBuild BuildOf(const PlanArrays& arrays, const StepCapacity& capacity, PageCount new_pages,
                       const PageRows& rows);
ScheduleBuild BuildOf(const ScheduleArrays& arrays, const StepCapacity& capacity,
                      const WorkShape& shape, Faults faults = {});

// What exports read besides the plan.
StepView StepOf(const SequencesBuild& build);

// What kernels take. All numbers and sizes are the capacity's.
Plan PlanOf(const PlanArrays& arrays, const StepCapacity& capacity, const WorkShape& shape,
            const PageRows& rows, MemorySide side);
Schedule ScheduleOf(const ScheduleArrays& arrays, const StepCapacity& capacity,
                    const WorkShape& shape);

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_ARRAYS_H_
