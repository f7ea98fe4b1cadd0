#include "attn/cuda/block.cuh"
#include "attn/cuda/page_fill.h"
#include "attn/cuda/plan.h"
#include "attn/cuda/plan_build.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {
namespace {

// One CTA: the work is scans over hundreds of entries, and CTAs that wait for each other cost more
// than they save.
constexpr int kPlanThreads = 512;
using PlanCta = Cta<kPlanThreads, 5>;

__global__ void __launch_bounds__(kPlanThreads)
    BuildPlanKernel(const __grid_constant__ PlanBuild build, StatusWord status) {
  __shared__ PlanCta::Shared shared;
  PlanCta cta(shared);
  BuildPlan(build, cta, StepReporter{.status = status, .launch = Launch::kPlan});
}

// kMaxPagesPerRange entries in one batch of four per thread.
constexpr int kFillThreads = 256;

__global__ void __launch_bounds__(kFillThreads)
    FillPageTableKernel(const __grid_constant__ PageFill fill, StatusWord status) {
  FillPageTable(fill, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(threadIdx.x),
                kFillThreads, StepReporter{.status = status, .launch = Launch::kPageTable});
}

}  // namespace

void PlanStorage::LaunchSchedule(const Stream& stream, StatusWord status) const {
  BuildPlanKernel<<<1, kPlanThreads, 0, stream.get()>>>(build_, status);
  CheckLaunch("build_plan");
}

void PlanStorage::LaunchPageTable(const Stream& stream, StatusWord status) const {
  const int64_t ctas = int64_t{fill_.bounds.num_seqs} * fill_.cells;
  if (ctas == 0) return;
  FillPageTableKernel<<<static_cast<unsigned>(ctas), kFillThreads, 0, stream.get()>>>(fill_,
                                                                                      status);
  CheckLaunch("fill_page_table");
}

}  // namespace quire::cuda
