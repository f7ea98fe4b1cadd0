#include "kernels/cuda/row_ops/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/test_memory.h"
#include "kernels/cuda/test_rows.h"
#include "kernels/row_ops_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::ErrorMessage;
using testing::kNaN;
using testing::kU;
using testing::kWidths;
using testing::MadeUpRows;
using testing::MadeUpValues;
using testing::Mismatch;
using testing::Reference;
using testing::ReferenceRmsNorm;
using testing::ReferenceRope;
using testing::RowsOfTokens;

class CudaRowOpsTest : public StreamTest {};

// Results that are bf16 are rounded once more.
Reference Rounded(Reference reference) {
  for (size_t i = 0; i < reference.values.size(); ++i) {
    const double value = std::abs(reference.values[i]) + reference.bounds[i];
    reference.bounds[i] += kBf16Rounding * value;
  }
  return reference;
}

// Roundings of the longest way through the sum of squares: a thread's values, then two trees of 32.
double SumRoundings(int64_t width) {
  const double each = std::ceil(static_cast<double>(width) / (8.0 * SumThreads(width)));
  return 8 * each + 5 + 5;
}

const int64_t kNormWidths[] = {1, 7, 8, 64, 512, 576, 1536, 2049, 7168, 16384};

TEST_F(CudaRowOpsTest, EmbedIsTheTablesRowTimesTheScale) {
  const std::vector<int32_t> tokens = {3, 0, 6, 3};
  const DeviceVector<int32_t> ids(tokens);
  for (int64_t width : kWidths) {
    for (Lie lie : kLies) {
      const std::vector<float> table = Narrowed(MadeUpRows(1, 7, width));
      TestRows<Bf16> narrow(table, width, lie);
      TestRows<float> wide(table, width, lie);
      for (const TensorView& view : {narrow.view(), wide.view()}) {
        TestRows<float> hidden(4, width, lie);
        Embed({.table = view, .tokens = ids.span(), .scale = 1.7f, .hidden = hidden.view()},
              stream(), {.status = status()});
        std::vector<float> expected;
        for (int32_t token : tokens) {
          for (int64_t i = 0; i < width; ++i) {
            expected.push_back(1.7f * table[static_cast<size_t>(token * width + i)]);
          }
        }
        EXPECT_EQ(BitMismatch(hidden.Values(stream()), expected), "") << width;
        EXPECT_EQ(hidden.Damage(), "");
      }
    }
  }
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaRowOpsTest, EmbedReportsATokenThatIsNotThereAndGivesZeros) {
  for (int32_t bad : {-1, 7, INT32_MAX, INT32_MIN}) {
    const DeviceVector<int32_t> ids({1, bad});
    TestRows<float> table(MadeUpRows(1, 7, 20), 20, Lie::kCrooked);
    TestRows<float> hidden(2, 20, Lie::kCrooked);
    Embed({.table = table.view(), .tokens = ids.span(), .hidden = hidden.view()}, stream(),
          {.status = status()});
    const std::vector<float> values = hidden.Values(stream());
    EXPECT_TRUE(std::all_of(values.begin() + 20, values.end(), [](float v) { return v == 0; }));
    EXPECT_EQ(Reported(), (Fault{DeviceFault::kToken, 1}));
  }
}

template <class TX, class TY>
void TestNorm(const Stream& stream) {
  for (int64_t width : kNormWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> values = Narrowed(MadeUpRows(1, 5, width));
    const std::vector<float> weight = MadeUpValues(2, 0, width);
    const DeviceVector<float> device_weight(weight);
    Reference reference = ReferenceRmsNorm(values, weight, 1e-5f, SumRoundings(width));
    if (std::is_same_v<TY, Bf16>) reference = Rounded(reference);
    std::vector<float> aligned;
    for (Lie lie : kLies) {
      TestRows<TX> x(values, width, lie);
      TestRows<TY> y(5, width, lie);
      RmsNorm({.x = x.view(), .weight = device_weight.span(), .eps = 1e-5f, .y = y.view()}, stream);
      const std::vector<float> result = y.Values(stream);
      EXPECT_EQ(Mismatch(result, reference.values, reference.bounds), "");
      EXPECT_EQ(y.Damage(), "");
      if (lie == Lie::kAligned) aligned = result;
      EXPECT_EQ(BitMismatch(result, aligned), "") << "how rows lie changed a bit";
    }
  }
}
TEST_F(CudaRowOpsTest, RmsNormIsNearTheReferenceForEveryType) {
  TestNorm<float, float>(stream());
  TestNorm<float, Bf16>(stream());
  TestNorm<Bf16, float>(stream());
  TestNorm<Bf16, Bf16>(stream());
}

