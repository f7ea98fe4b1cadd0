#include "kernels/cuda/gemm/gemm_planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm_boxed.h"
#include "kernels/cuda/gemm/gemm_strips.h"
#include "kernels/cuda/gemm/gemm_testing.h"
#include "kernels/cuda/gemm/gemv.h"
#include "kernels/cuda/gemm/row_rotation.h"
#include "kernels/cuda/row_ops/row_ops.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::Mismatch;

// A product with everything it needs on the device.
struct PlannedProduct {
  MadeUpMatrix matrix;
  std::vector<float> values;
  DeviceWeights weights;
  DeviceRows x;
  DeviceOutput y;

  PlannedProduct(MatrixShape shape, int64_t rows, DType dtype, Spread spread = Spread::kAligned)
      : matrix({.format = WeightFormat::kBf16, .shape = shape}),
        values(MadeUpX(4, rows * shape.inputs)),
        weights(matrix, spread),
        x(values, shape.inputs, spread),
        y(rows, shape.outputs, dtype, spread) {}

  GemmArgs args() const { return {.x = x.view(), .w = weights.view(), .y = y.view()}; }
};

class CudaGemmPlannerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
    memory_ = std::make_unique<DeviceBuffer>("workspace", GemmPlanner::kWorkspaceBytes);
    stream_ = std::make_unique<Stream>();
  }
  GemmPlanner Make(GemmBackend backend) const { return {backend, memory_->bytes()}; }

  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaGemmPlannerTest, ProductsEqualTheReferenceWithinTheBound) {
  GemmPlanner planner = Make(GemmBackend::kCublasLt);
  for (const MatrixShape shape :
       {MatrixShape{128, 256}, MatrixShape{576, 2048}, MatrixShape{96, 72}, MatrixShape{33, 131}}) {
    for (int64_t rows : {1, 2, 16, 17, 24, 32, 33, 48, 64, 65}) {
      for (DType dtype : {DType::kBf16, DType::kF32}) {
        SCOPED_TRACE(fmt::format("{} x {}, {} rows, {}", shape.outputs, shape.inputs, rows,
                                 DTypeName(dtype)));
        const PlannedProduct product(shape, rows, dtype);
        planner.Plan(ShapeOf(product.args()));
        planner.Gemm(product.args(), *stream_);
        const GemmReference reference =
            ReferenceGemm(product.matrix, shape, product.values, {}, dtype);
        EXPECT_EQ(Mismatch(product.y.Values(*stream_), reference.y, reference.bounds), "");
      }
    }
  }
}

// Of one row by Gemv, in one step and in several; of two by tiles, of 20 in boxes, of more by cuBLASLt.
TEST_F(CudaGemmPlannerTest, HeadsEqualProductsOfTheirOwnWithinTheBound) {
  GemmPlanner planner = Make(GemmBackend::kCublasLt);
  for (const MatrixShape shape : {MatrixShape{512, 128}, MatrixShape{40, 2072}}) {
    const auto [outputs, inputs] = shape;
    const MadeUpMatrix a({.format = WeightFormat::kBf16, .shape = shape}),
        b({.format = WeightFormat::kBf16, .shape = shape, .first_output = 3});
    const DeviceWeights weights({&a, &b, &a}, Spread::kAligned);
    const int64_t x_step = inputs + 64, y_step = outputs + 64;
    for (int64_t rows : {1, 2, 20, 70}) {
      const std::vector<float> values = MadeUpX(2, rows * 3 * x_step);
      const DeviceRows x(values, 3 * x_step, Spread::kAligned);
      const DeviceOutput y(rows, 3 * y_step, DType::kBf16, Spread::kAligned);
      const GemmArgs args{.x = x.view().Columns(0, inputs),
                          .w = weights.view(),
                          .y = y.view().Columns(0, outputs),
                          .x_step = x_step,
                          .y_step = y_step};
      EXPECT_EQ(planner.Choose(args), rows == 1    ? GemmKernel::kGemv
                                      : rows == 2  ? GemmKernel::kTiles
                                      : rows == 20 ? GemmKernel::kBoxed
                                                   : GemmKernel::kCublasLt);
      planner.Plan(ShapeOf(args));
      planner.Gemm(args, *stream_);
      const std::vector<float> all = y.Values(*stream_);
      for (int64_t h = 0; h < 3; ++h) {
        std::vector<float> head_x, head_y;
        for (int64_t t = 0; t < rows; ++t) {
          const auto from = values.begin() + (3 * t + h) * x_step;
          head_x.insert(head_x.end(), from, from + inputs);
          const auto made = all.begin() + (3 * t + h) * y_step;
          head_y.insert(head_y.end(), made, made + outputs);
          for (auto gap = made + outputs; gap < made + y_step; ++gap) {
            ASSERT_TRUE(std::isnan(*gap)) << "between heads";
          }
        }
        const GemmReference reference =
            ReferenceGemm(h == 1 ? b : a, shape, head_x, {}, DType::kBf16);
        EXPECT_EQ(Mismatch(head_y, reference.y, reference.bounds), "")
            << rows << " rows, head " << h;
      }
    }
  }
}

