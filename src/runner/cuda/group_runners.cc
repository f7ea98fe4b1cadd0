#include "runner/cuda/group_runners.h"

#include "base/error.h"
#include "device/cuda/device.h"
#include "runner/cuda/memory_plan.h"

namespace quire::cuda {

std::vector<std::unique_ptr<ModelRunner>> MakeGroupRunners(
    const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
    const MemoryPlan& plan, const LoadProgress& progress, std::span<const CudaRank> ranks) {
  QUIRE_CHECK(std::ssize(ranks) == options.dp_size, "{} ranks of {}", ranks.size(),
              options.dp_size);
  const int32_t before = CurrentDevice();
  const auto rank_of = [&](const RunnerOptions& each) -> const CudaRank& {
    return ranks[static_cast<size_t>(each.rank)];
  };
  // The first that is asked of a rank.
  const auto plan_of = [&](const RunnerOptions& each) {
    if (rank_of(each).device->ranks_of_device() == 1) UseDevice(each.rank);
    return cuda::MakeMemoryPlan(config, source, each);
  };
  const auto device_of = [&](const RunnerOptions& each, const MemoryPlan& own,
                             const LoadProgress& loaded) -> std::unique_ptr<StepDevice> {
    return std::make_unique<CudaStepDevice>(config, source, each, own, loaded, rank_of(each));
  };
  auto runners =
      quire::MakeGroupRunners(options, plan, progress, {.plan = plan_of, .device = device_of});
  UseDevice(before);
  return runners;
}

}  // namespace quire::cuda
