// Ranks of this process that compute tokens of their own, on GPUs: a runner each.
#ifndef QUIRE_RUNNER_CUDA_GROUP_RUNNERS_H_
#define QUIRE_RUNNER_CUDA_GROUP_RUNNERS_H_

#include <memory>
#include <span>
#include <vector>

#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/cuda_step_device.h"
#include "runner/group_runners.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"

namespace quire::cuda {

// Rank r of NCCL's is on GPU r. Runners wait for each other in Submit, too, so each is called on a thread of its
// own; between steps the hosts' ends may be used for something else, by all of them.
std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(
    const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
    const MemoryPlan& plan, const LoadProgress& progress, std::span<const CudaRank> ranks);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_GROUP_RUNNERS_H_
