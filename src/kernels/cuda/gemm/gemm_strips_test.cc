#include "kernels/cuda/gemm/gemm_strips.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm_boxed.h"
#include "kernels/cuda/gemm/gemm_testing.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::Mismatch;

// One matrix on the device, or a gate and an up.
class Strips : public GateAndUp {
 public:
  using GateAndUp::GateAndUp;

  std::vector<float> Run(const std::vector<float>& x, DType dtype,
                         const std::vector<float>& bias = {}) const {
    return GateAndUp::Run(
        x, dtype,
        [](const GemmArgs& args, const Stream& stream) {
          EXPECT_TRUE(StripsTake(args));
          StripGemm(args, stream);
        },
        bias);
  }
};

// Inputs that end within a step, that fill the ring and go round it, that are fewer than a step; outputs that end within a
// strip, within its first half, and that leave warps of a CTA without one, with ranges and without; 1, 2, 4 and 8 ranges,
// the last one short.
constexpr MatrixShape kShapes[] = {{64, 2048}, {137, 1096}, {100, 520}, {33, 40},    {1, 136},
                                   {2200, 72}, {70, 4104},  {24, 8},    {2120, 1096}};

TEST(CudaGemmStripsTest, EqualsTheReferenceWithinTheBound) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape : kShapes) {
    for (bool gated : {false, true}) {
      const Strips strips(shape, gated);
      const std::vector<float> bias = MadeUpValues(3, gated ? 0 : shape.outputs);
      for (int64_t rows : {1, 2}) {
        const std::vector<float> x = MadeUpX(9, rows * shape.inputs);
        for (DType dtype : {DType::kF32, DType::kBf16}) {
          const GemmReference reference = strips.Reference(x, dtype, bias);
          EXPECT_EQ(Mismatch(strips.Run(x, dtype, bias), reference.y, reference.bounds), "")
              << shape.outputs << " x " << shape.inputs << ", gated " << gated << ", " << rows
              << " rows, " << DTypeName(dtype);
        }
      }
    }
  }
}

TEST(CudaGemmStripsTest, HasTheBitsOfTilesAndBoxesWhateverTheNumberOfRows) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape : kShapes) {
    const int32_t ranges = GemmSplits(shape.outputs, shape.inputs, TileMath::kBf16);
    for (bool gated : {false, true}) {
      const Strips strips(shape, gated);
      const std::vector<float> x = MadeUpX(8, kMaxStripRows * shape.inputs);
      const std::vector<float> boxed = strips.GateAndUp::Run(
          x, DType::kF32,
          [&](const GemmArgs& args, const Stream& stream) { BoxedGemm(args, stream, ranges); });
      if (!gated) {
        EXPECT_EQ(BitMismatch(strips.Tiles(x, TileSize::kDecode), boxed), "");
      }
      for (int64_t rows = 1; rows <= kMaxStripRows; ++rows) {
        const std::vector<float> some =
            strips.Run({x.begin(), x.begin() + rows * shape.inputs}, DType::kF32);
        EXPECT_EQ(BitMismatch(some, std::span(boxed).first(some.size())), "")
            << shape.outputs << " x " << shape.inputs << ", " << ranges << " ranges, gated "
            << gated << ", " << rows << " rows";
      }
    }
  }
}

// Heads of a strip and less, of several, and of so many that a CTA has those of two; with rows of x of their own, and with
// the same.
TEST(CudaGemmStripsTest, HeadsHaveTheBitsOfTiles) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  for (const MatrixShape shape :
       {MatrixShape{40, 128}, MatrixShape{1040, 128}, MatrixShape{24, 1160}}) {
    const MadeUpMatrix first({.format = WeightFormat::kBf16, .shape = shape});
    const MadeUpMatrix second({.format = WeightFormat::kBf16, .shape = shape, .first_output = 7});
    const DeviceWeights weights({&first, &second, &first, &second, &first}, Spread::kAligned);
    const int64_t heads = weights.view().count;
    for (int64_t rows : {1, 2}) {
      const int64_t x_width = heads * shape.inputs, y_width = heads * shape.outputs;
      const DeviceRows x(MadeUpX(8, rows * x_width), x_width, Spread::kAligned);
      for (int64_t x_step : {shape.inputs, int64_t{0}}) {
        const auto run = [&](const std::function<void(const GemmArgs&)>& multiply) {
          const DeviceOutput y(rows, y_width, DType::kF32, Spread::kOdd);
          multiply({.x = x.view().Columns(0, shape.inputs),
                    .w = weights.view(),
                    .y = y.view().Columns(0, shape.outputs),
                    .x_step = x_step,
                    .y_step = shape.outputs});
          return y.Values(stream);
        };
        EXPECT_EQ(
            BitMismatch(run([&](const GemmArgs& args) { StripGemm(args, stream); }),
                        run([&](const GemmArgs& args) { Gemm(args, stream, TileSize::kDecode); })),
            "")
            << shape.outputs << " x " << shape.inputs << ", " << rows << " rows, " << x_step;
      }
    }
  }
}

TEST(CudaGemmStripsTest, WhatIsNotFiniteStaysInItsRow) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{72, 1136};
  const Strips strips(shape);
  ExpectNaNStaysInItsRow(shape, kMaxStripRows,
                         [&](const std::vector<float>& x) { return strips.Run(x, DType::kF32); });
}

TEST(CudaGemmStripsTest, ProductsThatOverlapHaveTheBitsOfOneAfterTheOther) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const auto& [width, rows] : {std::pair{2048, 1}, {2048, 2}, {256, 2}}) {
    ExpectOverlapChangesNoBit(width, rows, StripGemm);
  }
}

// Without a device: what is looked at are shapes, types and addresses.
TEST(GemmStripsTest, TakesFewAlignedRowsThatAWarpHasRoomFor) {
  alignas(16) Bf16 x[16] = {}, w[16] = {}, y[16] = {};
  const auto takes = [&](MatrixShape shape, int64_t rows, int64_t odd = 0) {
    return StripsTake({.x = ConstTensorView(x + odd, {rows, shape.inputs}),
                       .w = DenseWeights(w, shape),
                       .y = TensorView(y + 1, {rows, shape.outputs})});
  };
  EXPECT_TRUE(takes({3072, 2048}, 1));
  EXPECT_TRUE(takes({3072, 2048}, 2));
  EXPECT_FALSE(takes({3072, 2048}, 3));
  EXPECT_FALSE(takes({3072, 2048}, 1, 1));
  EXPECT_FALSE(takes({64, 60}, 1));
  EXPECT_TRUE(takes({10944, 3072}, 2));  // of one range
  EXPECT_FALSE(takes({10944, 3080}, 2));
  EXPECT_FALSE(takes({102400, 2048}, 1));
}

TEST(CudaGemmStripsTest, RefusesWhatItDoesNotTake) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Strips strips({64, 64});
  const auto multiply = [](const GemmArgs& args, const Stream& stream) { StripGemm(args, stream); };
  EXPECT_THROW(strips.GateAndUp::Run(MadeUpX(1, 3 * 64), DType::kF32, multiply), Error);
}

}  // namespace
}  // namespace quire::cuda
