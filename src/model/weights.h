// The weights of a model, packed for the kernels that read them.
#ifndef QUIRE_MODEL_WEIGHTS_H_
#define QUIRE_MODEL_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/units.h"
#include "device/arena.h"
#include "kernels/gemm.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace quire {

// down(silu(gate(x)) * up(x)): a dense layer, an expert, or the shared experts as one.
struct MlpWeights {
  PackedMatrix gate = {};
  PackedMatrix up = {};
  PackedMatrix down = {};
};

// Latent form: kv_b is split by head into what turns queries into latent space and what brings
// outputs back, so that keys and values are never expanded.
struct AttentionWeights {
  PackedMatrix q_down = {};  // hidden -> q_lora_rank; empty without q_lora
  std::span<const float> q_down_bias = {};
  std::span<const float> q_norm = {};
  PackedMatrix q_up = {};     // q_lora_rank, or hidden, -> num_heads * (nope_dim + rope_dim)
  PackedMatrix kv_down = {};  // hidden -> latent_dim + rope_dim
  std::span<const float> kv_down_bias = {};
  std::span<const float> kv_norm = {};
  std::vector<PackedMatrix> key_heads = {};    // [num_heads] nope_dim -> latent_dim
  std::vector<PackedMatrix> value_heads = {};  // [num_heads] latent_dim -> value_dim
  PackedMatrix out = {};                       // num_heads * value_dim -> hidden
  std::span<const float> out_bias = {};
};

struct LayerWeights {
  LayerKind kind = LayerKind::kDense;
  std::span<const float> attention_norm = {};
  AttentionWeights attention = {};
  std::span<const float> mlp_norm = {};
  MlpWeights mlp = {};  // kDense: the layer's; kMoe: the shared experts', empty if there are none
  PackedMatrix router = {};
  std::span<const float> router_bias = {};
  std::vector<MlpWeights> experts = {};
};

// Views into the memory that they were loaded to.
struct ModelWeights {
  PackedMatrix embedding = {};  // [vocab, hidden]: row t is token t
  std::vector<LayerWeights> layers = {};
  std::span<const float> final_norm = {};
  PackedMatrix head = {};  // [vocab, hidden]; the embedding again where they are tied
};

// Bytes packed so far; called from the loading thread after every tensor.
using LoadProgress = std::function<void(ByteOffset loaded)>;

// Takes the weights' memory from `carver` and packs them into it. With a Carver that only counts,
// everything is checked and nothing is read: the weights are empty and carver.used() says what they
// will take. Throws as WeightSource does.
ModelWeights LoadWeights(const ModelConfig& config, WeightSource& source, Carver& carver,
                         Executor& executor, const LoadProgress& progress = {});

}  // namespace quire

#endif  // QUIRE_MODEL_WEIGHTS_H_
