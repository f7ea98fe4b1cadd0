// The host's half of attn/cuda/export.h: checks and kernel arguments, without a device.
#ifndef QUIRE_ATTN_CUDA_EXPORT_LAUNCH_H_
#define QUIRE_ATTN_CUDA_EXPORT_LAUNCH_H_

#include <cstdint>

#include "attn/capacity.h"
#include "attn/cuda/export_cells.h"
#include "attn/export.h"
#include "attn/plan.h"
#include "attn/plan_build.h"

namespace quire::cuda {

// Each throws as attn/cuda/export.h says; NumCtas is the grid.
FlatExport FlatExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                        const FlatIndices& out);
TableExport TableExportOf(const Sequences& plan, const StepCapacity& capacity,
                          const BlockTable& out);
DraftExport DraftExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                          const DraftRows& out);

int64_t NumCtas(const FlatExport& to);
int64_t NumCtas(const TableExport& to);
int64_t NumCtas(const DraftExport& to);

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_EXPORT_LAUNCH_H_
