#include "model/cuda/forward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/expert_gemm.h"
#include "kernels/cuda/mla_attention.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/store.h"
#include "model/cuda/pick_rows.h"
#include "model/forward.h"

namespace quire::cuda {
namespace {

// The dense layers' and the shared experts' width, whichever is larger: they share their buffers.
int64_t MlpWidth(const ModelConfig& config) {
  return std::max(config.dense_width, config.moe.shared_width);
}

// The widest row that meets e4m3 weights.
int64_t WidestInput(const ModelConfig& config) {
  return std::max<int64_t>({config.hidden_size, config.q_lora_rank,
                            int64_t{config.num_heads} * config.value_dim, MlpWidth(config)});
}

// And beside others: that of kv_down and of the shared experts.
int64_t WidestSideInput(const ModelConfig& config) {
  return std::max<int64_t>(config.hidden_size, config.moe.shared_width);
}

// How ops reach the device: launched there, or, where the pass is only planned, left out but for the
// shapes of their products.
class Launcher {
 public:
  Launcher(const GemmPlanner& gemms, const Stream& stream, Branch* branch, StatusWord status,
           PartMarks* marks)
      : gemms_(&gemms), stream_(&stream), branch_(branch), status_(status), marks_(marks) {}
  explicit Launcher(GemmPlanner& planned) : planned_(&planned) {}

  StatusWord status() const { return status_; }

  // From Fork to Join, what the launcher that Fork returns launches runs beside what this one does.
  Launcher Fork() const {
    if (branch_ == nullptr) return *this;
    branch_->Fork(*stream_);
    Launcher side(*gemms_, branch_->stream(), /*branch=*/nullptr, status_, /*marks=*/nullptr);
    side.lane_ = GemmLane::kSide;
    return side;
  }
  void Join() const {
    if (branch_ != nullptr) branch_->Join(*stream_);
  }

  void Product(const GemmArgs& args) const {
    if (planned_ == nullptr) {
      gemms_->Gemm(args, *stream_, lane_);
    } else if (CublasLtTakes(args)) {
      planned_->Plan(ShapeOf(args));
    }
  }
  // Calls op(stream).
  template <class Op>
  void Run(Op op) const {
    if (planned_ == nullptr) op(*stream_);
  }
  // What was launched since the last of these is of `part`.
  void End(ForwardPart part) const {
    if (marks_ != nullptr) marks_->End(part, *stream_);
  }

 private:
  const GemmPlanner* gemms_ = nullptr;
  const Stream* stream_ = nullptr;
  Branch* branch_ = nullptr;
  GemmLane lane_ = GemmLane::kMain;
  GemmPlanner* planned_ = nullptr;
  StatusWord status_ = {};
  PartMarks* marks_ = nullptr;
};

// One forward pass: the buffers as views of the step's tokens, and a function per part of a layer.
class Pass {
 public:
  Pass(const ModelConfig& config, const ForwardArgs& args, float softmax_scale, ConstTensorView cos,
       ConstTensorView sin, const Launcher& launcher)
      : config_(config),
        args_(args),
        buffers_(args.buffers),
        num_tokens_(std::ssize(args.tokens)),
        softmax_scale_(softmax_scale),
        table_cos_(cos),
        table_sin_(sin),
        launcher_(launcher),
        codes_(buffers_.codes),
        hidden_(buffers_.hidden.data(), {num_tokens_, config.hidden_size}),
        normed_(Rows(buffers_.normed, config.hidden_size)),
        update_(Rows(buffers_.update, config.hidden_size)),
        cos_(buffers_.cos.data(), {num_tokens_, config.rope_dim / 2}),
        sin_(buffers_.sin.data(), {num_tokens_, config.rope_dim / 2}) {}

  void Embed(ConstTensorView table) const {
    launcher_.Run([&](const Stream& stream) {
      cuda::Embed({.table = table,
                   .tokens = args_.tokens,
                   .scale = static_cast<float>(config_.embedding_scale),
                   .hidden = hidden_,
                   .status = launcher_.status()},
                  stream);
      GatherRope({.table_cos = table_cos_,
                  .table_sin = table_sin_,
                  .positions = args_.positions,
                  .cos = cos_,
                  .sin = sin_,
                  .status = launcher_.status()},
                 stream);
    });
    launcher_.End(ForwardPart::kEmbedding);
  }

