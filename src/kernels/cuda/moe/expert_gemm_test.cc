#include "kernels/cuda/moe/expert_gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/gemm/gemm_testing.h"
#include "kernels/cuda/gemm/gemv.h"
#include "kernels/cuda/moe/route.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::ErrorMessage;
using testing::Mismatch;

enum class Op { kPlain, kGated };

// Rows of each expert, and how many rows there is room for beyond them.
struct RoutingCase {
  const char* name;
  std::vector<int64_t> counts;
  int64_t padding = 0;
};

std::vector<int64_t> Repeated(int64_t experts, int64_t count) {
  return std::vector<int64_t>(static_cast<size_t>(experts), count);
}

std::vector<int64_t> OnlyOne(int64_t experts, int64_t chosen, int64_t count) {
  std::vector<int64_t> counts = Repeated(experts, 0);
  counts[static_cast<size_t>(chosen)] = count;
  return counts;
}

const RoutingCase kRoutingCases[] = {
    {"one_expert", {5}},
    {"empty_first_and_last", {0, 3, 0, 0, 17, 0}, 2},
    {"nobody", {0, 0, 0}, 7},
    {"edges_of_16", {15, 16, 17, 1, 16}},
    {"edges_of_64", {63, 64, 65, 0, 1}, 30},
    {"edges_of_128", {127, 128, 129, 2}},
    {"all_to_the_last", OnlyOne(7, 6, 200)},
    {"all_to_the_first_with_padding", OnlyOne(7, 0, 130), 126},
    {"more_experts_than_threads", Repeated(300, 1), 5},
    {"as_many_as_there_may_be", OnlyOne(1024, 777, 18), 40},
};

// One layer's experts: three different matrices in turn, so that a wrong one shows.
class Experts {
 public:
  Experts(MatrixShape shape, int64_t count, Form form, Op op, Spread spread)
      : shape_(shape), form_(form), op_(op), spread_(spread) {
    const WeightFormat format = form == Form::kBf16 ? WeightFormat::kBf16 : WeightFormat::kFp8Block;
    for (int64_t i = 0; i < 4; ++i) {
      // As slices of a larger matrix they differ; whole blocks further, so that scales stay theirs.
      made_.push_back(std::make_unique<MadeUpMatrix>(
          SourceShape{.format = format, .shape = shape, .first_output = 128 * i}));
    }
    std::vector<const MadeUpMatrix*> gate, up;
    for (int64_t e = 0; e < count; ++e) {
      gate.push_back(Gate(e));
      up.push_back(Up(e));
    }
    gate_.emplace(gate, spread);
    up_.emplace(up, spread);
  }

  const MadeUpMatrix* Gate(int64_t e) const { return made_[static_cast<size_t>(e % 3)].get(); }
  const MadeUpMatrix* Up(int64_t e) const { return made_[static_cast<size_t>(e % 3 + 1)].get(); }
  const DeviceWeights& gate() const { return *gate_; }
  const DeviceWeights& up() const { return *up_; }

  // y of all rows by the device, in this tile or, without one, as products that need not be exact; rows from the
  // last offset on must stay untouched.
  std::vector<float> Run(const std::vector<float>& x, const std::vector<int32_t>& offsets,
                         DType dtype, std::optional<TileSize> tile, StatusWord status = {}) const {
    return RunIndexed(x, {}, offsets, dtype, tile, status);
  }

  // The same, with row index[r] of x for row r; an empty index is none.
  std::vector<float> RunIndexed(const std::vector<float>& x, const std::vector<int32_t>& index,
                                const std::vector<int32_t>& offsets, DType dtype,
                                std::optional<TileSize> tile, StatusWord status = {}) const {
    const int64_t rows = index.empty() ? std::ssize(x) / shape_.inputs : std::ssize(index);
    const DeviceRows on_device(x, shape_.inputs, spread_);
    const DeviceOutput y(rows, shape_.outputs, dtype, spread_);
    const DeviceVector<int32_t> device_offsets(offsets);
    ExpertGemmArgs args{.w = gate_->view(),
                        .offsets = device_offsets.span().data(),
                        .y = y.view(),
                        .status = status,
                        .exact = tile.has_value()};
    if (op_ == Op::kGated) args.up = up_->view();
    std::optional<DeviceVector<int32_t>> device_index;
    if (!index.empty()) args.rows = device_index.emplace(index).span();
    std::optional<DeviceCodes> codes;
    if (form_ == Form::kFp8) {
      codes.emplace(on_device.view(), stream_);
      args.x_codes = codes->rows();
    } else {
      args.x = on_device.view();
    }
    if (!tile) {
      EXPECT_EQ(ChooseExpertKernel(args), ExpertKernel::kGemv);
    }
    ExpertGemm(args, stream_, tile);
    return y.Values(stream_, std::clamp<int64_t>(offsets.back(), 0, rows));
  }

