#include "model/eagle.h"

#include <iterator>
#include <utility>

#include "base/error.h"
#include "model/layer_pass.h"

namespace quire {

OpenedHead OpenEagleHead(const std::filesystem::path& folder, const ModelConfig& trunk) {
  Require(std::filesystem::is_directory(folder),
          "draft model: expected a folder with config.json, got {}{}",
          QuoteForMessage(folder.string()),
          std::filesystem::exists(folder) ? "" : ", which does not exist");
  OpenedHead head{.config = std::make_unique<const EagleConfig>(ReadEagleConfig(folder, trunk)),
                  .weights = nullptr};
  head.weights = OpenWeightFiles(folder, head.config->layer);
  return head;
}

EagleHead::EagleHead(EagleConfig config, EagleWeights weights, RopeAngles rope)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      rope_(rope),
      softmax_scale_(SoftmaxScale(config_.layer)) {}

void EagleHead::Fuse(const FuseArgs& args, Ops& ops) const {
  const int64_t width = config_.layer.hidden_size;
  for (size_t i = 0; i < weights_.input_norms.size(); ++i) {
    const int64_t first = static_cast<int64_t>(i) * width;
    ops.Norm({.x = args.inputs.Columns(first, width),
              .weight = weights_.input_norms[i],
              .eps = static_cast<float>(config_.layer.norm_eps),
              .y = args.normed.Columns(first, width)});
  }
  const bool is_normed = !weights_.input_norms.empty();
  ops.Matmul({.x = is_normed ? ConstTensorView(args.normed) : args.inputs,
              .w = weights_.fuse,
              .y = args.states});
}

void EagleHead::Forward(const DraftArgs& args, Ops& ops) const {
  const ForwardArgs& rows = args.rows;
  const int64_t num_tokens = std::ssize(rows.tokens);
  const int64_t width = config_.layer.hidden_size;
  const auto eps = static_cast<float>(config_.layer.norm_eps);
  QUIRE_CHECK(rows.positions.size() == rows.tokens.size() &&
                  rows.slots.size() == rows.tokens.size() &&
                  args.state_of.size() == rows.tokens.size(),
              "{} tokens, {} positions, {} slots, {} states", rows.tokens.size(),
              rows.positions.size(), rows.slots.size(), args.state_of.size());
  QUIRE_CHECK(rows.stores.size() == 1 && !rows.chooses, "{} stores of a head", rows.stores.size());
  const TensorView hidden = rows.buffers.hidden.FirstRows(num_tokens);
  const TensorView joined = rows.buffers.joined.FirstRows(num_tokens);
  const TensorView states = rows.buffers.update.FirstRows(num_tokens);  // no sublayer has run yet
  const LayerPass pass(config_.layer, rows, softmax_scale_, rope_, ops);
  pass.Embed(weights_.embedding);
  ops.Norm(
      {.x = hidden, .weight = weights_.embedding_norm, .eps = eps, .y = joined.Columns(0, width)});
  ops.PickRows({.x = args.states, .rows = args.state_of, .y = states});
  ops.Norm(
      {.x = states, .weight = weights_.hidden_norm, .eps = eps, .y = joined.Columns(width, width)});
  if (args.keys_alone) {
    pass.WriteKeys(weights_.layer.attention, {.latent = rows.stores[0]}, joined, ops);
    return;
  }
  ops.CopyRows({.x = states, .y = hidden});
  pass.Add(pass.LayerOf(weights_.layer, {.latent = rows.stores[0]}, joined));
}

void EagleHead::Logits(const LogitsArgs& args, TensorView states, Ops& ops) const {
  ops.PickRows({.x = args.hidden, .rows = args.rows, .y = args.picked});
  ops.Norm({.x = args.picked,
            .weight = weights_.head_norm,
            .eps = static_cast<float>(config_.layer.norm_eps),
            .y = args.normed});
  ops.Matmul({.x = args.normed, .w = weights_.head, .y = args.logits});
  const TensorView& own = config_.norm_output ? args.normed : args.picked;
  if (own.data() != states.data()) ops.CopyRows({.x = own, .y = states});
  ops.Mark(ForwardPart::kHead);
}

EagleHead LoadEagleHead(const OpenedHead& head, const Weight& embedding, TokenCount context,
                        WeightPacker& packer) {
  EagleWeights weights = LoadWeights(*head.config, *head.weights, packer);
  if (weights.embedding.empty()) weights.embedding = embedding;
  const RopeAngles angles = MakeRopeAngles(head.config->layer, context, packer);
  packer.Finish();
  return EagleHead(*head.config, std::move(weights), angles);
}

}  // namespace quire