TEST_F(CudaRowOpsTest, RmsNormWorksInPlaceAndOfZerosIsZero) {
  const int64_t width = 1536;
  std::vector<float> values = Narrowed(MadeUpRows(1, 3, width));
  std::fill_n(values.begin() + width, width, 0.0f);
  const DeviceVector<float> weight(MadeUpValues(2, 0, width));
  TestRows<Bf16> x(values, width, Lie::kAligned), y(3, width, Lie::kAligned);
  RmsNorm({.x = x.view(), .weight = weight.span(), .y = y.view()}, stream());
  RmsNorm({.x = x.view(), .weight = weight.span(), .y = x.view()}, stream());
  const std::vector<float> apart = y.Values(stream());
  EXPECT_EQ(BitMismatch(x.Values(stream()), apart), "");
  EXPECT_TRUE(std::all_of(apart.begin() + width, apart.begin() + 2 * width,
                          [](float v) { return v == 0; }));
}

template <class TU>
void TestAddNorm(const Stream& stream) {
  for (int64_t width : kNormWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> before = MadeUpRows(3, 4, width);
    const std::vector<float> update = Narrowed(MadeUpRows(4, 4, width));
    const std::vector<float> weight = MadeUpValues(2, 0, width);
    const DeviceVector<float> device_weight(weight);
    for (Lie lie : kLies) {
      TestRows<float> hidden(before, width, lie);
      TestRows<TU> more(update, width, lie);
      TestRows<Bf16> normed(4, width, lie);
      AddRmsNorm({.hidden = hidden.view(),
                  .update = more.view(),
                  .scale = 0.3f,
                  .weight = device_weight.span(),
                  .eps = 1e-5f,
                  .normed = normed.view()},
                 stream);
      std::vector<float> sums;
      for (size_t i = 0; i < before.size(); ++i) {
        sums.push_back(std::fma(0.3f, update[i], before[i]));
      }
      EXPECT_EQ(BitMismatch(hidden.Values(stream), sums), "");
      const Reference reference =
          Rounded(ReferenceRmsNorm(sums, weight, 1e-5f, SumRoundings(width)));
      EXPECT_EQ(Mismatch(normed.Values(stream), reference.values, reference.bounds), "");
      EXPECT_EQ(hidden.Damage() + more.Damage() + normed.Damage(), "");
    }
  }
}
TEST_F(CudaRowOpsTest, AddRmsNormAddsThenNorms) {
  TestAddNorm<float>(stream());
  TestAddNorm<Bf16>(stream());
}

TEST_F(CudaRowOpsTest, GatherRopeTakesRowsByPosition) {
  const std::vector<float> cos = MadeUpRows(5, 9, 32), sin = MadeUpRows(6, 9, 32);
  TestRows<float> table_cos(cos, 32, Lie::kAligned), table_sin(sin, 32, Lie::kCrooked);
  TestRows<float> cos_rows(4, 32, Lie::kCrooked), sin_rows(4, 32, Lie::kAligned);
  const DeviceVector<TokenCount> positions(
      {TokenCount(8), TokenCount(0), TokenCount(3), TokenCount(9)});
  GatherRope({.table_cos = table_cos.view(),
              .table_sin = table_sin.view(),
              .positions = positions.span(),
              .cos = cos_rows.view(),
              .sin = sin_rows.view()},
             stream(), {.status = status()});
  std::vector<float> expected_cos, expected_sin;
  for (int row : {8, 0, 3, 8}) {  // the last one is outside: the table's last
    expected_cos.insert(expected_cos.end(), cos.begin() + row * 32, cos.begin() + row * 32 + 32);
    expected_sin.insert(expected_sin.end(), sin.begin() + row * 32, sin.begin() + row * 32 + 32);
  }
  EXPECT_EQ(BitMismatch(cos_rows.Values(stream()), expected_cos), "");
  EXPECT_EQ(BitMismatch(sin_rows.Values(stream()), expected_sin), "");
  EXPECT_EQ(cos_rows.Damage() + sin_rows.Damage(), "");
  EXPECT_EQ(Reported(), (Fault{DeviceFault::kCapacity, 3}));
}

