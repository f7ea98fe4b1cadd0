#include "model/cuda/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/maths.h"
#include "device/cuda/upload.h"

namespace quire::cuda {
namespace {

constexpr int64_t kBlock = 128;

template <class T>
T Load(const std::byte* from, int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Element (n, k) of a matrix, widened exactly.
float ElementAt(const MatrixSource& source, int64_t n, int64_t k) {
  const int64_t at = n * source.output_stride + k * source.input_stride;
  switch (source.format) {
    case WeightFormat::kF32:
      return Load<float>(source.data, at);
    case WeightFormat::kF16:
      return ToFloat(Load<F16>(source.data, at));
    case WeightFormat::kBf16:
      return ToFloat(Load<Bf16>(source.data, at));
    case WeightFormat::kFp8Block:
      break;
  }
  const int64_t block = (source.first_output + n) / source.block_outputs * source.scale_stride +
                        (source.first_input + k) / source.block_inputs * source.scale_input_stride;
  return ToFloat(Load<Fp8E4m3>(source.data, at)) * Load<float>(source.scales, block);
}

// Walks over a model's tensors by name, in the order in which they lie in memory: the order of
// quire::LoadWeights, but matrices of one kind stand together.
class Loader {
 public:
  Loader(const ModelConfig& config, WeightSource& source, Carver& carver, Executor& executor,
         const LoadProgress& progress)
      : config_(config),
        source_(source),
        carver_(carver),
        executor_(executor),
        progress_(progress) {
    if (!carver.counting()) uploader_.emplace(executor);
  }

  ModelWeights Load() {
    ModelWeights weights;
    const MatrixShape vocabulary{config_.vocab_size, config_.hidden_size};
    const WeightView embedding = AsBf16("model.embed_tokens.weight", vocabulary);
    if (!carver_.counting()) {
      weights.embedding = {reinterpret_cast<const Bf16*>(embedding.data),
                           {vocabulary.outputs, vocabulary.inputs}};
    }
    for (int32_t i = 0; i < config_.num_layers(); ++i) {
      weights.layers.push_back(
          Layer(fmt::format("model.layers.{}.", i), config_.layers[static_cast<size_t>(i)]));
    }
    weights.final_norm =
        Vector("model.norm.weight", config_.hidden_size, static_cast<float>(config_.logit_scale));
    weights.head = config_.tied_embeddings ? embedding : Matrix("lm_head.weight", vocabulary);
    if (uploader_) uploader_->Finish();
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
    (void)source_.Format(name, whole);
    const MatrixSource from =
        carver_.counting() ? MatrixSource{} : source_.Matrix(name, whole, executor_);
    const int64_t latent = config_.latent_dim, nope = config_.nope_dim, value = config_.value_dim;
    attention.key_heads = Converted(
        {latent, nope}, config_.num_heads,
        [&](int64_t h, int64_t n, int64_t k) { return ElementAt(from, h * head_rows + k, n); });
    attention.value_heads =
        Converted({value, latent}, config_.num_heads, [&](int64_t h, int64_t n, int64_t k) {
          return ElementAt(from, h * head_rows + nope + n, k);
        });
  }

  void LoadExperts(const std::string& prefix, LayerWeights& layer) {
    const MoeConfig& moe = config_.moe;
    const int32_t num_experts = moe.route.num_experts;
    layer.router = AsBf16(prefix + "gate.weight", {num_experts, config_.hidden_size});
    if (moe.route_bias) {
      layer.router_bias = Vector(prefix + "gate.e_score_correction_bias", num_experts);
    }
    std::vector<std::string> experts;
    for (int32_t e = 0; e < num_experts; ++e) {
      experts.push_back(fmt::format("{}experts.{}.", prefix, e));
    }
    layer.experts = Mlps(experts, moe.expert_width);
    if (moe.shared_width > 0) layer.mlp = Mlp(prefix + "shared_experts.", moe.shared_width);
  }

  MlpWeights Mlp(const std::string& prefix, int64_t width) {
    const std::string gate = prefix + "gate_proj.weight", up = prefix + "up_proj.weight";
    if (!CanJoin(gate, up, width)) return Mlps({prefix}, width);
    MlpWeights mlp;
    const WeightView two = Matrices({gate, up}, {width, config_.hidden_size});
    if (!two.empty()) {
      mlp.gate = PartOf(two, 0, 1);
      mlp.up = PartOf(two, 1, 1);
      mlp.gate_up = PartOf(two, 0, 2);
    }
    mlp.down = Matrix(prefix + "down_proj.weight", {config_.hidden_size, width});
    return mlp;
  }

  // Whether the two, one behind the other, are one matrix: no block of scales is of both.
  bool CanJoin(const std::string& gate, const std::string& up, int64_t width) {
    const MatrixShape shape{width, config_.hidden_size};
    const WeightFormat format = DeviceFormat(source_.Format(gate, shape));
    if (DeviceFormat(source_.Format(up, shape)) != format) return false;
    return format != WeightFormat::kFp8Block || width % kBlock == 0;
  }

  // `count` of contiguous matrices, from `first` on, as one.
  static WeightView PartOf(const WeightView& matrices, int64_t first, int64_t count) {
    const MatrixShape shape{count * matrices.shape.outputs, matrices.shape.inputs};
    const int64_t element = first * matrices.matrix_stride;
    if (matrices.format != WeightFormat::kFp8Block) {
      return DenseWeights(reinterpret_cast<const Bf16*>(matrices.data) + element, shape);
    }
    return Fp8Weights(reinterpret_cast<const Fp8E4m3*>(matrices.data) + element,
                      matrices.scales + first * matrices.scale_matrix_stride, shape);
  }

  MlpWeights Mlps(const std::vector<std::string>& prefixes, int64_t width) {
    const auto all = [&](const char* name, MatrixShape shape) {
      std::vector<std::string> names;
      for (const std::string& prefix : prefixes) names.push_back(prefix + name);
      return Matrices(names, shape);
    };
    const MatrixShape in{width, config_.hidden_size};
    MlpWeights mlp;
    mlp.gate = all("gate_proj.weight", in);
    mlp.up = all("up_proj.weight", in);
    mlp.down = all("down_proj.weight", {config_.hidden_size, width});
    return mlp;
  }

  WeightView Matrix(const std::string& name, MatrixShape shape) { return Matrices({name}, shape); }

  // Matrices of one shape, one behind the other. All are stored alike.
  WeightView Matrices(const std::vector<std::string>& names, MatrixShape shape) {
    const WeightFormat format = DeviceFormat(source_.Format(names[0], shape));
    for (const std::string& name : names) {
      Require(DeviceFormat(source_.Format(name, shape)) == format,
              "tensor '{}': expected the format of '{}', {}, got {}", name, names[0],
              WeightFormatName(format), WeightFormatName(source_.Format(name, shape)));
    }
    return format == WeightFormat::kFp8Block ? Fp8(names, shape) : Bf16s(names, shape);
  }

  WeightView AsBf16(const std::string& name, MatrixShape shape) {
    (void)source_.Format(name, shape);
    return Bf16s({name}, shape);
  }

  WeightFormat DeviceFormat(WeightFormat stored) const {
    if (stored != WeightFormat::kFp8Block) return WeightFormat::kBf16;
    const bool is_native =
        config_.fp8_blocks->rows == kBlock && config_.fp8_blocks->columns == kBlock;
    return is_native ? stored : WeightFormat::kBf16;
  }

  WeightView Bf16s(const std::vector<std::string>& names, MatrixShape shape) {
    const int64_t elements = shape.outputs * shape.inputs;
    const std::span<Bf16> memory = carver_.Take<Bf16>(elements * std::ssize(names));
    if (carver_.counting()) return {};
    for (size_t i = 0; i < names.size(); ++i) {
      const auto to =
          memory.subspan(i * static_cast<size_t>(elements), static_cast<size_t>(elements));
      const MatrixSource from = source_.Matrix(names[i], shape, executor_);
      if (from.format == WeightFormat::kBf16 && from.input_stride == 1 &&
          from.output_stride == shape.inputs) {
        Send({from.data, to.size_bytes()}, std::as_writable_bytes(to));
      } else {
        SendMade(to, shape.inputs, [&](int64_t n, int64_t k) { return ElementAt(from, n, k); });
      }
    }
    return DenseWeights(memory.data(), shape, std::ssize(names));
  }

  WeightView Fp8(const std::vector<std::string>& names, MatrixShape shape) {
    const int64_t elements = shape.outputs * shape.inputs;
    const int64_t blocks = CeilDiv(shape.outputs, kBlock) * CeilDiv(shape.inputs, kBlock);
    const std::span<Fp8E4m3> codes = carver_.Take<Fp8E4m3>(elements * std::ssize(names));
    const std::span<float> scales = carver_.Take<float>(blocks * std::ssize(names));
    if (carver_.counting()) return {};
    for (size_t i = 0; i < names.size(); ++i) {
      const MatrixSource from = source_.Matrix(names[i], shape, executor_);
      Require(from.input_stride == 1 && from.output_stride == shape.inputs &&
                  from.scale_input_stride == 1 &&
                  from.scale_stride == CeilDiv(shape.inputs, kBlock),
              "tensor '{}': expected contiguous codes and scales", names[i]);
      const auto to =
          codes.subspan(i * static_cast<size_t>(elements), static_cast<size_t>(elements));
      Send({from.data, to.size_bytes()}, std::as_writable_bytes(to));
      const auto to_scales =
          scales.subspan(i * static_cast<size_t>(blocks), static_cast<size_t>(blocks));
      Send({from.scales, to_scales.size_bytes()}, std::as_writable_bytes(to_scales));
    }
    return Fp8Weights(codes.data(), scales.data(), shape, std::ssize(names));
  }

  // `count` matrices of which element(i, n, k) is given.
  template <class Element>
  WeightView Converted(MatrixShape shape, int64_t count, Element element) {
    const std::span<Bf16> memory = carver_.Take<Bf16>(count * shape.outputs * shape.inputs);
    if (carver_.counting()) return {};
    SendMade(memory, shape.inputs, [&](int64_t row, int64_t k) {
      return element(row / shape.outputs, row % shape.outputs, k);
    });
    return DenseWeights(memory.data(), shape, count);
  }

  // Rows of bf16, made from element(row, column), a row at a time.
  template <class Element>
  void SendMade(std::span<Bf16> to, int64_t width, Element element) {
    const ByteOffset row_bytes(static_cast<int64_t>(sizeof(Bf16)) * width);
    uploader_->UploadMade(
        std::as_writable_bytes(to), row_bytes,
        [&](std::span<std::byte> piece, ByteOffset begin) {
          const int64_t first = begin.raw() / row_bytes.raw();
          Bf16* const out = reinterpret_cast<Bf16*>(piece.data());
          executor_.Run(std::ssize(piece) / row_bytes.raw(), [&](int64_t row) {
            for (int64_t k = 0; k < width; ++k) {
              out[row * width + k] = ToBf16(element(first + row, k));
            }
          });
        },
        [&](ByteOffset done) { Report(done); });
  }

  void Send(std::span<const std::byte> from, std::span<std::byte> to) {
    uploader_->Upload(from, to, [&](ByteOffset done) { Report(done); });
  }

  const float* AttentionBias(const std::string& name, int64_t size) {
    return config_.attention_bias ? Vector(name, size).data() : nullptr;
  }

  std::span<const float> Vector(const std::string& name, int64_t size, float scale = 1.0f) {
    source_.CheckVector(name, size);
    const std::span<float> to = carver_.Take<float>(size);
    if (carver_.counting()) return {};
    std::vector<float> values(static_cast<size_t>(size));
    source_.ReadVector(name, values);
    if (scale != 1.0f) {
      for (float& value : values) value *= scale;
    }
    Send(std::as_bytes(std::span<const float>(values)), std::as_writable_bytes(to));
    return to;
  }

  void Report(ByteOffset done) const {
    if (progress_) progress_(done);
  }

  const ModelConfig& config_;
  WeightSource& source_;
  Carver& carver_;
  Executor& executor_;
  const LoadProgress& progress_;
  std::optional<Uploader> uploader_;  // none while only counting
};

}  // namespace

ModelWeights LoadWeights(const ModelConfig& config, WeightSource& source, Carver& carver,
                         Executor& executor, const LoadProgress& progress) {
  return Loader(config, source, carver, executor, progress).Load();
}

}  // namespace quire::cuda
