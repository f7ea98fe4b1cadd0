#include "kernels/row_ops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/row_ops_cases.h"
#include "kernels/row_ops_testing.h"
#include "testing/compare.h"
#include "testing/paged_batch.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using namespace testing;  // the cases
using testing::MadeUpValues;

#define EXPECT_NEAR_REFERENCE(rows, reference)                                      \
  EXPECT_EQ(Mismatch((rows).values(), (reference).values, (reference).bounds), ""); \
  EXPECT_EQ((rows).Damage(), "")

// ---- Against double precision, with the bounds of docs/numerics.md ----

TEST(RowOpsTest, RmsNormIsNearTheReferenceAlsoInPlace) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> values = MadeUpRows(1, 5, width);
    const std::vector<float> weight = MadeUpValues(2, 0, width);
    const Reference reference =
        ReferenceRmsNorm(values, weight, 1e-5f, static_cast<double>(width / 16) + 7);
    GappedRows x(values, width);
    GappedRows y(5, width);
    cpu::RmsNorm({.x = x.view(), .weight = weight, .eps = 1e-5f, .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    cpu::RmsNorm({.x = x.view(), .weight = weight, .eps = 1e-5f, .y = x.view()}, executor);
    EXPECT_EQ(BitMismatch(x.values(), y.values()), "");
    EXPECT_EQ(x.Damage(), "");
  }
}

TEST(RowOpsTest, RmsNormOfZerosIsZero) {
  SerialExecutor executor;
  std::vector<float> x(20, 0.0f);
  const std::vector<float> weight(20, 3.0f);
  cpu::RmsNorm({.x = ConstTensorView(x.data(), {1, 20}),
                .weight = weight,
                .y = TensorView(x.data(), {1, 20})},
               executor);
  EXPECT_EQ(x, std::vector<float>(20, 0.0f));
}

TEST(RowOpsTest, LayerNormIsNearTheReferenceAlsoInPlace) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    std::vector<float> values = MadeUpRows(1, 5, width);
    for (float& value : values) value += 3.0f;  // a mean that is far from 0
    const std::vector<float> weight = MadeUpValues(2, 0, width);
    const std::vector<float> bias = MadeUpValues(3, 0, width);
    const Reference reference = ReferenceLayerNorm(values, weight, bias, 1e-6f);
    GappedRows x(values, width);
    GappedRows y(5, width);
    cpu::LayerNorm({.x = x.view(), .weight = weight, .bias = bias, .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    cpu::LayerNorm({.x = x.view(), .weight = weight, .bias = bias, .y = x.view()}, executor);
    EXPECT_EQ(BitMismatch(x.values(), y.values()), "");
    EXPECT_EQ(x.Damage(), "");
  }
}

TEST(RowOpsTest, LayerNormOfEqualValuesIsTheBias) {
  SerialExecutor executor;
  std::vector<float> x(20, 3.0f);
  const std::vector<float> weight(20, 2.0f), bias(20, 0.25f);
  cpu::LayerNorm({.x = ConstTensorView(x.data(), {1, 20}),
                  .weight = weight,
                  .bias = bias,
                  .y = TensorView(x.data(), {1, 20})},
                 executor);
  EXPECT_EQ(x, bias);
}

TEST(RowOpsTest, RopeRotatesTheLastValuesOfEveryHead) {
  SerialExecutor executor;
  constexpr int64_t kTokens = 3, kHeads = 5, kNope = 4;
  GappedRows cos_rows(MadeUpRows(4, kTokens, 40), 40);
  GappedRows sin_rows(MadeUpRows(5, kTokens, 40), 40);
  for (RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalves}) {
    for (int64_t rope_dim : {0, 2, 14, 32, 64, 66}) {
      SCOPED_TRACE(rope_dim);
      const int64_t head_dim = kNope + rope_dim;
      const ConstTensorView cos = cos_rows.view().Columns(1, rope_dim / 2);
      const ConstTensorView sin = sin_rows.view().Columns(2, rope_dim / 2);
      const std::vector<float> before = MadeUpRows(3, kTokens * kHeads, head_dim);
      RedZone<float> x(before.size());
      std::copy(before.begin(), before.end(), x.span().begin());
      const TensorView heads(x.data(), {kTokens, kHeads, head_dim});
      cpu::Rope({.x = heads.Columns(kNope, rope_dim),
                 .cos = cos,
                 .sin = sin,
                 .pairs = pairs,
                 .y = heads.Columns(kNope, rope_dim)},
                executor);
      const Reference reference = ReferenceRope(before, head_dim, kHeads, pairs, cos, sin);
      EXPECT_EQ(Mismatch(x.values(), reference.values, reference.bounds), "");
      EXPECT_EQ(x.Damage(), "");
    }
  }
}