TEST_F(CudaGemmPlannerTest, AGraphHasTheBitsOfAnEagerStep) {
  GemmPlanner planner = Make(GemmBackend::kCublasLt);
  for (int64_t rows : {1, 16, 17, 300}) {
    const PlannedProduct eager({576, 2048}, rows, DType::kBf16),
        recorded({576, 2048}, rows, DType::kBf16);
    planner.Plan(ShapeOf(eager.args()));
    planner.Gemm(eager.args(), *stream_);
    const Graph graph = Graph::Capture(*stream_, [&] { planner.Gemm(recorded.args(), *stream_); });
    for (int i = 0; i < 3; ++i) graph.Launch(*stream_);
    EXPECT_EQ(BitMismatch(recorded.y.Values(*stream_), eager.y.Values(*stream_)), "") << rows;
  }
}

// Many inputs and few outputs: the sums of split inputs lie in the workspace.
TEST_F(CudaGemmPlannerTest, LanesSideBySideHaveTheBitsOfOneAfterTheOther) {
  const DeviceBuffer side("workspace", GemmPlanner::kWorkspaceBytes);
  GemmPlanner planner(GemmBackend::kCublasLt, memory_->bytes(), side.bytes());
  const MatrixShape shape{64, 8192};
  const PlannedProduct alone(shape, 65, DType::kBf16);
  planner.Plan(ShapeOf(alone.args()));
  planner.Gemm(alone.args(), *stream_);
  const std::vector<float> expected = alone.y.Values(*stream_);
  Branch branch;
  for (int round = 0; round < 20; ++round) {
    const PlannedProduct main(shape, 65, DType::kBf16), beside(shape, 65, DType::kBf16);
    branch.Fork(*stream_);
    for (int i = 0; i < 10; ++i) {
      planner.Gemm(beside.args(), branch.stream(), GemmLane::kSide);
      planner.Gemm(main.args(), *stream_);
    }
    branch.Join(*stream_);
    EXPECT_EQ(BitMismatch(main.y.Values(*stream_), expected), "") << round;
    EXPECT_EQ(BitMismatch(beside.y.Values(*stream_), expected), "") << round;
  }
  // Without a workspace of its own, a lane has none.
  GemmPlanner narrow = Make(GemmBackend::kCublasLt);
  narrow.Plan(ShapeOf(alone.args()));
  EXPECT_THROW(narrow.Gemm(alone.args(), *stream_, GemmLane::kSide), InternalError);
}

TEST_F(CudaGemmPlannerTest, AShapeIsPlannedOnceAndAnUnplannedOneIsOurFault) {
  GemmPlanner planner = Make(GemmBackend::kCublasLt);
  const PlannedProduct product({128, 256}, 65, DType::kBf16), other({128, 256}, 66, DType::kBf16);
  planner.Plan(ShapeOf(product.args()));
  planner.Plan(ShapeOf(product.args()));
  EXPECT_EQ(planner.num_plans(), 1);
  EXPECT_THROW(planner.Gemm(other.args(), *stream_), InternalError);
}

