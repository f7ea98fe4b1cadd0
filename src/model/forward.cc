#include "model/forward.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// The dense layers' and the shared experts' width, whichever is larger: they share their buffers.
int64_t MlpWidth(const ModelConfig& config) {
  return std::max(config.dense_width, config.moe.shared_width);
}

// One forward pass: the buffers as views of this step's tokens, and a function per part of a layer.
class Pass {
 public:
  Pass(const ModelConfig& config, const ForwardArgs& args, float softmax_scale,
       const RopeAngles& rope, Ops& ops)
      : config_(config),
        args_(args),
        num_tokens_(std::ssize(args.tokens)),
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
      indexer_.emplace(
          MakeIndexerStep(config, args.plan, args.slots, angles_, args.buffers.indexer));
    }
  }

  void Embed(const Weight& table) const {
    ops_.Embed({.table = table,
                .tokens = args_.tokens,
                .scale = static_cast<float>(config_.embedding_scale),
                .hidden = hidden_});
    ops_.GatherAngles(angles_);
    ops_.Mark(ForwardPart::kEmbedding);
  }

  // Adds what the layer before has left, and returns what this one leaves. `index_store` is that of a
  // layer that chooses.
  Update Layer(const LayerWeights& layer, size_t number, const KvStore* index_store,
               const Update& before) const {
    AddNorm(before, layer.attention_norm);
    Attention(layer.attention, args_.stores[number], index_store);
    AddNorm(update_, layer.mlp_norm);
    ops_.Mark(ForwardPart::kProjections);
    const Update update = layer.kind == LayerKind::kDense ? Dense(layer) : Experts(layer, number);
    ops_.Mark(ForwardPart::kMlp);
    return update;
  }

  void Add(const Update& update) const { ops_.Add(Adding(update)); }

 private:
  // The rows of this step's tokens.
  TensorView Rows(const TensorView& buffer) const { return buffer.FirstRows(num_tokens_); }
  // The same of a buffer that narrower rows use in turn, these one behind the other.
  TensorView Rows(const TensorView& buffer, int64_t width) const {
    return TensorView(buffer.data(), buffer.dtype(), {num_tokens_, width}, buffer.side());
  }

  AddArgs Adding(const Update& update) const {
    return {.hidden = hidden_,
            .update = update,
            .scale = static_cast<float>(config_.residual_scale),
            .scratch = update_};
  }

  void AddNorm(const Update& update, std::span<const float> weight) const {
    ops_.AddNorm({.add = Adding(update),
                  .weight = weight,
                  .eps = static_cast<float>(config_.norm_eps),
                  .normed = normed_});
  }

  // Leaves what it adds in update_.
  void Attention(const AttentionWeights& weights, const KvStore& store,
                 const KvStore* index_store) const {
    const ForwardBuffers& buffers = args_.buffers;
    const TensorView q_latent = Rows(buffers.q_latent).Parts(config_.num_heads);
    const bool chooses = args_.chooses && index_store != nullptr;
    Ops& beside = ops_.Fork();
    KeysAndValues(weights, store, beside);
    if (index_store != nullptr) {
      WriteIndexKeys(*indexer_, weights.indexer, *index_store, normed_, beside);
    }
    Queries(weights);
    QueriesToLatent(weights, q_latent);
    if (chooses) {
      MakeIndexQueries(*indexer_, weights.indexer, normed_, Rows(buffers.q_down), ops_);
    }
    ops_.Join();
    ops_.Mark(ForwardPart::kProjections);
    if (chooses) ChooseKeys(*indexer_, *index_store, ops_);
    Attend(store, q_latent);
    ops_.Mark(ForwardPart::kAttention);
    const TensorView out = Rows(buffers.out);
    ops_.Matmul({.x = Rows(buffers.out_latent).Columns(0, config_.latent_dim),
                 .w = weights.value_heads,
                 .y = out.Columns(0, config_.value_dim),
                 .x_step = config_.latent_dim,
                 .y_step = config_.value_dim});
    ops_.Matmul({.x = out, .w = weights.out, .y = update_, .bias = weights.out_bias});
  }

  // To all keys that queries see, or to those that this layer's indexer, or the last one's, chose.
  void Attend(const KvStore& store, const TensorView& q_latent) const {
    const TensorView out_latent = Rows(args_.buffers.out_latent).Parts(config_.num_heads);
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

  // The tokens' own rows, to the store.
  void KeysAndValues(const AttentionWeights& weights, const KvStore& store, Ops& ops) const {
    const TensorView kv = Rows(args_.buffers.kv);
    ops.Matmul({.x = normed_, .w = weights.kv_down, .y = kv, .bias = weights.kv_down_bias});
    ops.WriteKv({.store = store,
                 .slots = args_.slots,
                 .kv = kv,
                 .norm_weight = weights.kv_norm,
                 .eps = static_cast<float>(config_.latent_norm_eps),
                 .angles = angles_});
  }

  // Without q_lora q takes one product less.
  void Queries(const AttentionWeights& weights) const {
    const TensorView q = Rows(args_.buffers.q);
    if (weights.q_down.empty()) {
      ops_.Matmul({.x = normed_, .w = weights.q_up, .y = q});
      return;
    }
    const TensorView q_down = Rows(args_.buffers.q_down);
    ops_.Matmul({.x = normed_, .w = weights.q_down, .y = q_down, .bias = weights.q_down_bias});
    ops_.Norm({.x = q_down,
               .weight = weights.q_norm,
               .eps = static_cast<float>(config_.latent_norm_eps),
               .y = q_down});
    ops_.Matmul({.x = q_down, .w = weights.q_up, .y = q});
  }

  // q_latent = [q_nope * key head | rotated q_rope], head by head.
  void QueriesToLatent(const AttentionWeights& weights, TensorView q_latent) const {
    const TensorView q = Rows(args_.buffers.q);
    ops_.Matmul({.x = q.Columns(0, config_.nope_dim),
                 .w = weights.key_heads,
                 .y = Rows(args_.buffers.q_latent).Columns(0, config_.latent_dim),
                 .x_step = config_.head_dim(),
                 .y_step = config_.latent_dim + config_.rope_dim});
    ops_.Rotate({.x = q.Parts(config_.num_heads).Columns(config_.nope_dim, config_.rope_dim),
                 .angles = angles_,
                 .y = q_latent.Columns(config_.latent_dim, config_.rope_dim)});
  }

  Update Dense(const LayerWeights& layer) const {
    Mlp(layer.mlp, config_.dense_width, update_, ops_);
    return update_;
  }

  void Mlp(const MlpWeights& weights, int64_t width, TensorView y, Ops& ops) const {
    const TensorView gate_up = Rows(args_.buffers.gate_up, 2 * width);
    const TensorView activated = Rows(args_.buffers.activated, width);
    const std::array products{
        ProductArgs{.x = normed_, .w = weights.gate, .y = gate_up.Columns(0, width)},
        ProductArgs{.x = normed_, .w = weights.up, .y = gate_up.Columns(width, width)}};
    ops.Matmul(products);
    ops.SiluMul({.gate_up = gate_up, .y = activated});
    ops.Matmul({.x = activated, .w = weights.down, .y = y});
  }

  // The shared experts run beside the chosen ones.
  Update Experts(const LayerWeights& layer, size_t number) const {
    const bool has_shared = config_.moe.shared_width > 0;
    const TensorView shared = has_shared ? Rows(args_.buffers.shared) : TensorView();
    if (has_shared) Mlp(layer.mlp, config_.moe.shared_width, shared, ops_.Fork());
    ExpertRows rows =
        ops_.Experts({.x = normed_,
                      .shape = config_.moe.route,
                      .router = layer.router,
                      .router_bias = layer.router_bias,
                      .gate = layer.experts.gate,
                      .up = layer.experts.up,
                      .down = layer.experts.down,
                      .used = args_.experts_used.empty() ? nullptr : &args_.experts_used[number]});
    if (has_shared) ops_.Join();
    rows.shared = shared;
    if (layer.post_mlp_norm.empty()) return rows;
    ops_.Combine(rows, update_);
    ops_.Norm({.x = update_,
               .weight = layer.post_mlp_norm,
               .eps = static_cast<float>(config_.norm_eps),
               .y = update_});
    return update_;
  }

  const ModelConfig& config_;
  const ForwardArgs& args_;
  const int64_t num_tokens_;
  const float softmax_scale_;
  Ops& ops_;
  const TensorView hidden_;
  const TensorView normed_;
  const TensorView update_;
  const StepAngles angles_;
  std::optional<IndexerStep> indexer_;  // of a sparse model
};

}  // namespace

