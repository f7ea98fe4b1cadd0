// The host's half of interop/cuda/export.h: checks and kernel arguments, without a device.
#ifndef QUIRE_INTEROP_CUDA_EXPORT_LAUNCH_H_
#define QUIRE_INTEROP_CUDA_EXPORT_LAUNCH_H_

#include <cstdint>

#include "attn/capacity.h"
#include "attn/plan.h"
#include "attn/plan_build.h"
#include "interop/capacity.h"
#include "interop/cuda/export_cells.h"
#include "interop/export.h"

namespace quire::cuda {

// Each throws as interop/cuda/export.h says; NumCtas is the grid.
FlatExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                    const FlatIndices& out);
FlatPagesExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                         const FlatPages& out);
TableExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                     const BlockTable& out);
TableExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                     const UnifiedPageTable& out);
DraftExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                     const DraftRows& out);
DraftTablesExport ExportOf(const Sequences& plan, const StepView& step,
                           const StepCapacity& capacity, const DraftTables& out);

int64_t NumCtas(const FlatExport& to);
int64_t NumCtas(const FlatPagesExport& to);
int64_t NumCtas(const TableExport& to);
int64_t NumCtas(const DraftExport& to);
int64_t NumCtas(const DraftTablesExport& to);

}  // namespace quire::cuda

#endif  // QUIRE_INTEROP_CUDA_EXPORT_LAUNCH_H_
