#include "kernels/cuda/gemm/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_testing.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::ErrorMessage;
using testing::Mismatch;

WeightFormat FormatOf(Form form) {
  return form == Form::kBf16 ? WeightFormat::kBf16 : WeightFormat::kFp8Block;
}
const char* FormName(Form form) {
  return form == Form::kBf16 ? "bf16" : form == Form::kFp8 ? "fp8" : "fp8, bf16 x";
}

// One matrix on the device and the products with it.
class Products {
 public:
  Products(const MadeUpMatrix& matrix, Form form, Spread spread)
      : matrix_(matrix), form_(form), spread_(spread), weights_(matrix, spread) {}

  std::vector<float> Run(const std::vector<float>& x, DType dtype,
                         const std::vector<float>& bias = {},
                         std::optional<TileSize> tile = {}) const {
    const MatrixShape shape = weights_.view().shape;
    const int64_t rows = std::ssize(x) / shape.inputs;
    const DeviceRows on_device(x, shape.inputs, spread_);
    const DeviceOutput y(rows, shape.outputs, dtype, spread_);
    const DeviceVector<float> device_bias(bias);
    GemmArgs args{.w = weights_.view(), .y = y.view()};
    if (!bias.empty()) args.bias = device_bias.span().data();
    std::optional<DeviceCodes> codes;
    if (form_ == Form::kFp8) {
      codes.emplace(on_device.view(), stream_);
      args.x_codes = codes->rows();
    } else {
      args.x = on_device.view();
    }
    Gemm(args, stream_, tile);
    return y.Values(stream_);
  }

  GemmReference Reference(const std::vector<float>& x, DType dtype,
                          const std::vector<float>& bias) const {
    const MatrixShape shape = weights_.view().shape;
    if (form_ != Form::kFp8) return ReferenceGemm(matrix_, shape, x, bias, dtype);
    const DeviceRows on_device(x, shape.inputs, spread_);
    const DeviceCodes codes(on_device.view(), stream_);
    return ReferenceGemm(matrix_, shape, codes.Values(stream_), bias, dtype, form_);
  }

 private:
  const MadeUpMatrix& matrix_;
  Form form_;
  Spread spread_;
  Stream stream_;
  DeviceWeights weights_;
};

// The CPU's cases, then those at the edges of what only the device has: tiles, ranges of inputs (of
// which the last is empty in `empty_range`: 8 ranges of 640, of bf16 of 576 and 72), the steps of 64 and 128 inputs.
std::vector<GemmCase> AllCases() {
  std::vector<GemmCase> cases(std::begin(testing::kGemmCases), std::end(testing::kGemmCases));
  cases.push_back({"tile_edges", {129, 64}, {15, 16, 17, 63, 64, 65, 127, 128, 129, 257}});
  cases.push_back({"two_ranges", {128, 1100}, {1, 17, 130}, Order::kRows, 0, true});
  cases.push_back({"eight_ranges", {100, 8200}, {1, 17, 70}});
  cases.push_back({"empty_range", {64, 4104}, {1, 20, 129}});
  cases.push_back({"key_head", {512, 128}, {1, 40}});
  return cases;
}

TEST(CudaGemmTest, EqualsTheReferenceWithinTheBoundOfTheArithmetic) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const GemmCase& c : AllCases()) {
    for (Form form : kForms) {
      const MadeUpMatrix matrix(
          {.format = FormatOf(form), .shape = c.shape, .order = c.order, .pad = c.pad});
      const std::vector<float> bias = MadeUpValues(3, c.has_bias ? c.shape.outputs : 0);
      const Products aligned(matrix, form, Spread::kAligned), odd(matrix, form, Spread::kOdd);
      for (int64_t rows : c.rows) {
        if (rows == 0) continue;
        const std::vector<float> x = MadeUpX(9, rows * c.shape.inputs);
        for (DType dtype : {DType::kF32, DType::kBf16}) {
          SCOPED_TRACE(
              fmt::format("{}, {}, {} rows, {}", c.name, FormName(form), rows, DTypeName(dtype)));
          const GemmReference reference = aligned.Reference(x, dtype, bias);
          const std::vector<float> y = aligned.Run(x, dtype, bias);
          EXPECT_EQ(Mismatch(y, reference.y, reference.bounds), "");
          EXPECT_EQ(BitMismatch(odd.Run(x, dtype, bias), y), "") << "rows at odd addresses";
        }
      }
    }
  }
}

