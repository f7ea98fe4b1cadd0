// Ranks of this process that compute tokens of their own, on the CPU: a runner each.
#ifndef QUIRE_RUNNER_CPU_GROUP_RUNNERS_H_
#define QUIRE_RUNNER_CPU_GROUP_RUNNERS_H_

#include <memory>
#include <span>
#include <vector>

#include "device/collective.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/group_runners.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"

namespace quire {

// Between steps `ranks` may be used for something else, by all of them.
std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(
    const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
    const MemoryPlan& plan, const LoadProgress& progress,
    std::span<const std::shared_ptr<Collective>> ranks);

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_GROUP_RUNNERS_H_
