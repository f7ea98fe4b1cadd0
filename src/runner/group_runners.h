// Ranks of this process that compute tokens of their own: a runner each, whatever they compute on.
#ifndef QUIRE_RUNNER_GROUP_RUNNERS_H_
#define QUIRE_RUNNER_GROUP_RUNNERS_H_

#include <memory>
#include <vector>

#include "base/executor.h"
#include "kernels/weight.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"
#include "runner/step_device.h"

namespace quire {

// What a backend has for a rank, which its options say.
struct GroupBackend {
  FunctionRef<MemoryPlan(const RunnerOptions&)> plan;
  FunctionRef<std::unique_ptr<StepDevice>(const RunnerOptions&, const MemoryPlan&,
                                          const LoadProgress&)>
      device;
};

// One for each of options.dp_size ranks, which take part in each other's steps, since they have each other's
// experts: a step of one is a step of all, if need be of no sequences. All have ended the last one before
// any of the runners goes. `plan` is rank 0's; weights are loaded one rank after the other.
std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(const RunnerOptions& options,
                                                           const MemoryPlan& plan,
                                                           const LoadProgress& progress,
                                                           const GroupBackend& backend);

}  // namespace quire

#endif  // QUIRE_RUNNER_GROUP_RUNNERS_H_
