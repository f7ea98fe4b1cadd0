// Matrices with made-up contents, and the shapes with which every version of the product is tested.
#ifndef QUIRE_KERNELS_GEMM_CASES_H_
#define QUIRE_KERNELS_GEMM_CASES_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/narrow_float.h"
#include "kernels/gemm.h"
#include "testing/splitmix64.h"

namespace quire::testing {

inline float MadeUpValue(uint64_t seed, int64_t i) {
  const uint64_t bits = SplitMix64(seed * 1'000'003 + static_cast<uint64_t>(i)) >> 40;
  return static_cast<float>(bits) * 0x1p-23f - 1.0f;
}

inline std::vector<float> MadeUpValues(uint64_t seed, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = MadeUpValue(seed, i);
  return values;
}

// How the elements of a source lie.
enum class Order { kRows, kTransposed };

struct SourceShape {
  WeightFormat format = WeightFormat::kF32;
  MatrixShape shape = {};
  Order order = Order::kRows;
  int64_t pad = 0;  // unused elements behind every row (or column)
  int32_t block_outputs = 128;
  int32_t block_inputs = 128;
  int64_t first_output = 0;  // the whole matrix has this much more before the source
  int64_t first_input = 0;
};

// A matrix with made-up contents at an odd address.
class MadeUpMatrix {
 public:
  explicit MadeUpMatrix(const SourceShape& shape) : shape_(shape) {
    const MatrixShape whole = Whole();
    const int64_t width = (shape.order == Order::kRows ? whole.inputs : whole.outputs) + shape.pad;
    const int64_t height = shape.order == Order::kRows ? whole.outputs : whole.inputs;
    const int64_t element = WeightBytes(shape.format);
    bytes_.resize(static_cast<size_t>(width * height * element + 1), std::byte{0xff});
    output_stride_ = shape.order == Order::kRows ? width : 1;
    input_stride_ = shape.order == Order::kRows ? 1 : width;
    for (int64_t n = 0; n < whole.outputs; ++n) {
      for (int64_t k = 0; k < whole.inputs; ++k) {
        Write(n * output_stride_ + k * input_stride_, MadeUpValue(77, n * whole.inputs + k));
      }
    }
    MakeScales();
  }

  MatrixSource source() const {
    const int64_t first = shape_.first_output * output_stride_ + shape_.first_input * input_stride_;
    MatrixSource source{.format = shape_.format,
                        .shape = shape_.shape,
                        .data = bytes_.data() + 1 + first * WeightBytes(shape_.format),
                        .output_stride = output_stride_,
                        .input_stride = input_stride_};
    if (shape_.format != WeightFormat::kFp8Block) return source;
    source.scales = scales_.data() + 1;
    source.scale_stride = scale_stride_;
    source.scale_input_stride = scale_input_stride_;
    source.block_outputs = shape_.block_outputs;
    source.block_inputs = shape_.block_inputs;
    source.first_output = shape_.first_output;
    source.first_input = shape_.first_input;
    return source;
  }

  // Element (n, k) of the source, scale included, as f32.
  float At(int64_t n, int64_t k) const {
    const int64_t row = shape_.first_output + n, column = shape_.first_input + k;
    const std::byte* at =
        bytes_.data() + 1 +
        (row * output_stride_ + column * input_stride_) * WeightBytes(shape_.format);
    switch (shape_.format) {
      case WeightFormat::kF32:
        return Read<float>(at);
      case WeightFormat::kF16:
        return ToFloat(Read<F16>(at));
      case WeightFormat::kBf16:
        return ToFloat(Read<Bf16>(at));
      case WeightFormat::kFp8Block:
        return ToFloat(Read<Fp8E4m3>(at)) *
               Read<float>(scales_.data() + 1 +
                           4 * (row / shape_.block_outputs * scale_stride_ +
                                column / shape_.block_inputs * scale_input_stride_));
    }
    return 0;
  }

  void SetCode(int64_t n, int64_t k, uint8_t code) {
    bytes_[static_cast<size_t>(1 + n * output_stride_ + k * input_stride_)] = std::byte{code};
  }

