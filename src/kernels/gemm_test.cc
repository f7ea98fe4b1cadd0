#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/maths.h"
#include "base/narrow_float.h"
#include "device/buffer.h"
#include "device/thread_pool.h"
#include "kernels/cpu/gemm.h"
#include "kernels/gemm_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/red_zone.h"
#include "testing/sanitized_share.h"

namespace quire {
namespace {

using testing::BitMismatch;
using testing::BlockCase;
using testing::ErrorMessage;
using testing::GemmCase;
using testing::kBlockCases;
using testing::kGemmCases;
using testing::MadeUpMatrix;
using testing::MadeUpValues;
using testing::Order;
using testing::RedZone;

constexpr WeightFormat kWeightFormats[] = {WeightFormat::kF32, WeightFormat::kF16,
                                           WeightFormat::kBf16, WeightFormat::kFp8Block};

// A source, packed.
class Packed {
 public:
  Packed(const MatrixSource& source, WeightFormat format)
      : memory_("packed", PackedBytes(source.shape, format)) {
    SerialExecutor executor;
    view_ = cpu::Pack(source, format, memory_.bytes(), executor);
  }
  const PackedMatrix& view() const { return view_; }

 private:
  Buffer memory_;
  PackedMatrix view_;
};

// Values and where the next row begins: rows apart by more than their length.
constexpr int64_t kRowGap = 3;

// The rows of x times w; checks that nothing beside the rows of y was written.
std::vector<float> Multiply(const PackedMatrix& w, const std::vector<float>& x,
                            std::span<const float> bias, Executor& executor) {
  const MatrixShape shape = w.shape();
  const int64_t num_rows = std::ssize(x) / shape.inputs;
  const int64_t x_stride = shape.inputs + kRowGap, y_stride = shape.outputs + kRowGap;
  // Exactly as long as the last row needs: what reads past it is noticed under asan.
  std::vector<float> strided(static_cast<size_t>(num_rows > 0 ? num_rows * x_stride - kRowGap : 0));
  for (int64_t t = 0; t < num_rows; ++t) {
    std::copy_n(x.begin() + t * shape.inputs, shape.inputs, strided.begin() + t * x_stride);
  }
  RedZone<float> y(static_cast<size_t>(num_rows * y_stride));
  cpu::Matmul(
      {.x = ConstTensorView(strided.data(), {num_rows, shape.inputs}).WithRowStride(x_stride),
       .w = w,
       .y = TensorView(y.data(), {num_rows, shape.outputs}).WithRowStride(y_stride),
       .bias = bias},
      executor);
  EXPECT_EQ(y.Damage(), "");
  float untouched;
  std::memset(&untouched, RedZone<float>::kFill, sizeof(untouched));
  std::vector<float> values;
  for (int64_t t = 0; t < num_rows; ++t) {
    const auto row = y.span().subspan(static_cast<size_t>(t * y_stride));
    values.insert(values.end(), row.begin(), row.begin() + shape.outputs);
    for (int64_t i = shape.outputs; i < y_stride; ++i) {
      EXPECT_EQ(row[static_cast<size_t>(i)], untouched) << "behind row " << t;
    }
  }
  return values;
}

// ---- Against the double-precision reference ----

// Compares y with exact arithmetic on the values that the source holds. Every rounding of a sum of
// k products, the scaling of its fp8 chunks and the bias is bounded by u times the sum of
// magnitudes (docs/numerics.md); the last term is products that underflow.
void ExpectNearReference(const MadeUpMatrix& matrix, MatrixShape shape, const std::vector<float>& x,
                         std::span<const float> bias, const std::vector<float>& y) {
  const int64_t num_rows = std::ssize(x) / shape.inputs;
  std::vector<double> expected, bounds;
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t n = 0; n < shape.outputs; ++n) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(n)];
      double magnitude = std::abs(sum);
      for (int64_t k = 0; k < shape.inputs; ++k) {
        const double product =
            double{x[static_cast<size_t>(t * shape.inputs + k)]} * matrix.At(n, k);
        sum += product;
        magnitude += std::abs(product);
      }
      const double roundings =
          static_cast<double>(shape.inputs + CeilDiv(shape.inputs, kChunkInputs) + 3);
      expected.push_back(sum);
      bounds.push_back(roundings * 0x1p-24 * magnitude + roundings * 0x1p-140);
    }
  }
  EXPECT_EQ(testing::Mismatch(y, expected, bounds), "");
}

