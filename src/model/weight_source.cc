#include "model/weight_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/maths.h"
#include "base/narrow_float.h"
#include "io/safetensors.h"

namespace quire {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";

std::vector<int64_t> Extents(MatrixShape shape) { return {shape.outputs, shape.inputs}; }

void RequireExtents(const StoredTensor& tensor, const std::vector<int64_t>& expected) {
  Require(tensor.shape == expected, "{}: tensor '{}': expected shape [{}], got [{}]", tensor.file,
          tensor.name, fmt::join(expected, ", "), fmt::join(tensor.shape, ", "));
}

[[noreturn]] void RefuseDType(const StoredTensor& tensor, std::string_view expected) {
  throw Error(ErrorCode::kInvalidArgument, "{}: tensor '{}': expected {}, got {}", tensor.file,
              tensor.name, expected, FileDTypeName(tensor.dtype));
}

template <class T>
T ReadElement(const StoredTensor& tensor, size_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Bytes that one task looks through; a multiple of every element's.
constexpr int64_t kFiniteChunk = int64_t{1} << 20;

// Whether an element has all bits of `exponent` set. Adding the lowest of them carries into the sign,
// and no further, so eight bytes are looked at together: 6 GB/s on one core, where a loop over elements
// has 2.6 of bf16 and 1 of e4m3.
template <class Bits>
bool AnyNotFinite(std::span<const std::byte> bytes, Bits exponent) {
  constexpr uint64_t kEach = ~uint64_t{0} / std::numeric_limits<Bits>::max();
  const uint64_t mask = kEach * exponent;
  const uint64_t lowest = kEach * (exponent & (~exponent + 1u));
  uint64_t sums = 0;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    sums |= (word & mask) + lowest;
  }
  uint64_t rest = 0;
  if (i < bytes.size()) std::memcpy(&rest, bytes.data() + i, bytes.size() - i);
  sums |= (rest & mask) + lowest;
  return (sums & (kEach << (8 * sizeof(Bits) - 1))) != 0;
}

// The number of the first element that is infinite or not a number, its bits of `exponent` all being
// set; the number of elements if there is none.
template <class Bits>
int64_t FirstNotFinite(std::span<const std::byte> bytes, Bits exponent, Executor& executor) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Bits));
  const int64_t size = std::ssize(bytes);
  std::atomic<int64_t> first = size / kBytes;
  executor.Run(CeilDiv(size, kFiniteChunk), [&](int64_t chunk) {
    const int64_t begin = chunk * kFiniteChunk;
    const int64_t count = std::min(kFiniteChunk, size - begin);
    if (!AnyNotFinite(bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                      exponent)) {
      return;
    }
    int64_t place = begin / kBytes;
    for (Bits bits = 0;; ++place) {
      std::memcpy(&bits, bytes.data() + place * kBytes, sizeof(Bits));
      if ((bits & exponent) == exponent) break;
    }
    int64_t known = first.load();
    while (place < known && !first.compare_exchange_weak(known, place)) {
    }
  });
  return first.load();
}

// "[3, 17]": where element `i` stands.
std::string PlaceOf(const StoredTensor& tensor, int64_t i) {
  std::vector<int64_t> place(tensor.shape.size());
  for (size_t d = place.size(); d-- > 0; i /= tensor.shape[d]) place[d] = i % tensor.shape[d];
  return fmt::format("[{}]", fmt::join(place, ", "));
}

// One such number makes every answer nonsense, and not always one that can be seen: a NaN of a router
// chooses experts all the same.
void RequireFinite(const StoredTensor& tensor, Share elements, Executor& executor) {
  const int64_t element_bytes = FileDTypeBytes(tensor.dtype).raw();
  const std::span<const std::byte> bytes =
      tensor.bytes.subspan(static_cast<size_t>(elements.first * element_bytes),
                           static_cast<size_t>(elements.count * element_bytes));
  const auto first_of = [&](auto exponent) { return FirstNotFinite(bytes, exponent, executor); };
  int64_t first = 0;
  switch (tensor.dtype) {
    case FileDType::kF32:
      first = first_of(uint32_t{0x7f800000});
      break;
    case FileDType::kF16:
      first = first_of(uint16_t{0x7c00});
      break;
    case FileDType::kBf16:
      first = first_of(uint16_t{0x7f80});
      break;
    default:
      QUIRE_CHECK(tensor.dtype == FileDType::kF8E4m3);
      first = first_of(uint8_t{0x7f});  // its only NaN
      break;
  }
  if (first == elements.count) return;
  throw Error(ErrorCode::kInvalidArgument,
              "{}: tensor '{}': expected finite numbers, got another at {}", tensor.file,
              tensor.name, PlaceOf(tensor, elements.first + first));
}