// What a row gets does not depend on the rows beside it, nor on the tile; ranges of inputs are 1, 2 and 8.
TEST(CudaGemmTest, CodesAreMultipliedWithinTheBoundOfTheirInstruction) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  double worst = 0;
  for (const MatrixShape shape :
       {MatrixShape{136, 256}, MatrixShape{300, 1104}, MatrixShape{64, 4096}}) {
    const MadeUpMatrix matrix({.format = WeightFormat::kFp8Block, .shape = shape});
    const Products products(matrix, Form::kFp8, Spread::kAligned);
    const std::vector<float> x = MadeUpX(9, 257 * shape.inputs);
    const GemmReference reference = products.Reference(x, DType::kF32, {});
    const std::vector<float> y = products.Run(x, DType::kF32, {}, TileSize::kPrefill);
    for (size_t i = 0; i < y.size(); ++i) {
      const double error = std::abs(y[i] - reference.y[i]);
      worst = std::max(worst, error / reference.magnitudes[i]);
      ASSERT_LE(error, reference.bounds[i]) << i;
    }
    std::vector<float> rounded;
    for (const float value : y) rounded.push_back(ToFloat(quire::ToBf16(value)));
    for (TileSize tile : kTileSizes) {
      SCOPED_TRACE(fmt::format("{} inputs, tile {}", shape.inputs, static_cast<int>(tile)));
      for (int64_t rows : {1, 9, 16, 70, 257}) {
        const std::vector<float> few =
            products.Run({x.begin(), x.begin() + rows * shape.inputs}, DType::kF32, {}, tile);
        EXPECT_EQ(BitMismatch(few, std::span(y).first(few.size())), "") << rows << " rows";
      }
      EXPECT_EQ(BitMismatch(products.Run(x, DType::kBf16, {}, tile), rounded), "");
    }
  }
  RecordProperty("worst", fmt::format("{:.3g}", worst));
}

TEST(CudaGemmTest, NoRowsIsNoWork) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = {33, 40}});
  EXPECT_TRUE(Products(matrix, Form::kBf16, Spread::kAligned).Run({}, DType::kF32).empty());
}

// ---- Bits ----

TEST(CudaGemmTest, ARowHasTheSameBitsAloneAndAmongOthersInEveryTile) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape :
       {MatrixShape{70, 301}, MatrixShape{70, 304}, MatrixShape{200, 1100}}) {
    for (Form form : kForms) {
      const MadeUpMatrix matrix({.format = FormatOf(form), .shape = shape});
      const Products products(matrix, form, Spread::kAligned);
      const std::vector<float> bias = MadeUpValues(4, shape.outputs);
      const std::vector<float> x = MadeUpX(8, 300 * shape.inputs);
      std::vector<float> alone;
      for (int64_t t = 0; t < 300; ++t) {
        const auto row = x.begin() + t * shape.inputs;
        const std::vector<float> y =
            products.Run({row, row + shape.inputs}, DType::kF32, bias, TileSize::kDecode);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300}) {
        const std::vector<float> some(x.begin(), x.begin() + rows * shape.inputs);
        const auto expected = std::span(alone).first(static_cast<size_t>(rows * shape.outputs));
        for (TileSize tile : kTileSizes) {
          EXPECT_EQ(BitMismatch(products.Run(some, DType::kF32, bias, tile), expected), "")
              << FormName(form) << ", " << shape.inputs << " inputs, " << rows << " rows, tile "
              << static_cast<int>(tile);
        }
      }
    }
  }
}

// A tile of 128 outputs for every multiprocessor, and one that is not full, go another way in the decode tile; 328
// inputs end within a panel.
TEST(CudaGemmTest, ManyOutputsOfFewRowsHaveTheBitsOfOtherTiles) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{kMultiprocessors * 128 + 40, 328};
  for (Form form : kForms) {
    const MadeUpMatrix matrix({.format = FormatOf(form), .shape = shape});
    const Products products(matrix, form, Spread::kAligned);
    const std::vector<float> bias = MadeUpValues(4, shape.outputs);
    for (int64_t rows : {1, 16, 20}) {
      const std::vector<float> x = MadeUpX(8, rows * shape.inputs);
      const std::vector<float> expected = products.Run(x, DType::kF32, bias, TileSize::kPrefill);
      for (TileSize tile : {TileSize::kDecode, TileSize::kMedium}) {
        EXPECT_EQ(BitMismatch(products.Run(x, DType::kF32, bias, tile), expected), "")
            << FormName(form) << ", " << rows << " rows, tile " << static_cast<int>(tile);
      }
    }
  }
}