TEST(GemmTest, EqualsTheReferenceWithinTheBoundOfTheArithmetic) {
  ThreadPool executor(2);
  for (const GemmCase& c : kGemmCases) {
    for (WeightFormat format : kWeightFormats) {
      const MadeUpMatrix matrix(
          {.format = format, .shape = c.shape, .order = c.order, .pad = c.pad});
      const std::vector<float> bias = MadeUpValues(3, c.has_bias ? c.shape.outputs : 0);
      for (WeightFormat packed_format : {format, WeightFormat::kF32}) {
        const Packed packed(matrix.source(), packed_format);
        for (int64_t rows : testing::SampledOf(c.rows)) {
          SCOPED_TRACE(fmt::format("{}, {} packed as {}, {} rows", c.name, WeightFormatName(format),
                                   WeightFormatName(packed_format), rows));
          const std::vector<float> x = MadeUpValues(9, rows * c.shape.inputs);
          ExpectNearReference(matrix, c.shape, x, bias, Multiply(packed.view(), x, bias, executor));
        }
      }
    }
  }
}

TEST(GemmTest, Fp8ScalesAreThoseOfTheBlocksAnElementIsIn) {
  SerialExecutor executor;
  for (BlockCase c : kBlockCases) {
    SCOPED_TRACE(c.name);
    c.source.format = WeightFormat::kFp8Block;
    const MadeUpMatrix matrix(c.source);
    const MatrixShape shape = c.source.shape;
    for (WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kF32}) {
      if (format == WeightFormat::kFp8Block && !c.keeps_fp8) continue;
      const Packed packed(matrix.source(), format);
      for (int64_t rows : {1, 2, 19}) {
        const std::vector<float> x = MadeUpValues(2, rows * shape.inputs);
        ExpectNearReference(matrix, shape, x, {}, Multiply(packed.view(), x, {}, executor));
      }
    }
  }
}

TEST(GemmTest, SmallAndLargeFp8ScalesNeitherUnderflowNorOverflowInside) {
  SerialExecutor executor;
  MadeUpMatrix matrix({.format = WeightFormat::kFp8Block, .shape = {32, 128}});
  for (float scale : {1e-30f, 1e30f}) {
    MatrixSource source = matrix.source();
    source.scales = reinterpret_cast<const std::byte*>(&scale);
    const Packed packed(source, WeightFormat::kFp8Block);
    const std::vector<float> x(128, 1.0f / scale);
    const std::vector<float> y = Multiply(packed.view(), x, {}, executor);
    for (int64_t n = 0; n < 32; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < 128; ++k) {
        const double w =
            ToFloat(Fp8E4m3{std::to_integer<uint8_t>(source.data[n * source.output_stride + k])});
        sum += w;
        magnitude += std::abs(w);
      }
      EXPECT_NEAR(y[static_cast<size_t>(n)], sum, 131 * 0x1p-24 * magnitude) << scale;
    }
  }
}

// ---- Bits ----

TEST(GemmTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  ThreadPool two(2), three(3);
  SerialExecutor serial;
  const MatrixShape shape{70, 301};
  for (WeightFormat format : kWeightFormats) {
    SCOPED_TRACE(WeightFormatName(format));
    const MadeUpMatrix matrix({.format = format, .shape = shape});
    const Packed packed(matrix.source(), format);
    const std::vector<float> bias = MadeUpValues(4, shape.outputs);
    const std::vector<float> x = MadeUpValues(8, 140 * shape.inputs);
    std::vector<float> alone;
    for (int64_t t = 0; t < 140; ++t) {
      const std::vector<float> row(x.begin() + t * shape.inputs,
                                   x.begin() + (t + 1) * shape.inputs);
      const std::vector<float> y = Multiply(packed.view(), row, bias, serial);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 17, 31, 64, 65, 100, 140}) {
      const std::vector<float> some(x.begin(), x.begin() + rows * shape.inputs);
      const auto expected = std::span(alone).first(static_cast<size_t>(rows * shape.outputs));
      for (Executor* executor : {static_cast<Executor*>(&serial), static_cast<Executor*>(&two),
                                 static_cast<Executor*>(&three)}) {
        EXPECT_EQ(BitMismatch(Multiply(packed.view(), some, bias, *executor), expected), "")
            << rows << " rows, " << executor->num_threads() << " threads";
      }
    }
  }
}

