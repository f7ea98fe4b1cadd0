#include "runner/cpu/group_runners.h"

#include "base/error.h"
#include "runner/cpu_runner.h"
#include "runner/local_ranks_device.h"

namespace quire {

std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(
    const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
    const MemoryPlan& plan, const LoadProgress& progress,
    std::span<const std::shared_ptr<Collective>> ranks) {
  QUIRE_CHECK(std::ssize(ranks) == options.dp_size, "{} ranks of {}", ranks.size(),
              options.dp_size);
  std::vector<std::unique_ptr<ModelRunner>> runners;
  for (int32_t rank = 0; rank < options.dp_size; ++rank) {
    RunnerOptions each = OptionsOfOthers(options, plan);
    each.rank = rank;
    const MemoryPlan own = MakeMemoryPlan(config, source, each);
    runners.push_back(std::make_unique<CpuRunner>(
        config, source, each, own,
        ProgressOfRank(progress, rank, options, own.weights, plan.weights),
        ranks[static_cast<size_t>(rank)]));
  }
  return runners;
}

}  // namespace quire
