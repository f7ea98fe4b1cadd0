#include "runner/cuda/memory_plan.h"

#include "base/executor.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/weight_packer.h"
#include "runner/cuda/cuda_step_layout.h"
#include "runner/plan_parts.h"

namespace quire::cuda {

namespace {

MemoryPlan PlanOfRank(const ModelConfig& model, WeightSource& source,
                      const RunnerOptions& options) {
  const ModelConfig config = CudaConfigFor(model, options);
  const DeviceProperties properties = QueryDevice();
  const MlaRoom room = QueryMlaRoom();
  SerialExecutor serial;
  const auto load = [&](Carver& carver, FunctionRef<void(WeightPacker&)> pack) {
    CudaWeightPacker packer(carver, serial);
    pack(packer);
  };
  const auto steps = [&](const RunnerLimits& limits) {
    Carver device, pinned;
    CudaStepParts parts;
    return LayOutCudaSteps(config, limits, options, room, parts, device, pinned);
  };
  return PlanMemory(config, source, options,
                    {.load = load,
                     .steps = steps,
                     .outside = properties.memory - Min(FreeDeviceMemory(), properties.memory)});
}

}  // namespace

MemoryPlan MakeMemoryPlan(const ModelConfig& model, WeightSource& source,
                          const RunnerOptions& options) {
  return PlanOfRanks(options,
                     [&](const RunnerOptions& each) { return PlanOfRank(model, source, each); });
}

}  // namespace quire::cuda