void RequireFinite(const StoredTensor& tensor, Executor& executor) {
  RequireFinite(tensor, {.count = std::ssize(tensor.bytes) / FileDTypeBytes(tensor.dtype).raw()},
                executor);
}

class FileWeights final : public WeightSource {
 public:
  FileWeights(const std::filesystem::path& model_dir, const ModelConfig& config)
      : tensors_(TensorSet::Open(model_dir)), config_(config), prefix_(config.tensor_prefix) {}

  WeightFormat Format(const std::string& name, MatrixShape shape) const override {
    const StoredTensor& tensor = tensors_.At(prefix_ + name);
    RequireExtents(tensor, Extents(shape));
    switch (tensor.dtype) {
      case FileDType::kF32:
        return WeightFormat::kF32;
      case FileDType::kF16:
        return WeightFormat::kF16;
      case FileDType::kBf16:
        return WeightFormat::kBf16;
      case FileDType::kF8E4m3:
        ScalesOf(tensor);
        return WeightFormat::kFp8Block;
      default:
        RefuseDType(tensor, "F32, F16, BF16 or F8_E4M3");
    }
  }

  MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                      Executor& executor) override {
    const WeightFormat format = Format(name, shape);
    const StoredTensor& tensor = tensors_.At(prefix_ + name);
    Forget();
    const Share elements{.first = outputs.first * shape.inputs,
                         .count = outputs.count * shape.inputs};
    RequireFinite(tensor, elements, executor);
    last_read_ = &tensor;
    MatrixSource source{.format = format,
                        .shape = {.outputs = outputs.count, .inputs = shape.inputs},
                        .data = tensor.bytes.data() + elements.first * WeightBytes(format),
                        .output_stride = shape.inputs,
                        .first_output = outputs.first};
    if (format == WeightFormat::kFp8Block) {
      const StoredTensor& scales = ScalesOf(tensor);
      RequireFinite(scales, executor);
      source.scales = scales.bytes.data();
      source.scale_stride = scales.shape[1];
      source.block_outputs = config_.fp8_blocks->rows;
      source.block_inputs = config_.fp8_blocks->columns;
    }
    return source;
  }

  void CheckVector(const std::string& name, int64_t size) const override {
    const StoredTensor& tensor = tensors_.At(prefix_ + name);
    RequireExtents(tensor, {size});
    if (tensor.dtype != FileDType::kF32 && tensor.dtype != FileDType::kF16 &&
        tensor.dtype != FileDType::kBf16) {
      RefuseDType(tensor, "F32, F16 or BF16");
    }
  }

  void ReadVector(const std::string& name, std::span<float> values) override {
    CheckVector(name, std::ssize(values));
    const StoredTensor& tensor = tensors_.At(prefix_ + name);
    SerialExecutor serial;
    RequireFinite(tensor, serial);
    for (size_t i = 0; i < values.size(); ++i) {
      switch (tensor.dtype) {
        case FileDType::kF32:
          values[i] = ReadElement<float>(tensor, i);
          break;
        case FileDType::kF16:
          values[i] = ToFloat(ReadElement<F16>(tensor, i));
          break;
        default:
          values[i] = ToFloat(ReadElement<Bf16>(tensor, i));
          break;
      }
    }
  }

  bool Has(const std::string& name) const override {
    return tensors_.Find(prefix_ + name) != nullptr;
  }

  void ReadIntegers(const std::string& name, std::span<int64_t> values) override {
    const StoredTensor& tensor = tensors_.At(prefix_ + name);
    RequireExtents(tensor, {std::ssize(values)});
    if (tensor.dtype != FileDType::kI64) RefuseDType(tensor, "I64");
    for (size_t i = 0; i < values.size(); ++i) values[i] = ReadElement<int64_t>(tensor, i);
  }

  void RequireNoOthers(const std::unordered_set<std::string>& names,
                       int32_t num_layers) const override {
    const StoredTensor* first = nullptr;
    int64_t count = 0;
    for (const StoredTensor& tensor : tensors_.tensors()) {
      if (IsOneOf(names, tensor.name) || IsNoPart(tensor, num_layers)) continue;
      if (first == nullptr) first = &tensor;
      ++count;
    }
    if (first == nullptr) return;
    throw Error(ErrorCode::kInvalidArgument,
                "{}: tensor '{}': expected only tensors that the model of config.json is computed "
                "from, got {} that nothing reads, this one first",
                first->file, first->name, count);
  }

 private:
  // One of `names`, or the scales of one.
  bool IsOneOf(const std::unordered_set<std::string>& names, std::string_view name) const {
    if (!name.starts_with(prefix_)) return false;
    if (names.contains(std::string(name.substr(prefix_.size())))) return true;
    if (!name.ends_with(kScaleSuffix)) return false;
    name.remove_suffix(kScaleSuffix.size());
    const StoredTensor* scaled = tensors_.Find(name);
    return scaled != nullptr && scaled->dtype == FileDType::kF8E4m3 &&
           names.contains(std::string(name.substr(prefix_.size())));
  }

  // Whether the model is whole without it.
  bool IsNoPart(const StoredTensor& tensor, int32_t num_layers) const {
    std::string_view name = tensor.name;
    if (!name.starts_with(prefix_)) return true;  // of the vision part
    name.remove_prefix(prefix_.size());
    if (name.ends_with(".rotary_emb.inv_freq")) return true;
    if (name == "lm_head.weight") return config_.tied_embeddings && IsEmbedding(tensor);
    return IsOfDraftLayer(name, num_layers);
  }

  bool IsEmbedding(const StoredTensor& tensor) const {
    const StoredTensor& embedding = tensors_.At(prefix_ + "model.embed_tokens.weight");
    return tensor.dtype == embedding.dtype && tensor.shape == embedding.shape &&
           std::ranges::equal(tensor.bytes, embedding.bytes);
  }

  // A layer behind those that are read which joins a token's embedding with the hidden state before it.
  // Not every layer there is one: config.json may have fewer layers than the file.
  bool IsOfDraftLayer(std::string_view name, int32_t num_layers) const {
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) return false;
    int64_t layer = 0;
    const char* const end = name.data() + name.size();
    const auto [dot, error] = std::from_chars(name.data() + kLayers.size(), end, layer);
    if (error != std::errc() || dot == end || *dot != '.' || layer < num_layers) {
      return false;
    }
    return tensors_.Find(fmt::format("{}{}{}.eh_proj.weight", prefix_, kLayers, layer)) != nullptr;
  }

  // The scales of an fp8 tensor: one per block, the last blocks possibly partial.
  const StoredTensor& ScalesOf(const StoredTensor& tensor) const {
    Require(config_.fp8_blocks.has_value(),
            "{}: tensor '{}' is F8_E4M3, but config.json has no quantization_config that says how",
            tensor.file, tensor.name);
    const StoredTensor& scales = tensors_.At(tensor.name + std::string(kScaleSuffix));
    RequireExtents(scales, {CeilDiv(tensor.shape[0], int64_t{config_.fp8_blocks->rows}),
                            CeilDiv(tensor.shape[1], int64_t{config_.fp8_blocks->columns})});
    if (scales.dtype != FileDType::kF32) RefuseDType(scales, "F32");
    return scales;
  }

  // A tensor that has been packed need not stay in memory twice.
  void Forget() const {
    if (last_read_ != nullptr) DropCachedPages(last_read_->bytes);
  }

  TensorSet tensors_;
  const ModelConfig& config_;
  std::string prefix_;
  const StoredTensor* last_read_ = nullptr;
};

