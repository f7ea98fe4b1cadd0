// The weights of a model, as a backend's ops take them.
#ifndef QUIRE_MODEL_WEIGHTS_H_
#define QUIRE_MODEL_WEIGHTS_H_

#include <optional>
#include <span>
#include <vector>

#include "kernels/weight.h"
#include "model/config.h"
#include "model/eagle_config.h"
#include "model/weight_source.h"

namespace quire {

// down(silu(gate(x)) * up(x)): a dense layer, the shared experts as one, or all experts of a layer, as
// many matrices of each. Gates and ups stand one behind the other, so that a backend may read both as
// one.
struct MlpWeights {
  Weight gate = {};
  Weight up = {};
  Weight down = {};
};

// What scores keys for sparse attention.
struct IndexerWeights {
  Weight q_up = {};  // q_lora_rank -> indexer heads * their dim
  Weight key = {};   // hidden -> their dim
  std::span<const float> key_norm = {};
  std::span<const float> key_norm_bias = {};
  Weight gate = {};  // hidden -> indexer heads

  bool empty() const { return key_norm.empty(); }
};

// Latent form: kv_b is split by head into what turns queries into latent space and what brings
// outputs back, so that keys and values are never expanded; but those of prompts, where that pays.
struct AttentionWeights {
  Weight q_down = {};  // hidden -> q_lora_rank; empty without q_lora
  std::span<const float> q_down_bias = {};
  std::span<const float> q_norm = {};
  Weight q_up = {};     // q_lora_rank, or hidden, -> num_heads * (nope_dim + rope_dim)
  Weight kv_down = {};  // hidden -> latent_dim + rope_dim
  std::span<const float> kv_down_bias = {};
  std::span<const float> kv_norm = {};
  Weight key_heads = {};    // [num_heads] nope_dim -> latent_dim
  Weight value_heads = {};  // [num_heads] latent_dim -> value_dim
  Weight key_up = {};       // [num_heads] latent_dim -> nope_dim, where config.expands
  Weight out = {};          // num_heads * value_dim -> hidden
  std::span<const float> out_bias = {};
  IndexerWeights indexer = {};  // of a sparse model's layers that choose; empty elsewhere
};

struct LayerWeights {
  LayerKind kind = LayerKind::kDense;
  std::span<const float> attention_norm = {};
  AttentionWeights attention = {};
  std::span<const float> mlp_norm = {};
  std::span<const float> post_mlp_norm = {};  // of what experts give; empty where there is none
  MlpWeights mlp = {};  // kDense: the layer's; kMoe: the shared experts', empty if there are none
  Weight router = {};
  std::span<const float> router_bias = {};
  MlpWeights experts = {};
};

// The layer of multi-token prediction. Embedding and head are the trunk's: the file's own are copies of
// them.
struct DraftWeights {
  std::span<const float> embedding_norm = {};
  std::span<const float> hidden_norm = {};
  Weight join =
      {};  // 2 * hidden -> hidden: of the normed embedding and, behind it, the hidden state
  LayerWeights layer = {};
  std::span<const float> head_norm = {};
};

// An EAGLE-3 head, from a folder of its own.
struct EagleWeights {
  std::vector<std::span<const float>> input_norms = {};  // of each of the trunk's inputs, or none
  Weight fuse = {};                                      // inputs * hidden -> hidden
  Weight embedding = {};                                 // empty: the trunk's
  std::span<const float> embedding_norm = {};
  std::span<const float> hidden_norm = {};
  LayerWeights layer = {};  // attention reads 2 * hidden values, and has no norm of its own
  std::span<const float> head_norm = {};
  Weight head = {};                     // [draft vocabulary, hidden]
  std::vector<int32_t> token_ids = {};  // [draft vocabulary]: which of the trunk's tokens each is
};

// Views into the memory that they were loaded to. Of a rank that has a part of the model (config.shard)
// embedding and head have its tokens; query heads and those of kv_b its heads; gates and ups its share of
// the width; out, down and what joins a draft layer's inputs its share of the hidden values; and experts
// are its own, or have its share of their width. All else is whole everywhere.
struct ModelWeights {
  Weight embedding = {};  // [vocab, hidden]: row t is token t
  std::vector<LayerWeights> layers = {};
  std::span<const float> final_norm = {};
  Weight head = {};  // [vocab, hidden]; the embedding again where they are tied
  std::optional<DraftWeights> draft = {};  // of a config that drafts
};

// Brings all of a model's weights through `packer`. Where that only counts, everything is checked and
// nothing is read. Throws as WeightSource does, and as the packer.
ModelWeights LoadWeights(const ModelConfig& config, WeightSource& source, WeightPacker& packer);
// The same of an EAGLE-3 head, whose d2t is always read; `source` is of its folder and config.layer.
// Throws also for a token that the trunk does not have.
EagleWeights LoadWeights(const EagleConfig& config, WeightSource& source, WeightPacker& packer);

}  // namespace quire

#endif  // QUIRE_MODEL_WEIGHTS_H_