  // What the layer before, if there is one, has left is added with the first norm: `update`, or the
  // rows of its experts, which are combined there.
  void Layer(const LayerWeights& layer, size_t number, const LayerWeights* before) const {
    if (before == nullptr) {
      Norm(hidden_, layer.attention_norm, config_.norm_eps, normed_);
    } else if (before->kind == LayerKind::kDense) {
      AddAndNorm(layer.attention_norm);
    } else {
      CombineAddAndNorm(*before, layer.attention_norm);
    }
    Attention(layer.attention, args_.stores[number]);
    AddAndNorm(layer.mlp_norm);
    if (layer.kind == LayerKind::kDense) {
      Mlp(layer.mlp, config_.dense_width, update_);
    } else {
      Experts(layer, number);
    }
    launcher_.End(ForwardPart::kMlp);
  }

  void AddLastUpdate(const LayerWeights& last) const {
    launcher_.Run([&](const Stream& stream) {
      if (last.kind != LayerKind::kDense) cuda::Combine(CombineOf(last), stream);
      AddScaled({.x = update_, .scale = ResidualScale(), .y = hidden_}, stream);
    });
  }

 private:
  // `pass`, launched beside it.
  Pass(const Pass& pass, const Launcher& side) : Pass(pass) {
    launcher_ = side;
    codes_ = buffers_.side_codes;
  }
  // The pass as it runs beside this one until Join: the two write nothing in common.
  Pass Fork() const { return Pass(*this, launcher_.Fork()); }
  void Join() const { launcher_.Join(); }

  TensorView Rows(std::span<Bf16> buffer, int64_t width) const {
    return {buffer.data(), {num_tokens_, width}};
  }
  float ResidualScale() const { return static_cast<float>(config_.residual_scale); }

  void Norm(ConstTensorView x, std::span<const float> weight, double eps, TensorView y) const {
    launcher_.Run([&](const Stream& stream) {
      cuda::RmsNorm({.x = x, .weight = weight, .eps = static_cast<float>(eps), .y = y}, stream);
    });
  }

  void AddAndNorm(std::span<const float> weight) const {
    launcher_.Run([&](const Stream& stream) { AddRmsNorm(NormOfUpdate(weight), stream); });
  }
  void CombineAddAndNorm(const LayerWeights& before, std::span<const float> weight) const {
    launcher_.Run([&](const Stream& stream) {
      CombineAddRmsNorm(CombineOf(before), NormOfUpdate(weight), stream);
    });
  }
  AddRmsNormArgs NormOfUpdate(std::span<const float> weight) const {
    return {.hidden = hidden_,
            .update = update_,
            .scale = ResidualScale(),
            .weight = weight,
            .eps = static_cast<float>(config_.norm_eps),
            .normed = normed_};
  }

  // y = x w^T + bias, with x as e4m3 where w is.
  void Product(ConstTensorView x, const WeightView& w, TensorView y,
               const float* bias = nullptr) const {
    if (w.format != WeightFormat::kFp8Block) {
      launcher_.Product({.x = x, .w = w, .y = y, .bias = bias});
      return;
    }
    const QuantisedRows codes = FirstRows(codes_, num_tokens_, x.dim(1));
    launcher_.Run([&](const Stream& stream) { QuantiseRows({.x = x, .to = codes}, stream); });
    launcher_.Product({.x_codes = codes, .w = w, .y = y, .bias = bias});
  }

  void Attention(const AttentionWeights& weights, const KvStore& store) const {
    const int64_t heads = config_.num_heads;
    const int64_t row = config_.latent_dim + config_.rope_dim;
    Fork().KeysAndValues(weights, store);
    Queries(weights);
    QueriesToLatent(weights);
    Join();
    launcher_.End(ForwardPart::kProjections);
    launcher_.Run([&](const Stream& stream) {
      MlaAttention({.plan = args_.plan,
                    .store = store,
                    .q = ConstTensorView(buffers_.q_latent.data(), {num_tokens_, heads, row}),
                    .out = {buffers_.out_latent.data(), {num_tokens_, heads, config_.latent_dim}},
                    .scale = softmax_scale_,
                    .workspace = buffers_.attention},
                   stream, launcher_.status());
    });
    launcher_.End(ForwardPart::kAttention);
    LatentToOutput(weights);
    launcher_.End(ForwardPart::kProjections);
  }

  // The tokens' own rows, to the store.
  void KeysAndValues(const AttentionWeights& weights, const KvStore& store) const {
    const TensorView kv(buffers_.kv.data(), {num_tokens_, config_.latent_dim + config_.rope_dim});
    Product(normed_, weights.kv_down, kv, weights.kv_down_bias);
    launcher_.Run([&](const Stream& stream) {
      RopeStore({.store = store,
                 .slots = args_.slots,
                 .positions = args_.positions,
                 .kv = kv,
                 .norm_weight = weights.kv_norm,
                 .eps = static_cast<float>(config_.latent_norm_eps),
                 .cos = table_cos_,
                 .sin = table_sin_,
                 .pairs = config_.rope.pairs},
                stream, launcher_.status());
    });
  }

