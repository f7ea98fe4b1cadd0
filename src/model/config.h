// What a model is, as its config.json says it: every number the forward pass needs, checked.
//
// Families: deepseek_v2 (V2, V2-Lite), deepseek_v3 and kimi_k2 (V3, R1, V3.1, Kimi-K2, Moonlight),
// glm4_moe_lite (GLM-4.7-Flash), minicpm3, youtu (Youtu-LLM), axk1 (A.X-K1); with sparse attention
// deepseek_v32 (V3.2), glm_moe_dsa (GLM-5 and on), and deepseek_v3 with an index_topk. Keys are read
// as transformers 4 and as transformers 5 spell them.
//
//   The family decides what a file leaves unsaid. It is that of the model_type; of an unknown
//   model_type, that of the architecture. A model of neither is refused by its name, even with the
//   fields of another: that family's numbers would be wrong ones wherever it computes more.
//   A vision-language model is its text_config.
//
//   Keys that nothing depends on are ignored. A value that Quire does not compute with is refused,
//   and so is one on which published implementations differ. A size that decides which tensors
//   there are has no default.
#ifndef QUIRE_MODEL_CONFIG_H_
#define QUIRE_MODEL_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/collective.h"
#include "io/json.h"
#include "kernels/row_ops.h"

namespace quire {

enum class RopeScaling { kNone, kYarn, kLongRope };

struct RopeConfig {
  RopePairs pairs = RopePairs::kInterleaved;
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;           // of both scalings
  int64_t original_context = 0;  // positions the model was first trained on
  // YaRN. The mscales are both in the file, or 1 and 0.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;  // the ramp between the betas begins and ends at whole pairs
  // What cos and sin are multiplied with, where the file says it; derived otherwise.
  std::optional<double> attention_factor = {};
  // LongRoPE: [rope_dim / 2] each.
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};
};

struct MoeConfig {
  RouteShape route = {};     // of a model with experts
  int64_t expert_width = 0;  // hidden units of one expert; 0: every layer is dense
  int64_t shared_width = 0;  // of all shared experts together; 0: none
  bool route_bias = false;   // layers have e_score_correction_bias
  // Layers with experts have post_mlp_layernorm: of what routed and shared experts give together,
  // before it is added to the hidden state. Its eps is norm_eps.
  bool post_mlp_norm = false;
};

enum class LayerKind { kDense, kMoe };

// Whether a layer of a sparse model chooses keys itself, or takes the choice of the last layer before
// it that does.
enum class IndexerKind { kFull, kShared };

// DeepSeek sparse attention: queries attend to top_k of the keys that they see, those that an indexer
// of small heads scores highest. docs/numerics.md has the formulas.
struct IndexerConfig {
  int32_t num_heads = 0;
  int32_t head_dim = 0;  // at least rope_dim: its first values are rotated
  int32_t top_k = 0;
  RopePairs pairs = RopePairs::kHalves;
  // The first and the last that a query sees are always chosen; at most top_k together.
  int32_t init_tokens = 0;
  int32_t local_tokens = 0;
  std::vector<IndexerKind> layers = {};  // one per layer; the first is kFull

  int32_t num_full() const;
};

// How matrices are stored. Anything that a file has besides is refused when it is loaded.
struct BlockQuantization {
  int32_t rows = 128;     // of a block that shares a scale: outputs
  int32_t columns = 128;  // inputs
};

// Which part of a model one of several ranks has. In exact mode, the only one so far, every value is
// computed by one rank, from inputs that are whole: heads, and outputs of matrices, are cut; inputs never
// are. Ranks with tokens of their own share out experts alone.
struct Shard {
  int32_t rank = 0;
  int32_t size = 1;
  bool experts_by_rank = false;  // whole experts are shared out; otherwise the width of each
  RankTokens tokens = RankTokens::kSame;

  // Whether heads and columns are.
  bool is_cut() const { return size > 1 && tokens == RankTokens::kSame; }
};

