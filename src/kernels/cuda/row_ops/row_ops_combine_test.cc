// Combine ahead of a norm: what the two launches give, in one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/test_memory.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/test_rows.h"
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

class CudaCombineNormTest : public StreamTest {};

// With every number of threads and groups of a thread that rows have.
const int64_t kCombineWidths[] = {1, 7, 8, 64, 512, 576, 1536, 2048, 2049, 4096, 7168, 8192, 16384};

// What Combine, then AddRmsNorm do to hidden and normed, and what the one launch does: by the bit.
// Rows past `live` (null: none) are as they were.
template <class TX, class TY>
class CombineAndNorm {
 public:
  static constexpr int64_t kTokens = 4;

  CombineAndNorm(int64_t width, int64_t top_k, Lie lie)
      : width_(width),
        lie_(lie),
        weights_(MadeUpValues(11, 0, kTokens * top_k)),
        norm_weight_(MadeUpValues(2, 0, width)),
        rows_(Narrowed(MadeUpRows(10, kTokens * top_k, width)), width, lie),
        shared_(Narrowed(MadeUpRows(13, kTokens, width)), width, lie) {
    row_of_.resize(static_cast<size_t>(kTokens * top_k));
    std::iota(row_of_.begin(), row_of_.end(), 0);
    std::shuffle(row_of_.begin(), row_of_.end(), std::mt19937_64(12));
  }
  // A choice has no row.
  void LoseRow(size_t choice, int32_t row) { row_of_[choice] = row; }
  // Weights that leave nothing finite, in the row of one token.
  void SpoilWeight(size_t choice, float weight) { weights_[choice] = weight; }

  // "", or what differs.
  std::string Difference(bool with_shared, LiveRows live, StatusWord status,
                         const Stream& stream) const {
    const Result two = Run(/*fused=*/false, with_shared, live, status, stream);
    const Result one = Run(/*fused=*/true, with_shared, live, status, stream);
    const std::string hidden = BitMismatch(one.hidden, two.hidden);
    const std::string normed = BitMismatch(one.normed, two.normed);
    if (!hidden.empty()) return "hidden: " + hidden;
    if (!normed.empty()) return "normed: " + normed;
    if (one.update != std::vector<float>(one.update.size(), kUntouched))
      return "update was written";
    return one.damage;
  }

 private:
  static constexpr float kUntouched = 9.0f;
  struct Result {
    std::vector<float> hidden, normed, update;
    std::string damage;
  };

  Result Run(bool fused, bool with_shared, LiveRows live, StatusWord status,
             const Stream& stream) const {
    const DeviceVector<int32_t> row_of(row_of_);
    const DeviceVector<float> weights(weights_), norm_weight(norm_weight_);
    TestRows<float> hidden(MadeUpRows(3, kTokens, width_), width_, lie_);
    TestRows<TY> normed(kTokens, width_, lie_);
    TestRows<Bf16> update(std::vector<float>(static_cast<size_t>(kTokens * width_), kUntouched),
                          width_, lie_);
    const CombineArgs combine = {.rows = rows_.view(),
                                 .row_of = row_of.span(),
                                 .weights = weights.span(),
                                 .shared = with_shared ? shared_.view() : TensorView(),
                                 .y = update.view()};
    const AddRmsNormArgs norm = {.hidden = hidden.view(),
                                 .update = update.view(),
                                 .scale = 0.3f,
                                 .weight = norm_weight.span(),
                                 .eps = 1e-5f,
                                 .normed = normed.view()};
    const RowLaunch launch = {.live = live, .status = status};
    if (fused) {
      CombineAddRmsNorm(combine, norm, stream, launch);
    } else {
      Combine(combine, stream, launch);
      AddRmsNorm(norm, stream, launch);
    }
    Result result = {hidden.Values(stream), normed.Values(stream), update.Values(stream), {}};
    result.damage = hidden.Damage() + normed.Damage() + update.Damage();
    return result;
  }

  int64_t width_;
  Lie lie_;
  std::vector<int32_t> row_of_;
  std::vector<float> weights_, norm_weight_;
  TestRows<TX> rows_, shared_;
};

