// A runner on a Hopper GPU.
#ifndef QUIRE_RUNNER_CUDA_CUDA_RUNNER_H_
#define QUIRE_RUNNER_CUDA_CUDA_RUNNER_H_

#include <memory>

#include "device/collective.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/local_ranks_device.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"

namespace quire::cuda {

// Submit and Collect throw DeviceError, too; once one is_sticky(), every later call throws it again.
// Collect throws InternalError, naming the kernel, if one found something out of bounds.
class CudaRunner final : public ModelRunner {
 public:
  // Takes plan.arena() bytes of the device at once, loads the weights, and runs every bucket once;
  // with StepMode::kGraph it records them, too. `plan` is cuda::MakeMemoryPlan's for the same
  // arguments; memory_plan().outside is what was in use beside the arena once the runner was ready.
  // Throws as it does, and Error(kCapacityExceeded) if the device has not that much.
  CudaRunner(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
             const MemoryPlan& plan, const LoadProgress& progress = {},
             const std::shared_ptr<Collective>& ranks = nullptr)
      : ModelRunner(MakeCudaStepDevice(config, source, options, plan, progress, ranks), plan) {}
};

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_CUDA_RUNNER_H_