  // The same by exact arithmetic, of the rows that have an expert.
  GemmReference Reference(const std::vector<float>& x, const std::vector<int32_t>& offsets,
                          DType dtype) const {
    std::vector<double> values(x.begin(), x.end());
    if (form_ == Form::kFp8) {
      const DeviceRows on_device(x, shape_.inputs, spread_);
      values = DeviceCodes(on_device.view(), stream_).Values(stream_);
    }
    GemmReference all;
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const std::vector<double> rows(values.begin() + offsets[e] * shape_.inputs,
                                     values.begin() + offsets[e + 1] * shape_.inputs);
      if (rows.empty()) continue;
      const auto expert = static_cast<int64_t>(e);
      const DType sums = op_ == Op::kGated ? DType::kF32 : dtype;
      GemmReference part = ReferenceGemm(*Gate(expert), shape_, rows, {}, sums);
      if (op_ == Op::kGated) {
        part = Gated(part, ReferenceGemm(*Up(expert), shape_, rows, {}, sums), dtype);
      }
      all.y.insert(all.y.end(), part.y.begin(), part.y.end());
      all.bounds.insert(all.bounds.end(), part.bounds.begin(), part.bounds.end());
    }
    return all;
  }

 private:
  // silu(gate) * up. The slope of silu is at most 1.1; SiluMul itself errs by 8u (docs/numerics.md),
  // and the device's exp by 2u more in numerator and denominator.
  static GemmReference Gated(const GemmReference& gate, const GemmReference& up, DType dtype) {
    GemmReference result;
    for (size_t i = 0; i < gate.y.size(); ++i) {
      const double silu = gate.y[i] / (1 + std::exp(-gate.y[i]));
      const double silu_error = 1.1 * gate.bounds[i];
      const double y = silu * up.y[i];
      double bound =
          silu_error * (std::abs(up.y[i]) + up.bounds[i]) + std::abs(silu) * up.bounds[i];
      bound += 12 * 0x1p-24 * (std::abs(y) + bound) + 0x1p-126;
      if (dtype == DType::kBf16) bound += 0x1p-8 * (std::abs(y) + bound);
      result.y.push_back(y);
      result.bounds.push_back(bound);
    }
    return result;
  }

  MatrixShape shape_;
  Form form_;
  Op op_;
  Spread spread_;
  Stream stream_;
  std::vector<std::unique_ptr<MadeUpMatrix>> made_;
  std::optional<DeviceWeights> gate_, up_;
};

std::vector<int32_t> Offsets(const std::vector<int64_t>& counts) {
  std::vector<int32_t> offsets{0};
  for (int64_t count : counts) offsets.push_back(offsets.back() + static_cast<int32_t>(count));
  return offsets;
}

TEST(CudaExpertGemmTest, EveryRowIsMultipliedByItsOwnExpert) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 136};
  for (const RoutingCase& c : kRoutingCases) {
    const std::vector<int32_t> offsets = Offsets(c.counts);
    const std::vector<float> x = MadeUpX(11, (offsets.back() + c.padding) * shape.inputs);
    for (Form form : kForms) {
      for (Op op : {Op::kPlain, Op::kGated}) {
        const Experts experts(shape, std::ssize(c.counts), form, op, Spread::kAligned);
        const GemmReference reference = experts.Reference(x, offsets, DType::kBf16);
        std::vector<float> first;
        for (TileSize tile : kTileSizes) {
          SCOPED_TRACE(fmt::format("{}, form {}, {}, tile {}", c.name, static_cast<int>(form),
                                   op == Op::kGated ? "gated" : "plain", static_cast<int>(tile)));
          const std::vector<float> y = experts.Run(x, offsets, DType::kBf16, tile);
          EXPECT_EQ(Mismatch(y, reference.y, reference.bounds), "");
          if (first.empty()) first = y;
          EXPECT_EQ(BitMismatch(y, first), "") << "tiles differ";
        }
      }
    }
  }
}