// An odd last row tile, alone and behind a group of eight; one, two, three and fourteen columns of tiles; more tiles than
// CTAs, and longer ones than there are stages; two ranges of inputs. All rows by the other tile, some by `tile`.
void ExpectSameBits(Form form, TileSize tile, TileSize other) {
  for (const MatrixShape shape :
       {MatrixShape{130, 72}, MatrixShape{512, 712}, MatrixShape{700, 520}, MatrixShape{300, 1100},
        MatrixShape{3400, 328}}) {
    const MadeUpMatrix matrix({.format = FormatOf(form), .shape = shape});
    const Products products(matrix, form, Spread::kAligned);
    const std::vector<float> x = MadeUpX(8, 1300 * shape.inputs);
    const std::vector<float> expected = products.Run(x, DType::kF32, {}, other);
    for (int64_t rows : {1, 127, 128, 129, 256, 257, 385, 1024, 1025, 1300}) {
      const std::vector<float> some(x.begin(), x.begin() + rows * shape.inputs);
      const std::vector<float> y = products.Run(some, DType::kF32, {}, tile);
      EXPECT_EQ(BitMismatch(y, std::span(expected).first(y.size())), "")
          << shape.outputs << " outputs, " << rows << " rows";
    }
  }
}

// Pairs share their weights, beside tiles that do not.
TEST(CudaGemmTest, PairsOfRowTilesHaveTheBitsOfSingleOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectSameBits(Form::kBf16, TileSize::kPrefillPair, TileSize::kPrefill);
}

TEST(CudaGemmTest, LargeTilesOfCodesHaveTheBitsOfSmallOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectSameBits(Form::kFp8, TileSize::kPrefill, TileSize::kMedium);
}

TEST(CudaGemmTest, WideTilesOfCodesHaveTheBitsOfSmallOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectSameBits(Form::kFp8, TileSize::kPrefillWide, TileSize::kMedium);
}

TEST(CudaGemmTest, PairsOfRowTilesOfCodesHaveTheBitsOfSmallOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectSameBits(Form::kFp8, TileSize::kPrefillPair, TileSize::kMedium);
  ExpectSameBits(Form::kFp8, TileSize::kPrefillWidePair, TileSize::kMedium);
}

// Columns of 192 outputs begin in the middle of a block of scales, every other one, and end there.
TEST(CudaGemmTest, ColumnsOfLargeTilesNeedNotBeWholeBlocksOfScales) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  constexpr TileSize kLarge[] = {TileSize::kPrefill, TileSize::kPrefillWide, TileSize::kPrefillPair,
                                 TileSize::kPrefillWidePair};
  for (const int64_t outputs : {1, 95, 96, 97, 191, 192, 193, 576, 1408, 2112, 7168}) {
    const MatrixShape shape{outputs, 392};  // four blocks, of which the last is short
    const MadeUpMatrix matrix({.format = WeightFormat::kFp8Block, .shape = shape});
    const Products products(matrix, Form::kFp8, Spread::kAligned);
    for (int64_t rows : {1, 65, 300}) {
      const std::vector<float> x = MadeUpX(8, rows * shape.inputs);
      for (DType dtype : {DType::kF32, DType::kBf16}) {
        const std::vector<float> expected = products.Run(x, dtype, {}, TileSize::kMedium);
        for (TileSize tile : kLarge) {
          EXPECT_EQ(BitMismatch(products.Run(x, dtype, {}, tile), expected), "")
              << outputs << " outputs, " << rows << " rows, " << DTypeName(dtype) << ", tile "
              << static_cast<int>(tile);
        }
      }
    }
  }
}

TEST(CudaGemmTest, RepeatsHaveTheSameBits) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{576, 2048};  // four ranges
  const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = shape});
  const Products products(matrix, Form::kBf16, Spread::kAligned);
  const std::vector<float> x = MadeUpX(8, 40 * shape.inputs);
  const std::vector<float> first = products.Run(x, DType::kF32);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(BitMismatch(products.Run(x, DType::kF32), first), "");
}

