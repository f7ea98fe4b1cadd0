#include "runner/cuda/memory_plan.h"

#include "base/executor.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/weight_packer.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "runner/cuda/step_memory.h"
#include "runner/plan_parts.h"

namespace quire::cuda {

MemoryPlan MakeMemoryPlan(const ModelConfig& config, WeightSource& source,
                          const RunnerOptions& options) {
  CheckOptions(config, options);
  const DeviceProperties properties = QueryDevice();
  MemoryPlan plan;
  plan.limits = LimitsWithoutPool(config, options);
  SerialExecutor serial;
  Carver weights;
  CudaWeightPacker weight_packer(weights, serial);
  LoadWeights(config, source, weight_packer);
  plan.weights = weights.used();
  Carver angles;
  CudaWeightPacker angle_packer(angles, serial);
  MakeRopeAngles(config, plan.limits.context, angle_packer);
  Carver device, pinned;
  const StepMemory memory =
      LayOutSteps(config, plan.limits, options, properties.num_sms, device, pinned);
  plan.workspace = angles.used() + memory.workspace_bytes;
  plan.step_tables = memory.table_bytes;
  plan.outside = properties.memory - Min(FreeDeviceMemory(), properties.memory);
  ChoosePool(config, options, plan);
  return plan;
}

}  // namespace quire::cuda
