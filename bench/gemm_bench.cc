#include "bench/gemm_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/narrow_float.h"
#include "bench/roof_bench.h"
#include "device/buffer.h"
#include "kernels/cpu/gemm.h"

namespace quire::bench {
namespace {

// `count` products of `rows` rows each, side by side: x and y are slices of wider rows, as heads
// are. Dimensions of DeepSeek-V2-Lite, and of a dense model of the same width.
struct GemmShape {
  const char* name;
  MatrixShape matrix;  // outputs, inputs
  int64_t rows;
  WeightFormat format = WeightFormat::kBf16;
  int64_t count = 1;
  Effort least_effort = Effort::kFull;
};

constexpr MatrixShape kUp{8192, 2048}, kDown{2048, 8192}, kHead{32000, 2048}, kExpert{1408, 2048};
constexpr MatrixShape kKeyHead{512, 128}, kValueHead{128, 512};
constexpr WeightFormat kF32 = WeightFormat::kF32, kF16 = WeightFormat::kF16,
                       kBf16 = WeightFormat::kBf16, kFp8 = WeightFormat::kFp8Block;

constexpr GemmShape kGemmShapes[] = {
    {"dense_up_decode_b1", kUp, 1, kBf16, 1, Effort::kQuick},
    {"dense_up_decode_b2", kUp, 2},
    {"dense_up_decode_b4", kUp, 4},
    {"dense_up_decode_b8", kUp, 8},
    {"dense_up_decode_b16", kUp, 16, kBf16, 1, Effort::kQuick},
    {"dense_up_prefill_64", kUp, 64},
    {"dense_up_prefill_512", kUp, 512, kBf16, 1, Effort::kQuick},
    {"dense_down_decode_b1", kDown, 1},
    {"dense_down_decode_b16", kDown, 16},
    {"dense_down_prefill_512", kDown, 512},
    {"vocabulary_decode_b1", kHead, 1},
    {"vocabulary_decode_b16", kHead, 16},
    {"experts_6_decode_b1", kExpert, 1, kBf16, 6},
    {"experts_64_decode_b16", kExpert, 2, kBf16, 64},
    {"key_heads_16_decode_b1", kKeyHead, 1, kBf16, 16},
    {"key_heads_16_decode_b16", kKeyHead, 16, kBf16, 16},
    {"value_heads_16_decode_b1", kValueHead, 1, kBf16, 16},
    {"value_heads_16_decode_b16", kValueHead, 16, kBf16, 16},
    {"dense_up_decode_b1", kUp, 1, kFp8},
    {"dense_up_decode_b16", kUp, 16, kFp8},
    {"dense_up_prefill_512", kUp, 512, kFp8},
    {"dense_up_decode_b1", kUp, 1, kF16},
    {"dense_up_decode_b16", kUp, 16, kF16},
    {"dense_up_decode_b1", kUp, 1, kF32},
    {"dense_up_decode_b16", kUp, 16, kF32},
};

// Four times the last cache, so that no layer's weights are still in it when their turn comes again.
int64_t WeightBytesToVisit() {
  int64_t largest = 0;
  for (const auto& cache : benchmark::CPUInfo::Get().caches) {
    largest = std::max<int64_t>(largest, cache.size);
  }
  return std::max(4 * largest, int64_t{1} << 30);
}

// Products with the weights of as many layers as it takes to leave the cache behind. Every layer
// is a copy of one packed matrix.
class GemmStep {
 public:
  GemmStep(const GemmShape& shape, Executor& executor)
      : executor_(executor),
        shape_(shape),
        matrix_bytes_(PackedBytes(shape.matrix, shape.format)),
        num_layers_(
            std::max<int64_t>(1, WeightBytesToVisit() / (matrix_bytes_.raw() * shape.count))),
        weights_("weights of all layers", matrix_bytes_ * (num_layers_ * shape.count)),
        x_(static_cast<size_t>(shape.rows * shape.count * shape.matrix.inputs), 0.5f),
        y_(static_cast<size_t>(shape.rows * shape.count * shape.matrix.outputs)),
        products_(static_cast<size_t>(shape.count)) {
    PackFirst();
    executor.Run(num_layers_ * shape.count - 1, [&](int64_t i) {
      std::memcpy(MatrixAt(i + 1), MatrixAt(0), static_cast<size_t>(matrix_bytes_.raw()));
    });
    SetProducts(0);
  }
  GemmStep(const GemmStep&) = delete;
  GemmStep& operator=(const GemmStep&) = delete;

  void RunNextLayer() {
    layer_ = (layer_ + 1) % num_layers_;
    SetProducts(layer_);
    cpu::Matmul(products_, executor_);
  }

  double Bytes() const {
    return static_cast<double>((MatmulBytes(products_[0]) * shape_.count).raw());
  }
  double Flops() const { return MatmulFlops(products_[0]) * static_cast<double>(shape_.count); }

 private:
  std::byte* MatrixAt(int64_t i) const { return weights_.data() + i * matrix_bytes_.raw(); }

  // Any bits that are small numbers will do: 0x34 in every byte is one in each format.
  void PackFirst() const {
    const MatrixShape matrix = shape_.matrix;
    const float scale = 0.01f;
    const std::vector<std::byte> elements(
        static_cast<size_t>(matrix.outputs * matrix.inputs * WeightBytes(shape_.format)),
        std::byte{0x34});
    cpu::Pack({.format = shape_.format,
               .shape = matrix,
               .data = elements.data(),
               .output_stride = matrix.inputs,
               .scales = reinterpret_cast<const std::byte*>(&scale),
               .scale_stride = 0,
               .scale_input_stride = 0},
              shape_.format, {MatrixAt(0), static_cast<size_t>(matrix_bytes_.raw())}, executor_);
  }

  void SetProducts(int64_t layer) {
    const auto [outputs, inputs] = shape_.matrix;
    for (int64_t i = 0; i < shape_.count; ++i) {
      const std::span<const std::byte> memory(MatrixAt(layer * shape_.count + i),
                                              static_cast<size_t>(matrix_bytes_.raw()));
      products_[static_cast<size_t>(i)] = {
          .x = ConstTensorView(x_.data() + i * inputs, {shape_.rows, inputs})
                   .WithRowStride(inputs * shape_.count),
          .w = ViewPacked(shape_.matrix, shape_.format, memory),
          .y = TensorView(y_.data() + i * outputs, {shape_.rows, outputs})
                   .WithRowStride(outputs * shape_.count)};
    }
  }

  Executor& executor_;
  GemmShape shape_;
  ByteOffset matrix_bytes_;
  int64_t num_layers_;
  Buffer weights_;
  std::vector<float> x_, y_;
  std::vector<MatmulArgs> products_;
  int64_t layer_ = 0;
};

std::string Label(const GemmShape& shape) {
  return fmt::format("{} x {}, {}", shape.matrix.inputs, shape.matrix.outputs,
                     WeightFormatName(shape.format));
}

}  // namespace

void RegisterGemm(Effort effort, Executor& executor) {
  using Bench = RoofBench<GemmStep, GemmShape>;
  const auto bench = std::make_shared<Bench>(effort, executor);
  for (const GemmShape& shape : kGemmShapes) {
    if (effort < shape.least_effort) continue;
    const std::string kind =
        shape.format == kBf16 ? "" : fmt::format("_{}", WeightFormatName(shape.format));
    const std::string name = fmt::format("gemm/{}{}/r{}", shape.name, kind, shape.rows);
    Bench::Register(bench, shape, name, Label(shape));
  }
}

}  // namespace quire::bench