  void Queries(const AttentionWeights& weights) const {
    const TensorView q = Rows(buffers_.q, config_.num_heads * config_.head_dim());
    if (weights.q_down.empty()) {
      Product(normed_, weights.q_up, q);
      return;
    }
    const TensorView q_down = Rows(buffers_.q_down, config_.q_lora_rank);
    Product(normed_, weights.q_down, q_down, weights.q_down_bias);
    Norm(q_down, weights.q_norm, config_.latent_norm_eps, q_down);
    Product(q_down, weights.q_up, q);
  }

  // q_latent = [q_nope * key head | rotated q_rope], head by head.
  void QueriesToLatent(const AttentionWeights& weights) const {
    const int64_t heads = config_.num_heads;
    const int64_t row = config_.latent_dim + config_.rope_dim;
    launcher_.Product(
        {.x = Rows(buffers_.q, heads * config_.head_dim()).Columns(0, config_.nope_dim),
         .w = weights.key_heads,
         .y = Rows(buffers_.q_latent, heads * row).Columns(0, config_.latent_dim),
         .x_step = config_.head_dim(),
         .y_step = row});
    const TensorView q(buffers_.q.data(), {num_tokens_, heads, config_.head_dim()});
    const TensorView q_latent(buffers_.q_latent.data(), {num_tokens_, heads, row});
    launcher_.Run([&](const Stream& stream) {
      cuda::Rope({.x = q.Columns(config_.nope_dim, config_.rope_dim),
                  .cos = cos_,
                  .sin = sin_,
                  .pairs = config_.rope.pairs,
                  .y = q_latent.Columns(config_.latent_dim, config_.rope_dim)},
                 stream);
    });
  }

  void LatentToOutput(const AttentionWeights& weights) const {
    const int64_t heads = config_.num_heads;
    const TensorView out = Rows(buffers_.out, heads * config_.value_dim);
    launcher_.Product(
        {.x = Rows(buffers_.out_latent, heads * config_.latent_dim).Columns(0, config_.latent_dim),
         .w = weights.value_heads,
         .y = out.Columns(0, config_.value_dim),
         .x_step = config_.latent_dim,
         .y_step = config_.value_dim});
    Product(out, weights.out, update_, weights.out_bias);
  }

  void Mlp(const MlpWeights& weights, int64_t width, TensorView y) const {
    const TensorView gate_up = Rows(buffers_.gate_up, 2 * width);
    const TensorView activated = Rows(buffers_.activated, width);
    if (weights.gate_up.empty()) {
      Product(normed_, weights.gate, gate_up.Columns(0, width));
      Product(normed_, weights.up, gate_up.Columns(width, width));
    } else {
      Product(normed_, weights.gate_up, gate_up);
    }
    launcher_.Run(
        [&](const Stream& stream) { cuda::SiluMul({.gate_up = gate_up, .y = activated}, stream); });
    Product(activated, weights.down, y);
  }

  // Leaves the experts' rows to what adds them (CombineOf).
  void Experts(const LayerWeights& layer, size_t number) const {
    const bool has_shared = !layer.mlp.gate.empty();
    if (has_shared) Fork().Mlp(layer.mlp, config_.moe.shared_width, SharedRows(layer));
    Route(layer, number);
    RunExperts(layer.experts);
    if (has_shared) Join();
  }

  // Of the shared experts; empty where the layer has none.
  TensorView SharedRows(const LayerWeights& layer) const {
    if (layer.mlp.gate.empty()) return {};
    return Rows(buffers_.shared, config_.hidden_size);
  }

  // The update of a layer with experts, from what Experts has left.
  CombineArgs CombineOf(const LayerWeights& layer) const {
    const int64_t choices = num_tokens_ * config_.moe.route.top_k;
    return {.rows = ConstTensorView(buffers_.expert_out.data(), {choices, config_.hidden_size}),
            .row_of = buffers_.route_rows,
            .weights = buffers_.route_weights,
            .shared = SharedRows(layer),
            .y = update_,
            .status = launcher_.status()};
  }