struct ModelConfig {
  std::string family;  // the file's model_type
  // What tensor names begin with: "language_model." of a vision-language model.
  std::string tensor_prefix = "";
  // "float32", "float16" or "bfloat16": what dummies are made in.
  std::string weight_dtype = "bfloat16";
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t max_context = 0;  // positions that the model is good for
  int32_t num_heads = 0;
  int32_t q_lora_rank = 0;  // 0: queries are projected directly
  int32_t latent_dim = 0;   // kv_lora_rank
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  bool attention_bias = false;    // q_a, kv_a and o projections have biases
  double norm_eps = 1e-6;         // of the layers' norms and the last one
  double latent_norm_eps = 1e-6;  // of q_a_layernorm and kv_a_layernorm: 1e-6 in every family
  bool tied_embeddings = false;
  int64_t dense_width = 0;  // hidden units of a dense layer
  MoeConfig moe;
  std::vector<LayerKind> layers;  // one per layer
  int32_t num_draft_layers = 0;   // of multi-token prediction, which follow in the file
  // Whether the draft layer is loaded and computed. Not the file's to say: WithDraftLayer.
  bool drafts = false;
  // Whether weights for multi-head form are loaded too, for prompts. The backend's to say.
  bool expands = false;
  // What this rank loads and computes. Not the file's to say: model/shard.h.
  Shard shard = {};
  RopeConfig rope;
  std::optional<BlockQuantization> fp8_blocks = {};
  std::optional<IndexerConfig> indexer = {};  // of a sparse model
  // Scalings of MiniCPM3; 1 elsewhere.
  double embedding_scale = 1.0;
  double residual_scale = 1.0;           // of what attention and MLP add
  double logit_scale = 1.0;              // of the last hidden state, before the logits
  std::vector<int32_t> eos_tokens = {};  // each once
  std::optional<int32_t> bos_token = {};

  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
  int32_t head_dim() const { return nope_dim + rope_dim; }
  // Whether layer i has an indexer of its own. The draft layer, number num_layers(), has one in every
  // sparse model.
  bool HasIndexer(int32_t i) const {
    return indexer &&
           (i == num_layers() || indexer->layers[static_cast<size_t>(i)] == IndexerKind::kFull);
  }
  // What this rank has of `width` columns of outputs, and the unit that they are cut by: blocks of e4m3
  // scales, or panels of packed weights; single columns where there are too few.
  int64_t CutUnit(int64_t width) const;
  Share Own(int64_t width) const { return OwnOf(width, CutUnit(width)); }
  Share own_heads() const { return OwnOf(num_heads, 1); }
  Share own_experts() const {
    const int32_t count = moe.route.num_experts;
    return shard.experts_by_rank ? ShareOf(count, 1, shard.rank, shard.size)
                                 : Share{.first = 0, .count = count};
  }
  // Of what each of them has: of their width, and of their outputs.
  Share OwnOfExpert(int64_t width) const {
    return shard.experts_by_rank ? Share{.first = 0, .count = width} : Own(width);
  }
  // A draft layer has experts where the model has any.
  LayerKind draft_kind() const {
    return moe.expert_width > 0 ? LayerKind::kMoe : LayerKind::kDense;
  }

 private:
  Share OwnOf(int64_t width, int64_t unit) const {
    return shard.is_cut() ? ShareOf(width, unit, shard.rank, shard.size)
                          : Share{.first = 0, .count = width};
  }
};

// Throws Error(kInvalidArgument) with file, key, expected and actual if a value is missing, out of
// range, or one that Quire does not compute.
ModelConfig ParseModelConfig(const JsonRef& config);

// The folder's config.json. Tokens that end a text are those of config.json and, where there is
// one, of generation_config.json. Throws as ParseModelConfig does.
ModelConfig ReadModelConfig(const std::filesystem::path& model_dir);

// The same model, drafting. Throws Error(kInvalidArgument) by the model's name if it has no draft layer,
// or several, or one that no published model has.
ModelConfig WithDraftLayer(ModelConfig config);

// Parameters of the model, and those that one token uses: one row of the embedding, and of the
// experts those that it chooses. Without draft layers.
struct ParameterCounts {
  int64_t total = 0;
  int64_t active = 0;
};
ParameterCounts CountParameters(const ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_MODEL_CONFIG_H_
