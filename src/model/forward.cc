#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/store.h"

namespace quire {
namespace {

// The dense layers' and the shared experts' width, whichever is larger: they share their buffers.
int64_t MlpWidth(const ModelConfig& config) {
  return std::max(config.dense_width, config.moe.shared_width);
}

// The most products that run as one loop: a head each, or gate and up of each expert.
int64_t MaxProducts(const ModelConfig& config) {
  return std::max<int64_t>({2, config.num_heads, 2 * int64_t{config.moe.route.num_experts}});
}

// Rows copied or unpacked by one task: enough that handing it out costs little.
constexpr int64_t kRowsPerTask = 16;

template <class Fn>
void ForEachRow(int64_t num_rows, Executor& executor, Fn fn) {
  const auto run = [&](int64_t task) {
    const int64_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) fn(row);
  };
  executor.Run(CeilDiv(num_rows, kRowsPerTask), run);
}

// One forward pass: the buffers as views of this step's tokens, and a function per part of a layer.
class Pass {
 public:
  Pass(const ModelConfig& config, const ForwardArgs& args, float softmax_scale, Executor& executor,
       PartClock& clock)
      : config_(config),
        args_(args),
        buffers_(args.buffers),
        num_tokens_(std::ssize(args.tokens)),
        softmax_scale_(softmax_scale),
        executor_(executor),
        clock_(clock),
        hidden_(Rows(buffers_.hidden, config.hidden_size)),
        normed_(Rows(buffers_.normed, config.hidden_size)),
        update_(Rows(buffers_.update, config.hidden_size)),
        cos_(Rows(buffers_.cos, config.rope_dim / 2)),
        sin_(Rows(buffers_.sin, config.rope_dim / 2)) {}

  TensorView hidden() const { return hidden_; }

  void Embed(const PackedMatrix& embedding, const RopeTable& rope) {
    const auto scale = static_cast<float>(config_.embedding_scale);
    ForEachRow(num_tokens_, executor_, [&](int64_t t) {
      const std::span<float> row(hidden_.Row<float>(t), static_cast<size_t>(config_.hidden_size));
      cpu::UnpackRow(embedding, args_.tokens[static_cast<size_t>(t)], row);
      if (scale != 1.0f) {
        for (float& value : row) value *= scale;
      }
    });
    rope.Fill(args_.positions, cos_, sin_);
    clock_.Lap(ForwardPart::kEmbedding);
  }

  void Layer(const LayerWeights& layer, const KvStore& store) {
    Norm(hidden_, layer.attention_norm, config_.norm_eps, normed_);
    Attention(layer.attention, store);
    AddUpdate();
    clock_.Lap(ForwardPart::kProjections);
    Norm(hidden_, layer.mlp_norm, config_.norm_eps, normed_);
    if (layer.kind == LayerKind::kDense) {
      Mlp(layer.mlp, config_.dense_width, update_);
    } else {
      Experts(layer);
    }
    AddUpdate();
    clock_.Lap(ForwardPart::kMlp);
  }

 private:
  // The first num_tokens_ rows of a buffer.
  TensorView Rows(std::span<float> buffer, int64_t width) const {
    return {buffer.data(), {num_tokens_, width}};
  }

  void Norm(ConstTensorView x, std::span<const float> weight, double eps, TensorView y) const {
    cpu::RmsNorm({.x = x, .weight = weight, .eps = static_cast<float>(eps), .y = y}, executor_);
  }

  void AddUpdate() const {
    cpu::AddScaled(
        {.x = update_, .scale = static_cast<float>(config_.residual_scale), .y = hidden_},
        executor_);
  }

  void Attention(const AttentionWeights& weights, const KvStore& store) {
    const int64_t num_heads = config_.num_heads;
    const int64_t row = config_.latent_dim + config_.rope_dim;
    const TensorView q = Rows(buffers_.q, num_heads * config_.head_dim());
    const TensorView kv = Rows(buffers_.kv, row);
    ProjectDown(weights, q, kv);
    const TensorView latent = kv.Columns(0, config_.latent_dim);
    const TensorView k_rope = kv.Columns(config_.latent_dim, config_.rope_dim);
    Norm(latent, weights.kv_norm, config_.latent_norm_eps, latent);
    const TensorView q_heads(buffers_.q.data(), {num_tokens_, num_heads, config_.head_dim()});
    Rotate(q_heads.Columns(config_.nope_dim, config_.rope_dim));
    const TensorView k_heads(buffers_.kv.data(), {num_tokens_, 1, row});
    Rotate(k_heads.Columns(config_.latent_dim, config_.rope_dim));
    cpu::StoreWrite({.store = store, .slots = args_.slots, .latent = latent, .rope = k_rope},
                    executor_);
    QueriesToLatent(weights, q);
    clock_.Lap(ForwardPart::kProjections);
    cpu::MlaAttention(
        {.plan = args_.plan,
         .store = store,
         .q = {buffers_.q_latent.data(), {num_tokens_, num_heads, row}},
         .out = {buffers_.out_latent.data(), {num_tokens_, num_heads, config_.latent_dim}},
         .scale = softmax_scale_,
         .workspace = buffers_.attention},
        executor_);
    clock_.Lap(ForwardPart::kAttention);
    LatentToOutput(weights);
  }