  void Route(const LayerWeights& layer, size_t number) const {
    const RouteShape& route = config_.moe.route;
    const TensorView logits(buffers_.route_logits.data(), {num_tokens_, route.num_experts});
    launcher_.Product({.x = normed_, .w = layer.router, .y = logits});
    launcher_.Run([&](const Stream& stream) {
      RouteAndSort({.shape = route,
                    .logits = logits,
                    .bias = layer.router_bias,
                    .experts = buffers_.route_experts,
                    .weights = buffers_.route_weights},
                   {.num_experts = route.num_experts,
                    .top_k = route.top_k,
                    .experts = buffers_.route_experts,
                    .offsets = buffers_.expert_offsets,
                    .row_of = buffers_.route_rows,
                    .token_of = buffers_.expert_tokens,
                    .used = args_.experts_used.empty() ? nullptr : &args_.experts_used[number],
                    .workspace = buffers_.route_sort,
                    .status = launcher_.status()},
                   stream);
    });
  }

  // expert_out = down(silu(gate(x)) * up(x)), each by its own expert, x the normed row of the token.
  void RunExperts(const MlpWeights& experts) const {
    launcher_.Run([&](const Stream& stream) {
      const int64_t choices = num_tokens_ * config_.moe.route.top_k;
      const int64_t width = config_.moe.expert_width;
      const TensorView activated(buffers_.expert_activated.data(), {choices, width});
      const TensorView out(buffers_.expert_out.data(), {choices, config_.hidden_size});
      ExpertProduct({.x = normed_,
                     .w = experts.gate,
                     .up = experts.up,
                     .rows = buffers_.expert_tokens,
                     .y = activated},
                    codes_, stream);
      ExpertProduct({.x = activated, .w = experts.down, .y = out}, buffers_.expert_codes, stream);
    });
  }

  // With x as e4m3, in `codes`, where w is.
  void ExpertProduct(ExpertGemmArgs args, const QuantisedRows& codes, const Stream& stream) const {
    args.offsets = buffers_.expert_offsets.data();
    args.status = launcher_.status();
    if (args.w.format == WeightFormat::kFp8Block) {
      args.x_codes = FirstRows(codes, args.x.dim(0), args.x.dim(1));
      QuantiseRows({.x = args.x, .to = args.x_codes}, stream);
      args.x = {};
    }
    ExpertGemm(args, stream);
  }

  const ModelConfig& config_;
  const ForwardArgs& args_;
  const ForwardBuffers& buffers_;
  const int64_t num_tokens_;
  const float softmax_scale_;
  const ConstTensorView table_cos_;
  const ConstTensorView table_sin_;
  Launcher launcher_;
  QuantisedRows codes_;
  const TensorView hidden_;
  const TensorView normed_;
  const TensorView update_;
  const TensorView cos_;
  const TensorView sin_;
};

void RunForward(const ModelConfig& config, const ModelWeights& weights, const ForwardArgs& args,
                float softmax_scale, ConstTensorView cos, ConstTensorView sin,
                const Launcher& launcher) {
  QUIRE_CHECK(
      args.tokens.size() == args.positions.size() && args.tokens.size() == args.slots.size(),
      "{} tokens, {} positions, {} slots", args.tokens.size(), args.positions.size(),
      args.slots.size());
  QUIRE_CHECK(args.stores.size() == weights.layers.size());
  const Pass pass(config, args, softmax_scale, cos, sin, launcher);
  pass.Embed(weights.embedding);
  const LayerWeights* before = nullptr;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    pass.Layer(weights.layers[i], i, before);
    before = &weights.layers[i];
  }
  if (before != nullptr) pass.AddLastUpdate(*before);
}

void RunLogits(const ModelConfig& config, const ModelWeights& weights, const LogitsArgs& args,
               const Launcher& launcher) {
  const int64_t num_rows = std::ssize(args.rows);
  const TensorView picked(args.picked.data(), {num_rows, config.hidden_size});
  const TensorView normed(args.normed.data(), {num_rows, config.hidden_size});
  launcher.Run([&](const Stream& stream) {
    PickRows({.x = args.hidden, .rows = args.rows, .y = picked, .status = launcher.status()},
             stream);
    cuda::RmsNorm({.x = picked,
                   .weight = weights.final_norm,
                   .eps = static_cast<float>(config.norm_eps),
                   .y = normed},
                  stream);
  });
  launcher.Product({.x = normed, .w = weights.head, .y = args.logits});
  launcher.End(ForwardPart::kHead);
}

}  // namespace

ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             const WorkShape& work, Carver& carver) {
  const int64_t tokens = capacity.query_tokens.raw();
  const int64_t heads = tokens * config.num_heads;
  const int64_t row = config.latent_dim + config.rope_dim;
  const bool has_experts = config.moe.expert_width > 0;
  const int32_t num_experts = has_experts ? config.moe.route.num_experts : 0;
  const int64_t choices = has_experts ? tokens * config.moe.route.top_k : 0;
  const auto bf16 = [&](int64_t count) { return carver.Take<Bf16>(count); };
  const auto floats = [&](int64_t count) { return carver.Take<float>(count); };
  ForwardBuffers buffers;
  buffers.hidden = floats(tokens * config.hidden_size);
  buffers.normed = bf16(tokens * config.hidden_size);
  buffers.update = bf16(tokens * config.hidden_size);
  buffers.q_down = bf16(tokens * config.q_lora_rank);
  buffers.q = bf16(heads * config.head_dim());
  buffers.kv = floats(tokens * row);
  buffers.q_latent = bf16(heads * row);
  buffers.out_latent = bf16(heads * config.latent_dim);
  buffers.out = bf16(heads * config.value_dim);
  buffers.cos = floats(tokens * config.rope_dim / 2);
  buffers.sin = floats(tokens * config.rope_dim / 2);
  buffers.gate_up = bf16(tokens * 2 * MlpWidth(config));
  buffers.activated = bf16(tokens * MlpWidth(config));
  buffers.shared = bf16(config.moe.shared_width > 0 ? tokens * config.hidden_size : 0);
  buffers.route_logits = floats(tokens * num_experts);
  buffers.route_weights = floats(choices);
  buffers.route_experts = carver.Take<int32_t>(choices);
  buffers.route_rows = carver.Take<int32_t>(choices);
  buffers.route_sort = carver.Take<int32_t>(has_experts ? SortWorkspace(choices, num_experts) : 0);
  buffers.expert_offsets = carver.Take<int32_t>(has_experts ? num_experts + 1 : 0);
  buffers.expert_tokens = carver.Take<int32_t>(choices);
  buffers.expert_activated = bf16(choices * config.moe.expert_width);
  buffers.expert_out = bf16(choices * config.hidden_size);
  if (config.fp8_blocks) {
    buffers.codes = TakeQuantisedRows(carver, tokens, WidestInput(config));
    buffers.side_codes = TakeQuantisedRows(carver, tokens, WidestSideInput(config));
    if (has_experts) {
      buffers.expert_codes = TakeQuantisedRows(carver, choices, config.moe.expert_width);
    }
  }
  buffers.attention =
      carver.TakeBytes(MlaAttentionWorkspace(capacity, work, AttentionShape(config)));
  return buffers;
}