TEST_F(CudaRowOpsTest, RopeRotatesTheLastValuesOfEveryHeadIntoAnotherArray) {
  constexpr int64_t kTokens = 3, kHeads = 13, kNope = 4, kLatent = 6;
  for (RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalves}) {
    for (int64_t rope_dim : {2, 14, 64, 66}) {
      SCOPED_TRACE(rope_dim);
      const int64_t head = kNope + rope_dim, latent_head = kLatent + rope_dim;
      const std::vector<float> cos = MadeUpRows(4, kTokens, rope_dim / 2);
      const std::vector<float> sin = MadeUpRows(5, kTokens, rope_dim / 2);
      const std::vector<float> before = Narrowed(MadeUpRows(3, kTokens * kHeads, head));
      const Reference reference = Rounded(ReferenceRope(
          before, head, kHeads, pairs, ConstTensorView(cos.data(), {kTokens, rope_dim / 2}),
          ConstTensorView(sin.data(), {kTokens, rope_dim / 2})));
      const DeviceVector<float> device_cos(cos), device_sin(sin);
      std::vector<Bf16> narrow;
      for (float value : before) narrow.push_back(ToBf16(value));
      const DeviceVector<Bf16> q(narrow);
      const DeviceVector<Bf16> latent(
          std::vector<Bf16>(static_cast<size_t>(kTokens * kHeads * latent_head), ToBf16(9)));
      const TensorView q_heads(q.span().data(), {kTokens, kHeads, head});
      const TensorView latent_heads(latent.span().data(), {kTokens, kHeads, latent_head});
      const RopeArgs args = {
          .x = q_heads.Columns(kNope, rope_dim),
          .cos = ConstTensorView(device_cos.span().data(), {kTokens, rope_dim / 2}),
          .sin = ConstTensorView(device_sin.span().data(), {kTokens, rope_dim / 2}),
          .pairs = pairs,
          .y = latent_heads.Columns(kLatent, rope_dim)};
      Rope(args, stream());
      RopeArgs in_place = args;
      in_place.y = q_heads.Columns(kNope, rope_dim);
      Rope(in_place, stream());
      std::vector<float> rotated;
      for (Bf16 value : q.Values(stream())) rotated.push_back(ToFloat(value));
      EXPECT_EQ(Mismatch(rotated, reference.values, reference.bounds), "");
      const std::vector<Bf16> apart = latent.Values(stream());
      for (int64_t i = 0; i < kTokens * kHeads * latent_head; ++i) {
        const int64_t column = i % latent_head - kLatent;
        const int64_t at = i / latent_head * head + kNope + column;
        const float expected = column < 0 ? 9.0f : rotated[static_cast<size_t>(at)];
        ASSERT_EQ(ToFloat(apart[static_cast<size_t>(i)]), expected) << i;
      }
    }
  }
}

