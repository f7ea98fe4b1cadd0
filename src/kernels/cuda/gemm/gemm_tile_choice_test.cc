// Which tile of which kernel multiplies, and into how many ranges inputs are cut. Without a device: what is looked at are
// numbers and addresses.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_decode.h"

namespace quire::cuda {
namespace {

TEST(TileChoiceTest, RangesOfInputsAreAFunctionOfTheMatrix) {
  for (TileMath math : {TileMath::kBf16, TileMath::kFp8, TileMath::kFp8KeepX}) {
    EXPECT_EQ(GemmSplits(576, 7168, math), 8);
    EXPECT_EQ(GemmSplits(2048, 2048, math), 4);   // a range keeps 512 inputs
    EXPECT_EQ(GemmSplits(16384, 7168, math), 1);  // enough outputs
    EXPECT_EQ(GemmSplits(128, 512, math), 1);     // too few inputs
  }
  EXPECT_EQ(GemmSplits(7168, 16384, TileMath::kBf16), 2);
  EXPECT_EQ(GemmSplits(7168, 16384, TileMath::kFp8), 1);
  EXPECT_EQ(GemmSplitInputs(7168, 8, TileMath::kFp8), 896);
  EXPECT_EQ(GemmSplitInputs(4104, 8, TileMath::kFp8KeepX), 640);  // whole blocks of scales
  EXPECT_EQ(GemmSplitInputs(4104, 8, TileMath::kBf16), 576);      // whole steps
  EXPECT_EQ(GemmSplitInputs(2816, 4, TileMath::kBf16), 704);
  EXPECT_EQ(MaxRowTiles(6, 64, 16), 6);
  EXPECT_EQ(MaxRowTiles(4096, 64, 128), 32 + 63);
}

TEST(TileChoiceTest, RowsChooseTheSizeAndAnOddAddressTheMediumTile) {
  alignas(16) Bf16 x[64 + 1] = {}, w[64 * 64 + 1] = {};
  const auto choose = [&](int64_t rows, int64_t x_from, int64_t w_from,
                          std::optional<TileSize> size = {}, const int32_t* of_experts = nullptr) {
    const ConstTensorView from(x + x_from, {1, 64});
    const WeightView weights = DenseWeights(w + w_from, {64, 64});
    Bf16 y[64];
    TileParams params = MakeTileParams(from, {}, weights, {y, {1, 64}});
    params.offsets = of_experts;
    return ChooseTile(params, {}, weights, rows, size);
  };
  const int32_t offsets = 0;
  EXPECT_EQ(choose(16, 0, 0).size, TileSize::kDecode);
  EXPECT_EQ(choose(17, 0, 0).size, TileSize::kMedium);
  EXPECT_EQ(choose(64, 0, 0).size, TileSize::kMedium);
  EXPECT_EQ(choose(65, 0, 0).size, TileSize::kPrefill);
  EXPECT_EQ(choose(128, 0, 0).size, TileSize::kPrefill);
  EXPECT_EQ(choose(129, 0, 0).size, TileSize::kPrefill);
  EXPECT_EQ(choose(128, 0, 0, {}, &offsets).size, TileSize::kPrefill);
  EXPECT_EQ(choose(129, 0, 0, {}, &offsets).size, TileSize::kPrefillPair);
  EXPECT_EQ(choose(65, 0, 0).loads, TileLoads::kAligned);
  EXPECT_EQ(choose(65, 0, 0, TileSize::kDecode).size, TileSize::kDecode);
  for (const TileChoice& odd : {choose(1, 1, 0), choose(65, 0, 1, TileSize::kPrefill)}) {
    EXPECT_EQ(odd.size, TileSize::kMedium);
    EXPECT_EQ(odd.loads, TileLoads::kUnaligned);
  }
}

TEST(TileChoiceTest, DecodeTilesAreOfCodesAndOfExpertsRows) {
  const int32_t offsets = 0;
  const TileParams dense{.inputs = 64};
  TileParams experts{.inputs = 64};
  experts.offsets = &offsets;
  experts.num_experts = 512;
  const auto takes = [](const TileParams& p, TileMath math, TileSize size,
                        TileLoads loads = TileLoads::kAligned) {
    return DecodeTakes(p, {.math = math, .size = size, .loads = loads});
  };
  for (const TileParams& p : {dense, experts}) {
    EXPECT_TRUE(takes(p, TileMath::kFp8, TileSize::kDecode));
    EXPECT_TRUE(takes(p, TileMath::kFp8, TileSize::kMedium));
    EXPECT_EQ(takes(p, TileMath::kBf16, TileSize::kMedium), p.offsets != nullptr);
    EXPECT_FALSE(takes(p, TileMath::kBf16, TileSize::kDecode));
    for (TileMath math : {TileMath::kBf16, TileMath::kFp8, TileMath::kFp8KeepX}) {
      EXPECT_FALSE(takes(p, math, TileSize::kPrefill));
      EXPECT_FALSE(takes(p, math, TileSize::kMedium, TileLoads::kUnaligned));
    }
    EXPECT_FALSE(takes(p, TileMath::kFp8KeepX, TileSize::kMedium));
  }
  // Codes come in pairs; there is room for the tiles of so many experts.
  experts.inputs = 63;
  EXPECT_TRUE(takes(experts, TileMath::kBf16, TileSize::kMedium));
  EXPECT_FALSE(takes(experts, TileMath::kFp8, TileSize::kMedium));
  experts.inputs = 64;
  experts.num_experts = 513;
  EXPECT_FALSE(takes(experts, TileMath::kBf16, TileSize::kMedium));
  EXPECT_FALSE(takes(experts, TileMath::kFp8, TileSize::kMedium));
}

TEST(TileChoiceTest, FormatsChooseTheMath) {
  WeightView weights;
  EXPECT_EQ(ChooseTile({}, {}, weights, 1).math, TileMath::kBf16);
  weights.format = WeightFormat::kFp8Block;
  EXPECT_EQ(ChooseTile({}, {}, weights, 1).math, TileMath::kFp8KeepX);
  Fp8E4m3 code;
  const QuantisedRows codes{.codes = &code};
  EXPECT_EQ(ChooseTile({}, codes, weights, 1).math, TileMath::kFp8);
  // Codes that are widened have no pairs.
  const int32_t offsets = 0;
  const TileParams of_experts{.outputs = 64, .offsets = &offsets, .num_experts = 1};
  EXPECT_EQ(ChooseTile(of_experts, {}, weights, 129).size, TileSize::kPrefill);
  EXPECT_EQ(ChooseTile(of_experts, codes, weights, 129).size, TileSize::kPrefillPair);
}

TEST(TileChoiceTest, SmallTilesOfExpertsHoldMoreRowsThanTheyHaveOnAverage) {
  const WeightView weights{.format = WeightFormat::kBf16};
  const int32_t offsets = 0;
  const TileParams dense{.outputs = 64};
  const TileParams experts{.outputs = 64, .offsets = &offsets, .num_experts = 8};
  EXPECT_EQ(ChooseTile(dense, {}, weights, 16).size, TileSize::kDecode);
  EXPECT_EQ(ChooseTile(dense, {}, weights, 17).size, TileSize::kMedium);
  EXPECT_EQ(ChooseTile(experts, {}, weights, 12).size, TileSize::kDecode);
  EXPECT_EQ(ChooseTile(experts, {}, weights, 13).size, TileSize::kMedium);
}

// Codes alone, and of one range of inputs, have wide tiles; bf16 x with e4m3 w has no pairs.
TEST(TileChoiceTest, ALargeTileThatThereIsNotIsTheNearestOne) {
  WeightView bf16{.format = WeightFormat::kBf16}, fp8{.format = WeightFormat::kFp8Block};
  Fp8E4m3 code;
  const QuantisedRows codes{.codes = &code};
  const TileParams one{.outputs = 64}, ranges{.outputs = 64, .num_splits = 2};
  const auto choose = [](const TileParams& p, const QuantisedRows& rows, const WeightView& w,
                         TileSize size) { return ChooseTile(p, rows, w, 129, size).size; };
  for (TileSize size : {TileSize::kPrefill, TileSize::kPrefillWide, TileSize::kPrefillPair,
                        TileSize::kPrefillWidePair}) {
    const bool is_pair = ExtentOf(size).rows == 256;
    const TileSize narrow = is_pair ? TileSize::kPrefillPair : TileSize::kPrefill;
    EXPECT_EQ(choose(one, codes, fp8, size), size);
    EXPECT_EQ(choose(ranges, codes, fp8, size), narrow);
    EXPECT_EQ(choose(one, {}, bf16, size), narrow);
    EXPECT_EQ(choose(one, {}, fp8, size), TileSize::kPrefill);
  }
}

TEST(TileChoiceTest, TilesOfCodesAreWideWhereThatHardlyTakesMoreRounds) {
  const auto of = [](int32_t outputs, int64_t rows) {
    return LargeTileOfCodes({.outputs = outputs}, rows);
  };
  EXPECT_EQ(of(192, 1), TileSize::kPrefill);                       // one tile, or two side by side
  EXPECT_EQ(of(2048, 512), TileSize::kPrefill);                    // 44 or 64, at once
  EXPECT_EQ(of(128 * kMultiprocessors, 128), TileSize::kPrefill);  // one round either way
  EXPECT_EQ(of(192 * kMultiprocessors, 128), TileSize::kPrefillWide);  // one, or two
  EXPECT_EQ(of(7168, 512), TileSize::kPrefill);                        // two either way
  EXPECT_EQ(of(7168, 4096), TileSize::kPrefillWidePair);               // 10, or 14
  EXPECT_EQ(of(18432, 4096), TileSize::kPrefillWidePair);              // 24, or 35
}

TEST(TileChoiceTest, RowTilesOfCodesThatShareWeightsArePairs) {
  const auto of_cut = [](int64_t rows) {
    return LargeTileOfCodes({.outputs = 18432, .num_splits = 2}, rows);
  };
  EXPECT_EQ(of_cut(128), TileSize::kPrefill);
  EXPECT_EQ(of_cut(129), TileSize::kPrefillPair);
  // Gate and up of an expert are columns of 96 and 64 outputs.
  const int32_t offsets = 0;
  const auto of_experts = [&](int32_t outputs, int32_t experts) {
    return LargeTileOfCodes(
        {.gated = true, .outputs = outputs, .offsets = &offsets, .num_experts = experts}, 128);
  };
  EXPECT_EQ(of_experts(2048, 256), TileSize::kPrefillWidePair);  // 43 rounds, or 63
  EXPECT_EQ(of_experts(64, 8), TileSize::kPrefillPair);
}

// As Gemm chooses: V3's kv down, whose inputs are cut, has pairs that are not wide, and its output wide ones.
TEST(TileChoiceTest, RangesOfAProductAreKnownWhenItsTileIsChosen) {
  alignas(16) static Fp8E4m3 code;
  const auto choose = [](MatrixShape shape) {
    const GemmArgs args{.x_codes = {.codes = &code, .code_stride = shape.inputs},
                        .w = Fp8Weights(&code, nullptr, shape),
                        .y = {reinterpret_cast<Bf16*>(&code), {4096, shape.outputs}}};
    const TileParams p = MakeTileParams(args);
    EXPECT_EQ(p.num_splits, GemmRanges(args));
    return ChooseTile(p, args.x_codes, args.w, p.rows).size;
  };
  EXPECT_EQ(choose({576, 7168}), TileSize::kPrefillPair);
  EXPECT_EQ(choose({7168, 16384}), TileSize::kPrefillWidePair);
}

}  // namespace
}  // namespace quire::cuda