TEST(CudaExpertGemmTest, EqualsALoopOverTheExpertsBitForBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{200, 904};  // one range of inputs, as Gemm has for so few of them
  ASSERT_EQ(GemmSplits(shape.outputs, shape.inputs), 1);
  const std::vector<int32_t> offsets = Offsets({3, 0, 40, 129, 1});
  const int64_t rows = offsets.back();
  const std::vector<float> x = MadeUpX(12, rows * shape.inputs);
  const Stream stream;
  for (Spread spread : {Spread::kAligned, Spread::kOdd}) {
    for (Form form : {Form::kBf16, Form::kFp8KeepX}) {
      const Experts experts(shape, 5, form, Op::kPlain, spread);
      const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
      std::vector<float> expected;
      for (size_t e = 0; e < 5; ++e) {
        const DeviceOutput y(rows, shape.outputs, DType::kF32, Spread::kAligned);
        Gemm(
            {.x = on_device.view(), .w = experts.gate().at(static_cast<int64_t>(e)), .y = y.view()},
            stream);
        const std::vector<float> values = y.Values(stream);
        expected.insert(expected.end(), values.begin() + offsets[e] * shape.outputs,
                        values.begin() + offsets[e + 1] * shape.outputs);
      }
      for (TileSize tile : kTileSizes) {
        EXPECT_EQ(BitMismatch(experts.Run(x, offsets, DType::kF32, tile), expected), "")
            << "form " << static_cast<int>(form) << ", tile " << static_cast<int>(tile);
      }
    }
  }
}

// The rows of x that `index` names; row 0 for one that is not there, as the device reads it.
std::vector<float> Gathered(const std::vector<float>& x, int64_t width,
                            const std::vector<int32_t>& index) {
  std::vector<float> rows;
  for (int32_t row : index) {
    const bool there = row >= 0 && row < std::ssize(x) / width;
    const auto from = x.begin() + (there ? row : 0) * width;
    rows.insert(rows.end(), from, from + width);
  }
  return rows;
}

// Experts of e4m3 by products of codes: those of one expert after the other, and of an index those of
// the rows it names; gate and up within what the exact tiles give.
TEST(CudaExpertGemmTest, CodesOfExpertsAreThoseOfOneAfterTheOther) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{200, 912};
  const std::vector<int32_t> offsets = Offsets({3, 0, 140, 129, 1});
  const int64_t rows = offsets.back();
  const std::vector<float> x = MadeUpX(12, rows * shape.inputs);
  const Stream stream;
  const Experts plain(shape, 5, Form::kFp8, Op::kPlain, Spread::kAligned);
  const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
  const DeviceCodes codes(on_device.view(), stream);
  std::vector<float> expected;
  for (size_t e = 0; e < 5; ++e) {
    const DeviceOutput y(rows, shape.outputs, DType::kF32, Spread::kAligned);
    Gemm({.x_codes = codes.rows(), .w = plain.gate().at(static_cast<int64_t>(e)), .y = y.view()},
         stream, TileSize::kCodes);
    const std::vector<float> values = y.Values(stream);
    expected.insert(expected.end(), values.begin() + offsets[e] * shape.outputs,
                    values.begin() + offsets[e + 1] * shape.outputs);
  }
  EXPECT_EQ(BitMismatch(plain.Run(x, offsets, DType::kF32, TileSize::kCodes), expected), "");

  const Experts gated(shape, 5, Form::kFp8, Op::kGated, Spread::kAligned);
  const std::vector<float> y = gated.Run(x, offsets, DType::kF32, TileSize::kCodes);
  const std::vector<float> exact = gated.Run(x, offsets, DType::kF32, TileSize::kPrefill);
  double errors = 0, squares = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    errors += std::pow(double{y[i]} - exact[i], 2);
    squares += std::pow(double{exact[i]}, 2);
  }
  EXPECT_GT(errors, 0);
  EXPECT_LT(std::sqrt(errors / squares), 0x1p-8);
  std::vector<int32_t> index;
  for (int64_t r = 0; r < rows; ++r) index.push_back(static_cast<int32_t>(r * 7919 % rows));
  EXPECT_EQ(BitMismatch(gated.RunIndexed(x, index, offsets, DType::kBf16, TileSize::kCodes),
                        gated.Run(Gathered(x, shape.inputs, index), offsets, DType::kBf16,
                                  TileSize::kCodes)),
            "");
}

