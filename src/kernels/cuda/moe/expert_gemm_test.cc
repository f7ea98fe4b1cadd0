#include "kernels/cuda/moe/expert_gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/moe/expert_gemm_testing.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::ErrorMessage;
using testing::Mismatch;

// Rows of each expert, and how many rows there is room for beyond them.
struct RoutingCase {
  const char* name;
  std::vector<int64_t> counts;
  int64_t padding = 0;
};

// Those at which a tile's products have more columns, an expert one tile more, and several tiles.
const std::vector<int64_t> kFewAndMany = {200, 0, 1, 64, 16, 17, 63, 32, 65, 33};

const RoutingCase kRoutingCases[] = {
    {"one_expert", {5}},
    {"empty_first_and_last", {0, 3, 0, 0, 17, 0}, 2},
    {"nobody", {0, 0, 0}, 7},
    {"edges_of_16", {15, 16, 17, 1, 16}},
    {"edges_of_64", {63, 64, 65, 0, 1}, 30},
    {"few_and_many", kFewAndMany, 9},
    {"edges_of_128", {127, 128, 129, 2}},
    {"edges_of_256", {1, 257, 0, 256, 255}, 3},
    {"all_to_the_last", OnlyOne(7, 6, 200)},
    {"all_to_the_first_with_padding", OnlyOne(7, 0, 130), 126},
    {"more_experts_than_threads", Repeated(300, 1), 5},
    {"as_many_as_there_may_be", OnlyOne(1024, 777, 18), 40},
};

constexpr TileSize kLargeTiles[] = {TileSize::kPrefill, TileSize::kPrefillWide,
                                    TileSize::kPrefillPair, TileSize::kPrefillWidePair};

// A rank has the rows of its own experts alone, but y has room for all: DeepSeek-V3's 64 tokens are 512 choices of
// 256 experts, of which one of eight ranks has 32.
TEST(ExpertRowsTest, AreDealtToTheExpertsOfAllRanks) {
  std::vector<float> y(512);
  ExpertGemmArgs args = {.y = TensorView(y.data(), {512, 1})};
  args.w.count = 32;
  EXPECT_EQ(RowsOfAnExpert(args), 16);
  args.all_experts = 256;
  EXPECT_EQ(RowsOfAnExpert(args), 2);
  args.all_experts = 0;
  args.w.count = 256;
  EXPECT_EQ(RowsOfAnExpert(args), 2);
}

TEST(CudaExpertGemmTest, EveryRowIsMultipliedByItsOwnExpert) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 136};
  for (const RoutingCase& c : kRoutingCases) {
    const std::vector<int32_t> offsets = Offsets(c.counts);
    const std::vector<float> x = MadeUpX(11, (offsets.back() + c.padding) * shape.inputs);
    for (Form form : kForms) {
      for (Op op : {Op::kPlain, Op::kGated}) {
        const Experts experts(shape, std::ssize(c.counts), form, op, Spread::kAligned);
        const GemmReference reference = experts.Reference(x, offsets, DType::kBf16);
        std::vector<float> first;
        for (TileSize tile : kTileSizes) {
          SCOPED_TRACE(fmt::format("{}, form {}, {}, tile {}", c.name, static_cast<int>(form),
                                   op == Op::kGated ? "gated" : "plain", static_cast<int>(tile)));
          const std::vector<float> y = experts.Run(x, offsets, DType::kBf16, tile);
          EXPECT_EQ(Mismatch(y, reference.y, reference.bounds), "");
          if (first.empty()) first = y;
          EXPECT_EQ(BitMismatch(y, first), "") << "tiles differ";
        }
      }
    }
  }
}