TEST_F(CudaRowOpsTest, SiluMulIsNearTheReference) {
  for (int64_t width : kWidths) {
    for (Lie lie : kLies) {
      std::vector<float> values = MadeUpRows(7, 4, 2 * width);
      for (float& value : values) value *= 20.0f;  // up to +-40
      values = Narrowed(values);
      Reference reference;
      for (int64_t row = 0; row < 4; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const float* gate = values.data() + row * 2 * width + i;
          const double y = testing::ReferenceSilu(*gate) * gate[width];
          reference.Add(y, 8 * kU * std::abs(y));
        }
      }
      TestRows<Bf16> gate_up(values, 2 * width, lie);
      TestRows<float> wide(4, width, lie);
      TestRows<Bf16> narrow(4, width, lie);
      SiluMul({.gate_up = gate_up.view(), .y = wide.view()}, stream());
      SiluMul({.gate_up = gate_up.view(), .y = narrow.view()}, stream());
      EXPECT_EQ(Mismatch(wide.Values(stream()), reference.values, reference.bounds), "") << width;
      EXPECT_EQ(BitMismatch(narrow.Values(stream()), Narrowed(wide.Values(stream()))), "");
      EXPECT_EQ(wide.Damage() + narrow.Damage(), "");
    }
  }
}

TEST_F(CudaRowOpsTest, SiluIsRightFarFromZero) {
  std::vector<float> row = testing::FarGates();
  const int64_t width = std::ssize(row);
  row.insert(row.end(), row.size(), 1.0f);
  TestRows<float> gate_up(row, 2 * width, Lie::kCrooked), y(1, width, Lie::kCrooked);
  SiluMul({.gate_up = gate_up.view(), .y = y.view()}, stream());
  const Reference reference = testing::ReferenceFarSilu();
  EXPECT_EQ(Mismatch(y.Values(stream()), reference.values, reference.bounds), "");
}

TEST_F(CudaRowOpsTest, AddScaledIsOneFusedMultiplyAdd) {
  for (int64_t width : kWidths) {
    for (Lie lie : kLies) {
      const std::vector<float> x = Narrowed(MadeUpRows(8, 4, width)), y = MadeUpRows(9, 4, width);
      std::vector<float> expected;
      for (size_t i = 0; i < x.size(); ++i) expected.push_back(std::fma(0.3f, x[i], y[i]));
      TestRows<float> wide(x, width, lie), y_wide(y, width, lie), y_narrow(y, width, lie);
      TestRows<Bf16> narrow(x, width, lie);
      AddScaled({.x = wide.view(), .scale = 0.3f, .y = y_wide.view()}, stream());
      AddScaled({.x = narrow.view(), .scale = 0.3f, .y = y_narrow.view()}, stream());
      EXPECT_EQ(BitMismatch(y_wide.Values(stream()), expected), "") << width;
      EXPECT_EQ(BitMismatch(y_narrow.Values(stream()), expected), "") << width;
      EXPECT_EQ(y_wide.Damage() + y_narrow.Damage(), "");
    }
  }
}

TEST_F(CudaRowOpsTest, CopiedRowsAreTheSameInEitherType) {
  for (int64_t width : kWidths) {
    for (Lie lie : kLies) {
      const std::vector<float> values = Narrowed(MadeUpRows(8, 4, width));
      TestRows<float> wide(values, width, lie), to_wide(4, width, lie);
      TestRows<Bf16> to_narrow(4, width, lie);
      CopyRows({.x = wide.view(), .y = to_narrow.view()}, stream());
      CopyRows({.x = to_narrow.view(), .y = to_wide.view()}, stream());
      EXPECT_EQ(BitMismatch(to_wide.Values(stream()), values), "") << width;
      EXPECT_EQ(to_narrow.Damage() + to_wide.Damage(), "");
    }
  }
}

