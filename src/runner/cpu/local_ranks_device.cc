#include "runner/cpu/local_ranks_device.h"

#include <iterator>
#include <utility>

namespace quire {

LocalRanksDevice::LocalRanksDevice(const ModelConfig& model, WeightSource& source,
                                   const RunnerOptions& options, const MemoryPlan& plan,
                                   const LoadProgress& progress,
                                   std::vector<std::unique_ptr<Collective>> ranks)
    : LocalRanksDevice(
          model, source, options, plan, progress,
          std::vector<std::shared_ptr<Collective>>(std::make_move_iterator(ranks.begin()),
                                                   std::make_move_iterator(ranks.end()))) {}

LocalRanksDevice::LocalRanksDevice(const ModelConfig& model, WeightSource& source,
                                   const RunnerOptions& options, const MemoryPlan& plan,
                                   const LoadProgress& progress,
                                   const std::vector<std::shared_ptr<Collective>>& ranks)
    : CpuStepDevice(model, source, options, plan,
                    ProgressOfRank(progress, 0, options, plan.weights, plan.weights), ranks[0]),
      followers_(*ranks[0], [&](int32_t rank) {
        RunnerOptions each = OptionsOfOthers(options, plan);
        each.rank = rank;
        const MemoryPlan own = MakeMemoryPlan(model, source, each);
        return std::make_unique<CpuStepDevice>(
            model, source, each, own,
            ProgressOfRank(progress, rank, options, own.weights, plan.weights),
            ranks[static_cast<size_t>(rank)]);
      }) {}

LocalRanksDevice::~LocalRanksDevice() {
  Abandon(nullptr);
  followers_.Join();
}

std::unique_ptr<StepDevice> MakeCpuStepDevice(const ModelConfig& model, WeightSource& source,
                                              const RunnerOptions& options, const MemoryPlan& plan,
                                              const LoadProgress& progress,
                                              std::shared_ptr<Collective> ranks) {
  if (options.tp_size == 1 || ranks != nullptr) {
    return std::make_unique<CpuStepDevice>(model, source, options, plan, progress,
                                           std::move(ranks));
  }
  return std::make_unique<LocalRanksDevice>(model, source, options, plan, progress,
                                            MakeLocalRanks(options.tp_size));
}

}  // namespace quire
