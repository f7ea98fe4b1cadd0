#include "interop/cuda/export.h"

#include "attn/cuda/block.cuh"
#include "interop/cuda/export_cells.h"
#include "interop/cuda/export_launch.h"

namespace quire::cuda {
namespace {

// A cell of kMaxTokensPerRange entries is two 16-byte stores per thread.
constexpr int kThreads = 256;

__device__ int32_t CtaIndex() { return static_cast<int32_t>(blockIdx.x); }
__device__ int32_t Thread() { return static_cast<int32_t>(threadIdx.x); }

__device__ StepReporter Reporter(StatusWord status) {
  return {.status = status, .launch = Launch::kExport};
}

__global__ void __launch_bounds__(kThreads)
    FlatKernel(const __grid_constant__ FlatExport to, StatusWord status) {
  ExportFlatCell(to, CtaIndex(), Thread(), kThreads, Reporter(status));
}

__global__ void __launch_bounds__(kThreads)
    TableKernel(const __grid_constant__ TableExport to, StatusWord status) {
  ExportTableCell(to, CtaIndex(), Thread(), kThreads, Reporter(status));
}

__global__ void __launch_bounds__(kThreads)
    DraftKernel(const __grid_constant__ DraftExport to, StatusWord status) {
  ExportDraftCell(to, CtaIndex(), Thread(), kThreads, Reporter(status));
}

}  // namespace

void ExportFlatIndices(const PlanStorage& plan, const StepCapacity& capacity,
                       const FlatIndices& out, const Stream& stream, StatusWord status) {
  const FlatExport to = FlatExportOf(plan.plan(), plan.step(), capacity, out);
  FlatKernel<<<static_cast<unsigned>(NumCtas(to)), kThreads, 0, stream.get()>>>(to, status);
  CheckLaunch("export_flat_indices");
}

void ExportBlockTable(const PlanStorage& plan, const StepCapacity& capacity, const BlockTable& out,
                      const Stream& stream, StatusWord status) {
  const TableExport to = TableExportOf(plan.plan(), capacity, out);
  TableKernel<<<static_cast<unsigned>(NumCtas(to)), kThreads, 0, stream.get()>>>(to, status);
  CheckLaunch("export_block_table");
}

void ExportDraftRows(const PlanStorage& plan, const StepCapacity& capacity, const DraftRows& out,
                     const Stream& stream, StatusWord status) {
  const DraftExport to = DraftExportOf(plan.plan(), plan.step(), capacity, out);
  DraftKernel<<<static_cast<unsigned>(NumCtas(to)), kThreads, 0, stream.get()>>>(to, status);
  CheckLaunch("export_draft_rows");
}

}  // namespace quire::cuda
