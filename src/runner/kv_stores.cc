#include "runner/kv_stores.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/eagle.h"
#include "model/forward.h"

namespace quire {

KvFormat IndexKeyFormat(const ModelConfig& config, const RunnerOptions& options) {
  IndexKeyType type = options.index_type;
  if (type == IndexKeyType::kAuto) {
    const bool is_f32 = config.weight_dtype == "float32" && !config.fp8_blocks;
    type = is_f32 ? IndexKeyType::kF32 : IndexKeyType::kFp8;
  }
  const bool is_preshuffled = options.index_layout == IndexKeyLayout::kPreshuffled;
  Require(!is_preshuffled || type == IndexKeyType::kFp8,
          "index cache layout: expected plain with index keys that are not fp8, got preshuffled");
  const int32_t page_size = options.page_size.raw();
  const int32_t below = page_size / kPreshuffleTile * kPreshuffleTile;
  Require(
      !is_preshuffled || page_size == below,
      "index cache layout: preshuffled needs a page size that is a multiple of {}, such as {}{}, "
      "got {}",
      kPreshuffleTile, below > 0 ? fmt::format("{} or ", below) : "", below + kPreshuffleTile,
      page_size);
  if (type == IndexKeyType::kF32) return KvFormat::kIndexKeyF32;
  if (type == IndexKeyType::kBf16) return KvFormat::kIndexKeyBf16;
  return is_preshuffled ? KvFormat::kIndexKeyFp8Preshuffled : KvFormat::kIndexKeyFp8;
}

std::vector<KvLayout> StoreLayouts(const ModelConfig& config, const RunnerOptions& options) {
  const KvLayout latent(options.kv_format, AttentionShape(config).dims, options.page_size);
  std::vector<KvLayout> layouts(static_cast<size_t>(config.num_layers()), latent);
  std::vector<KvLayout> of_draft;
  if (config.drafts) of_draft.push_back(latent);
  if (config.indexer) {
    const KvLayout keys(IndexKeyFormat(config, options),
                        {.latent_dim = config.indexer->head_dim, .rope_dim = 0}, options.page_size);
    layouts.insert(layouts.end(), static_cast<size_t>(config.indexer->num_full()), keys);
    if (config.drafts) of_draft.push_back(keys);
  }
  if (options.head != nullptr) {
    of_draft.emplace_back(options.kv_format, AttentionShape(options.head->config->layer).dims,
                          options.page_size);
  }
  layouts.insert(layouts.end(), of_draft.begin(), of_draft.end());
  return layouts;
}

std::vector<KvStore> LayOutStores(const ModelConfig& config, const RunnerLimits& limits,
                                  const RunnerOptions& options, Carver& carver) {
  std::vector<KvStore> stores;
  for (const KvLayout& layout : StoreLayouts(config, options)) {
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
