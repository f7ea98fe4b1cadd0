// Products on the device as the tests want them: from vectors, with guards, and back as f32.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_TESTING_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/maths.h"
#include "base/narrow_float.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_memory.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/test_codes.h"
#include "kernels/gemm_cases.h"
#include "testing/compare.h"

namespace quire::cuda {

using testing::GemmCase;
using testing::MadeUpMatrix;
using testing::MadeUpValue;
using testing::MadeUpValues;
using testing::Order;
using testing::SourceShape;

inline constexpr TileSize kTileSizes[] = {TileSize::kDecode,      TileSize::kMedium,
                                          TileSize::kPrefill,     TileSize::kPrefillWide,
                                          TileSize::kPrefillPair, TileSize::kPrefillWidePair};

// How x and w are given.
enum class Form { kBf16, kFp8, kFp8KeepX };
inline constexpr Form kForms[] = {Form::kBf16, Form::kFp8, Form::kFp8KeepX};

// Whether rows are apart so that all of them are aligned, or so that hardly one is.
enum class Spread { kAligned, kOdd };

inline int64_t Stride(int64_t width, Spread spread) {
  return spread == Spread::kAligned ? RoundUp(width, int64_t{16}) + 16 : width + 3;
}
// Elements before the first row.
inline int64_t Lead(Spread spread) { return spread == Spread::kAligned ? 16 : 1; }

// What is in no row: a NaN in every type, so that a product that reads it shows it.
inline constexpr unsigned char kGap = 0xff;

// Rows of a matrix among gaps.
template <class T>
std::vector<T> Spaced(const std::vector<T>& values, int64_t width, Spread spread) {
  T gap;
  std::memset(static_cast<void*>(&gap), kGap, sizeof(T));
  std::vector<T> spaced(static_cast<size_t>(Lead(spread)), gap);
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(width)) {
    for (size_t k = 0; k < static_cast<size_t>(width); ++k) spaced.push_back(values[i + k]);
    for (int64_t k = width; k < Stride(width, spread); ++k) spaced.push_back(gap);
  }
  return spaced;
}

inline std::vector<Bf16> AsBf16(const std::vector<float>& values) {
  std::vector<Bf16> narrow;
  for (float value : values) narrow.push_back(ToBf16(value));
  return narrow;
}
inline std::vector<float> Widened(const std::vector<Bf16>& values) {
  std::vector<float> wide;
  for (Bf16 value : values) wide.push_back(ToFloat(value));
  return wide;
}
// Values that are bf16's already.
inline std::vector<float> MadeUpX(uint64_t seed, int64_t n) {
  return Widened(AsBf16(MadeUpValues(seed, n)));
}

// Rows of x on the device.
class DeviceRows {
 public:
  DeviceRows(const std::vector<float>& values, int64_t width, Spread spread)
      : rows_(std::ssize(values) / width),
        width_(width),
        spread_(spread),
        memory_(Spaced(AsBf16(values), width, spread)) {}

  ConstTensorView view() const {
    return ConstTensorView(memory_.span().data() + Lead(spread_), {rows_, width_})
        .WithRowStride(Stride(width_, spread_));
  }

 private:
  int64_t rows_, width_;
  Spread spread_;
  DeviceVector<Bf16> memory_;
};

// Rows of y on the device, among guards that must stay as they are.
class DeviceOutput {
 public:
  DeviceOutput(int64_t rows, int64_t width, DType dtype, Spread spread)
      : rows_(rows),
        width_(width),
        dtype_(dtype),
        spread_(spread),
        memory_(std::vector<unsigned char>(
            static_cast<size_t>(DTypeBytes(dtype) *
                                (2 * Lead(spread) + rows * Stride(width, spread))),
            kGap)) {}

  TensorView view() const {
    std::byte* first = memory_.bytes().data() + Lead(spread_) * DTypeBytes(dtype_);
    const int64_t stride = Stride(width_, spread_);
    if (dtype_ == DType::kF32) {
      return TensorView(reinterpret_cast<float*>(first), {rows_, width_}).WithRowStride(stride);
    }
    return TensorView(reinterpret_cast<Bf16*>(first), {rows_, width_}).WithRowStride(stride);
  }