// ---- Dummies ----

// A well-mixed function of its argument (the finaliser of splitmix64).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// The values that dummies are drawn from: kLevels steps over [-1, 1), times a power of two. All are exact
// in every format but e4m3, so a model is the same in f32, f16 and bf16.
constexpr int kLevels = 128;
float Level(int i) { return static_cast<float>(i - kLevels / 2) / (kLevels / 2); }

template <class T>
T EncodeAs(float value);
template <>
float EncodeAs<float>(float value) {
  return value;
}
template <>
F16 EncodeAs<F16>(float value) {
  return ToF16(value);
}
template <>
Bf16 EncodeAs<Bf16>(float value) {
  return ToBf16(value);
}
template <>
Fp8E4m3 EncodeAs<Fp8E4m3>(float value) {
  return ToFp8E4m3(value);
}

// out[i] = the level that (seed, first + i) picks, times scale.
template <class T>
void FillDummy(uint64_t seed, float scale, int64_t first, std::span<std::byte> out,
               Executor& executor) {
  std::array<T, kLevels> levels;
  for (int i = 0; i < kLevels; ++i) levels[i] = EncodeAs<T>(Level(i) * scale);
  constexpr int64_t kPerHash = 8;  // of 8 bits each, 7 of them used
  constexpr int64_t kChunk = int64_t{1} << 16;
  const int64_t count = std::ssize(out) / static_cast<int64_t>(sizeof(T));
  T* const values = reinterpret_cast<T*>(out.data());
  executor.Run(CeilDiv(count, kChunk), [&](int64_t chunk) {
    const int64_t end = std::min(count, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end;) {
      const int64_t place = first + i;
      uint64_t bits = Mix(seed + static_cast<uint64_t>(place / kPerHash)) >> 8 * (place % kPerHash);
      const int64_t hash_end = std::min(end, i + kPerHash - place % kPerHash);
      for (; i < hash_end; ++i, bits >>= 8) values[i] = levels[bits % kLevels];
    }
  });
}

