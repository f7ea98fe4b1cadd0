#include <cstddef>

#include "attn/cuda/block.cuh"
#include "attn/cuda/plan.h"
#include "attn/plan_build.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"

namespace quire::cuda {
namespace {

// One CTA makes the plan: the work is scans over hundreds of entries, and CTAs that wait for each other
// cost more than they save. As many threads as there are sequences and workers, and no more: a scan
// costs each warp a look at the sums of all the others.
constexpr int kPlanThreads = 256;
using PlanCta = Cta<kPlanThreads, 4>;

// CTAs that bring new pages meanwhile: a page for each of their threads, up to 4096 in all.
constexpr int kMaxPageCtas = 16;

__global__ void __launch_bounds__(kPlanThreads)
    BuildPlanKernel(const __grid_constant__ SequencesBuild seqs,
                    const __grid_constant__ ScheduleBuild schedule,
                    const __grid_constant__ ScheduleBuild selection, StatusWord status) {
  TakeTurn();
  if (blockIdx.x > 0) {
    const unsigned thread = (blockIdx.x - 1) * kPlanThreads + threadIdx.x;
    BringPages(seqs, static_cast<int32_t>(thread),
               static_cast<int32_t>((gridDim.x - 1) * kPlanThreads),
               StepReporter{.status = status, .launch = Launch::kPageTable});
    return;
  }
  __shared__ PlanCta::Shared shared;
  // Bytes: a shared variable may not have a constructor.
  __shared__ __align__(alignof(PlanNear)) std::byte near_bytes[sizeof(PlanNear)];
  PlanNear* near = reinterpret_cast<PlanNear*>(near_bytes);
  PlanCta cta(shared);
  const StepReporter reporter{.status = status, .launch = Launch::kPlan};
  const SequenceTotals totals = BuildSequences(seqs, near, cta, reporter);
  BuildSchedule(seqs, schedule, totals, near, cta, reporter);
  if (selection.counts != nullptr) BuildSchedule(seqs, selection, totals, near, cta, reporter);
}

}  // namespace

void PlanStorage::Launch(const Stream& stream, StatusWord status) const {
  const int page_ctas = (seqs_.bounds.new_pages + kPlanThreads - 1) / kPlanThreads;
  const int ctas = 1 + (page_ctas < kMaxPageCtas ? page_ctas : kMaxPageCtas);
  LaunchAhead("build_plan", BuildPlanKernel,
              {.grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(kPlanThreads)}, stream,
              seqs_, schedule_, selection_, status);
}

}  // namespace quire::cuda