MlaShape AttentionShape(const ModelConfig& config) {
  return {.num_heads = config.num_heads,
          .dims = {.latent_dim = config.latent_dim, .rope_dim = config.rope_dim}};
}

OpLimits OpLimitsOf(const ModelConfig& config, const StepCapacity& capacity,
                    const WorkShape& work) {
  return {.capacity = capacity,
          .work = work,
          .attention = AttentionShape(config),
          .hidden_size = config.hidden_size,
          .widest_input =
              std::max<int64_t>({config.hidden_size, config.q_lora_rank,
                                 int64_t{config.num_heads} * config.value_dim, MlpWidth(config)}),
          // kv_down's, and the shared experts'.
          .widest_side_input = std::max<int64_t>(config.hidden_size, config.moe.shared_width),
          .has_block_scales = config.fp8_blocks.has_value(),
          .route = config.moe.route,
          .expert_width = config.moe.expert_width,
          .index = IndexShapeOf(config)};
}

ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             DType activation, Carver& carver) {
  const int64_t heads = config.num_heads;
  const int64_t row = config.latent_dim + config.rope_dim;
  const auto take = [&](DType dtype, int64_t width) {
    return carver.TakeTensor(dtype, {capacity.query_tokens.raw(), width});
  };
  ForwardBuffers buffers;
  buffers.hidden = take(DType::kF32, config.hidden_size);
  buffers.normed = take(activation, config.hidden_size);
  buffers.update = take(activation, config.hidden_size);
  buffers.q_down = take(activation, config.q_lora_rank);
  buffers.q = take(activation, heads * config.head_dim());
  buffers.kv = take(DType::kF32, row);
  buffers.q_latent = take(activation, heads * row);
  buffers.out_latent = take(activation, heads * config.latent_dim);
  buffers.out = take(activation, heads * config.value_dim);
  buffers.cos = take(DType::kF32, config.rope_dim / 2);
  buffers.sin = take(DType::kF32, config.rope_dim / 2);
  buffers.gate_up = take(activation, 2 * MlpWidth(config));
  buffers.activated = take(activation, MlpWidth(config));
  buffers.shared = take(activation, config.moe.shared_width > 0 ? config.hidden_size : 0);
  buffers.indexer = LayOutIndexer(config, capacity, activation, carver);
  return buffers;
}