TEST_F(CudaGemmPlannerTest, WhatCublasLtDoesNotTakeGoesToTheTiles) {
  const GemmPlanner planner = Make(GemmBackend::kCublasLt);
  const PlannedProduct odd({33, 131}, 20, DType::kBf16, Spread::kOdd);
  EXPECT_EQ(planner.Choose(odd.args()), GemmKernel::kTiles);
  const PlannedProduct same({33, 131}, 20, DType::kBf16, Spread::kOdd);
  planner.Gemm(odd.args(), *stream_);
  Gemm(same.args(), *stream_);
  EXPECT_EQ(BitMismatch(odd.y.Values(*stream_), same.y.Values(*stream_)), "");
  // A bias too.
  const PlannedProduct biased({128, 256}, 65, DType::kBf16);
  const DeviceVector<float> bias(MadeUpValues(1, 128));
  GemmArgs args = biased.args();
  EXPECT_EQ(planner.Choose(args), GemmKernel::kCublasLt);
  args.bias = bias.span().data();
  EXPECT_EQ(planner.Choose(args), GemmKernel::kTiles);
}

// Where all warps have outputs, and where few have.
TEST_F(CudaGemmPlannerTest, HeadsRotatedBesideTheirProductsHaveTheBitsOfTwoLaunches) {
  constexpr int64_t kRotated = 64;
  const std::vector<float> angles = MadeUpValues(5, kRotated);
  const DeviceVector<float> device_angles(angles);
  const ConstTensorView cos(device_angles.span().data(), {1, kRotated / 2}, MemorySide::kDevice);
  const ConstTensorView sin(device_angles.span().data() + kRotated / 2, {1, kRotated / 2},
                            MemorySide::kDevice);
  for (const auto& [heads, shape] :
       {std::pair<int64_t, MatrixShape>{3, {512, 128}}, {20, {512, 128}}, {150, {8, 40}}}) {
    const auto [outputs, inputs] = shape;
    const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = shape});
    const DeviceWeights weights(
        std::vector<const MadeUpMatrix*>(static_cast<size_t>(heads), &matrix), Spread::kAligned);
    const int64_t x_step = inputs + kRotated, y_step = outputs + kRotated;
    const DeviceRows x(MadeUpX(2, heads * x_step), heads * x_step, Spread::kAligned);
    const DeviceOutput y(1, heads * y_step, DType::kBf16, Spread::kAligned);
    const DeviceOutput expected(1, heads * y_step, DType::kBf16, Spread::kAligned);
    for (const RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalves}) {
      SCOPED_TRACE(fmt::format("{} heads, {}", heads, pairs == RopePairs::kHalves));
      const auto product = [&](const DeviceOutput& to) {
        return GemmArgs{.x = x.view().Columns(0, inputs),
                        .w = weights.view(),
                        .y = to.view().Columns(0, outputs),
                        .x_step = x_step,
                        .y_step = y_step};
      };
      const auto rotation = [&](const DeviceOutput& to) {
        return RopeArgs{.x = x.view().Parts(heads).Columns(inputs, kRotated),
                        .cos = cos,
                        .sin = sin,
                        .pairs = pairs,
                        .y = to.view().Parts(heads).Columns(outputs, kRotated)};
      };
      ASSERT_TRUE(GemvRotates(product(y), rotation(y)));
      Gemv(product(expected), *stream_);
      Rope(rotation(expected), *stream_);
      GemvAndRope(product(y), rotation(y), *stream_);
      EXPECT_EQ(BitMismatch(y.Values(*stream_), expected.Values(*stream_)), "");
      ASSERT_TRUE(StripsTake(product(y)) && RotatesOneRow(rotation(y)));
      const DeviceOutput by_strips(1, heads * y_step, DType::kBf16, Spread::kAligned);
      StripGemm(product(expected), *stream_);
      StripGemmAndRope(product(by_strips), rotation(by_strips), *stream_);
      EXPECT_EQ(BitMismatch(by_strips.Values(*stream_), expected.Values(*stream_)), "");
    }
  }
}

// ---- Few rows and few outputs ----