TEST(RowOpsTest, RopeGivesAPairTheSameBitsHoweverPairsLie) {
  SerialExecutor executor;
  constexpr int64_t kDim = 22;
  const std::vector<float> cos = MadeUpValues(6, 0, kDim / 2), sin = MadeUpValues(6, 1, kDim / 2);
  std::vector<float> neighbours = MadeUpValues(6, 2, kDim);
  std::vector<float> halves(kDim);
  for (size_t i = 0; i < kDim; ++i) halves[i / 2 + i % 2 * (kDim / 2)] = neighbours[i];
  const ConstTensorView cos_view(cos.data(), {1, kDim / 2}), sin_view(sin.data(), {1, kDim / 2});
  cpu::Rope({.x = TensorView(neighbours.data(), {1, 1, kDim}),
             .cos = cos_view,
             .sin = sin_view,
             .pairs = RopePairs::kInterleaved,
             .y = TensorView(neighbours.data(), {1, 1, kDim})},
            executor);
  cpu::Rope({.x = TensorView(halves.data(), {1, 1, kDim}),
             .cos = cos_view,
             .sin = sin_view,
             .pairs = RopePairs::kHalves,
             .y = TensorView(halves.data(), {1, 1, kDim})},
            executor);
  for (size_t i = 0; i < kDim; ++i) {
    EXPECT_EQ(halves[i / 2 + i % 2 * (kDim / 2)], neighbours[i]) << i;
  }
}

TEST(RowOpsTest, SiluMulIsNearTheReferenceAlsoInPlace) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    std::vector<float> values = MadeUpRows(7, 4, 2 * width);
    for (float& value : values) value *= 20.0f;  // up to +-40
    Reference reference;
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const float* gate = values.data() + row * 2 * width + i;
        const double y = ReferenceSilu(*gate) * gate[width];
        reference.Add(y, 8 * kU * std::abs(y));
      }
    }
    GappedRows gate_up(values, 2 * width);
    GappedRows y(4, width);
    cpu::SiluMul({.gate_up = gate_up.view(), .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    for (int64_t half : {0, 1}) {
      GappedRows again(values, 2 * width);
      const TensorView in_place = again.view().Columns(half * width, width);
      cpu::SiluMul({.gate_up = again.view(), .y = in_place}, executor);
      for (int64_t row = 0; row < 4; ++row) {
        EXPECT_EQ(BitMismatch({in_place.Row<float>(row), static_cast<size_t>(width)},
                              {y.view().Row<float>(row), static_cast<size_t>(width)}),
                  "");
      }
      EXPECT_EQ(again.Damage(), "");
    }
  }
}

TEST(RowOpsTest, SiluIsRightFarFromZero) {
  SerialExecutor executor;
  const std::vector<float>& gate = FarGates();
  std::vector<float> row = gate;
  row.insert(row.end(), gate.size(), 1.0f);
  const int64_t width = std::ssize(gate);
  std::vector<float> y(gate.size());
  cpu::SiluMul({.gate_up = ConstTensorView(row.data(), {1, 2 * width}),
                .y = TensorView(y.data(), {1, width})},
               executor);
  const Reference reference = ReferenceFarSilu();
  EXPECT_EQ(Mismatch(y, reference.values, reference.bounds), "");
}

TEST(RowOpsTest, AddScaledIsNearTheReference) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> x_values = MadeUpRows(8, 4, width);
    const std::vector<float> y_values = MadeUpRows(9, 4, width);
    Reference reference;
    for (size_t i = 0; i < x_values.size(); ++i) {
      const double product = double{0.3f} * x_values[i];
      const double sum = y_values[i] + product;
      reference.Add(sum, kU * (std::abs(sum) + std::abs(product)));
    }
    GappedRows x(x_values, width);
    GappedRows y(y_values, width);
    cpu::AddScaled({.x = x.view(), .scale = 0.3f, .y = y.view()}, executor);
    EXPECT_NEAR_REFERENCE(y, reference);
    EXPECT_EQ(BitMismatch(x.values(), x_values), "");
  }
}

TEST(RowOpsTest, CopiedRowsAreTheSame) {
  SerialExecutor executor;
  for (int64_t width : kWidths) {
    const std::vector<float> values = MadeUpRows(8, 4, width);
    GappedRows x(values, width);
    GappedRows y(4, width);
    cpu::CopyRows({.x = x.view(), .y = y.view()}, executor);
    EXPECT_EQ(BitMismatch(y.values(), values), "") << width;
  }
}

TEST(RowOpsTest, CombineIsNearTheReference) {
  SerialExecutor executor;
  constexpr int64_t kTokens = 4, kRows = 7;  // some rows are nobody's
  for (int64_t width : kWidths) {
    for (int64_t top_k : {1, 2, 8}) {
      SCOPED_TRACE(fmt::format("width {}, top_k {}", width, top_k));
      const std::vector<float> row_values = MadeUpRows(10, kRows * top_k, width);
      const std::vector<float> weights = MadeUpValues(11, 0, kTokens * top_k);
      std::vector<int32_t> row_of(static_cast<size_t>(kRows * top_k));
      std::iota(row_of.begin(), row_of.end(), 0);
      std::shuffle(row_of.begin(), row_of.end(), std::mt19937_64(12));
      row_of.resize(static_cast<size_t>(kTokens * top_k));
      Reference reference;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          double sum = 0, size = 0;
          for (int64_t j = 0; j < top_k; ++j) {
            const size_t at = static_cast<size_t>(t * top_k + j);
            const double term =
                double{weights[at]} * row_values[static_cast<size_t>(row_of[at] * width + i)];
            sum += term;
            size += std::abs(term);
          }
          reference.Add(sum, kU * static_cast<double>(top_k + 1) * size);
        }
      }
      GappedRows rows(row_values, width);
      GappedRows y(kTokens, width);
      cpu::Combine({.rows = rows.view(), .row_of = row_of, .weights = weights, .y = y.view()},
                   executor);
      EXPECT_NEAR_REFERENCE(y, reference);
    }
  }
}