// Gate and up of many rows, with one range of inputs and with several: silu of one product times the other, neither
// rounded.
TEST(CudaGemmTest, GateAndUpOfManyRowsAreTheirProductsAndTheActivation) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  for (const MatrixShape shape :
       {MatrixShape{200, 328}, MatrixShape{72, 1104}, MatrixShape{576, 2048}}) {
    const MadeUpMatrix gate({.format = WeightFormat::kBf16, .shape = shape}),
        up({.format = WeightFormat::kBf16, .shape = shape, .first_output = 7});
    const DeviceWeights gate_weights(gate, Spread::kAligned), up_weights(up, Spread::kAligned);
    for (int64_t rows : {65, 130}) {
      const std::vector<float> values = MadeUpX(9, rows * shape.inputs);
      const DeviceRows x(values, shape.inputs, Spread::kAligned);
      for (DType dtype : {DType::kF32, DType::kBf16}) {
        const DeviceOutput y(rows, shape.outputs, dtype, Spread::kAligned);
        const GemmArgs args{
            .x = x.view(), .w = gate_weights.view(), .up = up_weights.view(), .y = y.view()};
        ASSERT_TRUE(GemmTakesGate(args));
        Gemm(args, stream);
        const GemmReference reference =
            GatedReference(ReferenceGemm(gate, shape, values, {}, DType::kF32),
                           ReferenceGemm(up, shape, values, {}, DType::kF32), dtype);
        EXPECT_EQ(Mismatch(y.Values(stream), reference.y, reference.bounds), "")
            << shape.inputs << " inputs, " << rows << " rows, " << DTypeName(dtype);
      }
    }
  }
}

TEST(CudaGemmTest, HeadsAreProductsOfTheirOwn) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{72, 48};
  constexpr int64_t kHeads = 5;
  const Stream stream;
  // Heads are columns of wider rows: 48 of each 64 of x, 72 of each 80 of y.
  for (Spread spread : {Spread::kAligned, Spread::kOdd}) {
    for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8Block}) {
      const MadeUpMatrix a({.format = format, .shape = shape}),
          b({.format = format, .shape = shape, .first_output = 9});
      const DeviceWeights weights({&a, &b, &b, &a, &b}, spread);
      for (int64_t rows : {1, 3, 20, 70, 130}) {
        const DeviceRows x(MadeUpX(2, rows * kHeads * 64), kHeads * 64, spread);
        const DeviceOutput together(rows, kHeads * 80, DType::kBf16, spread);
        const DeviceOutput single(rows, kHeads * 80, DType::kBf16, spread);
        Gemm({.x = x.view().Columns(0, shape.inputs),
              .w = weights.view(),
              .y = together.view().Columns(0, shape.outputs),
              .x_step = 64,
              .y_step = 80},
             stream);
        for (int64_t h = 0; h < kHeads; ++h) {
          Gemm({.x = x.view().Columns(h * 64, shape.inputs),
                .w = weights.at(h),
                .y = single.view().Columns(h * 80, shape.outputs)},
               stream);
        }
        EXPECT_EQ(BitMismatch(together.Values(stream), single.Values(stream)), "")
            << WeightFormatName(format) << ", " << rows << " rows";
      }
    }
  }
}

TEST(CudaGemmTest, MatricesMayShareTheirRowsOfX) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{72, 48};
  const Stream stream;
  constexpr WeightFormat kFormat = WeightFormat::kBf16;
  const MadeUpMatrix a({.format = kFormat, .shape = shape});
  const MadeUpMatrix b({.format = kFormat, .shape = shape, .first_output = 9});
  const DeviceWeights weights({&a, &b, &a}, Spread::kAligned);
  for (int64_t rows : {1, 20, 70, 130}) {
    const DeviceRows x(MadeUpX(2, rows * shape.inputs), shape.inputs, Spread::kAligned);
    const DeviceOutput together(rows, 3 * shape.outputs, DType::kBf16, Spread::kAligned);
    const DeviceOutput single(rows, 3 * shape.outputs, DType::kBf16, Spread::kAligned);
    Gemm({.x = x.view(),
          .w = weights.view(),
          .y = together.view().Columns(0, shape.outputs),
          .x_step = 0,
          .y_step = shape.outputs},
         stream);
    for (int64_t i = 0; i < 3; ++i) {
      Gemm({.x = x.view(),
            .w = weights.at(i),
            .y = single.view().Columns(i * shape.outputs, shape.outputs)},
           stream);
    }
    EXPECT_EQ(BitMismatch(together.Values(stream), single.Values(stream)), "") << rows << " rows";
  }
}

