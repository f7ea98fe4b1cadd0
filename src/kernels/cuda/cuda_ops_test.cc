// The op table where weights have block scales: codes that one op writes are what the next one multiplies.
#include "kernels/cuda/cuda_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/maths.h"
#include "device/cuda/test_memory.h"
#include "kernels/cuda/gemm/gemm_planner.h"
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
using testing::MadeUpRows;
using testing::MadeUpValues;

constexpr int64_t kOpTokens = 5, kOpHidden = 272, kOpWidth = 144;  // the last blocks are not whole

// Of kOpTokens rows that are NaN until an op has written them.
CodeMemory NoCodes(int64_t inputs) { return CodeMemory(kOpTokens, inputs, 0xff); }

// A matrix on the device, made up from its seed.
class TestWeight {
 public:
  TestWeight(uint64_t seed, MatrixShape shape, WeightFormat format)
      : weight_{.shape = shape, .format = format} {
    const std::vector<float> values = MadeUpValues(seed, 0, shape.outputs * shape.inputs);
    if (format == WeightFormat::kBf16) {
      std::vector<Bf16> narrow;
      for (const float value : values) narrow.push_back(ToBf16(value));
      bf16_.emplace(narrow);
      weight_.data = bf16_->bytes().data();
      return;
    }
    std::vector<Fp8E4m3> codes;
    for (const float value : values) codes.push_back(ToFp8E4m3(100 * value));
    codes_.emplace(codes);
    std::vector<float> scales;
    for (const float value : MadeUpValues(seed, 1,
                                          CeilDiv(shape.outputs, int64_t{kScaleBlock}) *
                                              CeilDiv(shape.inputs, int64_t{kScaleBlock}))) {
      scales.push_back(0.01f * (1 + std::abs(value)));
    }
    scales_.emplace(scales);
    weight_.data = codes_->bytes().data();
    weight_.scales = scales_->span().data();
  }
  const Weight& weight() const { return weight_; }

 private:
  Weight weight_;
  std::optional<DeviceVector<Bf16>> bf16_;
  std::optional<DeviceVector<Fp8E4m3>> codes_;
  std::optional<DeviceVector<float>> scales_;
};

class CudaOpsTest : public StreamTest {
 protected:
  void SetUp() override {
    StreamTest::SetUp();
    if (IsSkipped()) return;
    branch_ = std::make_unique<Branch>();
    planner_ = std::make_unique<GemmPlanner>(GemmBackend::kExact, std::span<std::byte>());
    memory_ = std::make_unique<CodeMemory>(NoCodes(kOpHidden));
    OpScratch scratch;
    without_memory_ = Make(scratch);
    scratch.codes = memory_->rows();
    with_memory_ = Make(scratch);
  }

  std::unique_ptr<CudaOps> Make(const OpScratch& scratch) const {
    return std::make_unique<CudaOps>(
        scratch,
        OpDevice{.stream = stream(), .branch = *branch_, .gemms = *planner_, .status = status()});
  }

  // Ops that have memory for codes of their own, and ops that have none: these can only use what they are given.
  CudaOps& with_memory() { return *with_memory_; }
  CudaOps& without_memory() { return *without_memory_; }

 private:
  std::unique_ptr<Branch> branch_;
  std::unique_ptr<GemmPlanner> planner_;
  std::unique_ptr<CodeMemory> memory_;
  std::unique_ptr<CudaOps> without_memory_, with_memory_;
};

// The first outputs of two matrices, one behind the other, as a rank of several has them.
class PartOfTwo {
 public:
  PartOfTwo(int64_t outputs, MatrixShape whole)
      : outputs_(outputs),
        scale_step_(CeilDiv(outputs, int64_t{kScaleBlock}) *
                    CeilDiv(whole.inputs, int64_t{kScaleBlock})),
        codes_(Codes(outputs, whole)),
        scales_(std::vector<float>(static_cast<size_t>(2 * scale_step_), 0.01f)),
        whole_(whole) {}