TEST_F(CudaRowOpsTest, CombineAddsInTheOrderOfTheChoiceThenTheSharedExpert) {
  constexpr int64_t kTokens = 4, kRows = 7;  // some rows are nobody's
  for (int64_t width : kWidths) {
    for (int64_t top_k : {1, 2, 8}) {
      SCOPED_TRACE(fmt::format("width {}, top_k {}", width, top_k));
      const std::vector<float> rows = Narrowed(MadeUpRows(10, kRows * top_k, width));
      const std::vector<float> shared = Narrowed(MadeUpRows(13, kTokens, width));
      const std::vector<float> weights = MadeUpValues(11, 0, kTokens * top_k);
      std::vector<int32_t> row_of(static_cast<size_t>(kRows * top_k));
      std::iota(row_of.begin(), row_of.end(), 0);
      std::shuffle(row_of.begin(), row_of.end(), std::mt19937_64(12));
      row_of.resize(static_cast<size_t>(kTokens * top_k));
      std::vector<float> plain, with_shared;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          float sum = 0;
          for (int64_t j = 0; j < top_k; ++j) {
            const size_t at = static_cast<size_t>(t * top_k + j);
            const float value = rows[static_cast<size_t>(row_of[at] * width + i)];
            sum = j == 0 ? weights[at] * value : std::fma(weights[at], value, sum);
          }
          plain.push_back(sum);
          with_shared.push_back(sum + shared[static_cast<size_t>(t * width + i)]);
        }
      }
      const DeviceVector<int32_t> device_row_of(row_of);
      const DeviceVector<float> device_weights(weights);
      for (Lie lie : kLies) {
        TestRows<Bf16> device_rows(rows, width, lie), device_shared(shared, width, lie);
        TestRows<float> y(kTokens, width, lie);
        TestRows<Bf16> narrow(kTokens, width, lie);
        CombineArgs args = {.rows = device_rows.view(),
                            .row_of = device_row_of.span(),
                            .weights = device_weights.span(),
                            .y = y.view()};
        Combine(args, stream(), {.status = status()});
        EXPECT_EQ(BitMismatch(y.Values(stream()), plain), "");
        args.shared = device_shared.view();
        Combine(args, stream(), {.status = status()});
        EXPECT_EQ(BitMismatch(y.Values(stream()), with_shared), "");
        args.y = narrow.view();
        Combine(args, stream(), {.status = status()});
        EXPECT_EQ(BitMismatch(narrow.Values(stream()), Narrowed(with_shared)), "");
        EXPECT_EQ(y.Damage() + narrow.Damage(), "");
      }
    }
  }
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaRowOpsTest, CombineReportsARowThatIsNotThereAndAddsNothing) {
  const DeviceVector<int32_t> row_of({0, 2, 1, -1});
  const DeviceVector<float> weights({1, 1, 1, 1});
  TestRows<Bf16> rows(std::vector<float>(32, 2.0f), 8, Lie::kAligned);
  TestRows<float> y(2, 8, Lie::kAligned);
  Combine({.rows = rows.view(), .row_of = row_of.span(), .weights = weights.span(), .y = y.view()},
          stream(), {.status = status()});
  const std::vector<float> values = y.Values(stream());
  EXPECT_EQ(values[0], 4.0f);
  EXPECT_EQ(values[8], 2.0f);
  EXPECT_EQ(Reported(), (Fault{DeviceFault::kExpert, 3}));
}

// ---- All ops alike ----

// hidden and normed behind each other, through Norm, SiluMul and AddScaled.
std::vector<float> LayerOf(std::span<const int64_t> tokens, int64_t width, LiveRows live,
                           const Stream& stream) {
  const int64_t num_rows = std::ssize(tokens);
  const DeviceVector<float> weight(MadeUpValues(21, 0, width));
  TestRows<float> hidden(RowsOfTokens(20, tokens, width), width, Lie::kAligned);
  TestRows<Bf16> update(RowsOfTokens(22, tokens, width), width, Lie::kAligned);
  TestRows<Bf16> normed(num_rows, width, Lie::kAligned);
  TestRows<Bf16> gate_up(RowsOfTokens(23, tokens, 2 * width), 2 * width, Lie::kAligned);
  AddRmsNorm({.hidden = hidden.view(),
              .update = update.view(),
              .weight = weight.span(),
              .normed = normed.view()},
             stream, {.live = live});
  SiluMul({.gate_up = gate_up.view(), .y = update.view()}, stream, {.live = live});
  AddScaled({.x = update.view(), .scale = 0.7f, .y = hidden.view()}, stream, {.live = live});
  std::vector<float> values;
  const std::vector<float> h = hidden.Values(stream), n = normed.Values(stream);
  for (int64_t r = 0; r < num_rows; ++r) {
    values.insert(values.end(), h.begin() + r * width, h.begin() + (r + 1) * width);
    values.insert(values.end(), n.begin() + r * width, n.begin() + (r + 1) * width);
  }
  return values;
}