// Whether this machine's kernels fuse: the fallback of docs/numerics.md does not.
bool MultiplyAddsAreFused() {
  SerialExecutor executor;
  const float w[] = {1.0f, 1.0f - 0x1p-13f};
  const Packed packed(
      {.shape = {1, 2}, .data = reinterpret_cast<const std::byte*>(w), .output_stride = 2},
      WeightFormat::kF32);
  return Multiply(packed.view(), {-1.0f, 1.0f + 0x1p-13f}, {}, executor)[0] != 0.0f;
}

TEST(GemmTest, SumsRunOverInputsInOrderWithFusedMultiplyAdds) {
  if (!MultiplyAddsAreFused()) GTEST_SKIP() << "no fused multiply-add on this machine";
  SerialExecutor executor;
  const MatrixShape shape{3, 400};
  const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = shape});
  const MadeUpMatrix scaled({.format = WeightFormat::kFp8Block, .shape = shape});
  const std::vector<float> x = MadeUpValues(1, shape.inputs);
  std::vector<float> expected, expected_scaled;
  for (int64_t n = 0; n < shape.outputs; ++n) {
    float sum = 0, sum_scaled = 0;
    for (int64_t k = 0; k < shape.inputs; ++k) {
      sum = std::fma(x[static_cast<size_t>(k)], matrix.At(n, k), sum);
    }
    for (int64_t begin = 0; begin < shape.inputs; begin += kChunkInputs) {
      const MatrixSource source = scaled.source();
      float scale, part = 0;
      std::memcpy(&scale, source.scales + 4 * (begin / 128), 4);
      for (int64_t k = begin; k < std::min(begin + kChunkInputs, shape.inputs); ++k) {
        const float code =
            ToFloat(Fp8E4m3{std::to_integer<uint8_t>(source.data[n * source.output_stride + k])});
        part = std::fma(x[static_cast<size_t>(k)], code, part);
      }
      sum_scaled = std::fma(scale, part, sum_scaled);
    }
    expected.push_back(sum);
    expected_scaled.push_back(sum_scaled);
  }
  const Packed packed(matrix.source(), WeightFormat::kBf16);
  EXPECT_EQ(BitMismatch(Multiply(packed.view(), x, {}, executor), expected), "");
  const Packed packed_scaled(scaled.source(), WeightFormat::kFp8Block);
  EXPECT_EQ(BitMismatch(Multiply(packed_scaled.view(), x, {}, executor), expected_scaled), "");
}

TEST(GemmTest, AListOfProductsEqualsThemOneByOne) {
  ThreadPool three(3);
  SerialExecutor serial;
  const MatrixShape shape{64, 96};
  const int64_t rows[] = {1, 0, 3, 8, 0, 70, 2, 17};
  std::vector<Packed> packed;
  std::vector<MatmulArgs> products;
  std::vector<std::vector<float>> xs, ys;
  std::vector<float> expected;
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const WeightFormat format = kWeightFormats[i % 4];
    packed.emplace_back(MadeUpMatrix({.format = format, .shape = shape}).source(), format);
    xs.push_back(MadeUpValues(static_cast<uint64_t>(i), rows[i] * shape.inputs));
    ys.emplace_back(static_cast<size_t>(rows[i] * shape.outputs));
    const std::vector<float> y = Multiply(packed.back().view(), xs.back(), {}, serial);
    expected.insert(expected.end(), y.begin(), y.end());
  }
  for (size_t i = 0; i < xs.size(); ++i) {
    products.push_back({.x = {xs[i].data(), {rows[i], shape.inputs}},
                        .w = packed[i].view(),
                        .y = {ys[i].data(), {rows[i], shape.outputs}}});
  }
  for (Executor* executor : {static_cast<Executor*>(&serial), static_cast<Executor*>(&three)}) {
    for (auto& y : ys) std::fill(y.begin(), y.end(), -1.0f);
    cpu::Matmul(products, *executor);
    std::vector<float> all;
    for (const auto& y : ys) all.insert(all.end(), y.begin(), y.end());
    EXPECT_EQ(BitMismatch(all, expected), "") << executor->num_threads() << " threads";
  }
  cpu::Matmul(std::span<const MatmulArgs>(), serial);
}

