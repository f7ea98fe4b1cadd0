#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

// `count` outputs of a matrix, from `first` on.
MatrixSource Rows(MatrixSource source, int64_t first, int64_t count) {
  source.shape.outputs = count;
  source.first_output += first;
  source.data += first * source.output_stride * WeightBytes(source.format);
  return source;
}

// Inputs for outputs.
MatrixSource Transposed(MatrixSource source) {
  std::swap(source.shape.outputs, source.shape.inputs);
  std::swap(source.output_stride, source.input_stride);
  std::swap(source.scale_stride, source.scale_input_stride);
  std::swap(source.block_outputs, source.block_inputs);
  std::swap(source.first_output, source.first_input);
  return source;
}

// Walks over a model's tensors by name, in the order in which they lie in memory.
class Loader {
 public:
  Loader(const ModelConfig& config, WeightSource& source, WeightPacker& packer)
      : config_(config), source_(source), packer_(packer) {}

  ModelWeights Load() {
    ModelWeights weights;
    const MatrixShape vocabulary{config_.vocab_size, config_.hidden_size};
    const Share tokens = config_.Own(config_.vocab_size);
    weights.embedding = Matrix("model.embed_tokens.weight", vocabulary, WeightUse::kTable, tokens);
    for (int32_t i = 0; i < config_.num_layers(); ++i) {
      weights.layers.push_back(Layer(i, config_.layers[static_cast<size_t>(i)]));
    }
    weights.final_norm = Vector("model.norm.weight", config_.hidden_size);
    weights.head = config_.tied_embeddings
                       ? weights.embedding
                       : Matrix("lm_head.weight", vocabulary, WeightUse::kProduct, tokens);
    if (config_.drafts) weights.draft = Draft();
    source_.RequireNoOthers(names_, config_.num_layers() + (config_.drafts ? 1 : 0));
    packer_.Finish();
    return weights;
  }

  EagleWeights LoadEagle(const EagleConfig& eagle) {
    const int64_t hidden = config_.hidden_size;
    const int64_t num_inputs = std::ssize(eagle.wanted_layers);
    const std::string prefix =
        source_.Has("midlayer.hidden_norm.weight") ? "midlayer." : "layers.0.";
    EagleWeights weights;
    for (int64_t i = 0; eagle.input_norms && i < num_inputs; ++i) {
      weights.input_norms.push_back(Vector(fmt::format("fc_norm.{}.weight", i), hidden));
    }
    weights.fuse = Matrix("fc.weight", {hidden, num_inputs * hidden});
    if (source_.Has("embed_tokens.weight")) {
      weights.embedding =
          Matrix("embed_tokens.weight", {config_.vocab_size, hidden}, WeightUse::kTable);
    }
    weights.embedding_norm = Vector(prefix + "input_layernorm.weight", hidden);
    weights.hidden_norm = Vector(prefix + "hidden_norm.weight", hidden);
    weights.layer.attention = Attention(prefix + "self_attn.", 2 * hidden);
    weights.layer.mlp_norm = Vector(prefix + "post_attention_layernorm.weight", hidden);
    weights.layer.mlp = Mlps({prefix + "mlp."}, config_.dense_width);
    weights.head_norm = Vector("norm.weight", hidden);
    weights.head = Matrix("lm_head.weight", {eagle.draft_vocab_size, hidden});
    weights.token_ids = TokenIds(eagle.draft_vocab_size);
    names_.insert("t2d");  // the same the other way round
    source_.RequireNoOthers(names_, config_.num_layers());
    packer_.Finish();
    return weights;
  }