  // q and kv from the normed hidden state; without q_lora q takes one product less.
  void ProjectDown(const AttentionWeights& weights, TensorView q, TensorView kv) const {
    const MatmulArgs to_kv{
        .x = normed_, .w = weights.kv_down, .y = kv, .bias = weights.kv_down_bias};
    if (weights.q_down.empty()) {
      const std::array products{MatmulArgs{.x = normed_, .w = weights.q_up, .y = q}, to_kv};
      cpu::Matmul(products, executor_);
      return;
    }
    const TensorView q_down = Rows(buffers_.q_down, config_.q_lora_rank);
    const std::array products{
        MatmulArgs{.x = normed_, .w = weights.q_down, .y = q_down, .bias = weights.q_down_bias},
        to_kv};
    cpu::Matmul(products, executor_);
    Norm(q_down, weights.q_norm, config_.latent_norm_eps, q_down);
    cpu::Matmul({.x = q_down, .w = weights.q_up, .y = q}, executor_);
  }

  void Rotate(TensorView rope) const {
    cpu::Rope({.x = rope, .cos = cos_, .sin = sin_, .pairs = config_.rope.pairs}, executor_);
  }

  // q_latent = [q_nope * key head | q_rope], head by head.
  void QueriesToLatent(const AttentionWeights& weights, TensorView q) const {
    const int64_t row = config_.latent_dim + config_.rope_dim;
    const TensorView to = Rows(buffers_.q_latent, config_.num_heads * row);
    for (int64_t h = 0; h < config_.num_heads; ++h) {
      buffers_.products[static_cast<size_t>(h)] = {
          .x = q.Columns(h * config_.head_dim(), config_.nope_dim),
          .w = weights.key_heads[static_cast<size_t>(h)],
          .y = to.Columns(h * row, config_.latent_dim)};
    }
    cpu::Matmul(buffers_.products.first(static_cast<size_t>(config_.num_heads)), executor_);
    ForEachRow(num_tokens_, executor_, [&](int64_t t) {
      for (int64_t h = 0; h < config_.num_heads; ++h) {
        const float* from = q.Row<float>(t) + h * config_.head_dim() + config_.nope_dim;
        std::copy_n(from, config_.rope_dim, to.Row<float>(t) + h * row + config_.latent_dim);
      }
    });
  }

  void LatentToOutput(const AttentionWeights& weights) const {
    const TensorView from =
        Rows(buffers_.out_latent, int64_t{config_.num_heads} * config_.latent_dim);
    const TensorView out = Rows(buffers_.out, int64_t{config_.num_heads} * config_.value_dim);
    for (int64_t h = 0; h < config_.num_heads; ++h) {
      buffers_.products[static_cast<size_t>(h)] = {
          .x = from.Columns(h * config_.latent_dim, config_.latent_dim),
          .w = weights.value_heads[static_cast<size_t>(h)],
          .y = out.Columns(h * config_.value_dim, config_.value_dim)};
    }
    cpu::Matmul(buffers_.products.first(static_cast<size_t>(config_.num_heads)), executor_);
    cpu::Matmul({.x = out, .w = weights.out, .y = update_, .bias = weights.out_bias}, executor_);
  }

  void Mlp(const MlpWeights& weights, int64_t width, TensorView y) const {
    const TensorView gate_up = Rows(buffers_.gate_up, 2 * width);
    const TensorView activated = Rows(buffers_.activated, width);
    const std::array products{
        MatmulArgs{.x = normed_, .w = weights.gate, .y = gate_up.Columns(0, width)},
        MatmulArgs{.x = normed_, .w = weights.up, .y = gate_up.Columns(width, width)}};
    cpu::Matmul(products, executor_);
    cpu::SiluMul({.gate_up = gate_up, .y = activated}, executor_);
    cpu::Matmul({.x = activated, .w = weights.down, .y = y}, executor_);
  }