class DummyWeights final : public WeightSource {
 public:
  explicit DummyWeights(const ModelConfig& config) : config_(config) {}

  WeightFormat Format(const std::string& name, MatrixShape) const override {
    if (config_.fp8_blocks && IsQuantized(name)) return WeightFormat::kFp8Block;
    if (config_.weight_dtype == "float32") return WeightFormat::kF32;
    if (config_.weight_dtype == "float16") return WeightFormat::kF16;
    return WeightFormat::kBf16;
  }

  MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                      Executor& executor) override {
    // Levels have variance 1/3. Products of unit inputs keep about unit size, to a power of two.
    const double deviation = std::sqrt(3.0 / static_cast<double>(shape.inputs));
    const float scale = std::exp2(std::round(static_cast<float>(std::log2(deviation))));
    const uint64_t seed = HashName(name);
    MatrixSource source{.format = Format(name, shape),
                        .shape = {.outputs = outputs.count, .inputs = shape.inputs},
                        .output_stride = shape.inputs,
                        .first_output = outputs.first};
    const Share elements{.first = outputs.first * shape.inputs,
                         .count = outputs.count * shape.inputs};
    switch (source.format) {
      case WeightFormat::kF32:
        Fill<float>(seed, scale, elements, executor);
        break;
      case WeightFormat::kF16:
        Fill<F16>(seed, scale, elements, executor);
        break;
      case WeightFormat::kBf16:
        Fill<Bf16>(seed, scale, elements, executor);
        break;
      case WeightFormat::kFp8Block:
        Fill<Fp8E4m3>(seed, 1.0f, elements, executor);
        FillScales(scale, shape, source);
        break;
    }
    source.data = data_.data();
    return source;
  }

  void CheckVector(const std::string&, int64_t) const override {}
  bool Has(const std::string&) const override { return false; }
  void ReadIntegers(const std::string& name, std::span<int64_t>) override {
    throw Error(ErrorCode::kInvalidArgument, "tensor '{}': there are no dummies of integers", name);
  }
  void RequireNoOthers(const std::unordered_set<std::string>&, int32_t) const override {}

  void ReadVector(const std::string& name, std::span<float> values) override {
    const bool is_norm = name.ends_with("norm.weight");
    const uint64_t seed = HashName(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const float level = Level(static_cast<int>(Mix(seed + i) % kLevels));
      values[i] = is_norm ? 1.0f + level / 8 : level / 8;
    }
  }

 private:
  // What DeepSeek quantises: the projections, not the embeddings, the router, an indexer's gate, what
  // joins the inputs of a draft layer or the head.
  static bool IsQuantized(std::string_view name) {
    if (name.ends_with("indexer.weights_proj.weight")) return false;
    if (name.ends_with(".eh_proj.weight")) return false;
    return name.ends_with("indexer.wq_b.weight") || name.ends_with("indexer.wk.weight") ||
           name.ends_with("_proj.weight") || name.ends_with("_proj_with_mqa.weight");
  }

  template <class T>
  void Fill(uint64_t seed, float scale, Share elements, Executor& executor) {
    data_.resize(static_cast<size_t>(elements.count) * sizeof(T));
    FillDummy<T>(seed, scale, elements.first, data_, executor);
  }

  void FillScales(float scale, MatrixShape whole, MatrixSource& source) {
    source.block_outputs = config_.fp8_blocks->rows;
    source.block_inputs = config_.fp8_blocks->columns;
    source.scale_stride = CeilDiv(whole.inputs, int64_t{source.block_inputs});
    const int64_t rows = CeilDiv(whole.outputs, int64_t{source.block_outputs});
    scales_.assign(static_cast<size_t>(rows * source.scale_stride), scale);
    source.scales = reinterpret_cast<const std::byte*>(scales_.data());
  }

  const ModelConfig& config_;
  std::vector<std::byte> data_;
  std::vector<float> scales_;
};

}  // namespace

std::unique_ptr<WeightSource> OpenWeightFiles(const std::filesystem::path& model_dir,
                                              const ModelConfig& config) {
  return std::make_unique<FileWeights>(model_dir, config);
}

std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config) {
  return std::make_unique<DummyWeights>(config);
}

}  // namespace quire
