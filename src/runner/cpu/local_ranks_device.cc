#include "runner/cpu/local_ranks_device.h"

#include <utility>

namespace quire {
namespace {

// What rank `rank` has loaded, as so much of what rank 0 loads: all of it when the last rank has all.
LoadProgress ProgressOf(const LoadProgress& progress, int32_t rank, const RunnerOptions& options,
                        ByteOffset own, ByteOffset first) {
  if (!progress) return {};
  return [=](ByteOffset loaded) {
    const double part = static_cast<double>(loaded.raw()) / static_cast<double>(own.raw());
    const double whole = (rank + part) / options.tp_size * static_cast<double>(first.raw());
    progress(ByteOffset(static_cast<int64_t>(whole)));
  };
}

}  // namespace

LocalRanksDevice::LocalRanksDevice(const ModelConfig& model, WeightSource& source,
                                   const RunnerOptions& options, const MemoryPlan& plan,
                                   const LoadProgress& progress,
                                   std::vector<std::unique_ptr<Collective>> ranks)
    : CpuStepDevice(model, source, options, plan,
                    ProgressOf(progress, 0, options, plan.weights, plan.weights),
                    std::move(ranks[0])) {
  RunnerOptions each = options;
  each.pool_tokens = plan.usable_tokens();
  for (each.rank = 1; each.rank < options.tp_size; ++each.rank) {
    const MemoryPlan own = MakeMemoryPlan(model, source, each);
    followers_.push_back(std::make_unique<CpuStepDevice>(
        model, source, each, own,
        ProgressOf(progress, each.rank, options, own.weights, plan.weights),
        std::move(ranks[static_cast<size_t>(each.rank)])));
  }
  for (const std::unique_ptr<CpuStepDevice>& follower : followers_) {
    threads_.emplace_back([device = follower.get()] { device->Follow(); });
  }
}

LocalRanksDevice::~LocalRanksDevice() {
  Abandon(nullptr);
  for (std::thread& thread : threads_) thread.join();
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
