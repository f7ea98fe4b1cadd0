#include "interop/cuda/export.h"

#include "attn/cuda/block.cuh"
#include "device/cuda/launch.h"
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
    FlatPagesKernel(const __grid_constant__ FlatPagesExport to, StatusWord status) {
  using PageCta = Cta<kThreads, 2>;
  __shared__ PageCta::Shared shared;
  PageCta cta(shared);
  ExportFlatPagesCell(to, CtaIndex(), cta, Reporter(status));
}

__global__ void __launch_bounds__(kThreads)
    TableKernel(const __grid_constant__ TableExport to, StatusWord status) {
  ExportTableCell(to, CtaIndex(), Thread(), kThreads, Reporter(status));
}

__global__ void __launch_bounds__(kThreads)
    DraftKernel(const __grid_constant__ DraftExport to, StatusWord status) {
  ExportDraftCell(to, CtaIndex(), Thread(), kThreads, Reporter(status));
}

__global__ void __launch_bounds__(kThreads)
    DraftTablesKernel(const __grid_constant__ DraftTablesExport to, StatusWord status) {
  ExportDraftTablesCell(to, CtaIndex(), Thread(), kThreads, Reporter(status));
}

// One launch of what the checked arguments say.
template <class Kernel, class To>
void LaunchExport(const char* name, Kernel kernel, const To& to, const Stream& stream,
                  StatusWord status) {
  LaunchInTurn(name, kernel,
               {.grid = dim3(static_cast<unsigned>(NumCtas(to))), .block = dim3(kThreads)}, stream,
               to, status);
}

}  // namespace

void ExportFlatIndices(const PlanStorage& plan, const StepCapacity& capacity,
                       const FlatIndices& out, const Stream& stream, StatusWord status) {
  const FlatExport to = ExportOf(plan.plan(), plan.step(), capacity, out);
  LaunchExport("export_flat_indices", FlatKernel, to, stream, status);
}

void ExportFlatPages(const PlanStorage& plan, const StepCapacity& capacity, const FlatPages& out,
                     const Stream& stream, StatusWord status) {
  const FlatPagesExport to = ExportOf(plan.plan(), plan.step(), capacity, out);
  LaunchExport("export_flat_pages", FlatPagesKernel, to, stream, status);
}

void ExportBlockTable(const PlanStorage& plan, const StepCapacity& capacity, const BlockTable& out,
                      const Stream& stream, StatusWord status) {
  const TableExport to = ExportOf(plan.plan(), plan.step(), capacity, out);
  LaunchExport("export_block_table", TableKernel, to, stream, status);
}

void ExportUnifiedPageTable(const PlanStorage& plan, const StepCapacity& capacity,
                            const UnifiedPageTable& out, const Stream& stream, StatusWord status) {
  const TableExport to = ExportOf(plan.plan(), plan.step(), capacity, out);
  LaunchExport("export_unified_page_table", TableKernel, to, stream, status);
}

void ExportDraftRows(const PlanStorage& plan, const StepCapacity& capacity, const DraftRows& out,
                     const Stream& stream, StatusWord status) {
  const DraftExport to = ExportOf(plan.plan(), plan.step(), capacity, out);
  LaunchExport("export_draft_rows", DraftKernel, to, stream, status);
}

void ExportDraftTables(const PlanStorage& plan, const StepCapacity& capacity,
                       const DraftTables& out, const Stream& stream, StatusWord status) {
  const DraftTablesExport to = ExportOf(plan.plan(), plan.step(), capacity, out);
  LaunchExport("export_draft_tables", DraftTablesKernel, to, stream, status);
}

}  // namespace quire::cuda