// ---- Refusals ----

TEST(RowOpsTest, WrongArgumentsAreRefusedBeforeAnythingIsWritten) {
  SerialExecutor executor;
  RedZone<float> y(12);
  const TensorView y_view(y.data(), {3, 4});
  std::vector<float> x(24);
  std::vector<Bf16> narrow(12);
  const ConstTensorView x_view(x.data(), {3, 4});
  auto norm = [&](const RmsNormArgs& args) {
    return Refusal([&] { cpu::RmsNorm(args, executor); });
  };
  const std::span<const float> weight = std::span(x).first(4);
  EXPECT_EQ(norm({.x = x_view, .y = y_view}),
            "rms_norm.weight: expected one value or more, got none");
  EXPECT_EQ(norm({.x = x_view, .weight = std::span(x).first(5), .y = y_view}),
            "rms_norm.y: expected shape [3, 5], got [3, 4]");
  EXPECT_EQ(norm({.x = {}, .weight = weight, .y = y_view}),
            "rms_norm.x: expected shape [3, 4], got []");
  EXPECT_EQ(norm({.x = ConstTensorView(narrow.data(), {3, 4}), .weight = weight, .y = y_view}),
            "rms_norm.x: expected f32, got bf16");
  EXPECT_EQ(norm({.x = x_view, .weight = weight, .eps = kNaN, .y = y_view}),
            "rms_norm.eps: expected a finite number >= 0, got nan");

  auto rope = [&](const RopeArgs& args) { return Refusal([&] { cpu::Rope(args, executor); }); };
  const TensorView heads(y.data(), {3, 1, 4});
  EXPECT_EQ(rope({.x = y_view}), "rope.x: expected shape [3, 4, 0], got [3, 4]");
  EXPECT_EQ(rope({.x = heads.Columns(0, 3)}), "rope.x: expected an even rope_dim, got 3");
  EXPECT_EQ(rope({.x = heads, .cos = x_view}), "rope.cos: expected shape [3, 2], got [3, 4]");
  EXPECT_EQ(rope({.x = heads, .cos = x_view.Columns(0, 2), .sin = x_view.Columns(0, 1)}),
            "rope.sin: expected shape [3, 2], got [3, 1]");

  EXPECT_EQ(Refusal([&] { cpu::SiluMul({.gate_up = x_view, .y = y_view}, executor); }),
            "silu_mul.gate_up: expected shape [3, 8], got [3, 4]");
  EXPECT_EQ(Refusal([&] { cpu::AddScaled({.x = x_view.Columns(0, 3), .y = y_view}, executor); }),
            "add_scaled.x: expected shape [3, 4], got [3, 3]");
  EXPECT_EQ(Refusal([&] { cpu::CopyRows({.x = x_view.Columns(0, 3), .y = y_view}, executor); }),
            "copy_rows.x: expected shape [3, 4], got [3, 3]");
  EXPECT_TRUE(y.Untouched());
}

TEST(RowOpsTest, CombineRefusesRowsThatAreNotThere) {
  SerialExecutor executor;
  const std::vector<float> rows(16), weights(4);
  RedZone<float> y(8);
  auto refusal = [&](std::vector<int32_t> row_of, size_t num_weights, int64_t num_rows) {
    return Refusal([&] {
      cpu::Combine({.rows = ConstTensorView(rows.data(), {num_rows, 4}),
                    .row_of = row_of,
                    .weights = std::span(weights).first(num_weights),
                    .y = TensorView(y.data(), {2, 4})},
                   executor);
    });
  };
  EXPECT_EQ(refusal({0, 1, 2, 4}, 4, 4), "combine.row_of: expected 0..3, got 4");
  EXPECT_EQ(refusal({0, 1, 2, -1}, 4, 4), "combine.row_of: expected 0..3, got -1");
  EXPECT_EQ(refusal({0, 1, 2}, 3, 3),
            "combine.row_of: expected as many for each of 2 tokens, got 3");
  EXPECT_EQ(refusal({}, 0, 0), "combine.row_of: expected as many for each of 2 tokens, got 0");
  EXPECT_EQ(refusal({0, 1, 2, 3}, 3, 4), "combine.weights: expected 4 values, got 3");
  EXPECT_EQ(refusal({0, 1, 2, 3}, 4, 3), "combine.rows: expected shape [4, 4], got [3, 4]");
  EXPECT_TRUE(y.Untouched());
}

}  // namespace
}  // namespace quire
