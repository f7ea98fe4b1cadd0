// The memory of a plan in device memory, and what its kernels are given. No CUDA in here: addresses
// are handed around, never used, so tests lay the same arrays out in host memory.
#ifndef QUIRE_ATTN_CUDA_PLAN_ARRAYS_H_
#define QUIRE_ATTN_CUDA_PLAN_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/cuda/page_fill.h"
#include "attn/cuda/plan_build.h"
#include "attn/cuda/step_pack.h"
#include "attn/plan.h"
#include "base/units.h"
#include "device/arena.h"

namespace quire::cuda {

// The arrays of a plan and of the step it is made from: those of quire::PlanStorage, with the same
// sizes, and the sums that exports use.
struct PlanArrays {
  PlanArrays(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
             Carver& device);

  std::span<std::byte> packed;  // PackedStepBytes
  std::span<PlanCounts> counts;
  std::span<PageId> page_table;
  std::span<TokenCount> kv_len, committed, q_offset;
  std::span<SequenceOffsets> offsets;
  std::span<uint64_t> tree_masks;
  std::span<QueryTile> tiles;
  std::span<int64_t> cost_before;
  std::span<WorkerStart> workers;
  std::span<Merge> merges;
};

// What kernels take, and what ops and exports read. Throw Error(kOverflow) for a capacity whose counts
// do not fit int32.
StepView StepOf(const PlanArrays& arrays, const StepCapacity& capacity, const WorkShape& shape,
                PageCount new_pages, const PageRows& rows);
PlanBuild BuildOf(const PlanArrays& arrays, const StepView& step, const WorkShape& shape);
PageFill FillOf(const PlanArrays& arrays, const StepView& step, const PageRows& rows);
// All numbers and sizes are the capacity's.
Plan PlanOf(const PlanArrays& arrays, const StepCapacity& capacity, const WorkShape& shape);

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_PLAN_ARRAYS_H_
