// What a runner takes from the device, known before it is taken.
#ifndef QUIRE_RUNNER_CUDA_MEMORY_PLAN_H_
#define QUIRE_RUNNER_CUDA_MEMORY_PLAN_H_

#include "model/config.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"

namespace quire::cuda {

// As quire::MakeMemoryPlan, for a CudaRunner: options.memory_limit is of the device's memory, and
// what is in use there already counts (`outside`). Throws DeviceError if there is no device, and
// Error(kInvalidArgument) if it is not Hopper.
MemoryPlan MakeMemoryPlan(const ModelConfig& config, WeightSource& source,
                          const RunnerOptions& options);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_MEMORY_PLAN_H_