template <class TX, class TY>
void TestCombineAndNorm(StatusWord status, const Stream& stream) {
  const DeviceVector<int32_t> three({3});
  for (int64_t width : kCombineWidths) {
    // One group of choices, one and a part of another, several.
    for (int64_t top_k : {1, 6, 8, 17}) {
      for (Lie lie : kLies) {
        SCOPED_TRACE(fmt::format("width {}, top_k {}, {}", width, top_k,
                                 lie == Lie::kAligned ? "aligned" : "crooked"));
        const CombineAndNorm<TX, TY> test(width, top_k, lie);
        EXPECT_EQ(test.Difference(/*with_shared=*/false, {}, status, stream), "");
        EXPECT_EQ(test.Difference(/*with_shared=*/true, {}, status, stream), "");
        EXPECT_EQ(test.Difference(true, {.count = three.span().data()}, status, stream), "");
      }
    }
  }
}
TEST_F(CudaCombineNormTest, CombineAddRmsNormHasTheBitsOfTheTwoLaunches) {
  TestCombineAndNorm<float, float>(status(), stream());
  TestCombineAndNorm<float, Bf16>(status(), stream());
  TestCombineAndNorm<Bf16, float>(status(), stream());
  TestCombineAndNorm<Bf16, Bf16>(status(), stream());
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaCombineNormTest, CombineAddRmsNormReportsARowThatIsNotThereAndAddsNothing) {
  for (int64_t width : {7, 2048}) {
    for (int32_t bad : {-1, 24, INT32_MAX, INT32_MIN}) {
      CombineAndNorm<Bf16, Bf16> test(width, 6, Lie::kAligned);
      test.LoseRow(12, bad);  // the first of the third token
      EXPECT_EQ(test.Difference(/*with_shared=*/true, {}, status(), stream()), "");
      EXPECT_EQ(Reported(), (Fault{DeviceFault::kExpert, 12}));
      // A token that is not live has no faults.
      const DeviceVector<int32_t> two({2});
      EXPECT_EQ(test.Difference(true, {.count = two.span().data()}, status(), stream()), "");
      EXPECT_EQ(Reported(), kNothing);
    }
  }
}

// Of 2049 values the last group has one: what is past it must not reach the sum, and no other row.
TEST_F(CudaCombineNormTest, CombineAddRmsNormKeepsWhatIsNotFiniteInItsRow) {
  for (float weight : {kInf, -kInf, kNaN}) {
    for (int64_t width : {64, 2049}) {
      CombineAndNorm<Bf16, float> test(width, 6, Lie::kCrooked);
      test.SpoilWeight(8, weight);
      EXPECT_EQ(test.Difference(/*with_shared=*/true, {}, status(), stream()), "") << weight;
    }
  }
}

TEST(CudaCombineNormArgsTest, CombineAheadOfANormIsRefusedUnlessItsResultIsWhatIsAdded) {
  std::vector<float> memory(64);
  std::vector<Bf16> narrow(64);
  std::vector<int32_t> row_of(3);
  const TensorView wide(memory.data(), {3, 4}), update(narrow.data(), {3, 4});
  const CombineArgs combine = {
      .rows = wide, .row_of = row_of, .weights = std::span(memory).first(3), .y = update};
  const AddRmsNormArgs norm = {
      .hidden = wide, .update = update, .weight = std::span(memory).first(4), .normed = wide};
  const auto refusal = [](const CombineArgs& a, const AddRmsNormArgs& b) {
    return ErrorMessage([&] { Validate(a, b); });
  };
  EXPECT_EQ(refusal(combine, norm), "no error");
  CombineArgs other = combine;
  other.weights = std::span(memory).first(2);
  EXPECT_EQ(refusal(other, norm), "combine.weights: expected 3 values, got 2");
  other = combine;
  other.y = wide;
  EXPECT_EQ(refusal(other, norm), "combine.y: expected bf16 ahead of a norm, got f32");
  AddRmsNormArgs others = norm;
  others.weight = {};
  EXPECT_EQ(refusal(combine, others), "add_rms_norm.weight: expected 1..16384 values, got 0");
  others = norm;
  others.update = TensorView(narrow.data() + 12, {3, 4});
  EXPECT_EQ(refusal(combine, others),
            "add_rms_norm.update: expected the rows of combine.y, got others");
  others.update = wide;
  EXPECT_EQ(refusal(combine, others),
            "add_rms_norm.update: expected the rows of combine.y, got others");
  others = norm;
  others.hidden = others.normed = TensorView(memory.data(), {2, 4});
  others.update = TensorView(narrow.data(), {2, 4});
  EXPECT_EQ(refusal(combine, others), "add_rms_norm.update: expected shape [3, 4], got [2, 4]");
}

}  // namespace
}  // namespace quire::cuda
