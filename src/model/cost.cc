#include "model/cost.h"

#include <algorithm>

namespace quire {
namespace {

double MlpFlops(const ModelConfig& config, int64_t width) {
  return 2.0 * 3.0 * static_cast<double>(config.hidden_size) * static_cast<double>(width);
}

double AttentionProjectionFlops(const ModelConfig& config) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const double heads = config.num_heads;
  const double q_inputs = config.q_lora_rank > 0 ? config.q_lora_rank : hidden;
  double products = config.q_lora_rank > 0 ? hidden * config.q_lora_rank : 0.0;
  products += q_inputs * heads * config.head_dim();
  products += hidden * (config.latent_dim + config.rope_dim);
  products += heads * config.latent_dim * (config.nope_dim + config.value_dim);
  products += heads * config.value_dim * hidden;
  return 2.0 * products;
}

ByteOffset Bytes(const MlpWeights& mlp) { return mlp.gate.bytes + mlp.up.bytes + mlp.down.bytes; }

double IndexerProjectionFlops(const ModelConfig& config) {
  const IndexerConfig& indexer = *config.indexer;
  const auto hidden = static_cast<double>(config.hidden_size);
  return 2.0 * (static_cast<double>(config.q_lora_rank) * indexer.num_heads * indexer.head_dim +
                hidden * indexer.head_dim + hidden * indexer.num_heads);
}

ByteOffset Bytes(const IndexerWeights& indexer) {
  return indexer.q_up.bytes + indexer.key.bytes + indexer.gate.bytes;
}

ByteOffset Bytes(const AttentionWeights& attention) {
  return Bytes(attention.indexer) + attention.q_down.bytes + attention.q_up.bytes +
         attention.kv_down.bytes + attention.key_heads.bytes + attention.value_heads.bytes +
         attention.out.bytes;
}

}  // namespace

double LayerFlopsPerToken(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  const double expert_layer =
      2.0 * static_cast<double>(config.hidden_size) * moe.route.num_experts +
      moe.route.top_k * MlpFlops(config, moe.expert_width) + MlpFlops(config, moe.shared_width);
  double flops = 0;
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const LayerKind kind = config.layers[static_cast<size_t>(i)];
    flops += AttentionProjectionFlops(config);
    if (config.HasIndexer(i)) flops += IndexerProjectionFlops(config);
    flops += kind == LayerKind::kDense ? MlpFlops(config, config.dense_width) : expert_layer;
  }
  return flops;
}

double HeadFlopsPerRow(const ModelConfig& config) {
  return 2.0 * static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
}

double AttentionFlopsPerToken(const ModelConfig& config, TokenCount visible) {
  const double per_key = 2.0 * config.num_heads * (2.0 * config.latent_dim + config.rope_dim);
  const auto seen = static_cast<double>(visible.raw());
  if (!config.indexer || visible <= TokenCount(config.indexer->top_k)) {
    return per_key * seen * config.num_layers();
  }
  const IndexerConfig& indexer = *config.indexer;
  const double per_score = 2.0 * indexer.num_heads * indexer.head_dim;
  return per_key * indexer.top_k * config.num_layers() + per_score * seen * indexer.num_full();
}

ByteOffset WeightBytesPerStep(const ModelConfig& config, const ModelWeights& weights,
                              int64_t num_tokens, int64_t experts_with_rows) {
  ByteOffset bytes = weights.head.bytes, experts{0};
  int64_t most_experts = 0;
  for (const LayerWeights& layer : weights.layers) {
    bytes += Bytes(layer.attention) + Bytes(layer.mlp) + layer.router.bytes;
    if (layer.experts.gate.empty()) continue;
    const int64_t chosen =
        std::min<int64_t>(num_tokens * config.moe.route.top_k, config.moe.route.num_experts);
    // A rank that has some of the experts has as large a part of those chosen.
    const int64_t count = layer.experts.gate.count;
    experts += ByteOffset(Bytes(layer.experts).raw() / count) *
               (chosen * count / config.moe.route.num_experts);
    most_experts += chosen;
  }
  if (experts_with_rows > 0 && most_experts > 0) {
    experts = ByteOffset(experts.raw() / most_experts) * experts_with_rows;
  }
  return bytes + experts;
}

}  // namespace quire
