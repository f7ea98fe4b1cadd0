#include "model/layer_pass.h"

#include <iterator>

namespace quire {

LayerPass::LayerPass(const ModelConfig& config, const ForwardArgs& args, float softmax_scale,
                     const RopeAngles& rope, Ops& ops)
    : config_(config),
      args_(args),
      num_tokens_(std::ssize(args.tokens)),
      num_latent_(args.expansion != nullptr ? args.num_latent : num_tokens_),
      softmax_scale_(softmax_scale),
      ops_(ops),
      hidden_(Rows(args.buffers.hidden)),
      normed_(Rows(args.buffers.normed)),
      update_(Rows(args.buffers.update)),
      angles_{.table_cos = rope.cos,
              .table_sin = rope.sin,
              .positions = args.positions,
              .cos = Rows(args.buffers.cos),
              .sin = Rows(args.buffers.sin),
              .pairs = config.rope.pairs} {
  if (config.indexer) {
    indexer_.emplace(MakeIndexerStep(config,
                                     args.selection != nullptr ? *args.selection : args.plan,
                                     args.slots, angles_, args.buffers.indexer));
  }
}

void LayerPass::Embed(const Weight& table) const {
  ops_.Embed({.table = table,
              .first_token = config_.Own(config_.vocab_size).first,
              .tokens = args_.tokens,
              .scale = static_cast<float>(config_.embedding_scale),
              .hidden = hidden_});
  ops_.GatherAngles(angles_);
  ops_.Mark(ForwardPart::kEmbedding);
}

TensorView LayerPass::Own(const TensorView& whole) const {
  const Share own = config_.Own(whole.dim(1));
  return whole.Columns(own.first, own.count);
}

Update LayerPass::Layer(const LayerWeights& layer, const LayerStores& stores, const Update& before,
                        int32_t* experts_used) const {
  return LayerOf(layer, stores, NormInput(before, layer.attention_norm), experts_used);
}

Update LayerPass::LayerOf(const LayerWeights& layer, const LayerStores& stores,
                          const ProductInput& input, int32_t* experts_used) const {
  Attention(layer.attention, stores, input);
  const ProductInput normed = NormInput(update_, layer.mlp_norm);
  ops_.Mark(ForwardPart::kProjections);
  const Update update =
      layer.kind == LayerKind::kDense ? Dense(layer, normed) : Experts(layer, normed, experts_used);
  ops_.Mark(ForwardPart::kMlp);
  return update;
}

AddArgs LayerPass::Adding(const Update& update) const {
  return {.hidden = hidden_,
          .update = update,
          .scale = static_cast<float>(config_.residual_scale),
          .scratch = update_};
}

void LayerPass::AddNorm(const Update& update, std::span<const float> weight, TensorView normed,
                        const QuantisedRows& codes) const {
  ops_.AddNorm({.add = Adding(update),
                .weight = weight,
                .eps = static_cast<float>(config_.norm_eps),
                .normed = normed,
                .codes = codes});
}

ProductInput LayerPass::NormInput(const Update& update, std::span<const float> weight) const {
  const QuantisedRows codes = Codes(args_.buffers.normed_codes, config_.hidden_size);
  AddNorm(update, weight, normed_, codes);
  return {normed_, codes};
}

// ---- Attention ----

void LayerPass::Attention(const AttentionWeights& weights, const LayerStores& stores,
                          const ProductInput& input) const {
  const ForwardBuffers& buffers = args_.buffers;
  const Share heads = config_.own_heads();
  const TensorView q_latent = Rows(buffers.q_latent).Parts(heads.count);
  const bool chooses = args_.chooses && stores.index_keys != nullptr;
  Ops& beside = ops_.Fork();
  WriteKeys(weights, stores, input, beside);
  const ProductInput q_down = Queries(weights, input);
  QueriesToLatent(weights, q_latent);
  if (chooses) {
    // Sequences that are expanded see no more keys than are chosen: they choose nothing.
    MakeIndexQueries(*indexer_, weights.indexer, input.FirstRows(num_latent_),
                     q_down.FirstRows(num_latent_), ops_);
  }
  ops_.Join();
  ops_.Mark(ForwardPart::kProjections);
  if (chooses) ChooseKeys(*indexer_, *stores.index_keys, ops_);
  Attend(stores.latent, q_latent);
  ops_.Mark(ForwardPart::kAttention);
  const TensorView out = Rows(buffers.out);
  ops_.Matmul(
      {.x = buffers.out_latent.FirstRows(num_latent_).Columns(0, config_.latent_dim),
       .w = weights.value_heads,
       .y = out.FirstRows(num_latent_).Columns(heads.first * config_.value_dim, config_.value_dim),
       .x_step = config_.latent_dim,
       .y_step = config_.value_dim});
  if (args_.expansion != nullptr) {
    ops_.Mark(ForwardPart::kProjections);
    AttendExpanded(weights, stores.latent);
    ops_.Mark(ForwardPart::kAttention);
  }
  ops_.Gather(out, heads.count * config_.value_dim);
  const Share own = config_.Own(config_.hidden_size);
  const std::span<const float> bias = weights.out_bias;
  ops_.Matmul({.x = out,
               .w = weights.out,
               .y = Own(update_),
               .bias = bias.empty() ? bias
                                    : bias.subspan(static_cast<size_t>(own.first),
                                                   static_cast<size_t>(own.count))});
  Gather(update_);
}

void LayerPass::Attend(const KvStore& store, const TensorView& q_latent) const {
  const TensorView out_latent = Rows(args_.buffers.out_latent).Parts(config_.own_heads().count);
  if (args_.chooses) {
    ops_.AttendChosen({.plan = args_.plan,
                       .store = store,
                       .q = q_latent,
                       .chosen = indexer_->chosen,
                       .top_k = indexer_->shape.top_k,
                       .out = out_latent,
                       .scale = softmax_scale_});
  } else {
    ops_.Attend({.plan = args_.plan,
                 .store = store,
                 .q = q_latent,
                 .out = out_latent,
                 .scale = softmax_scale_});
  }
}

void LayerPass::AttendExpanded(const AttentionWeights& weights, const KvStore& store) const {
  const Share heads = config_.own_heads();
  const TensorView q = Rows(args_.buffers.q).Parts(heads.count);
  const TensorView rope = q.Columns(config_.nope_dim, config_.rope_dim);
  ops_.Rotate({.x = rope, .angles = angles_, .y = rope});
  ops_.AttendExpanded(
      {.plan = args_.plan,
       .expansion = *args_.expansion,
       .store = store,
       .shape = HeadShape(config_),
       .q = q,
       .key_up = weights.key_up,
       .value_up = weights.value_heads,
       .out = Rows(args_.buffers.out)
                  .Columns(heads.first * config_.value_dim, heads.count * config_.value_dim)
                  .Parts(heads.count),
       .scale = softmax_scale_});
}

void LayerPass::WriteKeys(const AttentionWeights& weights, const LayerStores& stores,
                          const ProductInput& input, Ops& ops) const {
  KeysAndValues(weights, stores.latent, input, ops);
  if (stores.index_keys == nullptr) return;
  WriteIndexKeys(*indexer_, weights.indexer, *stores.index_keys, input, ops);
}

void LayerPass::KeysAndValues(const AttentionWeights& weights, const KvStore& store,
                              const ProductInput& input, Ops& ops) const {
  const TensorView kv = Rows(args_.buffers.kv);
  ops.Matmul({.x = input, .w = weights.kv_down, .y = kv, .bias = weights.kv_down_bias});
  ops.WriteKv({.store = store,
               .slots = args_.slots,
               .kv = kv,
               .norm_weight = weights.kv_norm,
               .eps = static_cast<float>(config_.latent_norm_eps),
               .angles = angles_});
}

ProductInput LayerPass::Queries(const AttentionWeights& weights, const ProductInput& input) const {
  const TensorView q = Rows(args_.buffers.q);
  if (weights.q_down.empty()) {
    ops_.Matmul({.x = input, .w = weights.q_up, .y = q});
    return {};
  }
  const TensorView q_down = Rows(args_.buffers.q_down);
  ops_.Matmul({.x = input, .w = weights.q_down, .y = q_down, .bias = weights.q_down_bias});
  const ProductInput normed(q_down, Codes(args_.buffers.q_down_codes, config_.q_lora_rank));
  ops_.Norm({.x = q_down,
             .weight = weights.q_norm,
             .eps = static_cast<float>(config_.latent_norm_eps),
             .y = q_down,
             .codes = normed.codes});
  ops_.Matmul({.x = normed, .w = weights.q_up, .y = q});
  return normed;
}

void LayerPass::QueriesToLatent(const AttentionWeights& weights, TensorView q_latent) const {
  const TensorView q = args_.buffers.q.FirstRows(num_latent_);
  ops_.MatmulAndRotate(
      {.x = q.Columns(0, config_.nope_dim),
       .w = weights.key_heads,
       .y = args_.buffers.q_latent.FirstRows(num_latent_).Columns(0, config_.latent_dim),
       .x_step = config_.head_dim(),
       .y_step = config_.latent_dim + config_.rope_dim},
      {.x = q.Parts(config_.own_heads().count).Columns(config_.nope_dim, config_.rope_dim),
       .angles = angles_.FirstTokens(num_latent_),
       .y = q_latent.FirstRows(num_latent_).Columns(config_.latent_dim, config_.rope_dim)});
}

// ---- MLPs ----

Update LayerPass::Dense(const LayerWeights& layer, const ProductInput& input) const {
  Mlp(layer.mlp, input, config_.dense_width, Own(update_), ops_);
  Gather(update_);
  return update_;
}

void LayerPass::Mlp(const MlpWeights& weights, const ProductInput& input, int64_t width,
                    TensorView y, Ops& ops) const {
  const TensorView gate_up = Rows(args_.buffers.gate_up, 2 * config_.Own(width).count);
  const TensorView activated = Rows(args_.buffers.activated, width);
  const QuantisedRows codes = weights.down.format == WeightFormat::kFp8Block
                                  ? Codes(args_.buffers.activated_codes, width)
                                  : QuantisedRows();
  ops.GateUp({.x = input,
              .gate = weights.gate,
              .up = weights.up,
              .gate_up = gate_up,
              .y = Own(activated),
              .codes = codes});
  Gather(activated, ops);
  ops.Matmul({.x = {activated, codes}, .w = weights.down, .y = y});
}

Update LayerPass::Experts(const LayerWeights& layer, const ProductInput& input,
                          int32_t* used) const {
  const bool has_shared = config_.moe.shared_width > 0;
  const TensorView shared = has_shared ? Own(Rows(args_.buffers.shared)) : TensorView();
  if (has_shared) Mlp(layer.mlp, input, config_.moe.shared_width, shared, ops_.Fork());
  ExpertRows rows = ops_.Experts({.x = input,
                                  .shape = config_.moe.route,
                                  .router = layer.router,
                                  .router_bias = layer.router_bias,
                                  .gate = layer.experts.gate,
                                  .up = layer.experts.up,
                                  .down = layer.experts.down,
                                  .first_expert = config_.own_experts().first,
                                  .width_unit = config_.CutUnit(config_.moe.expert_width),
                                  .used = used});
  if (has_shared) ops_.Join();
  rows.shared = shared;
  if (layer.post_mlp_norm.empty() && !config_.shard.is_cut()) return rows;
  CombineHere(rows);
  if (layer.post_mlp_norm.empty()) return update_;
  ops_.Norm({.x = update_,
             .weight = layer.post_mlp_norm,
             .eps = static_cast<float>(config_.norm_eps),
             .y = update_});
  return update_;
}

void LayerPass::CombineHere(ExpertRows rows) const {
  const TensorView y = Own(update_);
  // Experts that ranks have whole give whole rows.
  const Share own = config_.Own(config_.hidden_size);
  if (config_.shard.experts_by_rank) rows.rows = rows.rows.Columns(own.first, own.count);
  ops_.Combine(rows, y);
  Gather(update_);
}

}  // namespace quire