TEST(CudaExpertGemmTest, EqualsALoopOverTheExpertsBitForBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{200, 904};  // one range of inputs, as Gemm has for so few of them
  ASSERT_EQ(GemmSplits(shape.outputs, shape.inputs, TileMath::kBf16), 1);
  const std::vector<int32_t> offsets = Offsets({3, 0, 40, 129, 1});
  const std::vector<float> x = MadeUpX(12, offsets.back() * shape.inputs);
  const Stream stream;
  for (Spread spread : {Spread::kAligned, Spread::kOdd}) {
    for (Form form : kForms) {
      const Experts experts(shape, 5, form, Op::kPlain, spread);
      std::vector<float> expected;
      for (size_t e = 0; e < 5; ++e) {
        const int64_t rows = offsets[e + 1] - offsets[e];
        if (rows == 0) continue;
        const auto first = x.begin() + offsets[e] * shape.inputs;
        const DeviceRows on_device({first, first + rows * shape.inputs}, shape.inputs,
                                   Spread::kAligned);
        const DeviceCodes codes(on_device.view(), stream);
        const DeviceOutput y(rows, shape.outputs, DType::kF32, Spread::kAligned);
        GemmArgs args{.w = experts.gate().at(static_cast<int64_t>(e)), .y = y.view()};
        if (form == Form::kFp8) {
          args.x_codes = codes.rows();
        } else {
          args.x = on_device.view();
        }
        Gemm(args, stream);
        const std::vector<float> values = y.Values(stream);
        expected.insert(expected.end(), values.begin(), values.end());
      }
      for (TileSize tile : kTileSizes) {
        EXPECT_EQ(BitMismatch(experts.Run(x, offsets, DType::kF32, tile), expected), "")
            << "form " << static_cast<int>(form) << ", tile " << static_cast<int>(tile);
      }
    }
  }
}

TEST(CudaExpertGemmTest, ARowHasTheSameBitsWhateverOthersItsExpertHas) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{96, 256};
  for (Form form : kForms) {
    const Experts experts(shape, 2, form, Op::kGated, Spread::kAligned);
    const std::vector<float> x = MadeUpX(13, 300 * shape.inputs);
    const std::vector<float> many = experts.Run(x, {0, 0, 300}, DType::kF32, TileSize::kPrefill);
    for (int64_t row : {0, 1, 127, 128, 255, 299}) {
      const auto from = x.begin() + row * shape.inputs;
      const std::vector<float> alone =
          experts.Run({from, from + shape.inputs}, {0, 0, 1}, DType::kF32, TileSize::kDecode);
      const auto expected = std::span(many).subspan(static_cast<size_t>(row * shape.outputs),
                                                    static_cast<size_t>(shape.outputs));
      EXPECT_EQ(BitMismatch(alone, expected), "") << "row " << row;
    }
  }
}

