// Experts of few rows, by each kernel that takes them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/moe/expert_gemm_testing.h"
#include "kernels/cuda/moe/route.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::Mismatch;

class CudaFewExpertRowsTest : public ::testing::TestWithParam<ExpertKernel> {
 protected:
  static bool IsExact() { return GetParam() == ExpertKernel::kStrips; }
};
INSTANTIATE_TEST_SUITE_P(, CudaFewExpertRowsTest,
                         ::testing::Values(ExpertKernel::kGemv, ExpertKernel::kStrips),
                         [](const auto& test) {
                           return test.param == ExpertKernel::kGemv ? "Gemv" : "Strips";
                         });

TEST_P(CudaFewExpertRowsTest, FewRowsOfOneExpertOfTheLastOfManyAndOfNobody) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 264};
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{kMaxFewExpertRows}, OnlyOne(7, 6, 5), OnlyOne(7, 0, 1),
        OnlyOne(1024, 1023, 4), Repeated(300, 0), std::vector<int64_t>{0, 3, 0, 0, 9, 0}}) {
    for (Op op : {Op::kPlain, Op::kGated}) {
      const Experts experts(shape, std::ssize(counts), Form::kBf16, op, Spread::kAligned,
                            GetParam());
      const std::vector<int32_t> offsets = Offsets(counts);
      const std::vector<float> x = MadeUpX(19, std::max(offsets.back(), 3) * shape.inputs);
      const GemmReference reference = experts.Reference(x, offsets, DType::kBf16);
      EXPECT_EQ(Mismatch(experts.Run(x, offsets, DType::kBf16, {}), reference.y, reference.bounds),
                "")
          << counts.size() << " experts";
    }
  }
}

// Offsets of a rank's own experts: rows before and behind theirs are not touched.
TEST_P(CudaFewExpertRowsTest, FewRowsBeginWhereTheFirstExpertsDo) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 264};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned, GetParam());
  const std::vector<float> x = MadeUpX(20, 12 * shape.inputs);
  const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
  const DeviceVector<int32_t> offsets({4, 5, 5, 9});
  const Stream stream;
  const DeviceOutput y(12, shape.outputs, DType::kF32, Spread::kAligned);
  ExpertGemm({.x = on_device.view(),
              .w = experts.gate().view(),
              .offsets = offsets.span().data(),
              .y = y.view(),
              .exact = IsExact()},
             stream);
  const std::vector<float> own(x.begin() + 4 * shape.inputs, x.begin() + 9 * shape.inputs);
  const std::vector<float> expected = experts.Run(own, {0, 1, 1, 5}, DType::kF32, {});
  const std::vector<float> all = y.Values(stream);
  const auto width = static_cast<size_t>(shape.outputs);
  EXPECT_EQ(BitMismatch(std::span(all).subspan(4 * width, 5 * width), expected), "");
  for (size_t i = 0; i < all.size(); ++i) {
    if (i >= 4 * width && i < 9 * width) continue;
    ASSERT_TRUE(std::isnan(all[i])) << "at " << i;
  }
}

TEST_P(CudaFewExpertRowsTest, OneOfFewRowsHasTheSameBitsWhateverOthersThereAre) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape : kFewRowsShapes) {
    const Experts experts(shape, 3, Form::kBf16, Op::kGated, Spread::kAligned, GetParam());
    const std::vector<float> x = MadeUpX(26, 16 * shape.inputs);
    const std::vector<float> many = experts.Run(x, {0, 5, 5, 16}, DType::kF32, {});
    for (int64_t row : {0, 4, 5, 15}) {
      const auto from = x.begin() + row * shape.inputs;
      const std::vector<int32_t> offsets =
          row < 5 ? std::vector<int32_t>{0, 1, 1, 1} : std::vector<int32_t>{0, 0, 0, 1};
      const std::vector<float> alone =
          experts.Run({from, from + shape.inputs}, offsets, DType::kF32, {});
      const auto expected = std::span(many).subspan(static_cast<size_t>(row * shape.outputs),
                                                    static_cast<size_t>(shape.outputs));
      EXPECT_EQ(BitMismatch(alone, expected), "") << "row " << row;
    }
  }
}

TEST_P(CudaFewExpertRowsTest, FewRowsOfAnIndexAreThoseGatheredAndOneThatIsNotThereIsReported) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{150, 256};
  const std::vector<int32_t> offsets = {0, 5, 5, 14};
  const std::vector<float> x = MadeUpX(17, 6 * shape.inputs);
  const Experts experts(shape, 3, Form::kBf16, Op::kGated, Spread::kAligned, GetParam());
  for (const int32_t bad : {3, -1, 6, INT32_MAX, INT32_MIN}) {
    for (const size_t at : {size_t{0}, size_t{4}, size_t{5}, size_t{13}}) {
      std::vector<int32_t> index(16, kNoRow);  // from the last offset on none is read
      for (size_t r = 0; r < 14; ++r) index[r] = static_cast<int32_t>(r % 6);
      index[at] = bad;
      Status status;
      const Stream stream;
      status.Clear(stream);
      stream.Synchronize();
      EXPECT_EQ(
          BitMismatch(experts.RunIndexed(x, index, offsets, DType::kBf16, {}, status.word()),
                      experts.Run(Gathered(x, shape.inputs, index), offsets, DType::kBf16, {})),
          "");
      status.Read(stream);
      stream.Synchronize();
      ASSERT_EQ(status.report().has_value(), bad != 3);
      if (bad == 3) continue;
      EXPECT_EQ(status.report()->fault, DeviceFault::kExpert);
      EXPECT_EQ(status.report()->launch, static_cast<uint32_t>(Launch::kGemm));
      EXPECT_EQ(status.report()->index, at);
    }
  }
}