TEST(CudaExpertGemmTest, ARowHasTheSameBitsWhateverOthersItsExpertHas) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{96, 256};
  for (Form form : kForms) {
    const Experts experts(shape, 2, form, Op::kGated, Spread::kAligned);
    const std::vector<float> x = MadeUpX(13, 300 * shape.inputs);
    const std::vector<float> many = experts.Run(x, {0, 0, 300}, DType::kF32, TileSize::kPrefill);
    for (int64_t row : {0, 1, 127, 128, 255, 299}) {
      const auto from = x.begin() + row * shape.inputs;
      const std::vector<float> alone =
          experts.Run({from, from + shape.inputs}, {0, 0, 1}, DType::kF32, TileSize::kDecode);
      const auto expected = std::span(many).subspan(static_cast<size_t>(row * shape.outputs),
                                                    static_cast<size_t>(shape.outputs));
      EXPECT_EQ(BitMismatch(alone, expected), "") << "row " << row;
    }
  }
}

// Rows from the last offset on are padding: what the index says of them is not read.
constexpr int32_t kNoRow = 2'000'000'000;

TEST(CudaExpertGemmTest, RowsOfAnIndexAreThoseGatheredBitForBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{70, 264};  // three blocks of scales, of which the last is short
  const Stream stream;
  Status status;
  status.Clear(stream);
  stream.Synchronize();
  const auto expect_same = [&](const Experts& experts, const RoutingCase& c, int64_t x_rows) {
    const std::vector<int32_t> offsets = Offsets(c.counts);
    const std::vector<float> x = MadeUpX(16, x_rows * shape.inputs);
    std::vector<int32_t> index, named;
    for (int64_t r = 0; r < offsets.back() + c.padding; ++r) {
      named.push_back(static_cast<int32_t>((r * 7919 + x_rows - 1) % x_rows));
      index.push_back(r < offsets.back() ? named.back() : kNoRow);
    }
    const std::vector<float> gathered = Gathered(x, shape.inputs, named);
    for (TileSize tile : kTileSizes) {
      const std::vector<float> y =
          experts.RunIndexed(x, index, offsets, DType::kBf16, tile, status.word());
      EXPECT_EQ(BitMismatch(y, experts.Run(gathered, offsets, DType::kBf16, tile)), "")
          << x_rows << " rows of x, tile " << static_cast<int>(tile);
    }
  };
  for (const RoutingCase& c : kRoutingCases) {
    for (Form form : kForms) {
      for (Spread spread : {Spread::kAligned, Spread::kOdd}) {
        SCOPED_TRACE(fmt::format("{}, form {}", c.name, static_cast<int>(form)));
        const Experts experts(shape, std::ssize(c.counts), form, Op::kGated, spread);
        // Fewer rows of x, named again and again; as many, in another order; more than are named.
        const int64_t num_rows = Offsets(c.counts).back() + c.padding;
        for (const int64_t x_rows : {int64_t{1}, num_rows / 3 + 1, num_rows, 2 * num_rows + 1}) {
          expect_same(experts, c, x_rows);
        }
      }
    }
  }
  status.Read(stream);
  stream.Synchronize();
  EXPECT_FALSE(status.report().has_value());
}

TEST(CudaExpertGemmTest, ARowThatXDoesNotHaveIsReportedAndReadAsTheFirst) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{150, 256};  // tiles of several CTAs
  const std::vector<int32_t> offsets = {0, 5, 5, 40};
  const std::vector<float> x = MadeUpX(17, 6 * shape.inputs);
  for (Form form : kForms) {
    const Experts experts(shape, 3, form, Op::kGated, Spread::kAligned);
    for (const int32_t bad : {-1, 6, INT32_MAX, INT32_MIN}) {
      for (const size_t at : {size_t{0}, size_t{4}, size_t{5}, size_t{39}}) {
        std::vector<int32_t> index(41);
        for (size_t r = 0; r < index.size(); ++r) index[r] = static_cast<int32_t>(r % 6);
        index[at] = bad;
        const std::vector<float> gathered = Gathered(x, shape.inputs, index);
        for (TileSize tile : kTileSizes) {
          Status status;
          const Stream stream;
          status.Clear(stream);
          stream.Synchronize();
          EXPECT_EQ(
              BitMismatch(experts.RunIndexed(x, index, offsets, DType::kBf16, tile, status.word()),
                          experts.Run(gathered, offsets, DType::kBf16, tile)),
              "");
          status.Read(stream);
          stream.Synchronize();
          ASSERT_TRUE(status.report().has_value());
          EXPECT_EQ(status.report()->fault, DeviceFault::kExpert);
          EXPECT_EQ(status.report()->launch, static_cast<uint32_t>(Launch::kGemm));
          EXPECT_EQ(status.report()->index, at);
        }
      }
    }
  }
}