 private:
  // d2t holds how far each token's number is behind the trunk's. Without it they are the same.
  std::vector<int32_t> TokenIds(int64_t count) {
    names_.insert("d2t");
    std::vector<int64_t> offsets(static_cast<size_t>(count), 0);
    if (count < config_.vocab_size || source_.Has("d2t")) source_.ReadIntegers("d2t", offsets);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = offsets[static_cast<size_t>(i)];
      Require(offset >= -i && offset < config_.vocab_size - i,
              "tensor 'd2t': expected offsets to tokens 0..{}, got {} at [{}]",
              config_.vocab_size - 1, offset, i);
      ids.push_back(static_cast<int32_t>(i + offset));
    }
    return ids;
  }

  DraftWeights Draft() {
    const int32_t number = config_.num_layers();
    const std::string prefix = LayerPrefix(number);
    const int64_t hidden = config_.hidden_size;
    for (const char* copy : {"embed_tokens.weight", "shared_head.head.weight"}) {
      names_.insert(prefix + copy);
    }
    return {.embedding_norm = Vector(prefix + "enorm.weight", hidden),
            .hidden_norm = Vector(prefix + "hnorm.weight", hidden),
            .join = Matrix(prefix + "eh_proj.weight", {hidden, 2 * hidden}, WeightUse::kProduct,
                           config_.Own(hidden)),
            .layer = Layer(number, config_.draft_kind()),
            .head_norm = Vector(prefix + "shared_head.norm.weight", hidden)};
  }

  static std::string LayerPrefix(int32_t number) { return fmt::format("model.layers.{}.", number); }

  LayerWeights Layer(int32_t number, LayerKind kind) {
    const std::string prefix = LayerPrefix(number);
    LayerWeights layer{.kind = kind};
    layer.attention_norm = Vector(prefix + "input_layernorm.weight", config_.hidden_size);
    layer.attention = Attention(prefix + "self_attn.");
    if (config_.HasIndexer(number)) {
      layer.attention.indexer = Indexer(prefix + "self_attn.indexer.");
    }
    layer.mlp_norm = Vector(prefix + "post_attention_layernorm.weight", config_.hidden_size);
    if (kind == LayerKind::kDense) {
      layer.mlp = Mlps({prefix + "mlp."}, config_.dense_width);
      // A.X-K1's files have the norm here too, where nothing is computed with it.
      if (config_.moe.post_mlp_norm) names_.insert(prefix + "post_mlp_layernorm.weight");
    } else {
      LoadExperts(prefix + "mlp.", layer);
      if (config_.moe.post_mlp_norm) {
        layer.post_mlp_norm = Vector(prefix + "post_mlp_layernorm.weight", config_.hidden_size);
      }
    }
    return layer;
  }

  AttentionWeights Attention(const std::string& prefix) {
    return Attention(prefix, config_.hidden_size);
  }
  AttentionWeights Attention(const std::string& prefix, int64_t inputs) {
    const int64_t hidden = config_.hidden_size;
    const int64_t queries = int64_t{config_.num_heads} * config_.head_dim();
    const Share own_queries = OfHeads(config_.head_dim());
    AttentionWeights attention;
    if (config_.q_lora_rank > 0) {
      attention.q_down = Matrix(prefix + "q_a_proj.weight", {config_.q_lora_rank, inputs});
      attention.q_down_bias = AttentionBias(prefix + "q_a_proj.bias", config_.q_lora_rank);
      attention.q_norm = Vector(prefix + "q_a_layernorm.weight", config_.q_lora_rank);
      attention.q_up = Matrix(prefix + "q_b_proj.weight", {queries, config_.q_lora_rank},
                              WeightUse::kProduct, own_queries);
    } else {
      attention.q_up =
          Matrix(prefix + "q_proj.weight", {queries, inputs}, WeightUse::kProduct, own_queries);
    }
    const int64_t row = config_.latent_dim + config_.rope_dim;
    attention.kv_down = Matrix(prefix + "kv_a_proj_with_mqa.weight", {row, inputs});
    attention.kv_down_bias = AttentionBias(prefix + "kv_a_proj_with_mqa.bias", row);
    attention.kv_norm = Vector(prefix + "kv_a_layernorm.weight", config_.latent_dim);
    LoadHeads(prefix + "kv_b_proj.weight", attention);
    const int64_t values = int64_t{config_.num_heads} * config_.value_dim;
    attention.out = Matrix(prefix + "o_proj.weight", {hidden, values}, WeightUse::kProduct,
                           config_.Own(hidden));
    attention.out_bias = AttentionBias(prefix + "o_proj.bias", hidden);
    return attention;
  }

  // The rows of this rank's heads, in a matrix that has `each` of every head.
  Share OfHeads(int64_t each) const {
    const Share heads = config_.own_heads();
    return {.first = heads.first * each, .count = heads.count * each};
  }

  // The gate is a small matrix whose outputs are f32, as the router's are.
  IndexerWeights Indexer(const std::string& prefix) {
    const IndexerConfig& shape = *config_.indexer;
    const int64_t queries = int64_t{shape.num_heads} * shape.head_dim;
    return {.q_up = Matrix(prefix + "wq_b.weight", {queries, config_.q_lora_rank}),
            .key = Matrix(prefix + "wk.weight", {shape.head_dim, config_.hidden_size}),
            .key_norm = Vector(prefix + "k_norm.weight", shape.head_dim),
            .key_norm_bias = Vector(prefix + "k_norm.bias", shape.head_dim),
            .gate = Matrix(prefix + "weights_proj.weight", {shape.num_heads, config_.hidden_size},
                           WeightUse::kTable)};
  }

  // kv_b is [num_heads, nope_dim + value_dim, latent_dim]. Keys use it transposed: a query head's
  // nope_dim inputs give latent_dim outputs. It is a small part of a model (0.15% of DeepSeek-V3).
  void LoadHeads(const std::string& name, AttentionWeights& attention) {
    names_.insert(name);
    const int64_t head_rows = config_.nope_dim + config_.value_dim;
    const MatrixShape whole{config_.num_heads * head_rows, config_.latent_dim};
    const WeightFormat format = Kept(source_.Format(name, whole), WeightUse::kHeads);
    const int64_t num_heads = config_.own_heads().count;
    attention.key_heads =
        packer_.Reserve({config_.latent_dim, config_.nope_dim}, num_heads, format);
    attention.value_heads =
        packer_.Reserve({config_.value_dim, config_.latent_dim}, num_heads, format);
    if (config_.expands) {
      attention.key_up = packer_.Reserve({config_.nope_dim, config_.latent_dim}, num_heads, format);
    }
    if (packer_.counting()) return;
    const MatrixSource source = source_.Matrix(name, whole, OfHeads(head_rows), packer_.executor());
    std::vector<MatrixSource> keys, values, ups;
    for (int64_t h = 0; h < num_heads; ++h) {
      ups.push_back(Rows(source, h * head_rows, config_.nope_dim));
      keys.push_back(Transposed(ups.back()));
      values.push_back(Rows(source, h * head_rows + config_.nope_dim, config_.value_dim));
    }
    packer_.Fill(attention.key_heads, 0, keys, name);
    packer_.Fill(attention.value_heads, 0, values, name);
    if (config_.expands) packer_.Fill(attention.key_up, 0, ups, name);
  }

  void LoadExperts(const std::string& prefix, LayerWeights& layer) {
    const MoeConfig& moe = config_.moe;
    const int32_t num_experts = moe.route.num_experts;
    layer.router =
        Matrix(prefix + "gate.weight", {num_experts, config_.hidden_size}, WeightUse::kTable);
    if (moe.route_bias) {
      layer.router_bias = Vector(prefix + "gate.e_score_correction_bias", num_experts);
    }
    const Share own = config_.own_experts();
    std::vector<std::string> experts;
    for (int64_t e = 0; e < num_experts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", prefix, e);
      if (e >= own.first && e < own.end()) {
        experts.push_back(expert);
      } else {
        NoteOtherExpert(expert);
      }
    }
    layer.experts = Mlps(experts, moe.expert_width, config_.OwnOfExpert(moe.expert_width),
                         config_.OwnOfExpert(config_.hidden_size));
    if (moe.shared_width > 0) layer.mlp = Mlps({prefix + "shared_experts."}, moe.shared_width);
  }

  // One that another rank loads.
  void NoteOtherExpert(const std::string& prefix) {
    for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
      names_.insert(prefix + name);
    }
  }

  MlpWeights Mlps(const std::vector<std::string>& prefixes, int64_t width) {
    return Mlps(prefixes, width, config_.Own(width), config_.Own(config_.hidden_size));
  }
  // One MLP for every prefix, of which this rank has so much of the width, and of the outputs.
  MlpWeights Mlps(const std::vector<std::string>& prefixes, int64_t width, Share own_width,
                  Share own_outputs) {
    const auto names = [&](const char* name) {
      std::vector<std::string> all;
      for (const std::string& prefix : prefixes) all.push_back(prefix + name);
      return all;
    };
    std::vector<std::string> gates_and_ups = names("gate_proj.weight");
    std::ranges::move(names("up_proj.weight"), std::back_inserter(gates_and_ups));
    const Weight both =
        Matrices(gates_and_ups, {width, config_.hidden_size}, WeightUse::kProduct, own_width);
    const int64_t count = std::ssize(prefixes);
    return {.gate = PartOf(both, 0, count),
            .up = PartOf(both, count, count),
            .down = Matrices(names("down_proj.weight"), {config_.hidden_size, width},
                             WeightUse::kProduct, own_outputs)};
  }

  Weight Matrix(const std::string& name, MatrixShape shape, WeightUse use = WeightUse::kProduct) {
    return Matrix(name, shape, use, {.first = 0, .count = shape.outputs});
  }
  Weight Matrix(const std::string& name, MatrixShape shape, WeightUse use, Share outputs) {
    return Matrices({name}, shape, use, outputs);
  }

  // `outputs` of matrices of one shape, one behind the other. All are kept alike.
  Weight Matrices(const std::vector<std::string>& names, MatrixShape shape, WeightUse use,
                  Share outputs) {
    names_.insert(names.begin(), names.end());
    const WeightFormat format = Kept(source_.Format(names[0], shape), use);
    for (const std::string& name : names) {
      const WeightFormat stored = source_.Format(name, shape);
      Require(Kept(stored, use) == format, "tensor '{}': expected the format of '{}', {}, got {}",
              name, names[0], WeightFormatName(format), WeightFormatName(stored));
    }
    const MatrixShape own{.outputs = outputs.count, .inputs = shape.inputs};
    Weight weight = packer_.Reserve(own, std::ssize(names), format);
    weight.whole_outputs = shape.outputs;
    if (packer_.counting()) return weight;
    for (size_t i = 0; i < names.size(); ++i) {
      const MatrixSource source = source_.Matrix(names[i], shape, outputs, packer_.executor());
      packer_.Fill(weight, static_cast<int64_t>(i), std::span(&source, 1), names[i]);
    }
    return weight;
  }

  WeightFormat Kept(WeightFormat stored, WeightUse use) const {
    const BlockQuantization blocks = config_.fp8_blocks.value_or(BlockQuantization{});
    return packer_.FormatOf(stored, use, {.outputs = blocks.rows, .inputs = blocks.columns});
  }

  std::span<const float> AttentionBias(const std::string& name, int64_t size) {
    return config_.attention_bias ? Vector(name, size) : std::span<const float>();
  }

  std::span<const float> Vector(const std::string& name, int64_t size) {
    names_.insert(name);
    source_.CheckVector(name, size);
    return packer_.Floats(size, [&](std::span<float> to) { source_.ReadVector(name, to); });
  }

  const ModelConfig& config_;
  WeightSource& source_;
  WeightPacker& packer_;
  std::unordered_set<std::string> names_;  // of the tensors that the family's files have
};

}  // namespace

ModelWeights LoadWeights(const ModelConfig& config, WeightSource& source, WeightPacker& packer) {
  return Loader(config, source, packer).Load();
}

EagleWeights LoadWeights(const EagleConfig& config, WeightSource& source, WeightPacker& packer) {
  return Loader(config.layer, source, packer).LoadEagle(config);
}

}  // namespace quire