TEST(GemmTest, WhatIsNotFiniteStaysInItsRow) {
  ThreadPool executor(2);
  const MatrixShape shape{40, 133};
  for (WeightFormat format : kWeightFormats) {
    const MadeUpMatrix matrix({.format = format, .shape = shape});
    const Packed packed(matrix.source(), format);
    for (int64_t rows : {3, 8, 20}) {
      std::vector<float> x = MadeUpValues(6, rows * shape.inputs);
      const std::vector<float> clean = Multiply(packed.view(), x, {}, executor);
      const int64_t bad = rows / 2;
      x[static_cast<size_t>(bad * shape.inputs + 132)] = std::numeric_limits<float>::infinity();
      x[static_cast<size_t>(bad * shape.inputs)] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> y = Multiply(packed.view(), x, {}, executor);
      for (int64_t n = 0; n < shape.outputs; ++n) {
        float& value = y[static_cast<size_t>(bad * shape.outputs + n)];
        EXPECT_TRUE(std::isnan(value)) << WeightFormatName(format) << ", output " << n;
        value = clean[static_cast<size_t>(bad * shape.outputs + n)];
      }
      EXPECT_EQ(BitMismatch(y, clean), "") << WeightFormatName(format) << ", " << rows << " rows";
    }
  }
}

TEST(GemmTest, WeightsThatAreNotFiniteReachTheirOwnOutputOnly) {
  SerialExecutor executor;
  const MatrixShape shape{40, 10};
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16}) {
    std::vector<float> values = MadeUpValues(1, shape.outputs * shape.inputs);
    values[3 * 10 + 4] = std::numeric_limits<float>::infinity();
    values[39 * 10 + 9] = std::numeric_limits<float>::quiet_NaN();
    std::vector<Bf16> bf16;
    std::vector<F16> f16;
    for (float value : values) bf16.push_back(ToBf16(value)), f16.push_back(ToF16(value));
    const void* data = format == WeightFormat::kF32   ? static_cast<const void*>(values.data())
                       : format == WeightFormat::kF16 ? static_cast<const void*>(f16.data())
                                                      : static_cast<const void*>(bf16.data());
    const Packed packed({.format = format,
                         .shape = shape,
                         .data = static_cast<const std::byte*>(data),
                         .output_stride = 10},
                        format);
    for (size_t rows : {1, 12}) {
      const std::vector<float> y =
          Multiply(packed.view(), std::vector<float>(rows * 10, 1.0f), {}, executor);
      for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_EQ(std::isinf(y[i]), i % 40 == 3) << i;
        EXPECT_EQ(std::isnan(y[i]), i % 40 == 39) << i;
      }
    }
  }
}

// ---- Packing ----

TEST(GemmTest, UnpackedRowsEqualTheSource) {
  ThreadPool executor(2);
  for (WeightFormat format : kWeightFormats) {
    for (Order order : {Order::kRows, Order::kTransposed}) {
      const MatrixShape shape{75, 300};
      const MadeUpMatrix matrix({.format = format, .shape = shape, .order = order, .pad = 1});
      for (WeightFormat packed_format : {format, WeightFormat::kF32}) {
        const Packed packed(matrix.source(), packed_format);
        for (int64_t n = 0; n < shape.outputs; ++n) {
          RedZone<float> row(static_cast<size_t>(shape.inputs));
          cpu::UnpackRow(packed.view(), n, row.span());
          EXPECT_EQ(row.Damage(), "");
          std::vector<float> expected;
          for (int64_t k = 0; k < shape.inputs; ++k) expected.push_back(matrix.At(n, k));
          EXPECT_EQ(BitMismatch(row.values(), expected), "")
              << WeightFormatName(format) << ", row " << n;
        }
      }
    }
  }
}