Model::Model(ModelConfig config, ModelWeights weights, RopeAngles rope)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_(rope),
      softmax_scale_(SoftmaxScale(config_)) {}

void Model::Forward(const ForwardArgs& args, Ops& ops) const {
  QUIRE_CHECK(
      args.tokens.size() == args.positions.size() && args.tokens.size() == args.slots.size(),
      "{} tokens, {} positions, {} slots", args.tokens.size(), args.positions.size(),
      args.slots.size());
  const size_t num_layers = weights_.layers.size();
  const size_t num_full = config_.indexer ? static_cast<size_t>(config_.indexer->num_full()) : 0;
  QUIRE_CHECK(args.stores.size() == num_layers + num_full);
  QUIRE_CHECK(!args.chooses || num_full > 0);
  const Pass pass(config_, args, softmax_scale_, rope_, ops);
  pass.Embed(weights_.embedding);
  Update update;
  const KvStore* next_index_store = args.stores.data() + num_layers;
  for (size_t i = 0; i < num_layers; ++i) {
    const bool is_full = config_.HasIndexer(static_cast<int32_t>(i));
    update = pass.Layer(weights_.layers[i], i, is_full ? next_index_store++ : nullptr, update);
  }
  pass.Add(update);
}

void Model::Logits(const LogitsArgs& args, Ops& ops) const {
  ops.PickRows({.x = args.hidden, .rows = args.rows, .y = args.picked});
  ops.Norm({.x = args.picked,
            .weight = weights_.final_norm,
            .eps = static_cast<float>(config_.norm_eps),
            .y = args.normed,
            .scale = static_cast<float>(config_.logit_scale)});
  ops.Matmul({.x = args.normed, .w = weights_.head, .y = args.logits});
  ops.Mark(ForwardPart::kHead);
}

}  // namespace quire