 private:
  template <class T>
  static T Read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  template <class T>
  void Put(int64_t index, T value) {
    std::memcpy(bytes_.data() + 1 + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }

  MatrixShape Whole() const {
    return {shape_.first_output + shape_.shape.outputs, shape_.first_input + shape_.shape.inputs};
  }

  void Write(int64_t index, float value) {
    switch (shape_.format) {
      case WeightFormat::kF32:
        return Put(index, value);
      case WeightFormat::kF16:
        return Put(index, ToF16(value * 0.001f));  // subnormals among them
      case WeightFormat::kBf16:
        return Put(index, ToBf16(value));
      case WeightFormat::kFp8Block:
        return Put(index, ToFp8E4m3(value * value * value * 448.0f));  // all sizes of codes
    }
  }

  void MakeScales() {
    if (shape_.format != WeightFormat::kFp8Block) return;
    const MatrixShape whole = Whole();
    const int64_t rows = (whole.outputs - 1) / shape_.block_outputs + 1;
    const int64_t columns = (whole.inputs - 1) / shape_.block_inputs + 1;
    scale_stride_ = shape_.order == Order::kRows ? columns : 1;
    scale_input_stride_ = shape_.order == Order::kRows ? 1 : rows;
    scales_.resize(static_cast<size_t>(1 + 4 * rows * columns));
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float scale = 0.001f + 0.002f * std::abs(MadeUpValue(5, i));
      std::memcpy(scales_.data() + 1 + 4 * i, &scale, 4);
    }
  }

  SourceShape shape_;
  int64_t output_stride_ = 0, input_stride_ = 0;
  int64_t scale_stride_ = 0, scale_input_stride_ = 1;
  std::vector<std::byte> bytes_, scales_;
};

struct GemmCase {
  const char* name;
  MatrixShape shape;
  std::vector<int64_t> rows;
  Order order = Order::kRows;
  int64_t pad = 0;
  bool has_bias = false;
};

inline const GemmCase kGemmCases[] = {
    {"one_by_one", {1, 1}, {0, 1, 2, 3, 5, 8, 16, 17}},
    {"one_output", {1, 300}, {1, 5, 17}},
    {"one_input", {100, 1}, {1, 4, 9}},
    {"odd", {33, 131}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64, 65, 100}},
    {"odd_with_bias", {45, 257}, {1, 3, 12}, Order::kRows, 5, true},
    {"whole_panels", {128, 256}, {1, 5, 16, 64}, Order::kRows, 0, true},
    {"just_over_a_chunk", {64, 129}, {1, 2, 16}},
    {"just_under_a_chunk", {31, 127}, {1, 8, 10}},
    {"transposed_key_head", {96, 128}, {1, 3, 20}, Order::kTransposed},
    {"transposed_odd", {37, 143}, {1, 11}, Order::kTransposed, 3, true},
    {"many_panels", {700, 64}, {1, 2, 70}},
};

struct BlockCase {
  const char* name;
  SourceShape source;
  bool keeps_fp8 = true;
};

inline const BlockCase kBlockCases[] = {
    {"partial_last_blocks", {.shape = {200, 300}}},
    {"blocks_of_48_outputs", {.shape = {150, 256}, .block_outputs = 48}},
    {"a_scale_per_output", {.shape = {70, 130}, .block_outputs = 1}},
    {"blocks_of_256_inputs", {.shape = {40, 520}, .block_inputs = 256}},
    {"slice_of_outputs", {.shape = {60, 256}, .first_output = 100}},
    {"slice_of_inputs", {.shape = {60, 256}, .first_input = 128}},
    {"slice_within_a_block", {.shape = {40, 50}, .first_output = 7, .first_input = 70}},
    {"transposed_head", {.shape = {512, 128}, .order = Order::kTransposed, .first_input = 256}},
    {"blocks_of_64_inputs", {.shape = {40, 200}, .block_inputs = 64}, false},
    {"slice_across_blocks", {.shape = {40, 200}, .first_input = 64}, false},
};

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_GEMM_CASES_H_