// docs/numerics.md: a thread's products, the tree of a warp, the warps, the bias.
std::vector<double> GemvBounds(const GemmReference& reference, int64_t inputs, DType dtype) {
  const double roundings = 8 * std::ceil(static_cast<double>(inputs) / 2048) + 5 + 7 + 1;
  std::vector<double> bounds;
  for (size_t i = 0; i < reference.y.size(); ++i) {
    const double sum = roundings * (0x1p-24 * reference.magnitudes[i] + 0x1p-126);
    const double rounded = 0x1p-8 * (std::abs(reference.y[i]) + sum);
    bounds.push_back(dtype == DType::kF32 ? sum : sum + rounded);
  }
  return bounds;
}

// y of the first rows, odd in all its addresses; nothing was planned.
std::vector<float> FewRows(const GemmPlanner& planner, const DeviceWeights& weights,
                           std::span<const float> values, const float* bias, DType dtype,
                           const Stream& stream) {
  const MatrixShape shape = weights.view().shape;
  const DeviceRows x({values.begin(), values.end()}, shape.inputs, Spread::kAligned);
  const DeviceOutput y(std::ssize(values) / shape.inputs, shape.outputs, dtype, Spread::kOdd);
  const GemmArgs args{.x = x.view(), .w = weights.view(), .y = y.view(), .bias = bias};
  EXPECT_TRUE(GemvTakes(args));
  planner.Gemm(args, stream);
  return y.Values(stream);
}

// One, two and four outputs of a CTA, and four of a team, with some left over; less and more inputs than threads
// take at once, and of teams with several quads, too; and every number of rows has the bits of the most.
TEST_F(CudaGemmPlannerTest, FewRowsAndOutputsAreWithinTheirBoundAndTheNumberOfRowsChangesNoBit) {
  const GemmPlanner planner = Make(GemmBackend::kCublasLt);
  for (const MatrixShape shape :
       {MatrixShape{1, 8}, MatrixShape{5, 72}, MatrixShape{64, 2048}, MatrixShape{132, 2056},
        MatrixShape{133, 264}, MatrixShape{256, 7168}, MatrixShape{265, 4096},
        MatrixShape{512, 2040}, MatrixShape{513, 40}, MatrixShape{2051, 1416},
        MatrixShape{1060, 256}, MatrixShape{1065, 512}, MatrixShape{3072, 2048},
        MatrixShape{5122, 768}, MatrixShape{576, 7176}, MatrixShape{2053, 4360}}) {
    const int64_t most = shape.outputs <= kMaxGemvOutputs ? kMaxGemvRows : kFewGemvRows;
    const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = shape});
    const DeviceWeights weights(matrix, Spread::kAligned);
    const std::vector<float> values = MadeUpX(4, most * shape.inputs);
    const std::vector<float> bias = MadeUpValues(1, shape.outputs);
    const DeviceVector<float> device_bias(bias);
    for (DType dtype : {DType::kBf16, DType::kF32}) {
      for (bool biased : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {}, {}, bias {}", shape.outputs, shape.inputs,
                                 DTypeName(dtype), biased));
        const GemmReference reference =
            ReferenceGemm(matrix, shape, values, biased ? bias : std::vector<float>(), dtype);
        const std::vector<double> bounds = GemvBounds(reference, shape.inputs, dtype);
        const float* added = biased ? device_bias.span().data() : nullptr;
        const std::vector<float> all = FewRows(planner, weights, values, added, dtype, *stream_);
        EXPECT_EQ(Mismatch(all, reference.y, bounds), "");
        for (int64_t rows = 1; rows < most; ++rows) {
          const auto first = std::span(values).first(static_cast<size_t>(rows * shape.inputs));
          const std::vector<float> some = FewRows(planner, weights, first, added, dtype, *stream_);
          EXPECT_EQ(BitMismatch(some, std::span(all).first(some.size())), "") << rows << " rows";
        }
      }
    }
  }
}

