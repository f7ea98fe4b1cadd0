#include "model/weights.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "kernels/cpu/gemm.h"

namespace quire {
namespace {

// `count` outputs of a matrix, from `first`.
MatrixSource Rows(MatrixSource source, int64_t first, int64_t count) {
  source.shape.outputs = count;
  source.first_output += first;
  if (source.data != nullptr) {
    source.data += first * source.output_stride * WeightBytes(source.format);
  }
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
  Loader(const ModelConfig& config, WeightSource& source, Carver& carver, Executor& executor,
         const LoadProgress& progress)
      : config_(config),
        source_(source),
        carver_(carver),
        executor_(executor),
        progress_(progress) {}

  ModelWeights Load() {
    ModelWeights weights;
    const MatrixShape vocabulary{config_.vocab_size, config_.hidden_size};
    weights.embedding = Matrix("model.embed_tokens.weight", vocabulary);
    for (int32_t i = 0; i < config_.num_layers(); ++i) {
      weights.layers.push_back(Layer(fmt::format("model.layers.{}.", i), config_.layers[i]));
    }
    weights.final_norm = Vector("model.norm.weight", config_.hidden_size);
    weights.head =
        config_.tied_embeddings ? weights.embedding : Matrix("lm_head.weight", vocabulary);
    return weights;
  }

 private:
  LayerWeights Layer(const std::string& prefix, LayerKind kind) {
    LayerWeights layer{.kind = kind};
    layer.attention_norm = Vector(prefix + "input_layernorm.weight", config_.hidden_size);
    layer.attention = Attention(prefix + "self_attn.");
    layer.mlp_norm = Vector(prefix + "post_attention_layernorm.weight", config_.hidden_size);
    if (kind == LayerKind::kDense) {
      layer.mlp = Mlp(prefix + "mlp.", config_.dense_width);
    } else {
      LoadExperts(prefix + "mlp.", layer);
    }
    return layer;
  }

  AttentionWeights Attention(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size;
    const int64_t queries = int64_t{config_.num_heads} * config_.head_dim();
    AttentionWeights attention;
    if (config_.q_lora_rank > 0) {
      attention.q_down = Matrix(prefix + "q_a_proj.weight", {config_.q_lora_rank, hidden});
      attention.q_down_bias = AttentionBias(prefix + "q_a_proj.bias", config_.q_lora_rank);
      attention.q_norm = Vector(prefix + "q_a_layernorm.weight", config_.q_lora_rank);
      attention.q_up = Matrix(prefix + "q_b_proj.weight", {queries, config_.q_lora_rank});
    } else {
      attention.q_up = Matrix(prefix + "q_proj.weight", {queries, hidden});
    }
    const int64_t row = config_.latent_dim + config_.rope_dim;
    attention.kv_down = Matrix(prefix + "kv_a_proj_with_mqa.weight", {row, hidden});
    attention.kv_down_bias = AttentionBias(prefix + "kv_a_proj_with_mqa.bias", row);
    attention.kv_norm = Vector(prefix + "kv_a_layernorm.weight", config_.latent_dim);
    LoadHeads(prefix + "kv_b_proj.weight", attention);
    const int64_t values = int64_t{config_.num_heads} * config_.value_dim;
    attention.out = Matrix(prefix + "o_proj.weight", {hidden, values});
    attention.out_bias = AttentionBias(prefix + "o_proj.bias", hidden);
    return attention;
  }

  // kv_b is [num_heads, nope_dim + value_dim, latent_dim]. Keys use it transposed: a query head's
  // nope_dim inputs give latent_dim outputs.
  void LoadHeads(const std::string& name, AttentionWeights& attention) {
    const int64_t head_rows = config_.nope_dim + config_.value_dim;
    const MatrixShape whole{config_.num_heads * head_rows, config_.latent_dim};
    const MatrixShape key_shape{config_.latent_dim, config_.nope_dim};
    const MatrixShape value_shape{config_.value_dim, config_.latent_dim};
    // Blocks of one scale cut across heads: fp8 becomes f32 here, exactly. kv_b is a small part of a
    // model (0.15% of DeepSeek-V3).
    const WeightFormat stored = source_.Format(name, whole);
    const WeightFormat format = stored == WeightFormat::kFp8Block ? WeightFormat::kF32 : stored;
    const MatrixSource source =
        carver_.counting() ? MatrixSource{} : source_.Matrix(name, whole, executor_);
    for (int32_t h = 0; h < config_.num_heads; ++h) {
      const MatrixSource keys = Rows(source, h * head_rows, config_.nope_dim);
      const MatrixSource values = Rows(source, h * head_rows + config_.nope_dim, config_.value_dim);
      attention.key_heads.push_back(Pack(Transposed(keys), key_shape, format));
      attention.value_heads.push_back(Pack(values, value_shape, format));
    }
    Report();
  }

  void LoadExperts(const std::string& prefix, LayerWeights& layer) {
    const MoeConfig& moe = config_.moe;
    const int32_t num_experts = moe.route.num_experts;
    layer.router = Matrix(prefix + "gate.weight", {num_experts, config_.hidden_size});
    if (moe.route_bias) {
      layer.router_bias = Vector(prefix + "gate.e_score_correction_bias", num_experts);
    }
    for (int32_t e = 0; e < num_experts; ++e) {
      layer.experts.push_back(Mlp(fmt::format("{}experts.{}.", prefix, e), moe.expert_width));
    }
    if (moe.shared_width > 0) layer.mlp = Mlp(prefix + "shared_experts.", moe.shared_width);
  }

  MlpWeights Mlp(const std::string& prefix, int64_t width) {
    const MatrixShape in{width, config_.hidden_size};
    return {.gate = Matrix(prefix + "gate_proj.weight", in),
            .up = Matrix(prefix + "up_proj.weight", in),
            .down = Matrix(prefix + "down_proj.weight", {config_.hidden_size, width})};
  }

  PackedMatrix Matrix(const std::string& name, MatrixShape shape) {
    const WeightFormat format = PackedFormat(source_.Format(name, shape));
    const MatrixSource source =
        carver_.counting() ? MatrixSource{} : source_.Matrix(name, shape, executor_);
    const PackedMatrix matrix = Pack(source, shape, format);
    Report();
    return matrix;
  }

  PackedMatrix Pack(const MatrixSource& source, MatrixShape shape, WeightFormat format) {
    const std::span<std::byte> memory = carver_.TakeBytes(PackedBytes(shape, format));
    if (carver_.counting()) return {};
    return cpu::Pack(source, format, memory, executor_);
  }

  // As stored, but for fp8 blocks that a packed matrix has no place for: those become f32.
  WeightFormat PackedFormat(WeightFormat stored) const {
    if (stored != WeightFormat::kFp8Block) return stored;
    return config_.fp8_blocks->columns % kChunkInputs == 0 ? stored : WeightFormat::kF32;
  }

  std::span<const float> AttentionBias(const std::string& name, int64_t size) {
    return config_.attention_bias ? Vector(name, size) : std::span<const float>();
  }

  std::span<const float> Vector(const std::string& name, int64_t size) {
    source_.CheckVector(name, size);
    const std::span<float> values = carver_.Take<float>(size);
    if (!carver_.counting()) source_.ReadVector(name, values);
    return values;
  }

  void Report() const {
    if (progress_ && !carver_.counting()) progress_(carver_.used());
  }

  const ModelConfig& config_;
  WeightSource& source_;
  Carver& carver_;
  Executor& executor_;
  const LoadProgress& progress_;
};

}  // namespace

ModelWeights LoadWeights(const ModelConfig& config, WeightSource& source, Carver& carver,
                         Executor& executor, const LoadProgress& progress) {
  return Loader(config, source, carver, executor, progress).Load();
}

}  // namespace quire