// A layer's products behind each other in a stream that overlaps, again and again with other choices: the second
// product reads the routing before the first has ended, and x after.
TEST_P(CudaFewExpertRowsTest, FewRowsOfOverlappedLaunchesAreThoseOfOneAfterTheOther) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  constexpr int64_t kTokens = 2, kTopK = 6, kExperts = 64, kSteps = 12;
  constexpr int64_t kRows = kTokens * kTopK;
  const MatrixShape wide{352, 512}, back{512, 352};
  const Experts first(wide, kExperts, Form::kBf16, Op::kGated, Spread::kAligned, GetParam());
  const Experts second(back, kExperts, Form::kBf16, Op::kPlain, Spread::kAligned, GetParam());
  const DeviceRows x(MadeUpX(22, kTokens * wide.inputs), wide.inputs, Spread::kAligned);
  const DeviceVector<int32_t> offsets(std::vector<int32_t>(kExperts + 1));
  const std::vector<int32_t> zeros(kRows);
  const DeviceVector<int32_t> row_of(zeros), token_of(zeros);
  const DeviceOutput activated(kRows, wide.outputs, DType::kBf16, Spread::kAligned);
  std::vector<DeviceVector<int32_t>> chosen;
  for (int64_t step = 0; step < kSteps; ++step) {
    chosen.emplace_back(ChosenExperts(kTokens, kTopK, kExperts, step));
  }
  const auto run = [&](bool overlaps) {
    Stream stream;
    stream.set_overlaps(overlaps);
    std::vector<DeviceOutput> y;
    for (int64_t step = 0; step < kSteps; ++step) {
      y.emplace_back(kRows, back.outputs, DType::kBf16, Spread::kAligned);
    }
    for (size_t step = 0; step < y.size(); ++step) {
      SortByExpert({.num_experts = kExperts,
                    .top_k = kTopK,
                    .experts = chosen[step].span(),
                    .offsets = offsets.span(),
                    .row_of = row_of.span(),
                    .token_of = token_of.span()},
                   stream);
      ExpertGemm({.x = x.view(),
                  .w = first.gate().view(),
                  .up = first.up().view(),
                  .offsets = offsets.span().data(),
                  .rows = token_of.span(),
                  .y = activated.view(),
                  .exact = IsExact()},
                 stream);
      if (!overlaps) stream.Synchronize();
      ExpertGemm({.x = activated.view(),
                  .w = second.gate().view(),
                  .offsets = offsets.span().data(),
                  .y = y[step].view(),
                  .exact = IsExact(),
                  .routing = RoutingAge::kOld},
                 stream);
      if (!overlaps) stream.Synchronize();
    }
    std::vector<float> all;
    for (const DeviceOutput& of_step : y) {
      const std::vector<float> values = of_step.Values(stream);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<float> expected = run(false);
  for (int repeat = 0; repeat < 20; ++repeat) {
    ASSERT_EQ(BitMismatch(run(true), expected), "") << "repeat " << repeat;
  }
}

TEST_P(CudaFewExpertRowsTest, OneGraphServesEveryRoutingOfFewRows) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{64, 128};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned, GetParam());
  const std::vector<float> x = MadeUpX(14, 16 * shape.inputs);
  const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
  const DeviceOutput y(16, shape.outputs, DType::kBf16, Spread::kAligned);
  const DeviceVector<int32_t> offsets({0, 0, 0, 0});
  const Stream stream;
  experts.Run(x, {0, 0, 0, 16}, DType::kBf16, {});  // it is loaded now
  const Graph graph = Graph::Capture(stream, [&] {
    ExpertGemm({.x = on_device.view(),
                .w = experts.gate().view(),
                .offsets = offsets.span().data(),
                .y = y.view(),
                .exact = IsExact()},
               stream);
  });
  for (const std::vector<int32_t>& routing :
       {std::vector<int32_t>{0, 16, 16, 16}, {0, 0, 1, 16}, {0, 7, 12, 16}}) {
    CopyAndWait(offsets.bytes().data(), routing.data(), 16, "offsets");
    graph.Launch(stream);
    EXPECT_EQ(BitMismatch(y.Values(stream), experts.Run(x, routing, DType::kBf16, {})), "");
  }
}

// Rows of one step and of more than a ring has, and some inputs over; fewer strips of all rows than warps, and more;
// outputs that end within a strip and within its first half. A tile has one range of inputs.
TEST(CudaExpertStripsTest, HaveTheBitsOfTiles) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape :
       {MatrixShape{70, 136}, MatrixShape{270, 256}, MatrixShape{33, 2048}, MatrixShape{560, 584},
        MatrixShape{9, 4104}}) {
    for (Op op : {Op::kPlain, Op::kGated}) {
      const Experts experts(shape, 64, Form::kBf16, op, Spread::kAligned, ExpertKernel::kStrips);
      for (const auto& [tokens, top_k] : {std::pair<int64_t, int64_t>{1, 1}, {1, 6}, {2, 8}}) {
        const std::vector<int32_t> offsets =
            Offsets(CountsOf(ChosenExperts(tokens, top_k, 64, top_k), 64));
        const std::vector<float> x = MadeUpX(18, offsets.back() * shape.inputs);
        EXPECT_EQ(BitMismatch(experts.Run(x, offsets, DType::kF32, {}),
                              experts.Run(x, offsets, DType::kF32, TileSize::kDecode)),
                  "")
            << shape.outputs << " x " << shape.inputs << ", " << tokens << " tokens of " << top_k;
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