// Teams of 32, 64, 128 and 256 threads, of which the last have several quads of several steps, too, whose last step is not
// for all threads.
TEST_F(CudaGemmPlannerTest, ManyOutputsOfFewRowsHaveTheBitsOfFewOutputs) {
  const GemmPlanner planner = Make(GemmBackend::kCublasLt);
  for (const MatrixShape shape :
       {MatrixShape{522, 128}, MatrixShape{522, 192}, MatrixShape{522, 512}, MatrixShape{522, 768},
        MatrixShape{522, 1408}, MatrixShape{522, 2048}, MatrixShape{522, 7168},
        MatrixShape{1061, 4104}}) {
    const DeviceWeights many(MadeUpMatrix({.format = WeightFormat::kBf16, .shape = shape}),
                             Spread::kAligned);
    const std::vector<float> values = MadeUpX(5, kFewGemvRows * shape.inputs);
    const std::vector<float> all = FewRows(planner, many, values, nullptr, DType::kF32, *stream_);
    const DeviceRows x(values, shape.inputs, Spread::kAligned);
    const DeviceOutput y(kFewGemvRows, kMaxGemvOutputs, DType::kF32, Spread::kAligned);
    const int64_t first = shape.outputs - kMaxGemvOutputs;
    WeightView last = many.view();
    last.data += first * last.row_stride * DTypeBytes(DType::kBf16);
    last.shape.outputs = kMaxGemvOutputs;
    Gemv({.x = x.view(), .w = last, .y = y.view()}, *stream_);
    const std::vector<float> few = y.Values(*stream_);
    for (int64_t t = 0; t < kFewGemvRows; ++t) {
      const auto width = static_cast<size_t>(kMaxGemvOutputs);
      EXPECT_EQ(
          BitMismatch(std::span(all).subspan(static_cast<size_t>(t * shape.outputs + first), width),
                      std::span(few).subspan(static_cast<size_t>(t * kMaxGemvOutputs), width)),
          "")
          << shape.outputs << " x " << shape.inputs;
    }
  }
}

TEST_F(CudaGemmPlannerTest, FewRowsKeepNaNInTheirRow) {
  const GemmPlanner planner = Make(GemmBackend::kCublasLt);
  const MatrixShape shape{64, 2048};
  const DeviceWeights weights(MadeUpMatrix({.format = WeightFormat::kBf16, .shape = shape}),
                              Spread::kAligned);
  const std::vector<float> values = MadeUpX(4, 5 * shape.inputs);
  const std::vector<float> before =
      FewRows(planner, weights, values, nullptr, DType::kF32, *stream_);
  for (int64_t row : {0, 2, 4}) {
    std::vector<float> spoilt = values;
    spoilt[static_cast<size_t>(row * shape.inputs + 77)] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> after =
        FewRows(planner, weights, spoilt, nullptr, DType::kF32, *stream_);
    for (int64_t t = 0; t < 5; ++t) {
      const auto begin = static_cast<size_t>(t * shape.outputs);
      const auto size = static_cast<size_t>(shape.outputs);
      const std::span<const float> is = std::span(after).subspan(begin, size);
      if (t == row) {
        EXPECT_TRUE(std::all_of(is.begin(), is.end(), [](float v) { return std::isnan(v); }));
      } else {
        EXPECT_EQ(BitMismatch(is, std::span(before).subspan(begin, size)), "") << t;
      }
    }
  }
}

TEST_F(CudaGemmPlannerTest, WhatIsNotFewOrNotAlignedIsNotForGemv) {
  const auto takes = [](MatrixShape shape, int64_t rows, Spread spread = Spread::kAligned) {
    return GemvTakes(PlannedProduct(shape, rows, DType::kF32, spread).args());
  };
  EXPECT_TRUE(takes({512, 64}, 8));
  EXPECT_FALSE(takes({513, 64}, 3));
  EXPECT_TRUE(takes({513, 64}, 2));
  EXPECT_TRUE(takes({12288, 64}, 1));
  EXPECT_FALSE(takes({12289, 64}, 1));
  EXPECT_FALSE(takes({512, 64}, 9));
  EXPECT_FALSE(takes({64, 60}, 1));
  EXPECT_FALSE(takes({64, 64}, 1, Spread::kOdd));
  const PlannedProduct many({64, 64}, 9, DType::kF32), few({64, 64}, 8, DType::kF32);
  EXPECT_THROW(Gemv(many.args(), *stream_), Error);
}