// More tiles than there are CTAs, each longer than the stages of shared memory: a CTA takes tile after tile, of as many
// rows or of very different numbers. What a tile leaves in the stages reaches no row of the next.
TEST(CudaExpertGemmTest, ManyLongTilesHaveTheBitsOfOtherSizes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{200, 1000};
  constexpr int32_t kXRows = 301;
  const std::vector<float> x = MadeUpX(18, kXRows * shape.inputs);
  std::vector<float> with_nan = x;  // in every third row
  for (int64_t row = 0; row < kXRows; row += 3) {
    with_nan[static_cast<size_t>(row * shape.inputs + 500)] =
        std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<int64_t> few, few_and_many;
  for (int64_t e = 0; e < 90; ++e) few.push_back(e % 4 == 3 ? 0 : e * 7 % 19);
  for (int i = 0; i < 12; ++i) {
    few_and_many.insert(few_and_many.end(), kFewAndMany.begin(), kFewAndMany.end());
  }
  for (const std::vector<int64_t>& counts : {few, few_and_many}) {
    const std::vector<int32_t> offsets = Offsets(counts);
    std::vector<int32_t> index;
    for (int32_t r = 0; r < offsets.back(); ++r) index.push_back(r * 97 % kXRows);
    const std::vector<float> gathered = Gathered(x, shape.inputs, index);
    for (Form form : kForms) {
      for (Op op : {Op::kPlain, Op::kGated}) {
        const Experts experts(shape, std::ssize(counts), form, op, Spread::kAligned);
        const std::vector<float> expected =
            experts.RunIndexed(x, index, offsets, DType::kF32, TileSize::kPrefill);
        for (TileSize tile : {TileSize::kDecode, TileSize::kMedium}) {
          SCOPED_TRACE(fmt::format("{} experts, form {}, {}, tile {}", counts.size(),
                                   static_cast<int>(form), op == Op::kGated ? "gated" : "plain",
                                   static_cast<int>(tile)));
          for (RoutingAge age : {RoutingAge::kNew, RoutingAge::kOld, RoutingAge::kOld}) {
            EXPECT_EQ(BitMismatch(experts.RunIndexed(x, index, offsets, DType::kF32, tile, {}, age),
                                  expected),
                      "");
          }
          EXPECT_EQ(BitMismatch(experts.Run(gathered, offsets, DType::kF32, tile), expected), "");
          std::vector<float> y = experts.RunIndexed(with_nan, index, offsets, DType::kF32, tile);
          for (size_t i = 0; i < y.size(); ++i) {
            if (index[i / static_cast<size_t>(shape.outputs)] % 3 != 0) continue;
            ASSERT_TRUE(std::isnan(y[i])) << i;
            y[i] = expected[i];
          }
          EXPECT_EQ(BitMismatch(y, expected), "") << "beside rows that are not finite";
        }
      }
    }
  }
}

// Experts with even and odd numbers of row tiles, one and none; and one with all rows. One to five columns of tiles; of
// those that are rows of bf16 in chunks, whole tiles and part of one.
void ExpectExpertsHaveSameBits(Form form, TileSize tile, TileSize other) {
  const std::vector<int64_t> edges = {0, 1, 127, 128, 129, 257, 0, 384, 64, 300, 0};
  std::vector<int64_t> many;
  for (int i = 0; i < 4; ++i) many.insert(many.end(), edges.begin(), edges.end());
  for (const std::vector<int64_t>& counts : {edges, many, OnlyOne(9, 4, 1410)}) {
    const std::vector<int32_t> offsets = Offsets(counts);
    const int64_t rows = offsets.back();
    for (const auto& [shape, dtype] : {std::pair{MatrixShape{96, 200}, DType::kF32},
                                       {MatrixShape{200, 1000}, DType::kF32},
                                       {MatrixShape{330, 520}, DType::kF32},
                                       {MatrixShape{584, 264}, DType::kBf16}}) {
      const std::vector<float> x = MadeUpX(19, rows * shape.inputs);
      std::vector<int32_t> index;
      for (int64_t r = 0; r < rows; ++r) index.push_back(static_cast<int32_t>(r * 7919 % rows));
      for (Op op : {Op::kPlain, Op::kGated}) {
        SCOPED_TRACE(fmt::format("{} experts, {} outputs, {}", counts.size(), shape.outputs,
                                 op == Op::kGated ? "gated" : "plain"));
        const Experts experts(shape, std::ssize(counts), form, op, Spread::kAligned);
        const auto run = [&](const std::vector<int32_t>& of, TileSize size) {
          return experts.RunIndexed(x, of, offsets, dtype, size);
        };
        EXPECT_EQ(BitMismatch(run(index, tile), run(index, other)), "");
        EXPECT_EQ(BitMismatch(run({}, tile), run({}, other)), "");
      }
    }
  }
}

TEST(CudaExpertGemmTest, PairsOfRowTilesHaveTheBitsOfSingleOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectExpertsHaveSameBits(Form::kBf16, TileSize::kPrefillPair, TileSize::kPrefill);
}

TEST(CudaExpertGemmTest, LargeTilesOfCodesHaveTheBitsOfSmallOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectExpertsHaveSameBits(Form::kFp8, TileSize::kPrefill, TileSize::kMedium);
}

TEST(CudaExpertGemmTest, WideTilesOfCodesHaveTheBitsOfSmallOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectExpertsHaveSameBits(Form::kFp8, TileSize::kPrefillWide, TileSize::kMedium);
}

TEST(CudaExpertGemmTest, PairsOfRowTilesOfCodesHaveTheBitsOfSmallOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectExpertsHaveSameBits(Form::kFp8, TileSize::kPrefillPair, TileSize::kMedium);
  ExpectExpertsHaveSameBits(Form::kFp8, TileSize::kPrefillWidePair, TileSize::kMedium);
}

// A warp's 16 rows of bf16 leave shared memory by the copy engine, fewer in lines, while the next tile is multiplied, whose
// rows are written there then. A CTA's second tile is the 132nd behind its first: with two columns of tiles that of an
// expert is followed by that of the 66th behind it, and has more rows, fewer, or as many by the other way.
TEST(CudaExpertGemmTest, RowsOfCodesAreStoredBeforeTheNextTakeTheirPlace) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{200, 128};
  std::vector<int64_t> counts;
  while (counts.size() < 72) counts.push_back(std::vector{16, 7, 32, 80, 88}[counts.size() % 5]);
  const std::vector<int32_t> offsets = Offsets(counts);
  const std::vector<float> x = MadeUpX(21, offsets.back() * shape.inputs);
  const Experts experts(shape, std::ssize(counts), Form::kFp8, Op::kPlain, Spread::kAligned);
  const std::vector<float> expected = experts.Run(x, offsets, DType::kBf16, TileSize::kMedium);
  for (const TileSize tile : kLargeTiles) {
    EXPECT_EQ(BitMismatch(experts.Run(x, offsets, DType::kBf16, tile), expected), "")
        << "tile " << static_cast<int>(tile);
  }
}