// ---- Few rows that need not be exact ----

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

// Rows of one step, of less and more than a round of eight, and some inputs over; more outputs than warps
// and fewer.
constexpr MatrixShape kFewRowsShapes[] = {{70, 136}, {270, 256}, {33, 2048}, {50, 1416}, {9, 4104}};

TEST(CudaExpertGemmTest, FewRowsAreWithinTheirBoundsWithTheirOwnExpert) {
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

TEST(CudaExpertGemmTest, FewRowsOfOneExpertOfTheLastOfManyAndOfNobody) {
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
TEST(CudaExpertGemmTest, FewRowsBeginWhereTheFirstExpertsDo) {
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

// The order of sums is that of Gemv with many outputs, whatever rows are beside.
TEST(CudaExpertGemmTest, FewRowsHaveTheBitsOfGemv) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  for (const MatrixShape shape :
       {MatrixShape{513, 264}, MatrixShape{520, 1416}, MatrixShape{600, 2048}}) {
    const Experts experts(shape, 5, Form::kBf16, Op::kPlain, Spread::kAligned);
    const std::vector<int32_t> offsets = Offsets({1, 0, 4, 2, 1});
    const std::vector<float> x = MadeUpX(21, offsets.back() * shape.inputs);
    std::vector<float> expected;
    for (int64_t e = 0; e < 5; ++e) {
      for (int32_t row = offsets[static_cast<size_t>(e)]; row < offsets[static_cast<size_t>(e) + 1];
           ++row) {
        const auto from = x.begin() + row * shape.inputs;
        const DeviceRows one({from, from + shape.inputs}, shape.inputs, Spread::kAligned);
        const DeviceOutput y(1, shape.outputs, DType::kF32, Spread::kAligned);
        Gemv({.x = one.view(), .w = experts.gate().at(e), .y = y.view()}, stream);
        const std::vector<float> values = y.Values(stream);
        expected.insert(expected.end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(BitMismatch(experts.Run(x, offsets, DType::kF32, {}), expected), "")
        << shape.outputs << " x " << shape.inputs;
  }
}

TEST(CudaExpertGemmTest, OneOfFewRowsHasTheSameBitsWhateverOthersThereAre) {
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

TEST(CudaExpertGemmTest, FewRowsOfAnIndexAreThoseGatheredAndOneThatIsNotThereIsReported) {
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
TEST(CudaExpertGemmTest, FewRowsOfOverlappedLaunchesAreThoseOfOneAfterTheOther) {
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

TEST(CudaExpertGemmTest, OneGraphServesEveryRoutingOfFewRows) {
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

TEST(CudaExpertGemmTest, OneGraphServesEveryRouting) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{64, 128};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned);
  const std::vector<float> x = MadeUpX(14, 10 * shape.inputs);  // of 10 tokens with 4 choices each
  const DeviceRows on_device(x, shape.inputs, Spread::kAligned);
  const DeviceOutput y(40, shape.outputs, DType::kBf16, Spread::kAligned);
  const DeviceVector<int32_t> offsets({0, 0, 0, 0});
  const DeviceVector<int32_t> rows(std::vector<int32_t>(40, 0));
  const Stream stream;
  const std::vector<int32_t> zeros(40, 0);
  experts.RunIndexed(x, zeros, {0, 0, 0, 40}, DType::kBf16, TileSize::kDecode);  // it is loaded now
  const Graph graph = Graph::Capture(stream, [&] {
    ExpertGemm({.x = on_device.view(),
                .w = experts.gate().view(),
                .offsets = offsets.span().data(),
                .rows = rows.span(),
                .y = y.view()},
               stream);
  });
  int32_t step = 1;
  for (const std::vector<int32_t>& routing :
       {std::vector<int32_t>{0, 40, 40, 40}, {0, 0, 1, 40}, {0, 13, 26, 40}}) {
    CopyAndWait(offsets.bytes().data(), routing.data(), 16, "offsets");
    std::vector<int32_t> index;
    for (int32_t r = 0; r < 40; ++r) index.push_back(r * step % 40 / 4);
    step += 2;
    CopyAndWait(rows.bytes().data(), index.data(), 160, "rows");
    graph.Launch(stream);
    EXPECT_EQ(BitMismatch(y.Values(stream), experts.Run(Gathered(x, shape.inputs, index), routing,
                                                        DType::kBf16, TileSize::kDecode)),
              "");
  }
}

TEST(CudaExpertGemmTest, OffsetsThatCannotBeAreReportedAndStayInBounds) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MatrixShape shape{64, 128};
  const Experts experts(shape, 3, Form::kBf16, Op::kPlain, Spread::kAligned);
  const std::vector<float> x = MadeUpX(15, 12 * shape.inputs);
  struct Bad {
    std::vector<int32_t> offsets;
    uint32_t expert;
  };
  for (const Bad& bad : {Bad{{0, 5, 3, 12}, 1}, Bad{{0, 5, 10, 13}, 2}, Bad{{-1, 5, 10, 12}, 0},
                         Bad{{0, 5, 12, 2'000'000'000}, 2}}) {
    Status status;
    const Stream stream;
    status.Clear(stream);
    stream.Synchronize();
    const auto expect_report = [&] {
      status.Read(stream);
      stream.Synchronize();
      ASSERT_TRUE(status.report().has_value());
      EXPECT_EQ(status.report()->fault, DeviceFault::kExpert);
      EXPECT_EQ(status.report()->launch, static_cast<uint32_t>(Launch::kGemm));
      EXPECT_EQ(status.report()->index, bad.expert);
    };
    for (TileSize tile : kTileSizes) experts.Run(x, bad.offsets, DType::kBf16, tile, status.word());
    expect_report();
    status.Clear(stream);
    stream.Synchronize();
    experts.Run(x, bad.offsets, DType::kBf16, {}, status.word());
    expect_report();
  }
}

TEST(CudaExpertGemmTest, WrongArgumentsAreRefusedByName) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  std::vector<Bf16> x(60), w(1600), y(120);
  const int32_t offsets[3] = {};
  const ExpertGemmArgs good{.x = {x.data(), {3, 20}},
                            .w = DenseWeights(w.data(), {40, 20}, 2),
                            .offsets = offsets,
                            .y = {y.data(), {3, 40}}};
  Validate(good);
  const auto message = [&](auto change) {
    ExpertGemmArgs args = good;
    change(args);
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { Validate(args); });
  };
  EXPECT_EQ(message([](ExpertGemmArgs& a) { a.offsets = nullptr; }),
            "offsets: expected 3 of them, got none");
  EXPECT_EQ(message([](ExpertGemmArgs& a) { a.w.count = 1025; }),
            "w.count: expected at most 1024 experts, got 1025");
  EXPECT_EQ(message([&](ExpertGemmArgs& a) {
              a.up = DenseWeights(w.data(), {40, 20}, 1);
            }),
            "up: expected 2 matrices of 40 x 20, got 1 of 40 x 20");
  EXPECT_EQ(message([&](ExpertGemmArgs& a) {
              a.up = DenseWeights(w.data(), {40, 20}, 2);
              a.up.row_stride = 24;
            }),
            "up: expected strides 20 and 800, got 24 and 800");
  EXPECT_EQ(message([&](ExpertGemmArgs& a) {
              a.x = {x.data(), {3, 19}};
            }),
            "x: expected shape [3, 20], got [3, 19]");
  // With an index, x may have any number of rows, and y has as many as the index.
  const std::vector<int32_t> rows(4);
  const auto indexed = [&](int64_t x_rows, int64_t inputs, size_t num_rows) {
    return message([&](ExpertGemmArgs& a) {
      a.x = {x.data(), {x_rows, inputs}};
      a.rows = std::span(rows).first(num_rows);
    });
  };
  ExpertGemmArgs one = good;
  one.x = {x.data(), {1, 20}};
  one.rows = std::span(rows).first(3);
  Validate(one);
  EXPECT_EQ(indexed(2, 20, 4), "rows: expected 3 of them, got 4");
  EXPECT_EQ(indexed(2, 19, 3), "x: expected shape [2, 20], got [2, 19]");
  EXPECT_EQ(indexed(0, 20, 3), "x: expected rows for the 3 of y, got none");
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