TEST(GemmTest, PackingWritesAllOfItsMemoryAndNothingElse) {
  ThreadPool executor(2);
  for (WeightFormat format : kWeightFormats) {
    for (const MatrixShape shape :
         {MatrixShape{33, 129}, MatrixShape{64, 256}, MatrixShape{1, 1}}) {
      const MadeUpMatrix matrix({.format = format, .shape = shape});
      const size_t bytes = static_cast<size_t>(PackedBytes(shape, format).raw());
      Buffer a("a", ByteOffset(bytes + 64)), b("b", ByteOffset(bytes + 64));
      std::memset(a.data(), 0x11, bytes + 64);
      std::memset(b.data(), 0x22, bytes + 64);
      cpu::Pack(matrix.source(), format, a.bytes().first(bytes), executor);
      cpu::Pack(matrix.source(), format, b.bytes().first(bytes), executor);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), bytes), 0) << WeightFormatName(format);
      for (size_t i = bytes; i < bytes + 64; ++i) EXPECT_EQ(a.data()[i], std::byte{0x11});
    }
  }
}

TEST(GemmTest, PackedBytesCountPanelsAndScales) {
  EXPECT_EQ(PackedBytes({64, 256}, WeightFormat::kF32), ByteOffset(64 * 256 * 4));
  EXPECT_EQ(PackedBytes({65, 256}, WeightFormat::kBf16), ByteOffset(96 * 256 * 2));
  EXPECT_EQ(PackedBytes({1, 3}, WeightFormat::kF16), ByteOffset(32 * 3 * 2));
  EXPECT_EQ(PackedBytes({32, 257}, WeightFormat::kFp8Block), ByteOffset(3 * 128 + 32 * 257 + 32));
}

// ---- What is refused ----

TEST(GemmTest, WrongArgumentsAreRefusedByName) {
  SerialExecutor executor;
  const MadeUpMatrix matrix({.shape = {40, 20}});
  const Packed packed(matrix.source(), WeightFormat::kF32);
  std::vector<float> x(60), y(120), bias(39);
  std::vector<Bf16> narrow(60);
  const MatmulArgs good{.x = {x.data(), {3, 20}}, .w = packed.view(), .y = {y.data(), {3, 40}}};
  const auto message = [&](auto change) {
    MatmulArgs args = good;
    change(args);
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { cpu::Matmul(args, executor); });
  };
  EXPECT_EQ(message([](MatmulArgs& a) { a.w = {}; }), "w: expected a packed matrix, got none");
  EXPECT_EQ(message([&](MatmulArgs& a) {
              a.x = {x.data(), {3, 19}};
            }),
            "x: expected shape [3, 20], got [3, 19]");
  EXPECT_EQ(message([&](MatmulArgs& a) {
              a.x = {x.data(), {60}};
            }),
            "x: expected shape [0, 20], got [60]");
  EXPECT_EQ(message([&](MatmulArgs& a) {
              a.y = {y.data(), {2, 40}};
            }),
            "y: expected shape [3, 40], got [2, 40]");
  EXPECT_EQ(message([&](MatmulArgs& a) {
              a.x = {narrow.data(), {3, 20}};
            }),
            "x: expected f32, got bf16");
  EXPECT_EQ(message([&](MatmulArgs& a) {
              a.y = {narrow.data(), {3, 40}};
            }),
            "y: expected f32, got bf16");
  EXPECT_EQ(message([&](MatmulArgs& a) { a.bias = bias; }),
            "bias: expected 40 values or none, got 39");
}

TEST(GemmTest, NothingIsWrittenIfAnyProductIsRefused) {
  SerialExecutor executor;
  const MadeUpMatrix matrix({.shape = {40, 20}});
  const Packed packed(matrix.source(), WeightFormat::kF32);
  std::vector<float> x(20);
  RedZone<float> y(40);
  const MatmulArgs good{.x = {x.data(), {1, 20}}, .w = packed.view(), .y = {y.data(), {1, 40}}};
  const MatmulArgs products[] = {good, {.x = good.x, .y = good.y}};
  EXPECT_THROW(cpu::Matmul(products, executor), Error);
  EXPECT_TRUE(y.Untouched());
}

