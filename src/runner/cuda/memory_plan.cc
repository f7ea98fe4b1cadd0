#include "runner/cuda/memory_plan.h"

#include "base/executor.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/mla_attention.h"
#include "model/cuda/forward.h"
#include "model/cuda/weights.h"
#include "model/forward.h"
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
  cuda::LoadWeights(config, source, weights, serial);
  plan.weights = weights.used();
  Carver device, pinned;
  const StepMemory memory =
      LayOutSteps(config, plan.limits, options, properties.num_sms, device, pinned);
  plan.workspace = memory.workspace_bytes + Model::RopeBytes(config, plan.limits.context);
  plan.step_tables = memory.table_bytes;
  plan.outside = properties.memory - Min(FreeDeviceMemory(), properties.memory);
  ChoosePool(config, options, plan);
  return plan;
}

}  // namespace quire::cuda