std::span<const float> RowAt(const std::vector<float>& rows, size_t num_rows, size_t i) {
  const size_t width = rows.size() / num_rows;
  return std::span(rows).subspan(i * width, width);
}

TEST_F(CudaRowOpsTest, TheBatchAndItsOrderChangeNoBitAndNaNStaysInItsRow) {
  for (int64_t width : {64, 2049}) {
    const std::vector<int64_t> tokens = {4, 0, -1, 1, 2};
    const std::vector<float> batch = LayerOf(tokens, width, {}, stream());
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0) continue;
      const std::vector<float> alone =
          LayerOf(std::span(tokens).subspan(i, 1), width, {}, stream());
      EXPECT_EQ(BitMismatch(RowAt(batch, tokens.size(), i), alone), "") << "token " << tokens[i];
    }
  }
}

TEST_F(CudaRowOpsTest, RowsPastTheLiveOnesAreNotTouched) {
  const std::vector<int64_t> tokens = {4, 0, 3};
  const DeviceVector<int32_t> two({2});
  const std::vector<float> all = LayerOf(tokens, 64, {}, stream());
  const std::vector<float> some = LayerOf(tokens, 64, {.count = two.span().data()}, stream());
  EXPECT_EQ(BitMismatch(RowAt(some, 3, 1), RowAt(all, 3, 1)), "");
  EXPECT_EQ(BitMismatch(RowAt(some, 3, 2).first(64), MadeUpValues(20, 3, 64)), "");
}

// ---- Refusals; no device is needed ----

TEST(CudaRowOpsArgsTest, WrongArgumentsAreRefused) {
  std::vector<float> memory(64);
  std::vector<Bf16> narrow(64);
  const TensorView wide(memory.data(), {3, 4});
  const std::span<const float> weight = std::span(memory).first(4);
  const auto refusal = [](const auto& args) { return ErrorMessage([&] { Validate(args); }); };
  const auto norm_refusal = [](const RmsNormArgs& args) {
    return ErrorMessage([&] { ValidateOnDevice(args); });
  };
  EXPECT_EQ(norm_refusal({.x = wide, .y = wide}),
            "rms_norm.weight: expected 1..16384 values, got 0");
  EXPECT_EQ(norm_refusal({.x = wide.Columns(0, 3), .weight = weight, .y = wide}),
            "rms_norm.x: expected shape [3, 4], got [3, 3]");
  EXPECT_EQ(norm_refusal({.x = wide, .weight = weight, .eps = kNaN, .y = wide}),
            "rms_norm.eps: expected a finite number >= 0, got nan");
  EXPECT_EQ(refusal(AddRmsNormArgs{.hidden = TensorView(narrow.data(), {3, 4}),
                                   .update = wide,
                                   .weight = weight,
                                   .normed = wide}),
            "add_rms_norm.hidden: expected f32, got bf16");
  EXPECT_EQ(refusal(EmbedRowsArgs{.table = wide.Columns(0, 0), .hidden = wide}),
            "embed.hidden: expected shape [0, 0], got [3, 4]");
  EXPECT_EQ(refusal(SiluMulArgs{.gate_up = wide, .y = wide}),
            "silu_mul.gate_up: expected shape [3, 8], got [3, 4]");
  EXPECT_EQ(refusal(RopeArgs{.x = TensorView(memory.data(), {3, 1, 3})}),
            "rope.x: expected an even rope_dim, got 3");
  EXPECT_EQ(refusal(CombineArgs{.rows = wide, .y = wide}),
            "combine.row_of: expected as many for each of 3 tokens, got 0");
}

}  // namespace
}  // namespace quire::cuda
