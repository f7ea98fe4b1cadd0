#include "runner/group_runners.h"

#include <cstdint>
#include <utility>

#include "runner/local_ranks_device.h"

namespace quire {

std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(const RunnerOptions& options,
                                                           const MemoryPlan& plan,
                                                           const LoadProgress& progress,
                                                           const GroupBackend& backend) {
  std::vector<std::unique_ptr<StepDevice>> devices;
  std::vector<MemoryPlan> plans;
  RunnerOptions each = OptionsOfOthers(options, plan);
  for (each.rank = 0; each.rank < options.dp_size; ++each.rank) {
    plans.push_back(backend.plan(each));
    devices.push_back(backend.device(
        each, plans.back(),
        ProgressOfRank(progress, each.rank, options, plans.back().weights, plan.weights)));
  }
  return ModelRunner::OfGroups(std::move(devices), plans);
}

}  // namespace quire
