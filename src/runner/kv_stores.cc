#include "runner/kv_stores.h"

#include "model/forward.h"

namespace quire {

std::vector<KvStore> LayOutStores(const ModelConfig& config, const RunnerLimits& limits,
                                  const RunnerOptions& options, Carver& carver) {
  const KvLayout layout(options.kv_format, AttentionShape(config).dims, limits.page_size);
  std::vector<KvStore> stores;
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const std::span<std::byte> memory = carver.TakeBytes(KvStoreBytes(layout, limits.pool_pages));
    if (!carver.counting()) {
      stores.emplace_back(memory, limits.pool_pages, layout, options.faults);
    }
  }
  return stores;
}

StepCapacity CapacityOfBucket(const BucketSize& size, const RunnerLimits& limits) {
  return {.num_seqs = size.num_seqs,
          .query_tokens = size.num_tokens,
          .context = limits.context,
          .tree_nodes = limits.max_tree_nodes,
          .page_size = limits.page_size,
          .pool_pages = limits.pool_pages};
}

}  // namespace quire