// 96 of gate and 96 of up: the blocks of scales end behind none, 32, 64 and 96 of them.
TEST(CudaExpertGemmTest, ColumnsOfLargeTilesNeedNotBeWholeBlocksOfScales) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const std::vector<int32_t> offsets = Offsets({0, 1, 128, 129, 0, 300});
  const int64_t rows = offsets.back();
  std::vector<int32_t> index;
  for (int64_t r = 0; r < rows; ++r) index.push_back(static_cast<int32_t>(r * 7919 % rows));
  for (const int64_t outputs : {1, 95, 96, 97, 191, 192, 193, 576, 1408}) {
    const MatrixShape shape{outputs, 392};
    const std::vector<float> x = MadeUpX(19, rows * shape.inputs);
    for (Op op : {Op::kPlain, Op::kGated}) {
      const Experts experts(shape, 6, Form::kFp8, op, Spread::kAligned);
      for (DType dtype : {DType::kF32, DType::kBf16}) {
        for (const std::vector<int32_t>& of : {index, std::vector<int32_t>{}}) {
          const auto run = [&](TileSize size) {
            return experts.RunIndexed(x, of, offsets, dtype, size);
          };
          const std::vector<float> expected = run(TileSize::kMedium);
          for (TileSize tile : kLargeTiles) {
            EXPECT_EQ(BitMismatch(run(tile), expected), "")
                << outputs << " outputs, " << DTypeName(dtype)
                << (op == Op::kGated ? ", gated, tile " : ", tile ") << static_cast<int>(tile)
                << (of.empty() ? "" : ", by index");
          }
        }
      }
    }
  }
}

// Small enough for tools that see every access: rows that a producer copies by an index, several tiles of them, and more
// steps than there are stages.
TEST(CudaExpertGemmTest, AFewTilesOfIndexedRowsAreThoseGathered) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{136, 1032};
  const std::vector<int32_t> offsets = {0, 150, 150, 280, 290};
  const std::vector<float> x = MadeUpX(20, offsets.back() * shape.inputs);
  std::vector<int32_t> index;
  for (int32_t r = 0; r < offsets.back(); ++r) index.push_back(r * 79 % offsets.back());
  const std::vector<float> gathered = Gathered(x, shape.inputs, index);
  const auto expect_same = [&](Form form, TileSize tile) {
    const Experts experts(shape, 4, form, Op::kGated, Spread::kAligned);
    EXPECT_EQ(BitMismatch(experts.RunIndexed(x, index, offsets, DType::kBf16, tile),
                          experts.Run(gathered, offsets, DType::kBf16, tile)),
              "")
        << "form " << static_cast<int>(form) << ", tile " << static_cast<int>(tile);
  };
  expect_same(Form::kBf16, TileSize::kMedium);
  expect_same(Form::kBf16, TileSize::kPrefill);
  expect_same(Form::kBf16, TileSize::kPrefillPair);
  expect_same(Form::kFp8, TileSize::kPrefill);
  expect_same(Form::kFp8, TileSize::kPrefillWide);
  expect_same(Form::kFp8, TileSize::kPrefillPair);
  expect_same(Form::kFp8, TileSize::kPrefillWidePair);
}