  // The rows as f32, up to `untouched_from` (all of them if that is -1). What is behind those and
  // between rows must be as it was.
  std::vector<float> Values(const Stream& stream, int64_t untouched_from = -1) const {
    const std::vector<unsigned char> bytes = memory_.Values(stream);
    const int64_t size = DTypeBytes(dtype_), stride = Stride(width_, spread_);
    std::vector<float> values;
    for (int64_t at = 0; at < std::ssize(bytes) / size; ++at) {
      const int64_t row = (at - Lead(spread_)) / stride, column = (at - Lead(spread_)) % stride;
      const bool inside = at >= Lead(spread_) && row < rows_ && column < width_;
      const bool written = inside && (untouched_from < 0 || row < untouched_from);
      const unsigned char* from = bytes.data() + at * size;
      if (written) values.push_back(Read(from));
      for (int64_t b = 0; !written && b < size; ++b) {
        if (from[b] == kGap) continue;
        ADD_FAILURE() << "written outside: row " << row << ", column " << column;
        return values;
      }
    }
    return values;
  }

 private:
  float Read(const unsigned char* from) const {
    if (dtype_ == DType::kF32) {
      float value;
      std::memcpy(&value, from, sizeof(value));
      return value;
    }
    Bf16 value;
    std::memcpy(&value, from, sizeof(value));
    return ToFloat(value);
  }

  int64_t rows_, width_;
  DType dtype_;
  Spread spread_;
  DeviceVector<unsigned char> memory_;
};

// `count` matrices, with the values of made-up ones, on the device.
class DeviceWeights {
 public:
  DeviceWeights(const std::vector<const MadeUpMatrix*>& matrices, Spread spread) {
    const MatrixSource first = matrices[0]->source();
    const int64_t element = WeightBytes(first.format);
    const auto [outputs, inputs] = first.shape;
    const int64_t stride = Stride(inputs, spread);
    const int64_t row_blocks = CeilDiv(outputs, int64_t{kScaleBlock});
    const int64_t blocks = CeilDiv(inputs, int64_t{kScaleBlock});
    std::vector<std::byte> bytes(
        static_cast<size_t>((Lead(spread) + std::ssize(matrices) * outputs * stride) * element),
        std::byte{kGap});
    std::vector<float> scales;
    for (int64_t m = 0; m < std::ssize(matrices); ++m) {
      const MatrixSource source = matrices[static_cast<size_t>(m)]->source();
      for (int64_t n = 0; n < outputs; ++n) {
        for (int64_t k = 0; k < inputs; ++k) {
          const int64_t from = n * source.output_stride + k * source.input_stride;
          const int64_t to = Lead(spread) + (m * outputs + n) * stride + k;
          std::memcpy(bytes.data() + to * element, source.data + from * element,
                      static_cast<size_t>(element));
        }
      }
      for (int64_t b = 0; first.format == WeightFormat::kFp8Block && b < row_blocks * blocks; ++b) {
        float scale;
        // Of the whole matrix that this may be a slice of, whole blocks further.
        const int64_t row = source.first_output / kScaleBlock + b / blocks;
        const int64_t column = source.first_input / kScaleBlock + b % blocks;
        std::memcpy(
            &scale,
            source.scales + 4 * (row * source.scale_stride + column * source.scale_input_stride),
            sizeof(scale));
        scales.push_back(scale);
      }
    }
    bytes_.emplace(bytes);
    scales_.emplace(scales);
    view_ = {.format = first.format,
             .shape = first.shape,
             .count = std::ssize(matrices),
             .data = bytes_->span().data() + Lead(spread) * element,
             .row_stride = stride,
             .matrix_stride = outputs * stride};
    if (first.format != WeightFormat::kFp8Block) return;
    view_.scales = scales_->span().data();
    view_.scale_stride = blocks;
    view_.scale_matrix_stride = row_blocks * blocks;
  }
  DeviceWeights(const MadeUpMatrix& matrix, Spread spread)
      : DeviceWeights(std::vector<const MadeUpMatrix*>{&matrix}, spread) {}

  const WeightView& view() const { return view_; }
  // One of the matrices.
  WeightView at(int64_t i) const {
    WeightView one = view_;
    one.count = 1;
    one.data += i * view_.matrix_stride * WeightBytes(view_.format);
    if (one.scales != nullptr) one.scales += i * view_.scale_matrix_stride;
    return one;
  }

 private:
  std::optional<DeviceVector<std::byte>> bytes_;
  std::optional<DeviceVector<float>> scales_;
  WeightView view_;
};

// x as e4m3 on the device, made there.
class DeviceCodes {
 public:
  DeviceCodes(const ConstTensorView& x, const Stream& stream) : memory_(x.dim(0), x.dim(1), kGap) {
    QuantiseRows({.x = x, .to = rows()}, stream);
  }

  const QuantisedRows& rows() const { return memory_.rows(); }

