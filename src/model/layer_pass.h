// A step's tokens on their way through decoder layers, over the ops of any backend: what the forward
// passes of a model and of its draft layer are made of.
#ifndef QUIRE_MODEL_LAYER_PASS_H_
#define QUIRE_MODEL_LAYER_PASS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "attn/kv_store.h"
#include "base/tensor_view.h"
#include "kernels/ops.h"
#include "kernels/quantised_rows.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/indexer.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace quire {

// Where a layer's rows go.
struct LayerStores {
  const KvStore& latent;
  const KvStore* index_keys = nullptr;  // of a layer that chooses
};

// One pass: the buffers as views of this step's tokens, and a function per part of a layer. What it was
// made with outlives it.
class LayerPass {
 public:
  LayerPass(const ModelConfig& config, const ForwardArgs& args, float softmax_scale,
            const RopeAngles& rope, Ops& ops);

  // Makes the tokens' rows of `table` the hidden state, and the angles of all layers.
  void Embed(const Weight& table) const;

  // Adds what the layer before has left, and returns what this one leaves. `experts_used`, if given:
  // how many experts had rows.
  Update Layer(const LayerWeights& layer, const LayerStores& stores, const Update& before,
               int32_t* experts_used = nullptr) const;
  // The same where nothing is left to be added and attention reads `input`, [num_tokens, any width] act,
  // instead of the normed hidden state.
  Update LayerOf(const LayerWeights& layer, const LayerStores& stores, const ProductInput& input,
                 int32_t* experts_used = nullptr) const;

  // The tokens' own rows of a layer whose attention reads `input`, and nothing else of it.
  void WriteKeys(const AttentionWeights& weights, const LayerStores& stores,
                 const ProductInput& input, Ops& ops) const;

  void Add(const Update& update) const { ops_.Add(Adding(update)); }
  // The same, and then normed = norm(hidden).
  void AddNorm(const Update& update, std::span<const float> weight, TensorView normed) const {
    AddNorm(update, weight, normed, {});
  }
  // The same, in the pass's own rows, which products are to read.
  ProductInput NormInput(const Update& update, std::span<const float> weight) const;

  // What this rank has of the columns of `whole`; and all columns, of which each rank has written its own.
  TensorView Own(const TensorView& whole) const;
  void Gather(const TensorView& whole, Ops& ops) const {
    ops.Gather(whole, config_.CutUnit(whole.dim(1)));
  }
  void Gather(const TensorView& whole) const { Gather(whole, ops_); }

 private:
  // The rows of this step's tokens.
  TensorView Rows(const TensorView& buffer) const { return buffer.FirstRows(num_tokens_); }
  // The same of a buffer that narrower rows use in turn, these one behind the other.
  TensorView Rows(const TensorView& buffer, int64_t width) const {
    return TensorView(buffer.data(), buffer.dtype(), {num_tokens_, width}, buffer.side());
  }
  // The codes of such rows; of memory that was not taken none.
  QuantisedRows Codes(const QuantisedRows& memory, int64_t width) const {
    return memory.empty() ? memory : FirstRows(memory, num_tokens_, width);
  }
  AddArgs Adding(const Update& update) const;
  void AddNorm(const Update& update, std::span<const float> weight, TensorView normed,
               const QuantisedRows& codes) const;

  // Leaves what it adds in update_.
  void Attention(const AttentionWeights& weights, const LayerStores& stores,
                 const ProductInput& input) const;
  // Sequences that are expanded: q, whose rope part is rotated where it lies, to out.
  void AttendExpanded(const AttentionWeights& weights, const KvStore& store) const;
  // To all keys that queries see, or to those that this layer's indexer, or the last one's, chose.
  void Attend(const KvStore& store, const TensorView& q_latent) const;
  // The tokens' own rows, to the store.
  void KeysAndValues(const AttentionWeights& weights, const KvStore& store,
                     const ProductInput& input, Ops& ops) const;
  // Returns the queries' normed latent; without q_lora there is none, and q takes one product less.
  ProductInput Queries(const AttentionWeights& weights, const ProductInput& input) const;
  // q_latent = [q_nope * key head | rotated q_rope], head by head, of tokens that attend in latent form.
  void QueriesToLatent(const AttentionWeights& weights, TensorView q_latent) const;

  Update Dense(const LayerWeights& layer, const ProductInput& input) const;
  // Leaves this rank's columns of what it gives in `y`.
  void Mlp(const MlpWeights& weights, const ProductInput& input, int64_t width, TensorView y,
           Ops& ops) const;
  // The shared experts run beside the chosen ones.
  Update Experts(const LayerWeights& layer, const ProductInput& input, int32_t* used) const;
  // What experts leave, combined in update_: this rank's columns here, and the others' by them.
  void CombineHere(ExpertRows rows) const;

  const ModelConfig& config_;
  const ForwardArgs& args_;
  const int64_t num_tokens_;
  const int64_t num_latent_;  // of them, the first ones: that may attend in latent form
  const float softmax_scale_;
  Ops& ops_;
  const TensorView hidden_;
  const TensorView normed_;
  const TensorView update_;
  const StepAngles angles_;
  std::optional<IndexerStep> indexer_;  // of a sparse model
};

}  // namespace quire

#endif  // QUIRE_MODEL_LAYER_PASS_H_