// ---- What is not finite ----

TEST(CudaGemmTest, WhatIsNotFiniteStaysInItsRow) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const auto expect_kept_apart = [](MatrixShape shape, Form form) {
    const MadeUpMatrix matrix({.format = FormatOf(form), .shape = shape});
    const Products products(matrix, form, Spread::kAligned);
    for (int64_t rows : {3, 20, 70}) {
      std::vector<float> x = MadeUpX(6, rows * shape.inputs);
      const std::vector<float> clean = products.Run(x, DType::kF32);
      const int64_t bad = rows / 2;
      x[static_cast<size_t>(bad * shape.inputs + 1132)] = std::numeric_limits<float>::infinity();
      x[static_cast<size_t>(bad * shape.inputs)] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> y = products.Run(x, DType::kF32);
      for (int64_t n = 0; n < shape.outputs; ++n) {
        float& value = y[static_cast<size_t>(bad * shape.outputs + n)];
        EXPECT_TRUE(std::isnan(value)) << FormName(form) << ", output " << n;
        value = clean[static_cast<size_t>(bad * shape.outputs + n)];
      }
      EXPECT_EQ(BitMismatch(y, clean), "") << FormName(form) << ", " << rows << " rows";
    }
  };
  for (Form form : kForms) {
    expect_kept_apart({40, 1133}, form);
    expect_kept_apart({40, 1136}, form);
  }
}

TEST(CudaGemmTest, WeightsThatAreNotANumberReachTheirOwnOutputOnly) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 200};
  for (Form form : {Form::kFp8, Form::kFp8KeepX}) {
    MadeUpMatrix matrix({.format = WeightFormat::kFp8Block, .shape = shape});
    matrix.SetCode(33, 150, 0x7f);
    const Products products(matrix, form, Spread::kAligned);
    for (int64_t rows : {1, 30, 100}) {
      const std::vector<float> y = products.Run(MadeUpX(5, rows * shape.inputs), DType::kBf16);
      for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i % 70 == 33) << i;
    }
  }
}

// ---- e4m3 rows ----

TEST(CudaGemmTest, RowsAreQuantisedAsTheHostWould) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const int64_t inputs = 301, rows = 5;
  std::vector<float> x = MadeUpX(3, rows * inputs);
  for (int64_t k = 0; k < 128; ++k) x[static_cast<size_t>(k)] = 0;             // a block of zeros
  for (int64_t k = 128; k < 256; ++k) x[static_cast<size_t>(k)] *= 0x1p-130f;  // and of subnormals
  x = Widened(AsBf16(x));
  for (Spread spread : {Spread::kAligned, Spread::kOdd}) {
    const DeviceRows on_device(x, inputs, spread);
    const DeviceCodes made(on_device.view(), stream);
    const std::vector<uint8_t> codes = made.Codes(stream);
    const std::vector<float> scales = made.Scales(stream);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t k = 0; k < 384; ++k) {
        float largest = 0;
        for (int64_t i = k / 128 * 128; i < std::min(k / 128 * 128 + 128, inputs); ++i) {
          largest = std::max(largest, std::abs(x[static_cast<size_t>(t * inputs + i)]));
        }
        const float scale = largest / 448.0f;
        EXPECT_EQ(scales[static_cast<size_t>(t * 3 + k / 128)], scale) << t << ", " << k;
        const float value = k < inputs ? x[static_cast<size_t>(t * inputs + k)] : 0.0f;
        const float scaled = scale == 0 ? 0.0f : value / scale;
        ASSERT_EQ(codes[static_cast<size_t>(t * 384 + k)], ToFp8E4m3(scaled).bits)
            << t << ", " << k;
      }
    }
  }
}

