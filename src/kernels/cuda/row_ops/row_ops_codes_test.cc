// The codes that norms and SiluMul write beside their rows: those of QuantiseRows, bit by bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "device/cuda/test_memory.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/test_codes.h"
#include "kernels/cuda/test_rows.h"
#include "kernels/quantised_rows.h"
#include "kernels/row_ops_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::ErrorMessage;
using testing::kInf;
using testing::kNaN;
using testing::MadeUpRows;
using testing::MadeUpValues;

// Blocks that are whole, that are not, and rows for every number of threads and of a thread's groups.
const int64_t kCodeWidths[] = {1, 7, 127, 128, 129, 144, 576, 1536, 2049, 4096, 7168, 8200, 16384};
constexpr int64_t kCodeTokens = 4;

// Memory for the codes of kCodeTokens rows, and behind each row and all of them for more.
class TestCodes : public CodeMemory {
 public:
  explicit TestCodes(int64_t width)
      : CodeMemory(kCodeTokens + 1, width + kScaleBlock, 0xA5), width_(width) {}

  QuantisedRows rows() const { return FirstRows(CodeMemory::rows(), kCodeTokens, width_); }

 private:
  int64_t width_;
};

class CudaRowOpsCodesTest : public StreamTest {
 protected:
  // What `op` writes to rows and codes, beside what QuantiseRows makes of the first `live` of those rows, and
  // beside rows that `op` writes without codes: "", or what differs. op(y, codes).
  std::string Difference(int64_t width, Lie lie, int64_t live,
                         const std::function<void(TensorView, const QuantisedRows&)>& op) {
    TestRows<Bf16> y(kCodeTokens, width, lie), alone(kCodeTokens, width, lie);
    const TestCodes codes(width), expected(width);
    op(y.view(), codes.rows());
    op(alone.view(), {});
    QuantiseRows({.x = y.view().FirstRows(live), .to = FirstRows(expected.rows(), live, width)},
                 stream());
    const std::string rows = BitMismatch(y.Values(stream()), alone.Values(stream()));
    if (!rows.empty()) return "rows with codes and without: " + rows;
    const std::vector<uint8_t> found = codes.All(stream()), wanted = expected.All(stream());
    const auto [a, b] = std::ranges::mismatch(found, wanted);
    if (a == found.end()) return y.Damage();
    return fmt::format("byte {} of codes and scales: {}, expected {}", a - found.begin(), *a, *b);
  }
};

// Of a norm, with values in blocks of their own that are not finite, that bf16 makes infinite, and that are
// very small.
std::vector<float> SpoiltWeights(int64_t width) {
  std::vector<float> weight = MadeUpValues(2, 0, width);
  const auto set = [&](size_t i, float value) {
    if (i < weight.size()) weight[i] = value;
  };
  set(5, kNaN);
  set(140, kInf);
  set(270, -kInf);
  for (size_t i = 384; i < 512; ++i) set(i, 0.0f);
  set(400, -kNaN);
  for (size_t i = 512; i < 640; ++i) set(i, 0x1p-140f);
  set(700, 3.4e38f);
  return weight;
}

// Of several tokens, of which one has zeros, and two have a value that is not finite: of the last all of the
// norm is NaN, but not what follows the row.
std::vector<float> SpoiltRows(uint64_t seed, int64_t width) {
  std::vector<float> rows = Narrowed(MadeUpRows(seed, kCodeTokens, width));
  std::fill_n(rows.begin() + width, width, 0.0f);
  rows[static_cast<size_t>(3 * width - 1)] = kInf;
  rows[static_cast<size_t>(3 * width)] = kNaN;
  return rows;
}

TEST_F(CudaRowOpsCodesTest, NormsWriteTheCodesOfTheirRows) {
  const DeviceVector<int32_t> three({3});
  for (const int64_t width : kCodeWidths) {
    const DeviceVector<float> weight(SpoiltWeights(width));
    for (const Lie lie : kLies) {
      SCOPED_TRACE(
          fmt::format("width {}, {}", width, lie == Lie::kAligned ? "aligned" : "crooked"));
      for (const int64_t live : {int64_t{3}, kCodeTokens}) {
        const RowLaunch launch{
            .live = {.count = live < kCodeTokens ? three.span().data() : nullptr}};
        EXPECT_EQ(Difference(width, lie, live,
                             [&](TensorView y, const QuantisedRows& codes) {
                               TestRows<float> x(SpoiltRows(1, width), width, lie);
                               RmsNorm({.x = x.view(),
                                        .weight = weight.span(),
                                        .y = y,
                                        .scale = 1.3f,
                                        .codes = codes},
                                       stream(), launch);
                             }),
                  "")
            << "RmsNorm";
        EXPECT_EQ(Difference(width, lie, live,
                             [&](TensorView y, const QuantisedRows& codes) {
                               TestRows<float> hidden(SpoiltRows(3, width), width, lie);
                               TestRows<Bf16> update(SpoiltRows(4, width), width, lie);
                               AddRmsNorm({.hidden = hidden.view(),
                                           .update = update.view(),
                                           .weight = weight.span(),
                                           .normed = y,
                                           .codes = codes},
                                          stream(), launch);
                             }),
                  "")
            << "AddRmsNorm";
      }
    }
  }
}