TEST(GemmTest, MemoryThatDoesNotFitIsRefused) {
  const Buffer memory("packed", ByteOffset(8192));
  const auto message = [&](MatrixShape shape, WeightFormat format, size_t offset, size_t bytes) {
    return ErrorMessage(ErrorCode::kInvalidArgument,
                        [&] { ViewPacked(shape, format, memory.bytes().subspan(offset, bytes)); });
  };
  EXPECT_EQ(message({40, 20}, WeightFormat::kBf16, 0, 2559),
            "packed memory: expected 2560 bytes (40 outputs x 20 inputs, bf16), got 2559");
  EXPECT_EQ(message({40, 20}, WeightFormat::kBf16, 32, 2560),
            "packed memory: expected an address aligned to 64, got 32 past one");
  EXPECT_EQ(message({0, 20}, WeightFormat::kBf16, 0, 2560),
            "matrix.outputs: expected 1..268435456, got 0");
  EXPECT_EQ(message({40, -1}, WeightFormat::kBf16, 0, 2560),
            "matrix.inputs: expected 1..268435456, got -1");
  EXPECT_FALSE(ViewPacked({40, 20}, WeightFormat::kBf16, memory.bytes()).empty());
}

TEST(GemmTest, SourcesThatDoNotPackAreRefused) {
  SerialExecutor executor;
  MadeUpMatrix bf16({.format = WeightFormat::kBf16, .shape = {40, 200}});
  MadeUpMatrix fp8({.format = WeightFormat::kFp8Block, .shape = {40, 200}});
  Buffer memory("packed", ByteOffset(1 << 20));
  const auto message = [&](const MatrixSource& source, WeightFormat format) {
    return ErrorMessage(ErrorCode::kInvalidArgument,
                        [&] { cpu::Pack(source, format, memory.bytes(), executor); });
  };
  EXPECT_EQ(message(bf16.source(), WeightFormat::kF16),
            "pack: expected format bf16 or f32, got f16");
  MatrixSource source = bf16.source();
  source.data = nullptr;
  EXPECT_EQ(message(source, WeightFormat::kBf16),
            "source.data: expected 40 x 200 elements, got none");
  source = fp8.source();
  source.scales = nullptr;
  EXPECT_EQ(message(source, WeightFormat::kF32), "source.scales: expected one per block, got none");
  source = fp8.source();
  source.block_inputs = 0;
  EXPECT_EQ(message(source, WeightFormat::kF32),
            "source.block: expected at least 1 x 1, got 128 x 0");
  source = fp8.source();
  source.first_output = -1;
  EXPECT_EQ(message(source, WeightFormat::kF32),
            "source.first: expected at least (0, 0), got (-1, 0)");
  source = fp8.source();
  source.block_inputs = 64;
  EXPECT_EQ(message(source, WeightFormat::kFp8Block),
            "pack: expected no block boundary within 128 inputs to keep fp8_block, got blocks of "
            "64 inputs and first input 0; f32 takes any");
  fp8.SetCode(39, 150, 0xff);
  EXPECT_EQ(message(fp8.source(), WeightFormat::kFp8Block),
            "pack: expected no NaN to keep fp8_block, got one at output 39, input 150; f32 takes "
            "any");
  const Packed wide(fp8.source(), WeightFormat::kF32);
  std::vector<float> row(200);
  cpu::UnpackRow(wide.view(), 39, row);
  EXPECT_TRUE(std::isnan(row[150]));
  EXPECT_FALSE(std::isnan(row[149]));
}

TEST(GemmTest, RowsThatAreNotThereAreNotUnpacked) {
  const MadeUpMatrix matrix({.shape = {40, 20}});
  const Packed packed(matrix.source(), WeightFormat::kF32);
  std::vector<float> row(20);
  const auto message = [&](int64_t n, size_t values) {
    return ErrorMessage(ErrorCode::kInvalidArgument,
                        [&] { cpu::UnpackRow(packed.view(), n, std::span(row).first(values)); });
  };
  EXPECT_EQ(message(40, 20), "unpack: expected an output of 0..39, got 40");
  EXPECT_EQ(message(-1, 20), "unpack: expected an output of 0..39, got -1");
  EXPECT_EQ(message(0, 19), "unpack.row: expected 20 values, got 19");
}

}  // namespace
}  // namespace quire