  std::vector<uint8_t> Codes(const Stream& stream) const {
    return Copy<uint8_t>(rows().codes, rows().rows * rows().code_stride, stream);
  }
  std::vector<float> Scales(const Stream& stream) const {
    return Copy<float>(rows().scales, rows().rows * rows().scale_stride, stream);
  }
  // scale * code of every input: what products are made of.
  std::vector<double> Values(const Stream& stream) const {
    const std::vector<uint8_t> codes = Codes(stream);
    const std::vector<float> scales = Scales(stream);
    std::vector<double> values;
    for (int64_t t = 0; t < rows().rows; ++t) {
      for (int64_t k = 0; k < rows().inputs; ++k) {
        const float code = ToFloat(Fp8E4m3{codes[static_cast<size_t>(t * rows().code_stride + k)]});
        values.push_back(
            double{code} *
            double{scales[static_cast<size_t>(t * rows().scale_stride + k / kScaleBlock)]});
      }
    }
    return values;
  }

 private:
  template <class T>
  static std::vector<T> Copy(const void* from, int64_t count, const Stream& stream) {
    stream.Synchronize();
    std::vector<T> values(static_cast<size_t>(count));
    CopyAndWait(values.data(), from, values.size() * sizeof(T), "codes from the device");
    return values;
  }

  CodeMemory memory_;
};

// What exact arithmetic gives for rows of x, and how far the device may be from it.
struct GemmReference {
  std::vector<double> y, bounds;
  std::vector<double> magnitudes;  // sums of the products' absolute values
};

// Products of codes keep 13 bits behind the largest of 32 products and the sum so far (docs/numerics.md): of a product's
// magnitude.
inline constexpr double kCodesBound = 0x1p-11;

// docs/numerics.md: 3 u per product, however the tensor cores cut their sums, and u for every chunk's
// scale and fold, every range of inputs, the bias and, in cuBLASLt, its splits. bf16 adds its own.
inline double GemmBound(int64_t inputs, double magnitude, double y, DType dtype,
                        Form form = Form::kBf16) {
  const auto products = static_cast<double>(RoundUp(inputs, int64_t{kScaleBlock}));
  const double roundings = 3 * products + 2 * products / kScaleBlock + 64;
  const double cut_off = form == Form::kFp8 ? kCodesBound * magnitude : 0;
  const double sum = roundings * 0x1p-24 * magnitude + roundings * 0x1p-126 + cut_off;
  return dtype == DType::kF32 ? sum : sum + 0x1p-8 * (std::abs(y) + sum);
}

template <class X>
GemmReference ReferenceGemm(const MadeUpMatrix& matrix, MatrixShape shape, const std::vector<X>& x,
                            const std::vector<float>& bias, DType dtype, Form form = Form::kBf16) {
  GemmReference reference;
  std::vector<double> w;
  for (int64_t n = 0; n < shape.outputs; ++n) {
    for (int64_t k = 0; k < shape.inputs; ++k) w.push_back(matrix.At(n, k));
  }
  for (int64_t t = 0; t < std::ssize(x) / shape.inputs; ++t) {
    for (int64_t n = 0; n < shape.outputs; ++n) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(n)];
      double magnitude = std::abs(sum);
      for (int64_t k = 0; k < shape.inputs; ++k) {
        const double product = double{x[static_cast<size_t>(t * shape.inputs + k)]} *
                               w[static_cast<size_t>(n * shape.inputs + k)];
        sum += product;
        magnitude += std::abs(product);
      }
      reference.y.push_back(sum);
      reference.magnitudes.push_back(magnitude);
      reference.bounds.push_back(GemmBound(shape.inputs, magnitude, sum, dtype, form));
    }
  }
  return reference;
}

// silu(gate) * up. The slope of silu is at most 1.1; SiluMul itself errs by 8u (docs/numerics.md),
// and the device's exp by 2u more in numerator and denominator.
inline GemmReference GatedReference(const GemmReference& gate, const GemmReference& up,
                                    DType dtype) {
  GemmReference result;
  for (size_t i = 0; i < gate.y.size(); ++i) {
    const double silu = gate.y[i] / (1 + std::exp(-gate.y[i]));
    const double silu_error = 1.1 * gate.bounds[i];
    const double y = silu * up.y[i];
    double bound = silu_error * (std::abs(up.y[i]) + up.bounds[i]) + std::abs(silu) * up.bounds[i];
    bound += 12 * 0x1p-24 * (std::abs(y) + bound) + 0x1p-126;
    if (dtype == DType::kBf16) bound += 0x1p-8 * (std::abs(y) + bound);
    result.y.push_back(y);
    result.bounds.push_back(bound);
  }
  return result;
}

