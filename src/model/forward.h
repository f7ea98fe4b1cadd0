// The forward pass of the DeepSeek family, over the ops of any backend (kernels/ops.h).
//
// Every token is computed in latent form, but where a backend expands the keys of prompts. On the CPU,
// and on a device with exact products, by arithmetic that depends on its own sequence and position alone
// (docs/numerics.md): batches, chunks, pages and threads change no bit.
#ifndef QUIRE_MODEL_FORWARD_H_
#define QUIRE_MODEL_FORWARD_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/expansion.h"
#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "device/arena.h"
#include "kernels/mha_prefill.h"
#include "kernels/mla_attention.h"
#include "kernels/ops.h"
#include "kernels/quantised_rows.h"
#include "model/config.h"
#include "model/indexer.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace quire {

// Whether weights that the model has in e4m3 are multiplied as codes on a device, whose products have blocks of one size.
// Those of other blocks become bf16.
bool MultipliesCodes(const ModelConfig& config);

// How the config's attention looks to its kernel: of the heads that this rank has.
MlaShape AttentionShape(const ModelConfig& config);
// The same in multi-head form.
MhaShape HeadShape(const ModelConfig& config);

// What the ops of steps of this capacity are sized for.
OpLimits OpLimitsOf(const ModelConfig& config, const StepCapacity& capacity, const WorkShape& work,
                    TokenCount expanded_keys = TokenCount(0));

// What lies between a step's tokens and its logits, for a number of tokens at most. Every value is
// written before it is read, in every step. `act` is the ops' activation().
struct ForwardBuffers {
  TensorView hidden = {};      // [tokens, hidden] f32
  TensorView normed = {};      // [tokens, hidden] act
  TensorView update = {};      // [tokens, hidden] act: what a sublayer adds
  TensorView q_down = {};      // [tokens, q_lora_rank] act
  TensorView q = {};           // [tokens, own heads * (nope_dim + rope_dim)] act
  TensorView kv = {};          // [tokens, latent_dim + rope_dim] f32
  TensorView q_latent = {};    // [tokens, own heads * (latent_dim + rope_dim)] act
  TensorView out_latent = {};  // [tokens, own heads * latent_dim] act
  TensorView out = {};         // [tokens, heads * value_dim] act
  TensorView cos = {};         // [tokens, rope_dim / 2] f32
  TensorView sin = {};         // as cos
  TensorView gate_up = {};     // [tokens, 2 * own width] act, of the dense or shared MLP
  TensorView activated = {};   // [tokens, width] act
  TensorView shared = {};      // [tokens, hidden] act, of the shared experts
  // Codes of such rows, with bf16 activations and weights that have block scales; or empty.
  QuantisedRows normed_codes = {};
  QuantisedRows q_down_codes = {};
  QuantisedRows activated_codes = {};
  IndexerBuffers indexer = {};
  TensorView joined = {};  // [tokens, 2 * hidden] act: what a draft layer begins with; or empty
};

// How many stores the layers of the model have, and its draft layer besides: 0 where it does not draft.
size_t NumTrunkStores(const ModelConfig& config);
size_t NumDraftStores(const ModelConfig& config);

// Sizes and takes the buffers of steps of this capacity.
ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             DType activation, Carver& carver);

struct ForwardArgs {
  std::span<const int32_t> tokens;        // [num_tokens], in the vocabulary
  std::span<const TokenCount> positions;  // [num_tokens]
  std::span<const Slot> slots;            // [num_tokens]: where each token's rows go
  const Plan& plan;                       // of these tokens
  // [NumTrunkStores]: of every layer, and behind them one of index keys for each layer that chooses.
  std::span<const KvStore> stores;
  const ForwardBuffers& buffers;
  std::span<int32_t> experts_used = {};  // [num_layers] or none: how many had rows
  // Of a sparse model: whether some query may see more keys than it can choose. If not, all attend to
  // all that they see, with the same bits and without scores.
  bool chooses = false;
  // The same sequences with the work of choosing keys cut in its own way, or none: as `plan` has it.
  const Plan* selection = nullptr;
  // Sequences that attend in multi-head form, or none. Then only the first num_latent tokens can be of
  // others.
  const Expansion* expansion = nullptr;
  int64_t num_latent = 0;
  // [num_tokens, hidden] act, or none: the hidden state of all rows after the last norm, which a draft
  // layer takes.
  TensorView states = {};
  // Of layers whose inputs an EAGLE-3 head takes, ascending, or none: the residual stream before each,
  // side by side in `layer_inputs`, [num_tokens, layers * hidden] act.
  std::span<const int32_t> wanted_layers = {};
  TensorView layer_inputs = {};
};

// Rows of the hidden state to the logits that follow them.
struct LogitsArgs {
  ConstTensorView hidden = {};         // [num_tokens, hidden] f32
  std::span<const int32_t> rows = {};  // [num_rows] of the hidden state
  TensorView picked = {};              // [num_rows, hidden] f32 scratch
  TensorView normed = {};              // [num_rows, hidden] of activation(): scratch
  TensorView logits = {};              // [num_rows, vocab] f32
};

// logits = head(normed), of which a rank computes its own tokens' and gathers the others'.
void HeadProduct(const ModelConfig& config, const Weight& head, const LogitsArgs& args, Ops& ops);

class Model {
 public:
  // `weights` and `rope` view memory that outlives the model.
  Model(ModelConfig config, ModelWeights weights, RopeAngles rope);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  const RopeAngles& rope() const { return rope_; }
  float softmax_scale() const { return softmax_scale_; }

  // The last layer's output is in args.buffers.hidden; the tokens' rows are in the stores.
  void Forward(const ForwardArgs& args, Ops& ops) const;

  // logits[i] = head(norm(hidden row rows[i]))
  void Logits(const LogitsArgs& args, Ops& ops) const;

 private:
  ModelConfig config_;
  ModelWeights weights_;
  RopeAngles rope_;
  float softmax_scale_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_FORWARD_H_