TEST(CudaExpertGemmTest, RowsOfAnIndexAreThoseGatheredBitForBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 264};  // three blocks of scales, of which the last is short
  const Stream stream;
  Status status;
  status.Clear(stream);
  stream.Synchronize();
  const auto expect_same = [&](const Experts& experts, const RoutingCase& c, int64_t x_rows) {
    const std::vector<int32_t> offsets = Offsets(c.counts);
    const std::vector<float> x = MadeUpX(16, x_rows * shape.inputs);
    std::vector<int32_t> index, named;
    for (int64_t r = 0; r < offsets.back() + c.padding; ++r) {
      named.push_back(static_cast<int32_t>((r * 7919 + x_rows - 1) % x_rows));
      index.push_back(r < offsets.back() ? named.back() : kNoRow);
    }
    const std::vector<float> gathered = Gathered(x, shape.inputs, named);
    for (TileSize tile : kTileSizes) {
      const std::vector<float> y =
          experts.RunIndexed(x, index, offsets, DType::kBf16, tile, status.word());
      EXPECT_EQ(BitMismatch(y, experts.Run(gathered, offsets, DType::kBf16, tile)), "")
          << x_rows << " rows of x, tile " << static_cast<int>(tile);
    }
  };
  for (const RoutingCase& c : kRoutingCases) {
    for (Form form : kForms) {
      for (Spread spread : {Spread::kAligned, Spread::kOdd}) {
        SCOPED_TRACE(fmt::format("{}, form {}", c.name, static_cast<int>(form)));
        const Experts experts(shape, std::ssize(c.counts), form, Op::kGated, spread);
        // Fewer rows of x, named again and again; as many, in another order; more than are named.
        const int64_t num_rows = Offsets(c.counts).back() + c.padding;
        for (const int64_t x_rows : {int64_t{1}, num_rows / 3 + 1, num_rows, 2 * num_rows + 1}) {
          expect_same(experts, c, x_rows);
        }
      }
    }
  }
  status.Read(stream);
  stream.Synchronize();
  EXPECT_FALSE(status.report().has_value());
}

TEST(CudaExpertGemmTest, ARowThatXDoesNotHaveIsReportedAndReadAsTheFirst) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{150, 256};  // tiles of several CTAs
  const std::vector<int32_t> offsets = {0, 5, 5, 40};
  const std::vector<float> x = MadeUpX(17, 6 * shape.inputs);
  for (Form form : kForms) {
    const Experts experts(shape, 3, form, Op::kGated, Spread::kAligned);
    for (const int32_t bad : {-1, 6, INT32_MAX, INT32_MIN}) {
      for (const size_t at : {size_t{0}, size_t{4}, size_t{5}, size_t{39}}) {
        std::vector<int32_t> index(41);
        for (size_t r = 0; r < index.size(); ++r) index[r] = static_cast<int32_t>(r % 6);
        index[at] = bad;
        const std::vector<float> gathered = Gathered(x, shape.inputs, index);
        for (TileSize tile : kTileSizes) {
          Status status;
          const Stream stream;
          status.Clear(stream);
          stream.Synchronize();
          EXPECT_EQ(
              BitMismatch(experts.RunIndexed(x, index, offsets, DType::kBf16, tile, status.word()),
                          experts.Run(gathered, offsets, DType::kBf16, tile)),
              "");
          status.Read(stream);
          stream.Synchronize();
          ASSERT_TRUE(status.report().has_value());
          EXPECT_EQ(status.report()->fault, DeviceFault::kExpert);
          EXPECT_EQ(status.report()->launch, static_cast<uint32_t>(Launch::kGemm));
          EXPECT_EQ(status.report()->index, at);
        }
      }
    }
  }
}

TEST(CudaExpertGemmTest, OneGraphServesEveryRouting) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{64, 128};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned);
  const std::vector<float> x = MadeUpX(14, 10 * shape.inputs);  // of 10 tokens with 4 choices each
  const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
  const DeviceOutput y(40, shape.outputs, DType::kBf16, Spread::kAligned);
  const DeviceVector<int32_t> offsets({0, 0, 0, 0});
  const DeviceVector<int32_t> rows(std::vector<int32_t>(40, 0));
  const Stream stream;
  const std::vector<int32_t> zeros(40, 0);
  for (TileSize tile : kTileSizes) {
    SCOPED_TRACE(fmt::format("tile {}", static_cast<int>(tile)));
    experts.RunIndexed(x, zeros, {0, 0, 0, 40}, DType::kBf16, tile);  // it is loaded now
    const Graph graph = Graph::Capture(stream, [&] {
      ExpertGemm({.x = on_device.view(),
                  .w = experts.gate().view(),
                  .offsets = offsets.span().data(),
                  .rows = rows.span(),
                  .y = y.view()},
                 stream, tile);
    });
    int32_t step = 1;
    for (const std::vector<int32_t>& routing :
         {std::vector<int32_t>{0, 40, 40, 40}, {0, 0, 1, 40}, {0, 13, 26, 40}}) {
      CopyAndWait(offsets.bytes().data(), routing.data(), 16, "offsets");
      std::vector<int32_t> index;
      for (int32_t r = 0; r < 40; ++r) index.push_back(r * step % 40 / 4);
      step += 2;
      CopyAndWait(rows.bytes().data(), index.data(), 160, "rows");
      graph.Launch(stream);
      EXPECT_EQ(BitMismatch(y.Values(stream), experts.Run(Gathered(x, shape.inputs, index), routing,
                                                          DType::kBf16, TileSize::kDecode)),
                "");
    }
  }
}

