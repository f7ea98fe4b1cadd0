#include "runner/local_ranks_device.h"

namespace quire {

LoadProgress ProgressOfRank(const LoadProgress& progress, int32_t rank,
                            const RunnerOptions& options, ByteOffset own, ByteOffset first) {
  if (!progress) return {};
  return [=](ByteOffset loaded) {
    const double part = static_cast<double>(loaded.raw()) / static_cast<double>(own.raw());
    const double whole = (rank + part) / options.num_ranks() * static_cast<double>(first.raw());
    progress(ByteOffset(static_cast<int64_t>(whole)));
  };
}

RunnerOptions OptionsOfOthers(const RunnerOptions& options, const MemoryPlan& plan) {
  RunnerOptions each = options;
  each.pool_tokens = plan.usable_tokens();
  // What other ranks have taken by now is no reason for a smaller pool.
  each.memory_limit = RunnerOptions().memory_limit;
  return each;
}

}  // namespace quire
