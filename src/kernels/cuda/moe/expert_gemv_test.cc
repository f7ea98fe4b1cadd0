// Experts of few rows that need not be exact.
#include "kernels/cuda/moe/expert_gemv.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/moe/expert_gemm_testing.h"
#include "kernels/cuda/moe/route.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::Mismatch;

// So many tokens choose top_k different experts each.
std::vector<int32_t> ChosenExperts(int64_t tokens, int64_t top_k, int64_t experts, int64_t seed) {
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < top_k; ++i) {
      chosen.push_back(static_cast<int32_t>((t * 5 + seed * 11 + i * 7) % experts));
    }
  }
  return chosen;
}

std::vector<int64_t> CountsOf(const std::vector<int32_t>& chosen, int64_t experts) {
  std::vector<int64_t> counts = Repeated(experts, 0);
  for (int32_t e : chosen) ++counts[static_cast<size_t>(e)];
  return counts;
}

// Rows of one step and of more than a ring has, and some inputs over; fewer outputs of all rows than warps, and
// more.
constexpr MatrixShape kFewRowsShapes[] = {{70, 136}, {270, 256}, {33, 2048}, {50, 1416}, {9, 4104}};

TEST(CudaExpertGemvTest, FewRowsAreWithinTheirBoundsWithTheirOwnExpert) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape : kFewRowsShapes) {
    for (Op op : {Op::kPlain, Op::kGated}) {
      const Experts experts(shape, 64, Form::kBf16, op, Spread::kAligned);
      for (int64_t tokens = 1; tokens <= 4; ++tokens) {
        for (int64_t top_k = 1; top_k <= 8; top_k += tokens == 1 ? 1 : 3) {
          if (tokens * top_k > kMaxExpertGemvRows) continue;
          const std::vector<int32_t> offsets =
              Offsets(CountsOf(ChosenExperts(tokens, top_k, 64, top_k), 64));
          const int64_t padding = tokens * top_k < kMaxExpertGemvRows ? 1 : 0;
          const std::vector<float> x = MadeUpX(18, (offsets.back() + padding) * shape.inputs);
          for (DType dtype : {DType::kBf16, DType::kF32}) {
            SCOPED_TRACE(fmt::format("{} x {}, {} tokens, top {}, {}", shape.outputs, shape.inputs,
                                     tokens, top_k, op == Op::kGated ? "gated" : "plain"));
            const GemmReference reference = experts.Reference(x, offsets, dtype);
            EXPECT_EQ(Mismatch(experts.Run(x, offsets, dtype, {}), reference.y, reference.bounds),
                      "");
          }
        }
      }
    }
  }
}

TEST(CudaExpertGemvTest, FewRowsOfOneExpertOfTheLastOfManyAndOfNobody) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 264};
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{kMaxExpertGemvRows}, OnlyOne(7, 6, 5), OnlyOne(7, 0, 1),
        OnlyOne(1024, 1023, 4), Repeated(300, 0), std::vector<int64_t>{0, 3, 0, 0, 9, 0}}) {
    for (Op op : {Op::kPlain, Op::kGated}) {
      const Experts experts(shape, std::ssize(counts), Form::kBf16, op, Spread::kAligned);
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
TEST(CudaExpertGemvTest, FewRowsBeginWhereTheFirstExpertsDo) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 264};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned);
  const std::vector<float> x = MadeUpX(20, 12 * shape.inputs);
  const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
  const DeviceVector<int32_t> offsets({4, 5, 5, 9});
  const Stream stream;
  const DeviceOutput y(12, shape.outputs, DType::kF32, Spread::kAligned);
  ExpertGemm({.x = on_device.view(),
              .w = experts.gate().view(),
              .offsets = offsets.span().data(),
              .y = y.view(),
              .exact = false},
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

// The order that expert_gemv.h says, of one matrix.
float SumInOrder(std::span<const float> x, const MadeUpMatrix& w, int64_t output) {
  constexpr size_t kSumsOfLane = 8;
  std::vector<float> lanes;
  for (size_t lane = 0; lane < 32; ++lane) {
    std::vector<float> sums(kSumsOfLane);
    for (size_t k = 0; k < x.size(); ++k) {
      const size_t group = k / 8;
      if (group % 32 != lane) continue;
      float& sum = sums[(2 * (group / 32) + k % 8 / 4) % kSumsOfLane];
      sum = std::fma(x[k], static_cast<float>(w.At(output, static_cast<int64_t>(k))), sum);
    }
    for (size_t step = 1; step < sums.size(); step *= 2) {
      for (size_t i = 0; i + step < sums.size(); i += 2 * step) sums[i] += sums[i + step];
    }
    lanes.push_back(sums[0]);
  }
  for (size_t half = 16; half >= 1; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

TEST(CudaExpertGemvTest, FewRowsAreSummedInTheirOrder) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape :
       {MatrixShape{513, 264}, MatrixShape{520, 1416}, MatrixShape{300, 2048}}) {
    const Experts experts(shape, 5, Form::kBf16, Op::kPlain, Spread::kAligned);
    const std::vector<int32_t> offsets = Offsets({1, 0, 4, 2, 1});
    const std::vector<float> x = MadeUpX(21, offsets.back() * shape.inputs);
    std::vector<float> expected;
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      for (int32_t row = offsets[e]; row < offsets[e + 1]; ++row) {
        const auto of_row = std::span(x).subspan(static_cast<size_t>(row * shape.inputs),
                                                 static_cast<size_t>(shape.inputs));
        for (int64_t n = 0; n < shape.outputs; ++n) {
          expected.push_back(SumInOrder(of_row, *experts.Gate(static_cast<int64_t>(e)), n));
        }
      }
    }
    EXPECT_EQ(BitMismatch(experts.Run(x, offsets, DType::kF32, {}), expected), "")
        << shape.outputs << " x " << shape.inputs;
  }
}