  // [rows, 2 outputs]: the products of both.
  std::vector<float> Multiply(Ops& ops, TestRows<Bf16>& x, int64_t rows, const Stream& stream) {
    TestRows<float> y(rows, 2 * outputs_, Lie::kAligned);
    const ProductArgs products[] = {
        {.x = x.view(), .w = At(0), .y = y.view().Columns(0, outputs_)},
        {.x = x.view(), .w = At(1), .y = y.view().Columns(outputs_, outputs_)}};
    ops.Matmul(products);
    return y.Values(stream);
  }

 private:
  static std::vector<Fp8E4m3> Codes(int64_t outputs, MatrixShape whole) {
    std::vector<Fp8E4m3> codes;
    for (uint64_t matrix = 0; matrix < 2; ++matrix) {
      for (const float value : MadeUpValues(matrix, 0, outputs * whole.inputs)) {
        codes.push_back(ToFp8E4m3(100 * value));
      }
    }
    return codes;
  }
  Weight At(int64_t matrix) const {
    Weight weight{.shape = {outputs_, whole_.inputs}, .format = WeightFormat::kFp8Block};
    weight.step_bytes = outputs_ * whole_.inputs;
    weight.scale_step = scale_step_;
    weight.data = codes_.bytes().data() + matrix * weight.step_bytes;
    weight.scales = scales_.span().data() + matrix * scale_step_;
    weight.whole_outputs = whole_.outputs;
    return weight;
  }

  const int64_t outputs_, scale_step_;
  const DeviceVector<Fp8E4m3> codes_;
  const DeviceVector<float> scales_;
  const MatrixShape whole_;
};

// Two matrices of 24 blocks of outputs and a half are two products, of which each is cut into two ranges of inputs. A rank
// has 12 blocks of each, which as one product would not be cut.
TEST_F(CudaOpsTest, PartsOfTwoMatricesAreNoOneProductWhereTheWholeOnesAreNone) {
  constexpr MatrixShape kWholeShape{3136, 1024};
  constexpr int64_t kRows = 2, kPart = 1536;
  TestRows<Bf16> x(MadeUpRows(2, kRows, kWholeShape.inputs), kWholeShape.inputs, Lie::kAligned);
  const CodeMemory memory(kRows, kWholeShape.inputs, 0xff);
  OpScratch scratch;
  scratch.codes = memory.rows();
  const std::unique_ptr<CudaOps> ops = Make(scratch);
  const std::vector<float> all =
      PartOfTwo(kWholeShape.outputs, kWholeShape).Multiply(*ops, x, kRows, stream());
  const std::vector<float> part = PartOfTwo(kPart, kWholeShape).Multiply(*ops, x, kRows, stream());
  for (int64_t of_both = 0; of_both < 2 * kRows; ++of_both) {
    const auto of = [&](const std::vector<float>& values, int64_t outputs) {
      return std::span(values).subspan(static_cast<size_t>(of_both * outputs),
                                       static_cast<size_t>(kPart));
    };
    EXPECT_EQ(BitMismatch(of(part, kPart), of(all, kWholeShape.outputs)), "") << of_both;
  }
}

TEST_F(CudaOpsTest, RowsWithoutCodesNeedMemoryForThem) {
  const TestWeight w(1, {64, kOpHidden}, WeightFormat::kFp8Block);
  TestRows<Bf16> x(MadeUpRows(2, kOpTokens, kOpHidden), kOpHidden, Lie::kAligned);
  TestRows<float> y(kOpTokens, 64, Lie::kAligned);
  EXPECT_EQ(ErrorMessage(
                [&] { without_memory().Matmul({.x = x.view(), .w = w.weight(), .y = y.view()}); }),
            "quantised rows: expected at most 0 rows of 0 inputs, got 5 of 272");
}

