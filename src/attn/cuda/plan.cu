#include <cstddef>

#include "attn/cuda/block.cuh"
#include "attn/cuda/page_fill.h"
#include "attn/cuda/plan.h"
#include "attn/cuda/plan_build.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {
namespace {

// One CTA: the work is scans over hundreds of entries, and CTAs that wait for each other cost more
// than they save. As many threads as there are sequences and workers, and no more: a scan costs each
// warp a look at the sums of all the others.
constexpr int kPlanThreads = 256;
using PlanCta = Cta<kPlanThreads, 5>;

__global__ void __launch_bounds__(kPlanThreads)
    BuildPlanKernel(const __grid_constant__ PlanBuild build, StatusWord status) {
  __shared__ PlanCta::Shared shared;
  // Bytes: a shared variable may not have a constructor.
  __shared__ alignas(PlanNear) std::byte near[sizeof(PlanNear)];
  PlanCta cta(shared);
  BuildPlan(build, *reinterpret_cast<PlanNear*>(near), cta,
            StepReporter{.status = status, .launch = Launch::kPlan});
}

// kFillRange entries in one batch of five per thread.
constexpr int kFillThreads = 256;

__global__ void __launch_bounds__(kFillThreads)
    FillPageTableKernel(const __grid_constant__ PageFill fill, StatusWord status) {
  FillPageTable(fill, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(blockIdx.y),
                static_cast<int32_t>(threadIdx.x), kFillThreads,
                StepReporter{.status = status, .launch = Launch::kPageTable});
}

}  // namespace

void PlanStorage::LaunchSchedule(const Stream& stream, StatusWord status) const {
  BuildPlanKernel<<<1, kPlanThreads, 0, stream.get()>>>(build_, status);
  CheckLaunch("build_plan");
}

void PlanStorage::LaunchPageTable(const Stream& stream, StatusWord status) const {
  if (fill_.bounds.num_seqs == 0) return;
  // Two dimensions, so that no thread divides before it knows its row.
  const dim3 ctas(static_cast<unsigned>(fill_.bounds.num_seqs), static_cast<unsigned>(fill_.cells));
  FillPageTableKernel<<<ctas, kFillThreads, 0, stream.get()>>>(fill_, status);
  CheckLaunch("fill_page_table");
}

}  // namespace quire::cuda