TEST(CudaExpertGemvTest, OneOfFewRowsHasTheSameBitsWhateverOthersThereAre) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape : kFewRowsShapes) {
    const Experts experts(shape, 3, Form::kBf16, Op::kGated, Spread::kAligned);
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

TEST(CudaExpertGemvTest, FewRowsOfAnIndexAreThoseGatheredAndOneThatIsNotThereIsReported) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{150, 256};
  const std::vector<int32_t> offsets = {0, 5, 5, 14};
  const std::vector<float> x = MadeUpX(17, 6 * shape.inputs);
  const Experts experts(shape, 3, Form::kBf16, Op::kGated, Spread::kAligned);
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
TEST(CudaExpertGemvTest, FewRowsOfOverlappedLaunchesAreThoseOfOneAfterTheOther) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  constexpr int64_t kTokens = 2, kTopK = 6, kExperts = 64, kSteps = 12;
  constexpr int64_t kRows = kTokens * kTopK;
  const MatrixShape wide{352, 512}, back{512, 352};
  const Experts first(wide, kExperts, Form::kBf16, Op::kGated, Spread::kAligned);
  const Experts second(back, kExperts, Form::kBf16, Op::kPlain, Spread::kAligned);
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
                  .exact = false},
                 stream);
      if (!overlaps) stream.Synchronize();
      ExpertGemm({.x = activated.view(),
                  .w = second.gate().view(),
                  .offsets = offsets.span().data(),
                  .y = y[step].view(),
                  .exact = false,
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

TEST(CudaExpertGemvTest, OneGraphServesEveryRoutingOfFewRows) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{64, 128};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned);
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
                .exact = false},
               stream);
  });
  for (const std::vector<int32_t>& routing :
       {std::vector<int32_t>{0, 16, 16, 16}, {0, 0, 1, 16}, {0, 7, 12, 16}}) {
    CopyAndWait(offsets.bytes().data(), routing.data(), 16, "offsets");
    graph.Launch(stream);
    EXPECT_EQ(BitMismatch(y.Values(stream), experts.Run(x, routing, DType::kBf16, {})), "");
  }
}

// Without a device: what is looked at are shapes, types and addresses.
TEST(ExpertKernelTest, FewAlignedRowsOfBf16ThatNeedNotBeExactGoToGemv) {
  alignas(16) static Bf16 x[33 * 64 + 1], w[2 * 64 * 64 + 1], y[33 * 64 + 1];
  const float scales[4] = {};
  const int32_t offsets[3] = {};
  const auto choose = [&](int64_t rows, auto change) {
    ExpertGemmArgs args{.x = {x, {rows, 64}},
                        .w = DenseWeights(w, {64, 64}, 2),
                        .offsets = offsets,
                        .y = {y, {rows, 64}},
                        .exact = false};
    change(args);
    return ChooseExpertKernel(args);
  };
  const auto nothing = [](ExpertGemmArgs&) {};
  EXPECT_EQ(choose(1, nothing), ExpertKernel::kGemv);
  EXPECT_EQ(choose(kMaxExpertGemvRows, nothing), ExpertKernel::kGemv);
  EXPECT_EQ(choose(kMaxExpertGemvRows + 1, nothing), ExpertKernel::kTiles);
  EXPECT_EQ(choose(1, [](ExpertGemmArgs& a) { a.exact = true; }), ExpertKernel::kTiles);
  EXPECT_EQ(choose(1, [&](ExpertGemmArgs& a) { a.x = {x + 1, {1, 64}}; }), ExpertKernel::kTiles);
  EXPECT_EQ(choose(1,
                   [&](ExpertGemmArgs& a) {
                     a.w = DenseWeights(w + 1, {64, 64}, 2);
                   }),
            ExpertKernel::kTiles);
  EXPECT_EQ(choose(1,
                   [&](ExpertGemmArgs& a) {
                     a.up = DenseWeights(w + 1, {64, 64}, 2);
                   }),
            ExpertKernel::kTiles);
  EXPECT_EQ(choose(1, [&](ExpertGemmArgs& a) { a.up = a.w; }), ExpertKernel::kGemv);
  EXPECT_EQ(choose(1, [&](ExpertGemmArgs& a) { a.y = {y + 1, {1, 64}}; }), ExpertKernel::kGemv);
  const auto narrow = [&](int64_t inputs) {
    return [&, inputs](ExpertGemmArgs& a) {
      a.w = DenseWeights(w, {64, inputs}, 2);
      a.x = {x, {1, inputs}};
    };
  };
  EXPECT_EQ(choose(1, narrow(56)), ExpertKernel::kGemv);
  EXPECT_EQ(choose(1, narrow(60)), ExpertKernel::kTiles);
  const auto e4m3 = [&](ExpertGemmArgs& a) {
    a.w.format = WeightFormat::kFp8Block, a.w.scales = scales;
  };
  EXPECT_EQ(choose(1, e4m3), ExpertKernel::kTiles);
}

}  // namespace
}  // namespace quire::cuda