TEST(CudaGemmTest, SmallAndLargeFp8ScalesNeitherUnderflowNorOverflowInside) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{32, 128};
  const MadeUpMatrix matrix({.format = WeightFormat::kFp8Block, .shape = shape});
  const Stream stream;
  const DeviceWeights weights(matrix, Spread::kAligned);
  for (float scale : {0x1p-100f, 0x1p100f}) {
    const std::vector<float> x(128, 1 / scale);
    const DeviceRows rows(x, 128, Spread::kAligned);
    const DeviceCodes codes(rows.view(), stream);
    const DeviceVector<float> scales({scale});
    WeightView w = weights.view();
    w.scales = scales.span().data();
    const DeviceOutput kept(1, 32, DType::kF32, Spread::kAligned);
    const DeviceOutput coded(1, 32, DType::kF32, Spread::kAligned);
    Gemm({.x = rows.view(), .w = w, .y = kept.view()}, stream);
    Gemm({.x_codes = codes.rows(), .w = w, .y = coded.view()}, stream);
    // 1 / scale is a power of two: its code is 448, exact, with a scale that is rounded once.
    const float made_up = 0.001f + 0.002f * std::abs(MadeUpValue(5, 0));
    std::vector<double> expected, bounds, bounds_of_codes;
    for (int64_t n = 0; n < shape.outputs; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < shape.inputs; ++k) {
        const double code = double{matrix.At(n, k)} / made_up;
        sum += code;
        magnitude += std::abs(code);
      }
      expected.push_back(sum);
      bounds.push_back(GemmBound(128, magnitude, sum, DType::kF32));
      bounds_of_codes.push_back(GemmBound(128, magnitude, sum, DType::kF32, Form::kFp8));
    }
    EXPECT_EQ(Mismatch(kept.Values(stream), expected, bounds), "") << scale;
    EXPECT_EQ(Mismatch(coded.Values(stream), expected, bounds_of_codes), "") << scale;
  }
}

// ---- What is refused ----

TEST(CudaGemmTest, WrongArgumentsAreRefusedByName) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  std::vector<Bf16> x(60), w(800), y(120);
  std::vector<float> wide(60);
  const GemmArgs good{
      .x = {x.data(), {3, 20}}, .w = DenseWeights(w.data(), {40, 20}), .y = {y.data(), {3, 40}}};
  Validate(good);
  const auto message = [&](auto change) {
    GemmArgs args = good;
    change(args);
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { Validate(args); });
  };
  EXPECT_EQ(message([](GemmArgs& a) { a.w = {}; }), "w: expected a matrix, got none");
  EXPECT_EQ(message([](GemmArgs& a) { a.w.format = WeightFormat::kF16; }),
            "w: expected bf16 or fp8_block, got f16");
  EXPECT_EQ(message([](GemmArgs& a) { a.w.format = WeightFormat::kFp8Block; }),
            "w.scales: expected one per block, got none");
  EXPECT_EQ(message([](GemmArgs& a) { a.w.row_stride = 19; }),
            "w.row_stride: expected at least 20, got 19");
  EXPECT_EQ(message([](GemmArgs& a) { a.w.count = 0; }), "w.count: expected 1..65535, got 0");
  EXPECT_EQ(message([&](GemmArgs& a) {
              a.x = {x.data(), {3, 19}};
            }),
            "x: expected shape [3, 20], got [3, 19]");
  EXPECT_EQ(message([&](GemmArgs& a) {
              a.x = {wide.data(), {3, 20}};
            }),
            "x: expected bf16, got f32");
  EXPECT_EQ(message([&](GemmArgs& a) {
              a.y = {y.data(), {2, 41}};
            }),
            "y: expected shape [2, 40], got [2, 41]");
  EXPECT_EQ(message([](GemmArgs& a) { a.w.count = 2; }),
            "x_step, y_step: expected at least 0 and 40, got 0 and 0");
  EXPECT_EQ(message([&](GemmArgs& a) {
              a.w.count = 2, a.x_step = 20, a.y_step = 40, a.bias = wide.data();
            }),
            "bias: expected one matrix, got 2");
  EXPECT_EQ(message([&](GemmArgs& a) { a.x_codes = {.codes = reinterpret_cast<Fp8E4m3*>(&x)}; }),
            "x_codes: expected one fp8_block matrix, got 1 of bf16");
}

}  // namespace
}  // namespace quire::cuda