// Without a device: what is looked at are shapes, types and addresses.
TEST(GemmKernelTest, ShapesTypesAndAddressesChooseTheKernel) {
  alignas(16) Bf16 x[65 * 64 + 1] = {}, w[64 * 64] = {}, y[65 * 64 + 1] = {};
  const float bias[64] = {};
  const auto choose = [&](int64_t rows, auto change, GemmBackend backend = GemmBackend::kCublasLt) {
    GemmArgs args{.x = {x, {rows, 64}}, .w = DenseWeights(w, {64, 64}), .y = {y, {rows, 64}}};
    change(args);
    return ChooseGemm(backend, args);
  };
  const auto nothing = [](GemmArgs&) {};
  EXPECT_EQ(choose(8, nothing), GemmKernel::kGemv);
  EXPECT_EQ(choose(9, nothing), GemmKernel::kTiles);
  EXPECT_EQ(choose(16, nothing), GemmKernel::kTiles);
  EXPECT_EQ(choose(17, nothing), GemmKernel::kBoxed);
  EXPECT_EQ(choose(64, nothing), GemmKernel::kBoxed);
  EXPECT_EQ(choose(65, nothing), GemmKernel::kCublasLt);
  EXPECT_EQ(choose(2, nothing, GemmBackend::kExact), GemmKernel::kStrips);
  EXPECT_EQ(choose(3, nothing, GemmBackend::kExact), GemmKernel::kTiles);
  EXPECT_EQ(choose(16, nothing, GemmBackend::kExact), GemmKernel::kTiles);
  EXPECT_EQ(choose(17, nothing, GemmBackend::kExact), GemmKernel::kBoxed);
  EXPECT_EQ(choose(64, nothing, GemmBackend::kExact), GemmKernel::kBoxed);
  EXPECT_EQ(choose(65, nothing, GemmBackend::kExact), GemmKernel::kTiles);
  // A bias is added by Gemv, by boxed products and by the tiles, but not by cuBLASLt.
  const auto biased = [&](GemmArgs& a) { a.bias = bias; };
  EXPECT_EQ(choose(8, biased), GemmKernel::kGemv);
  EXPECT_EQ(choose(17, biased), GemmKernel::kBoxed);
  EXPECT_EQ(choose(65, biased), GemmKernel::kTiles);
  const auto e4m3 = [&](GemmArgs& a) { a.w.format = WeightFormat::kFp8Block, a.w.scales = bias; };
  EXPECT_EQ(choose(8, e4m3), GemmKernel::kTiles);
  EXPECT_EQ(choose(17, e4m3), GemmKernel::kTiles);
  // Gemv and boxed products write y anywhere; cuBLASLt does not.
  const auto odd_y = [&](GemmArgs& a) { a.y = {y + 1, {a.x.dim(0), 64}}; };
  EXPECT_EQ(choose(7, odd_y), GemmKernel::kGemv);
  EXPECT_EQ(choose(17, odd_y), GemmKernel::kBoxed);
  EXPECT_EQ(choose(65, odd_y), GemmKernel::kTiles);
  const auto odd_x = [&](GemmArgs& a) { a.x = {x + 1, {a.x.dim(0), 64}}; };
  EXPECT_EQ(choose(7, odd_x), GemmKernel::kTiles);
  EXPECT_EQ(choose(17, odd_x), GemmKernel::kTiles);
  EXPECT_EQ(choose(17, odd_x, GemmBackend::kExact), GemmKernel::kTiles);
  EXPECT_EQ(choose(17, e4m3, GemmBackend::kExact), GemmKernel::kTiles);
  // More outputs than all multiprocessors take at once are cuBLASLt's.
  const auto many = [&](GemmArgs& a) {
    a.w.shape.outputs = 64 * kMaxBoxedTiles + 8;
    a.y = {y, {17, a.w.shape.outputs}};
  };
  EXPECT_EQ(choose(17, many), GemmKernel::kCublasLt);
  EXPECT_EQ(choose(17, many, GemmBackend::kExact), GemmKernel::kTiles);
}