  void Experts(const LayerWeights& layer) const {
    Route(layer);
    SortByExpert();
    RunExperts(layer);
    const int64_t num_choices = num_tokens_ * config_.moe.route.top_k;
    cpu::Combine({.rows = {buffers_.expert_rows.data(), {num_choices, config_.hidden_size}},
                  .row_of = buffers_.route_rows.first(static_cast<size_t>(num_choices)),
                  .weights = buffers_.route_weights.first(static_cast<size_t>(num_choices)),
                  .y = update_},
                 executor_);
    if (layer.mlp.gate.empty()) return;
    // `normed` has been read for the last time once gate and up are computed.
    Mlp(layer.mlp, config_.moe.shared_width, normed_);
    cpu::AddScaled({.x = normed_, .y = update_}, executor_);
  }

  void Route(const LayerWeights& layer) const {
    const RouteShape& route = config_.moe.route;
    const TensorView logits = Rows(buffers_.route_logits, route.num_experts);
    cpu::Matmul({.x = normed_, .w = layer.router, .y = logits}, executor_);
    const auto num_choices = static_cast<size_t>(num_tokens_ * route.top_k);
    cpu::Route({.shape = route,
                .logits = logits,
                .bias = layer.router_bias,
                .experts = buffers_.route_experts.first(num_choices),
                .weights = buffers_.route_weights.first(num_choices)},
               executor_);
  }

  // Gives every choice a row, rows of one expert together and in the order of tokens, and copies
  // the tokens there.
  void SortByExpert() const {
    const RouteShape& route = config_.moe.route;
    const int64_t num_choices = num_tokens_ * route.top_k;
    const std::span<int32_t> offsets = buffers_.expert_offsets;
    std::ranges::fill(offsets, 0);
    for (int64_t i = 0; i < num_choices; ++i) ++offsets[Expert(i) + 1];
    for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
    for (int64_t i = 0; i < num_choices; ++i) {
      buffers_.route_rows[static_cast<size_t>(i)] = offsets[Expert(i)]++;
    }
    // Every offset has moved to the end of its expert, which is where the next one begins.
    std::copy_backward(offsets.begin(), offsets.end() - 1, offsets.end());
    offsets[0] = 0;
    ForEachRow(num_choices, executor_, [&](int64_t i) {
      const int32_t row = buffers_.route_rows[static_cast<size_t>(i)];
      std::copy_n(normed_.Row<float>(i / route.top_k), config_.hidden_size,
                  buffers_.expert_rows.data() + row * config_.hidden_size);
    });
  }

  size_t Expert(int64_t choice) const {
    return static_cast<size_t>(buffers_.route_experts[static_cast<size_t>(choice)]);
  }

  // expert_rows = down(silu(gate(expert_rows)) * up(expert_rows)), each by its own expert.
  void RunExperts(const LayerWeights& layer) const {
    const int64_t width = config_.moe.expert_width;
    const int64_t num_choices = num_tokens_ * config_.moe.route.top_k;
    float* const rows = buffers_.expert_rows.data();
    float* const gate_up = buffers_.expert_gate_up.data();
    float* const activated = buffers_.expert_activated.data();
    size_t num_products = 0;
    ForEachExpert(layer, [&](const MlpWeights& expert, int64_t first, int64_t count) {
      const ConstTensorView x(rows + first * config_.hidden_size, {count, config_.hidden_size});
      const TensorView y(gate_up + first * 2 * width, {count, 2 * width});
      buffers_.products[num_products++] = {.x = x, .w = expert.gate, .y = y.Columns(0, width)};
      buffers_.products[num_products++] = {.x = x, .w = expert.up, .y = y.Columns(width, width)};
    });
    cpu::Matmul(buffers_.products.first(num_products), executor_);
    cpu::SiluMul(
        {.gate_up = {gate_up, {num_choices, 2 * width}}, .y = {activated, {num_choices, width}}},
        executor_);
    num_products = 0;
    ForEachExpert(layer, [&](const MlpWeights& expert, int64_t first, int64_t count) {
      buffers_.products[num_products++] = {
          .x = {activated + first * width, {count, width}},
          .w = expert.down,
          .y = {rows + first * config_.hidden_size, {count, config_.hidden_size}}};
    });
    cpu::Matmul(buffers_.products.first(num_products), executor_);
  }

  // fn(expert, first row, number of rows) of every expert that was chosen.
  template <class Fn>
  void ForEachExpert(const LayerWeights& layer, Fn fn) const {
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      const int64_t first = buffers_.expert_offsets[e];
      const int64_t count = buffers_.expert_offsets[e + 1] - first;
      if (count > 0) fn(layer.experts[e], first, count);
    }
  }