// One bf16 matrix on the device, or a gate and an up, and what it makes of rows.
class GateAndUp {
 public:
  explicit GateAndUp(MatrixShape shape, bool gated = false)
      : shape_(shape),
        gate_({.format = WeightFormat::kBf16, .shape = shape}),
        up_({.format = WeightFormat::kBf16, .shape = shape, .first_output = 7}),
        gate_weights_(gate_, Spread::kAligned) {
    if (gated) up_weights_.emplace(up_, Spread::kAligned);
  }

  // By `multiply`, of GemmArgs in a stream; y is odd in all its addresses.
  template <class Multiply>
  std::vector<float> Run(const std::vector<float>& x, DType dtype, const Multiply& multiply,
                         const std::vector<float>& bias = {}) const {
    const DeviceRows rows(x, shape_.inputs, Spread::kAligned);
    const DeviceOutput y(std::ssize(x) / shape_.inputs, shape_.outputs, dtype, Spread::kOdd);
    const DeviceVector<float> device_bias(bias);
    GemmArgs args{.x = rows.view(), .w = gate_weights_.view(), .y = y.view()};
    if (up_weights_) args.up = up_weights_->view();
    if (!bias.empty()) args.bias = device_bias.span().data();
    multiply(args, stream_);
    return y.Values(stream_);
  }

  // By the tile kernel.
  std::vector<float> Tiles(const std::vector<float>& x, std::optional<TileSize> size = {}) const {
    return Run(x, DType::kF32,
               [&](const GemmArgs& args, const Stream& stream) { Gemm(args, stream, size); });
  }

  GemmReference Reference(const std::vector<float>& x, DType dtype,
                          const std::vector<float>& bias = {}) const {
    if (!up_weights_) return ReferenceGemm(gate_, shape_, x, bias, dtype);
    return GatedReference(ReferenceGemm(gate_, shape_, x, {}, DType::kF32),
                          ReferenceGemm(up_, shape_, x, {}, DType::kF32), dtype);
  }

 private:
  MatrixShape shape_;
  MadeUpMatrix gate_, up_;
  DeviceWeights gate_weights_;
  std::optional<DeviceWeights> up_weights_;
  Stream stream_;
};

// Of NaN in a row of x, that row's y is NaN and no other's is another. `run` gives y of the matrix, in f32, for rows of x.
template <class Run>
void ExpectNaNStaysInItsRow(MatrixShape shape, int64_t rows, const Run& run) {
  std::vector<float> x = MadeUpX(6, rows * shape.inputs);
  const std::vector<float> clean = run(x);
  const int64_t bad = rows / 2;
  x[static_cast<size_t>((bad + 1) * shape.inputs - 6)] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y = run(x);
  for (int64_t n = 0; n < shape.outputs; ++n) {
    float& value = y[static_cast<size_t>(bad * shape.outputs + n)];
    EXPECT_TRUE(std::isnan(value)) << n;
    value = clean[static_cast<size_t>(bad * shape.outputs + n)];
  }
  EXPECT_EQ(testing::BitMismatch(y, clean), "") << rows << " rows";
}

// Products, each of which reads what the one before wrote, and writes what that one read, have the same bits where they
// overlap. By `multiply`, of GemmArgs in a stream.
template <class Multiply>
void ExpectOverlapChangesNoBit(int64_t width, int64_t rows, const Multiply& multiply) {
  const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = {width, width}});
  const DeviceWeights weights(matrix, Spread::kAligned);
  std::vector<float> expected;
  for (bool overlaps : {false, true, true, true}) {
    Stream stream;
    stream.set_overlaps(overlaps);
    const DeviceRows x(MadeUpX(5, rows * width), width, Spread::kAligned);
    const DeviceOutput even(rows, width, DType::kBf16, Spread::kAligned);
    const DeviceOutput odd(rows, width, DType::kBf16, Spread::kAligned);
    for (int i = 0; i < 20; ++i) {
      const DeviceOutput &from = i % 2 == 0 ? odd : even, &to = i % 2 == 0 ? even : odd;
      multiply(GemmArgs{.x = i == 0 ? x.view() : ConstTensorView(from.view()),
                        .w = weights.view(),
                        .y = to.view()},
               stream);
    }
    const std::vector<float> last = odd.Values(stream);
    if (!overlaps) expected = last;
    EXPECT_EQ(testing::BitMismatch(last, expected), "") << rows << " rows";
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_TESTING_H_