TEST(GemmKernelTest, GateAndUpAreOneProductOfSomeRows) {
  alignas(16) Bf16 x[65 * 64] = {}, w[64 * 64] = {}, y[65 * 64] = {};
  const auto args_of = [&](int64_t rows) {
    return GemmArgs{.x = {x, {rows, 64}},
                    .w = DenseWeights(w, {64, 64}),
                    .up = DenseWeights(w, {64, 64}),
                    .y = {y, {rows, 64}}};
  };
  const auto takes = [&](int64_t rows) { return TakesGate(GemmBackend::kCublasLt, args_of(rows)); };
  EXPECT_FALSE(takes(2));
  EXPECT_TRUE(takes(3));
  EXPECT_TRUE(takes(64));
  EXPECT_FALSE(takes(65));
  // Exact: whatever the number of rows, or never.
  for (int64_t rows : {1, 2, 3, 16, 17, 64, 65}) {
    GemmArgs args = args_of(rows);
    EXPECT_TRUE(TakesGate(GemmBackend::kExact, args)) << rows;
    EXPECT_EQ(ChooseGemm(GemmBackend::kExact, args), rows <= kMaxStripRows   ? GemmKernel::kStrips
                                                     : rows <= kMaxBoxedRows ? GemmKernel::kBoxed
                                                                             : GemmKernel::kTiles);
    args.w.format = args.up.format = WeightFormat::kFp8Block;
    EXPECT_FALSE(TakesGate(GemmBackend::kExact, args)) << rows;
    args = args_of(rows);
    args.w.data += 2;  // an element
    EXPECT_FALSE(TakesGate(GemmBackend::kExact, args)) << rows;
    // More than strips and boxes take: tiles, of one range.
    args = args_of(rows);
    args.w.shape.outputs = args.up.shape.outputs = 64 * kMaxBoxedTiles + 8;
    EXPECT_TRUE(TakesGate(GemmBackend::kExact, args)) << rows;
    EXPECT_EQ(ChooseGemm(GemmBackend::kExact, args), GemmKernel::kTiles);
    EXPECT_EQ(GemmRanges(args), 1);
  }
}

// ---- Exact ----

// A product, gate and up, or heads, of the first rows of x.
class ExactProducts {
 public:
  enum class Form { kPlain, kGated, kHeads };

  ExactProducts(MatrixShape shape, Form form, std::span<const float> bias = {})
      : shape_(shape),
        form_(form),
        first_({.format = WeightFormat::kBf16, .shape = shape}),
        second_({.format = WeightFormat::kBf16, .shape = shape, .first_output = 7}),
        weights_(form == Form::kHeads ? std::vector<const MadeUpMatrix*>{&first_, &second_, &first_}
                                      : std::vector<const MadeUpMatrix*>{&first_},
                 Spread::kAligned),
        up_(second_, Spread::kAligned),
        bias_({bias.begin(), bias.end()}),
        is_biased_(!bias.empty()) {}

  int64_t heads() const { return form_ == Form::kHeads ? 3 : 1; }
  int64_t x_width() const { return heads() * shape_.inputs; }
  int64_t y_width() const { return heads() * shape_.outputs; }

  std::vector<float> Run(const GemmPlanner& planner, std::span<const float> values,
                         const Stream& stream) const {
    const DeviceRows x({values.begin(), values.end()}, x_width(), Spread::kAligned);
    const int64_t rows = std::ssize(values) / x_width();
    const DeviceOutput y(rows, y_width(), DType::kBf16, Spread::kAligned);
    GemmArgs args{.x = x.view().Columns(0, shape_.inputs),
                  .w = weights_.view(),
                  .y = y.view().Columns(0, shape_.outputs)};
    if (form_ == Form::kGated) args.up = up_.view();
    if (form_ == Form::kHeads) args.x_step = shape_.inputs, args.y_step = shape_.outputs;
    if (is_biased_) args.bias = bias_.span().data();
    EXPECT_TRUE(form_ != Form::kGated || planner.TakesGate(args)) << rows;
    planner.Gemm(args, stream);
    return y.Values(stream);
  }

 private:
  MatrixShape shape_;
  Form form_;
  MadeUpMatrix first_, second_;
  DeviceWeights weights_, up_;
  DeviceVector<float> bias_;
  bool is_biased_;
};