// On the step's own stream and beside it, of all rows and of the first ones.
TEST_F(CudaOpsTest, ProductsMultiplyTheCodesThatANormWrote) {
  const TestWeight w(1, {64, kOpHidden}, WeightFormat::kFp8Block);
  const DeviceVector<float> weight(MadeUpValues(3, 0, kOpHidden));
  const std::vector<float> before = MadeUpRows(4, kOpTokens, kOpHidden);
  TestRows<Bf16> update(MadeUpRows(5, kOpTokens, kOpHidden), kOpHidden, Lie::kAligned);
  TestRows<Bf16> normed(kOpTokens, kOpHidden, Lie::kAligned);
  const CodeMemory codes = NoCodes(kOpHidden);
  const auto norm = [&](Ops& ops, bool is_first, const QuantisedRows& to) {
    TestRows<float> hidden(before, kOpHidden, Lie::kAligned);
    ops.AddNorm({.add = {.hidden = hidden.view(),
                         .update = is_first ? Update() : Update(ConstTensorView(update.view())),
                         .scratch = update.view()},
                 .weight = weight.span(),
                 .normed = normed.view(),
                 .codes = to});
  };
  for (const bool is_first : {true, false}) {
    TestRows<float> expected(kOpTokens, 64, Lie::kAligned), y(kOpTokens, 64, Lie::kAligned);
    TestRows<float> beside(kOpTokens, 64, Lie::kAligned), first(2, 64, Lie::kAligned);
    norm(with_memory(), is_first, {});
    with_memory().Matmul({.x = normed.view(), .w = w.weight(), .y = expected.view()});
    CudaOps& ops = without_memory();
    norm(ops, is_first, codes.rows());
    const ProductInput input(normed.view(), codes.rows());
    ops.Fork().Matmul({.x = input, .w = w.weight(), .y = beside.view()});
    ops.Matmul({.x = input, .w = w.weight(), .y = y.view()});
    ops.Join();
    ops.Matmul({.x = input.FirstRows(2), .w = w.weight(), .y = first.view()});
    const std::vector<float> values = expected.Values(stream());
    EXPECT_EQ(BitMismatch(y.Values(stream()), values), "");
    EXPECT_EQ(BitMismatch(beside.Values(stream()), values), "");
    EXPECT_EQ(BitMismatch(first.Values(stream()), std::span(values).first(2 * 64)), "");
  }
}

TEST_F(CudaOpsTest, ANormInPlaceAndAnMlpWriteTheCodesThatTheNextProductMultiplies) {
  const TestWeight down(1, {kOpHidden, kOpWidth}, WeightFormat::kFp8Block);
  const DeviceVector<float> weight(MadeUpValues(3, 0, kOpWidth));
  const CodeMemory normed_codes = NoCodes(kOpWidth), codes = NoCodes(kOpWidth);
  // The gates' weights as down's, and without scales: then the activation is in the product's kernel.
  for (const WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kBf16}) {
    const TestWeight gate(6, {kOpWidth, kOpWidth}, format), up(7, {kOpWidth, kOpWidth}, format);
    const auto run = [&](Ops& ops, const QuantisedRows& of_normed, const QuantisedRows& of_y) {
      TestRows<Bf16> x(MadeUpRows(2, kOpTokens, kOpWidth), kOpWidth, Lie::kAligned);
      TestRows<Bf16> gate_up(kOpTokens, 2 * kOpWidth, Lie::kAligned);
      TestRows<Bf16> activated(kOpTokens, kOpWidth, Lie::kAligned);
      TestRows<float> y(kOpTokens, kOpHidden, Lie::kAligned);
      ops.Norm({.x = x.view(), .weight = weight.span(), .y = x.view(), .codes = of_normed});
      ops.GateUp({.x = {x.view(), of_normed},
                  .gate = gate.weight(),
                  .up = up.weight(),
                  .gate_up = gate_up.view(),
                  .y = activated.view(),
                  .codes = of_y});
      ops.Matmul({.x = {activated.view(), of_y}, .w = down.weight(), .y = y.view()});
      return y.Values(stream());
    };
    EXPECT_EQ(BitMismatch(run(without_memory(), normed_codes.rows(), codes.rows()),
                          run(with_memory(), {}, {})),
              "")
        << WeightFormatName(format);
  }
}

}  // namespace
}  // namespace quire::cuda