  const ModelConfig& config_;
  const ForwardArgs& args_;
  const ForwardBuffers& buffers_;
  const int64_t num_tokens_;
  const float softmax_scale_;
  Executor& executor_;
  PartClock& clock_;
  const TensorView hidden_;
  const TensorView normed_;
  const TensorView update_;
  const TensorView cos_;
  const TensorView sin_;
};

}  // namespace

MlaShape AttentionShape(const ModelConfig& config) {
  return {.num_heads = config.num_heads,
          .dims = {.latent_dim = config.latent_dim, .rope_dim = config.rope_dim}};
}

ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             const WorkShape& work, Carver& carver) {
  const int64_t tokens = capacity.query_tokens.raw();
  const int64_t heads = tokens * config.num_heads;
  const int64_t num_experts = config.moe.route.num_experts;
  const bool has_experts = config.moe.expert_width > 0;
  const int64_t choices = has_experts ? tokens * config.moe.route.top_k : 0;
  const auto floats = [&](int64_t count) { return carver.Take<float>(count); };
  ForwardBuffers buffers;
  buffers.hidden = floats(tokens * config.hidden_size);
  buffers.normed = floats(tokens * config.hidden_size);
  buffers.update = floats(tokens * config.hidden_size);
  buffers.q_down = floats(tokens * config.q_lora_rank);
  buffers.q = floats(heads * config.head_dim());
  buffers.kv = floats(tokens * (config.latent_dim + config.rope_dim));
  buffers.q_latent = floats(heads * (config.latent_dim + config.rope_dim));
  buffers.out_latent = floats(heads * config.latent_dim);
  buffers.out = floats(heads * config.value_dim);
  buffers.cos = floats(tokens * config.rope_dim / 2);
  buffers.sin = floats(tokens * config.rope_dim / 2);
  buffers.gate_up = floats(tokens * 2 * MlpWidth(config));
  buffers.activated = floats(tokens * MlpWidth(config));
  buffers.route_logits = floats(has_experts ? tokens * num_experts : 0);
  buffers.route_weights = floats(choices);
  buffers.route_experts = carver.Take<int32_t>(choices);
  buffers.route_rows = carver.Take<int32_t>(choices);
  buffers.expert_offsets = carver.Take<int32_t>(has_experts ? num_experts + 1 : 0);
  buffers.expert_rows = floats(choices * config.hidden_size);
  buffers.expert_gate_up = floats(choices * 2 * config.moe.expert_width);
  buffers.expert_activated = floats(choices * config.moe.expert_width);
  buffers.products = carver.Take<MatmulArgs>(MaxProducts(config));
  buffers.attention =
      carver.TakeBytes(cpu::MlaAttentionWorkspace(capacity, work, AttentionShape(config)));
  return buffers;
}

Model::Model(ModelConfig config, ModelWeights weights, TokenCount context)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_(config_, context),
      softmax_scale_(SoftmaxScale(config_)) {}

TensorView Model::Forward(const ForwardArgs& args, Executor& executor, PartClock& clock) const {
  QUIRE_CHECK(args.tokens.size() == args.positions.size() &&
                  args.tokens.size() == args.slots.size() &&
                  args.plan.num_query_tokens == TokenCount(args.tokens.size()),
              "{} tokens, {} positions, {} slots, a plan of {}", args.tokens.size(),
              args.positions.size(), args.slots.size(), args.plan.num_query_tokens);
  QUIRE_CHECK(args.stores.size() == weights_.layers.size());
  clock.Restart();
  Pass pass(config_, args, softmax_scale_, executor, clock);
  pass.Embed(weights_.embedding, rope_);
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    pass.Layer(weights_.layers[i], args.stores[i]);
  }
  return pass.hidden();
}

void Model::Logits(ConstTensorView hidden, TensorView normed, TensorView logits, Executor& executor,
                   PartClock& clock) const {
  clock.Restart();
  cpu::RmsNorm({.x = hidden,
                .weight = weights_.final_norm,
                .eps = static_cast<float>(config_.norm_eps),
                .y = normed},
               executor);
  if (config_.logit_scale != 1.0) {
    const auto scale = static_cast<float>(config_.logit_scale);
    for (int64_t t = 0; t < normed.dim(0); ++t) {
      float* row = normed.Row<float>(t);
      for (int64_t i = 0; i < normed.dim(1); ++i) row[i] *= scale;
    }
  }
  cpu::Matmul({.x = normed, .w = weights_.head, .y = logits}, executor);
  clock.Lap(ForwardPart::kHead);
}

}  // namespace quire