ByteOffset Model::RopeBytes(const ModelConfig& config, TokenCount context) {
  Carver counter;
  counter.Take<float>(context.raw() * config.rope_dim / 2);
  counter.Take<float>(context.raw() * config.rope_dim / 2);
  return counter.used();
}

Model::Model(ModelConfig config, ModelWeights weights, TokenCount context, Carver& carver)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      softmax_scale_(SoftmaxScale(config_)) {
  const int64_t pairs = config_.rope_dim / 2;
  const std::span<float> cos = carver.Take<float>(context.raw() * pairs);
  const std::span<float> sin = carver.Take<float>(context.raw() * pairs);
  std::vector<TokenCount> positions;
  for (int64_t p = 0; p < context.raw(); ++p) positions.emplace_back(p);
  std::vector<float> host_cos(cos.size()), host_sin(sin.size());
  RopeTable(config_, context)
      .Fill(positions, {host_cos.data(), {context.raw(), pairs}},
            {host_sin.data(), {context.raw(), pairs}});
  CopyAndWait(cos.data(), host_cos.data(), cos.size_bytes(), "copying the table of cosines");
  CopyAndWait(sin.data(), host_sin.data(), sin.size_bytes(), "copying the table of sines");
  cos_ = ConstTensorView(cos.data(), {context.raw(), pairs});
  sin_ = ConstTensorView(sin.data(), {context.raw(), pairs});
}

void Model::Forward(const ForwardArgs& args, const GemmPlanner& gemms, const Stream& stream,
                    Branch& branch, StatusWord status) const {
  RunForward(config_, weights_, args, softmax_scale_, cos_, sin_,
             Launcher(gemms, stream, &branch, status, args.marks));
}

void Model::Logits(const LogitsArgs& args, const GemmPlanner& gemms, const Stream& stream,
                   StatusWord status) const {
  RunLogits(config_, weights_, args,
            Launcher(gemms, stream, /*branch=*/nullptr, status, args.marks));
}

void Model::PlanForward(const ForwardArgs& args, GemmPlanner& gemms) const {
  RunForward(config_, weights_, args, softmax_scale_, cos_, sin_, Launcher(gemms));
}

void Model::PlanLogits(const LogitsArgs& args, GemmPlanner& gemms) const {
  RunLogits(config_, weights_, args, Launcher(gemms));
}

}  // namespace quire::cuda
