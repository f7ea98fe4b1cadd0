#include "kernels/cuda/gemm/gemm_boxed.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm_testing.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::Mismatch;

constexpr int32_t kRanges[] = {1, 2, 4, 8};

// One matrix on the device, or a gate and an up.
class Boxed : public GateAndUp {
 public:
  using GateAndUp::GateAndUp;

  std::vector<float> Run(const std::vector<float>& x, DType dtype, std::optional<int32_t> ranges,
                         const std::vector<float>& bias = {}) const {
    return GateAndUp::Run(
        x, dtype,
        [&](const GemmArgs& args, const Stream& stream) { BoxedGemm(args, stream, ranges); }, bias);
  }
};

// Inputs that are a multiple of no number of ranges, that end within a step, that leave ranges without any, and fewer
// than a step; outputs that end within a tile.
TEST(CudaGemmBoxedTest, EqualsTheReferenceWithinTheBound) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape :
       {MatrixShape{64, 2048}, MatrixShape{129, 1100}, MatrixShape{100, 520}, MatrixShape{33, 40},
        MatrixShape{70, 131}, MatrixShape{200, 704}}) {
    for (bool gated : {false, true}) {
      const Boxed boxed(shape, gated);
      const std::vector<float> bias = MadeUpValues(3, gated ? 0 : shape.outputs);
      for (int64_t rows : {1, 7, 16, 17, 24, 32, 33, 48, 64}) {
        const std::vector<float> x = MadeUpX(9, rows * shape.inputs);
        for (DType dtype : {DType::kF32, DType::kBf16}) {
          const GemmReference reference = boxed.Reference(x, dtype, bias);
          for (int32_t ranges : kRanges) {
            EXPECT_EQ(Mismatch(boxed.Run(x, dtype, ranges, bias), reference.y, reference.bounds),
                      "")
                << shape.outputs << " x " << shape.inputs << ", gated " << gated << ", " << rows
                << " rows, " << DTypeName(dtype) << ", " << ranges << " ranges";
          }
        }
      }
    }
  }
}

// Columns of an instance, and whose group of rows a row is of.
TEST(CudaGemmBoxedTest, TheNumberOfRowsChangesNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (bool gated : {false, true}) {
    const MatrixShape shape{130, 1096};
    const Boxed boxed(shape, gated);
    const std::vector<float> x = MadeUpX(8, 64 * shape.inputs);
    for (int32_t ranges : kRanges) {
      const std::vector<float> all = boxed.Run(x, DType::kF32, ranges);
      for (int64_t rows : {1, 8, 9, 16, 17, 31, 33, 48, 63}) {
        const std::vector<float> some =
            boxed.Run({x.begin(), x.begin() + rows * shape.inputs}, DType::kF32, ranges);
        EXPECT_EQ(BitMismatch(some, std::span(all).first(some.size())), "")
            << rows << " rows, " << ranges << " ranges, gated " << gated;
      }
    }
  }
}

// One range, two, four and eight; of which the last ends within a step, and which are no multiple of 128 inputs. Tiles of
// all sizes, and gate and up by prefill tiles, whose ranges are added in registers.
TEST(CudaGemmBoxedTest, TheSameRangesHaveTheBitsOfTheTileKernel) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape :
       {MatrixShape{70, 304}, MatrixShape{200, 1024}, MatrixShape{576, 2048}, MatrixShape{72, 2816},
        MatrixShape{64, 4096}, MatrixShape{130, 4104}}) {
    const int32_t ranges = GemmSplits(shape.outputs, shape.inputs, TileMath::kBf16);
    for (bool gated : {false, true}) {
      const Boxed boxed(shape, gated);
      for (int64_t rows : {1, 5, 16, 20, 64}) {
        SCOPED_TRACE(fmt::format("{} inputs, {} ranges, {} rows, gated {}", shape.inputs, ranges,
                                 rows, gated));
        const std::vector<float> x = MadeUpX(8, rows * shape.inputs);
        const std::vector<float> y = boxed.Run(x, DType::kF32, ranges);
        EXPECT_EQ(BitMismatch(y, boxed.Tiles(x, TileSize::kPrefill)), "");
        if (!gated || ranges == 1) {
          EXPECT_EQ(BitMismatch(y, boxed.Tiles(x, TileSize::kDecode)), "");
          EXPECT_EQ(BitMismatch(y, boxed.Tiles(x, TileSize::kMedium)), "");
        }
      }
    }
  }
}

TEST(CudaGemmBoxedTest, RepeatsHaveTheSameBits) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (bool gated : {false, true}) {
    const MatrixShape shape{2048, 2048};
    const Boxed boxed(shape, gated);
    const std::vector<float> x = MadeUpX(8, 61 * shape.inputs);
    for (int32_t ranges : kRanges) {
      const std::vector<float> first = boxed.Run(x, DType::kF32, ranges);
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(BitMismatch(boxed.Run(x, DType::kF32, ranges), first), "") << ranges;
      }
    }
  }
}

TEST(CudaGemmBoxedTest, WhatIsNotFiniteStaysInItsRow) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{72, 1136};
  const Boxed boxed(shape);
  for (int32_t ranges : kRanges) {
    SCOPED_TRACE(ranges);
    for (int64_t rows : {5, 20, 50}) {
      ExpectNaNStaysInItsRow(shape, rows, [&](const std::vector<float>& x) {
        return boxed.Run(x, DType::kF32, ranges);
      });
    }
  }
}

TEST(CudaGemmBoxedTest, ProductsThatOverlapHaveTheBitsOfOneAfterTheOther) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (int32_t ranges : kRanges) {
    SCOPED_TRACE(ranges);
    for (int64_t rows : {20, 64}) {
      ExpectOverlapChangesNoBit(512, rows, [&](const GemmArgs& args, const Stream& stream) {
        BoxedGemm(args, stream, ranges);
      });
    }
  }
}

TEST(GemmBoxedTest, RangesAreAsManyAsMultiprocessorsHaveRoomFor) {
  EXPECT_EQ(BoxedRanges(48, 2048), 4);  // 3072 outputs
  EXPECT_EQ(BoxedRanges(32, 2048), 4);  // 2048
  EXPECT_EQ(BoxedRanges(32, 2816), 4);
  EXPECT_EQ(BoxedRanges(9, 2048), 8);   // 576
  EXPECT_EQ(BoxedRanges(44, 2048), 4);  // gate and up of 2816
  EXPECT_EQ(BoxedRanges(128, 128), 1);  // 16 heads of 512
  EXPECT_EQ(BoxedRanges(32, 512), 2);   // and of 128
  EXPECT_EQ(BoxedRanges(1, 64), 1);
}

}  // namespace
}  // namespace quire::cuda
