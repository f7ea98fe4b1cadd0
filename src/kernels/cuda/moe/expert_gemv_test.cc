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

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::Mismatch;

TEST(CudaExpertGemvTest, FewRowsAreWithinTheirBoundsWithTheirOwnExpert) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const MatrixShape shape : kFewRowsShapes) {
    for (Op op : {Op::kPlain, Op::kGated}) {
      const Experts experts(shape, 64, Form::kBf16, op, Spread::kAligned);
      for (int64_t tokens = 1; tokens <= 4; ++tokens) {
        for (int64_t top_k = 1; top_k <= 8; top_k += tokens == 1 ? 1 : 3) {
          if (tokens * top_k > kMaxFewExpertRows) continue;
          const std::vector<int32_t> offsets =
              Offsets(CountsOf(ChosenExperts(tokens, top_k, 64, top_k), 64));
          const int64_t padding = tokens * top_k < kMaxFewExpertRows ? 1 : 0;
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

// Without a device: what is looked at are shapes, types and addresses.
TEST(ExpertKernelTest, FewAlignedRowsOfBf16GoToGemvOrIfTheyHaveToBeExactToStrips) {
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
  EXPECT_EQ(choose(kMaxFewExpertRows, nothing), ExpertKernel::kGemv);
  EXPECT_EQ(choose(kMaxFewExpertRows + 1, nothing), ExpertKernel::kTiles);
  const auto exact = [](ExpertGemmArgs& a) { a.exact = true; };
  EXPECT_EQ(choose(1, exact), ExpertKernel::kStrips);
  EXPECT_EQ(choose(kMaxFewExpertRows, exact), ExpertKernel::kStrips);
  EXPECT_EQ(choose(kMaxFewExpertRows + 1, exact), ExpertKernel::kTiles);
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
