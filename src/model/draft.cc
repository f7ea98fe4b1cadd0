#include "model/draft.h"

#include <iterator>

#include "base/error.h"
#include "model/layer_pass.h"

namespace quire {
namespace {

const DraftWeights& DraftOf(const Model& model) {
  QUIRE_CHECK(model.weights().draft.has_value(), "the model was not loaded to draft");
  return *model.weights().draft;
}

// hidden = join([norm(hidden) | norm(states of the rows)])
void Join(const Model& model, const DraftArgs& args, const LayerPass& pass, Ops& ops) {
  const DraftWeights& weights = DraftOf(model);
  const ForwardBuffers& buffers = args.rows.buffers;
  const int64_t num_tokens = std::ssize(args.rows.tokens);
  const int64_t width = model.config().hidden_size;
  const auto eps = static_cast<float>(model.config().norm_eps);
  const TensorView hidden = buffers.hidden.FirstRows(num_tokens);
  const TensorView joined = buffers.joined.FirstRows(num_tokens);
  const TensorView states = buffers.update.FirstRows(num_tokens);  // no sublayer has run yet
  ops.Norm(
      {.x = hidden, .weight = weights.embedding_norm, .eps = eps, .y = joined.Columns(0, width)});
  ops.PickRows({.x = args.states, .rows = args.state_of, .y = states});
  ops.Norm(
      {.x = states, .weight = weights.hidden_norm, .eps = eps, .y = joined.Columns(width, width)});
  ops.Matmul({.x = joined, .w = weights.join, .y = pass.Own(hidden)});
  pass.Gather(hidden);
}

}  // namespace

void ForwardDraft(const Model& model, const DraftArgs& args, Ops& ops) {
  const ForwardArgs& rows = args.rows;
  const DraftWeights& weights = DraftOf(model);
  QUIRE_CHECK(rows.tokens.size() == rows.positions.size() &&
                  rows.tokens.size() == rows.slots.size() &&
                  rows.tokens.size() == args.state_of.size(),
              "{} tokens, {} positions, {} slots, {} states", rows.tokens.size(),
              rows.positions.size(), rows.slots.size(), args.state_of.size());
  QUIRE_CHECK(rows.stores.size() == NumDraftStores(model.config()), "{} stores of a draft layer",
              rows.stores.size());
  QUIRE_CHECK(!rows.chooses || model.config().indexer);
  const LayerPass pass(model.config(), rows, model.softmax_scale(), model.rope(), ops);
  pass.Embed(model.weights().embedding);
  Join(model, args, pass, ops);
  const LayerStores stores{.latent = rows.stores[0],
                           .index_keys = model.config().indexer ? &rows.stores[1] : nullptr};
  if (args.keys_alone) {
    const ProductInput input = pass.NormInput({}, weights.layer.attention_norm);
    pass.WriteKeys(weights.layer.attention, stores, input, ops);
    return;
  }
  int32_t* const experts_used = rows.experts_used.empty() ? nullptr : rows.experts_used.data();
  pass.Add(pass.Layer(weights.layer, stores, {}, experts_used));
}

void DraftLogits(const Model& model, const LogitsArgs& args, Ops& ops) {
  ops.PickRows({.x = args.hidden, .rows = args.rows, .y = args.picked});
  ops.Norm({.x = args.picked,
            .weight = DraftOf(model).head_norm,
            .eps = static_cast<float>(model.config().norm_eps),
            .y = args.normed});
  HeadProduct(model.config(), model.weights().head, args, ops);
  ops.Mark(ForwardPart::kHead);
}

}  // namespace quire