TEST_F(CudaRowOpsCodesTest, ANormInPlaceWritesTheCodesOfItsRows) {
  for (const int64_t width : {144, 1536}) {
    const DeviceVector<float> weight(SpoiltWeights(width));
    EXPECT_EQ(Difference(width, Lie::kAligned, kCodeTokens,
                         [&](TensorView y, const QuantisedRows& codes) {
                           TestRows<Bf16> x(SpoiltRows(1, width), width, Lie::kAligned);
                           CopyRows({.x = x.view(), .y = y}, stream());
                           RmsNorm({.x = y, .weight = weight.span(), .y = y, .codes = codes},
                                   stream());
                         }),
              "");
  }
}

TEST_F(CudaRowOpsCodesTest, CombineAheadOfANormWritesTheCodesOfItsRows) {
  constexpr int64_t kTopK = 3;
  std::vector<int32_t> numbers(static_cast<size_t>(kCodeTokens * kTopK));
  std::iota(numbers.begin(), numbers.end(), 0);
  const DeviceVector<int32_t> row_of(numbers), three({3});
  const DeviceVector<float> weights(MadeUpValues(11, 0, kCodeTokens * kTopK));
  for (const int64_t width : kCodeWidths) {
    const DeviceVector<float> norm_weight(SpoiltWeights(width));
    for (const Lie lie : kLies) {
      SCOPED_TRACE(
          fmt::format("width {}, {}", width, lie == Lie::kAligned ? "aligned" : "crooked"));
      TestRows<Bf16> rows(Narrowed(MadeUpRows(10, kCodeTokens * kTopK, width)), width, lie);
      TestRows<Bf16> update(kCodeTokens, width, lie);
      for (const int64_t live : {int64_t{3}, kCodeTokens}) {
        const auto op = [&](TensorView y, const QuantisedRows& codes) {
          TestRows<float> hidden(SpoiltRows(3, width), width, lie);
          CombineAddRmsNorm({.rows = rows.view(),
                             .row_of = row_of.span(),
                             .weights = weights.span(),
                             .y = update.view()},
                            {.hidden = hidden.view(),
                             .update = update.view(),
                             .weight = norm_weight.span(),
                             .normed = y,
                             .codes = codes},
                            stream(),
                            {.live = {.count = live < kCodeTokens ? three.span().data() : nullptr},
                             .status = status()});
        };
        EXPECT_EQ(Difference(width, lie, live, op), "");
      }
    }
  }
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaRowOpsCodesTest, SiluMulWritesTheCodesOfItsRows) {
  const DeviceVector<int32_t> three({3});
  for (const int64_t width : kCodeWidths) {
    std::vector<float> values = SpoiltRows(7, 2 * width);
    const std::vector<float> up = SpoiltWeights(width);
    std::ranges::copy(up, values.begin() + width);  // of the first token
    for (const Lie lie : kLies) {
      SCOPED_TRACE(
          fmt::format("width {}, {}", width, lie == Lie::kAligned ? "aligned" : "crooked"));
      TestRows<Bf16> gate_up(values, 2 * width, lie);
      for (const int64_t live : {int64_t{3}, kCodeTokens}) {
        const auto op = [&](TensorView y, const QuantisedRows& codes) {
          SiluMul({.gate_up = gate_up.view(), .y = y, .codes = codes}, stream(),
                  {.live = {.count = live < kCodeTokens ? three.span().data() : nullptr}});
        };
        EXPECT_EQ(Difference(width, lie, live, op), "");
      }
    }
  }
}

// ---- Refusals; no device is needed ----

TEST(CudaRowOpsCodesArgsTest, CodesOfOtherRowsAreRefused) {
  std::vector<float> memory(64), scales(8);
  std::vector<Bf16> narrow(64);
  alignas(16) Fp8E4m3 codes[3 * 128];
  const TensorView wide(memory.data(), {3, 4}), rows(narrow.data(), {3, 4});
  const std::span<const float> weight = std::span(memory).first(4);
  const QuantisedRows right{.codes = codes,
                            .scales = scales.data(),
                            .rows = 3,
                            .inputs = 4,
                            .code_stride = 128,
                            .scale_stride = 1};
  QuantisedRows fewer = right, narrower = right;
  fewer.rows = 2;
  narrower.code_stride = 64;
  const auto norm = [&](const TensorView& y, const QuantisedRows& to) {
    return ErrorMessage(
        [&] { ValidateOnDevice(RmsNormArgs{.x = wide, .weight = weight, .y = y, .codes = to}); });
  };
  EXPECT_EQ(norm(rows, right), "no error");
  EXPECT_EQ(norm(wide, right), "rms_norm.codes: expected rows of bf16, got f32");
  EXPECT_EQ(norm(rows, fewer), "rms_norm.codes: expected 3 rows of 4 inputs, got 2 of 4");
  EXPECT_EQ(norm(rows, narrower),
            "rms_norm.codes: expected rows of at least 128 codes, aligned to 16, got 64");
  EXPECT_EQ(
      ErrorMessage([&] {
        Validate(AddRmsNormArgs{
            .hidden = wide, .update = rows, .weight = weight, .normed = rows, .codes = fewer});
      }),
      "add_rms_norm.codes: expected 3 rows of 4 inputs, got 2 of 4");
  EXPECT_EQ(ErrorMessage([&] {
              ValidateOnDevice(SiluMulArgs{
                  .gate_up = TensorView(memory.data(), {3, 8}), .y = wide, .codes = right});
            }),
            "silu_mul.codes: expected rows of bf16, got f32");
}

}  // namespace
}  // namespace quire::cuda
