// The weights of another source in e4m3, with a scale for each block of 128 x 128: of every product that a model has, its
// head among them, which models in fp8 keep in bf16.
#ifndef QUIRE_TESTING_WEIGHTS_AS_CODES_H_
#define QUIRE_TESTING_WEIGHTS_AS_CODES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/maths.h"
#include "base/narrow_float.h"
#include "testing/passed_on_weights.h"

namespace quire::testing {

class WeightsAsCodes final : public PassedOnWeights {
 public:
  // `source`, whose weights are f32 or bf16, outlives this. Their config has fp8_blocks of 128 x 128. The codes of `widened`
  // are given as the numbers that they are, which bf16 has, too: scales are powers of two.
  explicit WeightsAsCodes(WeightSource& source, std::string widened = {})
      : PassedOnWeights(source), widened_(std::move(widened)) {}

  WeightFormat Format(const std::string& name, MatrixShape shape) const override {
    if (!IsOfAProduct(name)) return PassedOnWeights::Format(name, shape);
    return name == widened_ ? WeightFormat::kF32 : WeightFormat::kFp8Block;
  }

  MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                      Executor& executor) override {
    if (!IsOfAProduct(name)) return PassedOnWeights::Matrix(name, shape, outputs, executor);
    Read(name, shape, executor);
    const int64_t blocks = CeilDiv(shape.inputs, kBlock);
    scales_.assign(static_cast<size_t>(CeilDiv(shape.outputs, kBlock) * blocks), 0.0f);
    const auto for_each = [&](auto fn) {
      for (int64_t i = 0; i < shape.outputs * shape.inputs; ++i) {
        const int64_t block = i / shape.inputs / kBlock * blocks + i % shape.inputs / kBlock;
        fn(static_cast<size_t>(i), scales_[static_cast<size_t>(block)]);
      }
    };
    for_each([&](size_t i, float& scale) { scale = std::max(scale, std::abs(values_[i])); });
    for (float& scale : scales_) scale = std::exp2(std::ceil(std::log2(scale / kFp8E4m3Max)));
    codes_.resize(values_.size());
    for_each([&](size_t i, const float& scale) {
      codes_[i] = ToFp8E4m3(values_[i] / scale);
      values_[i] = ToFloat(codes_[i]) * scale;
    });
    MatrixSource source{.format = Format(name, shape),
                        .shape = {.outputs = outputs.count, .inputs = shape.inputs},
                        .output_stride = shape.inputs,
                        .first_output = outputs.first};
    const int64_t first = outputs.first * shape.inputs;
    if (source.format == WeightFormat::kF32) {
      source.data = reinterpret_cast<const std::byte*>(values_.data() + first);
      return source;
    }
    source.data = reinterpret_cast<const std::byte*>(codes_.data() + first);
    source.scales = reinterpret_cast<const std::byte*>(scales_.data());
    source.scale_stride = blocks;
    return source;
  }

 private:
  static constexpr int64_t kBlock = 128;

  // All but embeddings and routers.
  static bool IsOfAProduct(std::string_view name) {
    return name.ends_with("_proj.weight") || name.ends_with("_proj_with_mqa.weight") ||
           name.ends_with("lm_head.weight") || name.ends_with("fc.weight");
  }

  void Read(const std::string& name, MatrixShape shape, Executor& executor) {
    const MatrixSource from =
        PassedOnWeights::Matrix(name, shape, {.first = 0, .count = shape.outputs}, executor);
    values_.clear();
    for (int64_t n = 0; n < shape.outputs; ++n) {
      for (int64_t k = 0; k < shape.inputs; ++k) {
        const int64_t at = n * from.output_stride + k;
        if (from.format == WeightFormat::kF32) {
          values_.push_back(reinterpret_cast<const float*>(from.data)[at]);
        } else {
          QUIRE_CHECK(from.format == WeightFormat::kBf16, "{} is neither f32 nor bf16", name);
          values_.push_back(ToFloat(reinterpret_cast<const Bf16*>(from.data)[at]));
        }
      }
    }
  }

  const std::string widened_;
  // Of the last matrix.
  std::vector<float> values_;
  std::vector<Fp8E4m3> codes_;
  std::vector<float> scales_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_WEIGHTS_AS_CODES_H_
