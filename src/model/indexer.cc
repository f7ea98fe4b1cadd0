#include "model/indexer.h"

#include <array>
#include <cmath>

namespace quire {
namespace {

constexpr float kKeyNormEps = 1e-6f;  // of every family, whatever its rms_norm_eps

}  // namespace

IndexShape IndexShapeOf(const ModelConfig& config) {
  if (!config.indexer) return {};
  const IndexerConfig& indexer = *config.indexer;
  return {.num_heads = indexer.num_heads,
          .head_dim = indexer.head_dim,
          .top_k = indexer.top_k,
          .init_tokens = indexer.init_tokens,
          .local_tokens = indexer.local_tokens};
}

IndexerBuffers LayOutIndexer(const ModelConfig& config, const StepCapacity& capacity,
                             DType activation, Carver& carver) {
  if (!config.indexer) return {};
  const IndexShape shape = IndexShapeOf(config);
  const int64_t tokens = capacity.query_tokens.raw();
  return {.q = carver.TakeTensor(activation, {tokens, int64_t{shape.num_heads} * shape.head_dim}),
          .key = carver.TakeTensor(DType::kF32, {tokens, shape.head_dim}),
          .gates = carver.TakeTensor(DType::kF32, {tokens, shape.num_heads}),
          .chosen = carver.Take<int32_t>(tokens * shape.top_k)};
}

IndexerStep MakeIndexerStep(const ModelConfig& config, const Plan& plan,
                            std::span<const Slot> slots, const StepAngles& angles,
                            const IndexerBuffers& buffers) {
  const auto num_tokens = static_cast<int64_t>(slots.size());
  IndexerStep step{.shape = IndexShapeOf(config), .plan = plan, .slots = slots, .angles = angles};
  step.angles.pairs = config.indexer->pairs;
  step.q = buffers.q.FirstRows(num_tokens);
  step.key = buffers.key.FirstRows(num_tokens);
  step.gates = buffers.gates.FirstRows(num_tokens);
  step.chosen = buffers.chosen.first(static_cast<size_t>(num_tokens * step.shape.top_k));
  return step;
}

void WriteIndexKeys(const IndexerStep& step, const IndexerWeights& weights, const KvStore& store,
                    const ProductInput& normed, Ops& ops) {
  ops.Matmul({.x = normed, .w = weights.key, .y = step.key});
  ops.WriteIndexKeys({.store = store,
                      .slots = step.slots,
                      .key = step.key,
                      .norm_weight = weights.key_norm,
                      .norm_bias = weights.key_norm_bias,
                      .eps = kKeyNormEps,
                      .angles = step.angles});
}

void MakeIndexQueries(const IndexerStep& step, const IndexerWeights& weights,
                      const ProductInput& normed, const ProductInput& q_down, Ops& ops) {
  const int64_t num_tokens = normed.rows.dim(0);
  const TensorView q = step.q.FirstRows(num_tokens), gates = step.gates.FirstRows(num_tokens);
  const std::array products{ProductArgs{.x = q_down, .w = weights.q_up, .y = q},
                            ProductArgs{.x = normed, .w = weights.gate, .y = gates}};
  ops.Matmul(products);
  const int64_t rope_dim = 2 * step.angles.cos.dim(1);
  const TensorView rotated = q.Parts(step.shape.num_heads).Columns(0, rope_dim);
  ops.Rotate({.x = rotated, .angles = step.angles.FirstTokens(num_tokens), .y = rotated});
}

void ChooseKeys(const IndexerStep& step, const KvStore& store, Ops& ops) {
  const double size = double{1} * step.shape.num_heads * step.shape.head_dim;
  ops.SelectKeys({.plan = step.plan,
                  .store = store,
                  .shape = step.shape,
                  .q = step.q.Parts(step.shape.num_heads),
                  .gates = step.gates,
                  .scale = static_cast<float>(1.0 / std::sqrt(size)),
                  .chosen = step.chosen});
}

}  // namespace quire