// Over the borders of kernels: strips, decode tiles, boxes of 16, 32 and 64 rows, warpgroups. One range, two, four and eight.
TEST_F(CudaGemmPlannerTest, ExactRowsHaveTheSameBitsWhateverTheirNumber) {
  using Form = ExactProducts::Form;
  constexpr int64_t kRows = 200;
  const GemmPlanner planner(GemmBackend::kExact, {});
  for (const MatrixShape shape : {MatrixShape{72, 304}, MatrixShape{200, 1096},
                                  MatrixShape{128, 2816}, MatrixShape{64, 4104}}) {
    for (const Form form : {Form::kPlain, Form::kGated, Form::kHeads}) {
      const std::vector<float> bias = MadeUpValues(3, form == Form::kPlain ? shape.outputs : 0);
      const ExactProducts products(shape, form, bias);
      const std::vector<float> x = MadeUpX(8, kRows * products.x_width());
      const std::vector<float> all = products.Run(planner, x, *stream_);
      for (int64_t rows = 1; rows < kRows; ++rows) {
        const auto first = std::span(x).first(static_cast<size_t>(rows * products.x_width()));
        const std::vector<float> some = products.Run(planner, first, *stream_);
        ASSERT_EQ(BitMismatch(some, std::span(all).first(some.size())), "")
            << shape.outputs << " x " << shape.inputs << ", form " << static_cast<int>(form) << ", "
            << rows << " rows";
      }
    }
  }
}

// Ranks have parts of matrices, whose bits are those of the whole ones: 8512 outputs have another number of ranges than 64.
TEST_F(CudaGemmPlannerTest, ExactPartsOfAMatrixHaveTheBitsOfTheWhole) {
  const GemmPlanner planner(GemmBackend::kExact, {});
  const MatrixShape shape{8512, 1024};
  constexpr int64_t kPart = 64;
  ASSERT_NE(GemmSplits(shape.outputs, shape.inputs, TileMath::kBf16),
            GemmSplits(kPart, shape.inputs, TileMath::kBf16));
  const MadeUpMatrix gate({.format = WeightFormat::kBf16, .shape = shape}),
      up({.format = WeightFormat::kBf16, .shape = shape, .first_output = 7});
  const DeviceWeights gate_weights(gate, Spread::kAligned), up_weights(up, Spread::kAligned);
  const auto part_of = [&](const WeightView& whole) {
    WeightView part = whole;
    part.shape.outputs = kPart;
    part.whole_outputs = shape.outputs;
    return part;
  };
  for (int64_t rows : {1, 16, 40, 70}) {
    const DeviceRows x(MadeUpX(4, rows * shape.inputs), shape.inputs, Spread::kAligned);
    for (bool gated : {false, true}) {
      const DeviceOutput whole(rows, shape.outputs, DType::kF32, Spread::kAligned);
      const DeviceOutput part(rows, kPart, DType::kF32, Spread::kAligned);
      GemmArgs args{.x = x.view(), .w = gate_weights.view(), .y = whole.view()};
      if (gated) args.up = up_weights.view();
      planner.Gemm(args, *stream_);
      args.w = part_of(args.w);
      if (gated) args.up = part_of(args.up);
      args.y = part.view();
      planner.Gemm(args, *stream_);
      const std::vector<float> all = whole.Values(*stream_), some = part.Values(*stream_);
      for (int64_t t = 0; t < rows; ++t) {
        const auto of_all = std::span(all).subspan(static_cast<size_t>(t * shape.outputs), kPart);
        const auto of_some = std::span(some).subspan(static_cast<size_t>(t * kPart), kPart);
        ASSERT_EQ(BitMismatch(of_some, of_all), "") << rows << " rows, gated " << gated;
      }
    }
  }
}

TEST_F(CudaGemmPlannerTest, TheExactBackendNeedsNoPlanAndNoWorkspace) {
  const GemmPlanner planner(GemmBackend::kExact, {});
  const PlannedProduct product({128, 256}, 8, DType::kF32), same({128, 256}, 8, DType::kF32);
  planner.Gemm(product.args(), *stream_);
  Gemm(same.args(), *stream_);
  EXPECT_EQ(BitMismatch(product.y.Values(*stream_), same.y.Values(*stream_)), "");
}

}  // namespace
}  // namespace quire::cuda