TEST(CudaExpertGemmTest, OffsetsThatCannotBeAreReportedAndStayInBounds) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{64, 128};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned);
  const std::vector<float> x = MadeUpX(15, 12 * shape.inputs);
  struct Bad {
    std::vector<int32_t> offsets;
    uint32_t expert;
  };
  for (const Bad& bad : {Bad{{0, 5, 3, 12}, 1}, Bad{{0, 5, 10, 13}, 2}, Bad{{-1, 5, 10, 12}, 0},
                         Bad{{0, 5, 12, 2'000'000'000}, 2}}) {
    Status status;
    const Stream stream;
    status.Clear(stream);
    stream.Synchronize();
    const auto expect_report = [&] {
      status.Read(stream);
      stream.Synchronize();
      ASSERT_TRUE(status.report().has_value());
      EXPECT_EQ(status.report()->fault, DeviceFault::kExpert);
      EXPECT_EQ(status.report()->launch, static_cast<uint32_t>(Launch::kGemm));
      EXPECT_EQ(status.report()->index, bad.expert);
    };
    for (TileSize tile : kTileSizes) experts.Run(x, bad.offsets, DType::kBf16, tile, status.word());
    expect_report();
    status.Clear(stream);
    stream.Synchronize();
    experts.Run(x, bad.offsets, DType::kBf16, {}, status.word());
    expect_report();
  }
}

TEST(CudaExpertGemmTest, WrongArgumentsAreRefusedByName) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  std::vector<Bf16> x(60), w(1600), y(120);
  const int32_t offsets[3] = {};
  const ExpertGemmArgs good{.x = {x.data(), {3, 20}},
                            .w = DenseWeights(w.data(), {40, 20}, 2),
                            .offsets = offsets,
                            .y = {y.data(), {3, 40}}};
  Validate(good);
  const auto message = [&](auto change) {
    ExpertGemmArgs args = good;
    change(args);
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { Validate(args); });
  };
  EXPECT_EQ(message([](ExpertGemmArgs& a) { a.offsets = nullptr; }),
            "offsets: expected 3 of them, got none");
  EXPECT_EQ(message([](ExpertGemmArgs& a) { a.w.count = 1025; }),
            "w.count: expected at most 1024 experts, got 1025");
  EXPECT_EQ(message([](ExpertGemmArgs& a) { a.all_experts = 1; }),
            "all_experts: expected 0 or at least w's 2, got 1");
  EXPECT_EQ(message([&](ExpertGemmArgs& a) {
              a.up = DenseWeights(w.data(), {40, 20}, 1);
            }),
            "up: expected 2 matrices of 40 x 20, got 1 of 40 x 20");
  EXPECT_EQ(message([&](ExpertGemmArgs& a) {
              a.up = DenseWeights(w.data(), {40, 20}, 2);
              a.up.row_stride = 24;
            }),
            "up: expected strides 20 and 800, got 24 and 800");
  EXPECT_EQ(message([&](ExpertGemmArgs& a) {
              a.x = {x.data(), {3, 19}};
            }),
            "x: expected shape [3, 20], got [3, 19]");
  // With an index, x may have any number of rows, and y has as many as the index.
  const std::vector<int32_t> rows(4);
  const auto indexed = [&](int64_t x_rows, int64_t inputs, size_t num_rows) {
    return message([&](ExpertGemmArgs& a) {
      a.x = {x.data(), {x_rows, inputs}};
      a.rows = std::span(rows).first(num_rows);
    });
  };
  ExpertGemmArgs one = good;
  one.x = {x.data(), {1, 20}};
  one.rows = std::span(rows).first(3);
  Validate(one);
  EXPECT_EQ(indexed(2, 20, 4), "rows: expected 3 of them, got 4");
  EXPECT_EQ(indexed(2, 19, 3), "x: expected shape [2, 20], got [2, 19]");
  EXPECT_EQ(indexed(0, 20, 3), "x: expected rows for the 3 of y, got none");
}

}  // namespace
}  // namespace quire::cuda
