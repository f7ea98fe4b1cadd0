#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/layer_pass.h"

namespace quire {
namespace {

// The dense layers' and the shared experts' width, whichever is larger: they share their buffers.
int64_t MlpWidth(const ModelConfig& config) {
  return std::max(config.dense_width, config.moe.shared_width);
}
// The same of what this rank has.
int64_t OwnMlpWidth(const ModelConfig& config) {
  return std::max(config.Own(config.dense_width).count, config.Own(config.moe.shared_width).count);
}

int32_t OwnHeads(const ModelConfig& config) {
  return static_cast<int32_t>(config.own_heads().count);
}

}  // namespace

bool MultipliesCodes(const ModelConfig& config) {
  return config.fp8_blocks && config.fp8_blocks->rows == kScaleBlock &&
         config.fp8_blocks->columns == kScaleBlock;
}

MlaShape AttentionShape(const ModelConfig& config) {
  return {.num_heads = OwnHeads(config),
          .dims = {.latent_dim = config.latent_dim, .rope_dim = config.rope_dim}};
}

MhaShape HeadShape(const ModelConfig& config) {
  return {.num_heads = OwnHeads(config),
          .nope_dim = config.nope_dim,
          .value_dim = config.value_dim,
          .dims = {.latent_dim = config.latent_dim, .rope_dim = config.rope_dim}};
}

OpLimits OpLimitsOf(const ModelConfig& config, const StepCapacity& capacity, const WorkShape& work,
                    TokenCount expanded_keys) {
  return {.capacity = capacity,
          .work = work,
          .attention = AttentionShape(config),
          .hidden_size = config.hidden_size,
          // A head's or a draft layer's joined rows; what attention gives; and what ranks gather.
          .widest_input = std::max<int64_t>({config.hidden_size * (config.drafts ? 2 : 1),
                                             int64_t{config.num_heads} * config.value_dim,
                                             config.shard.is_cut() ? MlpWidth(config) : 0}),
          .has_block_scales = MultipliesCodes(config),
          .route = config.moe.route,
          .expert_width = config.moe.expert_width,
          .index = IndexShapeOf(config),
          .heads = HeadShape(config),
          .expanded_keys = expanded_keys,
          .expert_ranks = config.shard.tokens == RankTokens::kOwn ? config.shard.size : 1,
          .tokens_of_rank = capacity.query_tokens.raw()};
}

size_t NumTrunkStores(const ModelConfig& config) {
  const int32_t index_stores = config.indexer ? config.indexer->num_full() : 0;
  return static_cast<size_t>(config.num_layers() + index_stores);
}

size_t NumDraftStores(const ModelConfig& config) {
  if (!config.drafts) return 0;
  return config.indexer ? 2 : 1;
}

ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             DType activation, Carver& carver) {
  const int64_t heads = OwnHeads(config);
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
  buffers.out = take(activation, int64_t{config.num_heads} * config.value_dim);
  buffers.cos = take(DType::kF32, config.rope_dim / 2);
  buffers.sin = take(DType::kF32, config.rope_dim / 2);
  buffers.gate_up = take(activation, 2 * OwnMlpWidth(config));
  buffers.activated = take(activation, MlpWidth(config));
  buffers.shared = take(activation, config.moe.shared_width > 0 ? config.hidden_size : 0);
  if (MultipliesCodes(config) && activation == DType::kBf16) {
    const auto take_codes = [&](int64_t width) {
      return width > 0 ? TakeQuantisedRows(carver, capacity.query_tokens.raw(), width)
                       : QuantisedRows();
    };
    buffers.normed_codes = take_codes(config.hidden_size);
    buffers.q_down_codes = take_codes(config.q_lora_rank);
    // Rows that ranks have parts of are gathered without codes.
    buffers.activated_codes = take_codes(config.shard.is_cut() ? 0 : MlpWidth(config));
  }
  buffers.indexer = LayOutIndexer(config, capacity, activation, carver);
  if (config.drafts) buffers.joined = take(activation, 2 * config.hidden_size);
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
  QUIRE_CHECK(args.stores.size() == NumTrunkStores(config_), "{} stores for {} layers",
              args.stores.size(), num_layers);
  QUIRE_CHECK(!args.chooses || config_.indexer);
  QUIRE_CHECK(args.expansion == nullptr || config_.expands);
  const LayerPass pass(config_, args, softmax_scale_, rope_, ops);
  pass.Embed(weights_.embedding);
  Update update;
  const KvStore* next_index_store = args.stores.data() + num_layers;
  int64_t num_inputs = 0;  // of wanted layers that are there already
  for (size_t i = 0; i < num_layers; ++i) {
    if (num_inputs < std::ssize(args.wanted_layers) &&
        std::cmp_equal(args.wanted_layers[static_cast<size_t>(num_inputs)], i)) {
      pass.Add(std::exchange(update, {}));
      ops.CopyRows(
          {.x = args.buffers.hidden.FirstRows(std::ssize(args.tokens)),
           .y = args.layer_inputs.Columns(num_inputs * config_.hidden_size, config_.hidden_size)});
      ++num_inputs;
    }
    const bool is_full = config_.HasIndexer(static_cast<int32_t>(i));
    const LayerStores stores{.latent = args.stores[i],
                             .index_keys = is_full ? next_index_store++ : nullptr};
    int32_t* const experts_used = args.experts_used.empty() ? nullptr : &args.experts_used[i];
    update = pass.Layer(weights_.layers[i], stores, update, experts_used);
  }
  QUIRE_CHECK(num_inputs == std::ssize(args.wanted_layers), "{} of {} wanted layers", num_inputs,
              args.wanted_layers.size());
  if (args.states.empty()) {
    pass.Add(update);
  } else {
    pass.AddNorm(update, weights_.final_norm, args.states);
  }
}

void HeadProduct(const ModelConfig& config, const Weight& head, const LogitsArgs& args, Ops& ops) {
  const Share own = config.Own(config.vocab_size);
  ops.Matmul({.x = args.normed, .w = head, .y = args.logits.Columns(own.first, own.count)});
  ops.Gather(args.logits, config.CutUnit(config.vocab_size));
}

void Model::Logits(const LogitsArgs& args, Ops& ops) const {
  ops.PickRows({.x = args.hidden, .rows = args.rows, .y = args.picked});
  ops.Norm({.x = args.picked,
            .weight = weights_.final_norm,
            .eps = static_cast<float>(config_.norm_eps),
            .y = args.normed,
            .scale = static_cast<float>(config_.logit_scale)});
  HeadProduct(config_, weights_.head, args, ops);
  ops.Mark(ForwardPart::kHead);
}

}  // namespace quire
