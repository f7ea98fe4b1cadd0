// Arrays for other engines' kernels, made on the device from a plan that lies there: one launch each.
//
// Outputs are as in interop/export.h, entry for entry, in device memory. `capacity` is what they were
// sized for, with the plan's page size and pool; throws before anything is launched
//   Error(kInvalidArgument)  another page size or pool, a span shorter than its sizing function
//   Error(kOverflow)         slots or offsets of the capacity that do not fit int32
// A step with more than the capacity is found by the kernel: `status` says so (DeviceFault::kCapacity),
// nothing is written outside the outputs, and flat forms are empty then: offsets 0. Of a table, rows
// that are too long have length 0 and the fill value; with more sequences than rows, all have.
//
// Grids follow from the capacities: graphs may record these. The plan is that of the storage's last
// Launch on the same stream.
#ifndef QUIRE_INTEROP_CUDA_EXPORT_H_
#define QUIRE_INTEROP_CUDA_EXPORT_H_

#include "attn/capacity.h"
#include "attn/cuda/plan.h"
#include "device/cuda/cuda.h"
#include "interop/capacity.h"
#include "interop/export.h"

namespace quire::cuda {

void ExportFlatIndices(const PlanStorage& plan, const StepCapacity& capacity,
                       const FlatIndices& out, const Stream& stream, StatusWord status);

void ExportFlatPages(const PlanStorage& plan, const StepCapacity& capacity, const FlatPages& out,
                     const Stream& stream, StatusWord status);

void ExportBlockTable(const PlanStorage& plan, const StepCapacity& capacity, const BlockTable& out,
                      const Stream& stream, StatusWord status);

void ExportUnifiedPageTable(const PlanStorage& plan, const StepCapacity& capacity,
                            const UnifiedPageTable& out, const Stream& stream, StatusWord status);

// Page lists reach to the last branch's last draft (DraftReserve); a draft on a page that is not
// listed gets the scratch page, or its slot, and the status says DeviceFault::kPage.
void ExportDraftRows(const PlanStorage& plan, const StepCapacity& capacity, const DraftRows& out,
                     const Stream& stream, StatusWord status);

// Branches of a prefix that is too long for its table have length 0 and the fill value, too.
void ExportDraftTables(const PlanStorage& plan, const StepCapacity& capacity,
                       const DraftTables& out, const Stream& stream, StatusWord status);

}  // namespace quire::cuda

#endif  // QUIRE_INTEROP_CUDA_EXPORT_H_
