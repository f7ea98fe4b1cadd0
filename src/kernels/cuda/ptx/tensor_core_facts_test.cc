// What tensor cores do that is not documented and that bits depend on: docs/numerics.md, "Tensor
// cores: facts", has the answers. Prints them as a table.
#include "kernels/cuda/ptx/tensor_core_facts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/narrow_float.h"
#include "device/cuda/test_memory.h"
#include "kernels/cuda/test_rows.h"
#include "testing/splitmix64.h"

namespace quire::cuda {
namespace {

constexpr int kSide = 256;  // rows and columns of all products
constexpr double kUnit = 0x1p-24;

// The answers that are numbers of the device, not promises of ours.
constexpr bool kFamiliesAgree = true;

// How one instruction adds its 16 products to a sum: `products` of them at a time, ascending. They
// and the sum are cut off `bits` bits below the exponent of the largest, added, and cut off to f32.
struct StepModel {
  enum class Exponent {
    kOfFactors,
    kOfProduct
  };  // of a product: that of its factors added, or its own
  int products;
  int bits;
  Exponent exponent;

  bool operator==(const StepModel&) const = default;
};
constexpr StepModel kWarpModel{16, 25, StepModel::Exponent::kOfFactors};
constexpr StepModel kWarpgroupModel{16, 25, StepModel::Exponent::kOfFactors};

constexpr Product kBf16Products[] = {Product::kWarp,      Product::kPanels8,  Product::kPanels16,
                                     Product::kPanels32,  Product::kPanels64, Product::kPanels128,
                                     Product::kPanels256, Product::kRows256};
constexpr Product kCodesProducts[] = {Product::kCodes8, Product::kCodes16, Product::kCodes64,
                                      Product::kCodes128, Product::kCodes192};

bool IsF16(Product product) {
  return product == Product::kWarpF16 || product == Product::kPanels8F16;
}
bool IsOfCodes(Product product) { return product >= Product::kCodes8; }

// A number of `bits` significant bits, +-2^low .. +-2^(high + 1): all exponents are equally likely.
float Draw(uint64_t seed, int bits, int low, int high) {
  const uint64_t random = testing::SplitMix64(seed);
  const auto mantissa = static_cast<float>(random >> 8 & ((uint64_t{1} << (bits - 1)) - 1));
  const int exponent =
      low + static_cast<int>((random >> 40) % static_cast<uint64_t>(high - low + 1));
  const float size = std::ldexp(1 + std::ldexp(mantissa, 1 - bits), exponent);
  return (random & 1) != 0 ? -size : size;
}

std::vector<float> DrawMany(int64_t count, uint64_t seed, int bits, int low, int high) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Draw((seed << 32) + i, bits, low, high);
  return values;
}

struct Chain {
  int k = 0;
  std::vector<float> a, b;   // [kSide, k]
  std::vector<float> start;  // [kSide, kSide], or empty

  float A(int row, int i) const { return a[static_cast<size_t>(row * k + i)]; }
  float B(int column, int i) const { return b[static_cast<size_t>(column * k + i)]; }
  float Start(int row, int column) const {
    return start.empty() ? 0.0f : start[static_cast<size_t>(row * kSide + column)];
  }
};

// Exponents of products go over 47, so that most terms lose bits, and those of `start` over 48.
Chain WideChain(int k, bool starts, int bits = 8) {
  return {.k = k,
          .a = DrawMany(int64_t{kSide} * k, 1, bits, -12, 11),
          .b = DrawMany(int64_t{kSide} * k, 2, bits, -12, 11),
          .start = starts ? DrawMany(kSide * kSide, 3, 24, -24, 23) : std::vector<float>{}};
}

std::vector<Chain> WideChains(int bits = 8) {
  std::vector<Chain> chains;
  for (const int k : {64, 288, 576}) {
    for (const bool starts : {false, true}) chains.push_back(WideChain(k, starts, bits));
  }
  return chains;
}

// Of e4m3, all of whose exponents but the smallest are here; products go over 27.
std::vector<Chain> CodesChains() {
  std::vector<Chain> chains;
  for (const int k : {32, 128, 288, 576}) {
    for (const bool starts : {false, true}) {
      chains.push_back(
          {.k = k,
           .a = DrawMany(int64_t{kSide} * k, 6, 4, -6, 7),
           .b = DrawMany(int64_t{kSide} * k, 7, 4, -6, 7),
           .start = starts ? DrawMany(kSide * kSide, 8, 24, -12, 15) : std::vector<float>{}});
    }
  }
  return chains;
}

// Products that must agree, and what they are asked to multiply.
struct Kin {
  const char* name;
  std::vector<Product> products;
  std::vector<Chain> chains;
};
std::vector<Kin> AllKin() {
  return {{"both families", {std::begin(kBf16Products), std::end(kBf16Products)}, WideChains()},
          {"e4m3", {std::begin(kCodesProducts), std::end(kCodesProducts)}, CodesChains()}};
}

// Of a matrix with kSide rows: row i of the result is row order[i].
std::vector<float> Rows(const std::vector<float>& values, const std::vector<int>& order) {
  const auto width = static_cast<std::ptrdiff_t>(values.size()) / kSide;
  std::vector<float> rows;
  for (const int row : order) {
    if (width == 0) break;
    rows.insert(rows.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
  }
  return rows;
}

// Of a square with kSide rows, or of nothing.
std::vector<float> Transposed(const std::vector<float>& values) {
  std::vector<float> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i % kSide * kSide + i / kSide] = values[i];
  return result;
}

struct Difference {
  int64_t elements = 0;  // that were compared
  int64_t differing = 0;
  int64_t worst_ulps = 0;

  void Add(float x, float y) {
    // Ascending with the number, -0 beside +0.
    const auto order = [](float value) {
      const auto bits = std::bit_cast<int32_t>(value);
      return bits >= 0 ? int64_t{bits} : -1 - int64_t{bits & 0x7fffffff};
    };
    ++elements;
    differing += order(x) != order(y) ? 1 : 0;
    worst_ulps = std::max(worst_ulps, std::abs(order(x) - order(y)));
  }
  void Add(const std::vector<float>& x, const std::vector<float>& y) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) Add(x[i], y[i]);
  }
  std::string ToString() const {
    if (differing == 0) return fmt::format("same bits ({} elements)", elements);
    return fmt::format("{} of {} differ, by up to {} ulp", differing, elements, worst_ulps);
  }
};

class CudaTensorCoreFactsTest : public StreamTest {
 protected:
  static void TearDownTestSuite() {
    if (Answers().empty()) return;
    fmt::print("\n| tensor cores | seen |\n|---|---|\n");
    for (const auto& [question, answer] : Answers()) fmt::print("| {} | {} |\n", question, answer);
    fmt::print("\n");
  }

  std::vector<float> Sums(Product product, const Chain& chain) {
    const auto narrow = [&](const std::vector<float>& values) {
      std::vector<std::byte> bytes;
      const auto add = [&](auto bits) {
        const auto* from = reinterpret_cast<const std::byte*>(&bits);
        bytes.insert(bytes.end(), from, from + sizeof(bits));
      };
      for (const float v : values) {
        if (IsOfCodes(product)) {
          add(ToFp8E4m3(v).bits);
        } else {
          add(IsF16(product) ? ToF16(v).bits : ToBf16(v).bits);
        }
      }
      return DeviceVector<std::byte>(bytes);
    };
    constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();
    const DeviceVector<std::byte> a = narrow(chain.a), b = narrow(chain.b);
    const bool starts = !chain.start.empty();
    const DeviceVector<float> start(starts ? chain.start : std::vector<float>(1));
    const DeviceVector<float> sums(std::vector<float>(kSide * kSide, kUnset));
    MultiplyChain(product,
                  {.a = a.span().data(),
                   .b = b.span().data(),
                   .start = starts ? start.span().data() : nullptr,
                   .sums = sums.span().data(),
                   .num_rows = kSide,
                   .num_columns = kSide,
                   .k = chain.k},
                  stream());
    return sums.Values(stream());
  }

  static void Saw(const std::string& question, const std::string& answer) {
    RecordProperty(question, answer);
    fmt::print("{}: {}\n", question, answer);
    Answers().emplace_back(question, answer);
  }

 private:
  static std::vector<std::pair<std::string, std::string>>& Answers() {
    static std::vector<std::pair<std::string, std::string>> answers;
    return answers;
  }
};

struct ExactSums {
  std::vector<double> sums, magnitudes;
};
ExactSums Exactly(const Chain& chain) {
  ExactSums exact{std::vector<double>(kSide * kSide), std::vector<double>(kSide * kSide)};
  for (size_t i = 0; i < exact.sums.size(); ++i) {
    const auto row = static_cast<int>(i) / kSide, column = static_cast<int>(i) % kSide;
    exact.sums[i] = chain.Start(row, column);
    exact.magnitudes[i] = std::abs(exact.sums[i]);
    for (int j = 0; j < chain.k; ++j) {
      const double term = double{chain.A(row, j)} * double{chain.B(column, j)};
      exact.sums[i] += term;
      exact.magnitudes[i] += std::abs(term);
    }
  }
  return exact;
}

// Equal bits mean little if all are wrong.
TEST_F(CudaTensorCoreFactsTest, EveryChainIsWithinTheBoundOfItsSums) {
  for (const Kin& kin : AllKin()) {
    // Of e4m3 each of a step's 32 terms and its sum may lose 2^-13 of the largest of them, and so may the result.
    const bool of_codes = IsOfCodes(kin.products.front());
    const double unit = of_codes ? 34.0 / 32 * 0x1p-13 : 3 * kUnit;
    double worst = 0;
    for (const Chain& chain : kin.chains) {
      const ExactSums exact = Exactly(chain);
      for (const Product product : kin.products) {
        const std::vector<float> sums = Sums(product, chain);
        for (size_t i = 0; i < sums.size(); ++i) {
          const double error =
              std::abs(double{sums[i]} - exact.sums[i]) / (chain.k * exact.magnitudes[i]);
          ASSERT_LE(error, unit) << "element " << i << ", k " << chain.k;
          worst = std::max(worst, error);
        }
      }
    }
    Saw(fmt::format("error of a chain over K terms, {}, at most {} K S", kin.name,
                    of_codes ? "2^-12.9" : "3 u"),
        fmt::format("{:.3g} K S", worst));
  }
}

TEST_F(CudaTensorCoreFactsTest, AnElementDoesNotDependOnHowManyColumnsAProductHas) {
  Difference difference;
  for (const Chain& chain : WideChains()) {
    const std::vector<float> eight = Sums(Product::kPanels8, chain);
    for (const auto wider : {Product::kPanels16, Product::kPanels32, Product::kPanels64,
                             Product::kPanels128, Product::kPanels256}) {
      difference.Add(eight, Sums(wider, chain));
    }
  }
  Saw("wgmma of 8, 16, 32, 64, 128 and 256 columns", difference.ToString());
  EXPECT_EQ(difference.differing, 0);
  Difference of_codes;
  for (const Chain& chain : CodesChains()) {
    const std::vector<float> eight = Sums(Product::kCodes8, chain);
    for (const auto wider :
         {Product::kCodes16, Product::kCodes64, Product::kCodes128, Product::kCodes192}) {
      of_codes.Add(eight, Sums(wider, chain));
    }
  }
  Saw("wgmma of 8, 16, 64, 128 and 192 columns, e4m3", of_codes.ToString());
  EXPECT_EQ(of_codes.differing, 0);
}

TEST_F(CudaTensorCoreFactsTest, AnElementDoesNotDependOnItsPlaceAmongRowsAndColumns) {
  std::vector<int> rows(kSide), columns(kSide);  // odd factors: every number once
  for (int i = 0; i < kSide; ++i) {
    rows[static_cast<size_t>(i)] = (77 * i + 13) % kSide;
    columns[static_cast<size_t>(i)] = (45 * i + 101) % kSide;
  }
  const auto moved = [&](const std::vector<float>& square) {
    return Transposed(Rows(Transposed(Rows(square, rows)), columns));
  };
  for (const Kin& kin : AllKin()) {
    Difference difference;
    for (const Chain& chain : kin.chains) {
      const Chain there = {.k = chain.k,
                           .a = Rows(chain.a, rows),
                           .b = Rows(chain.b, columns),
                           .start = moved(chain.start)};
      for (const Product product : kin.products) {
        difference.Add(moved(Sums(product, chain)), Sums(product, there));
      }
    }
    Saw(fmt::format("rows and columns in other places, {}", kin.name), difference.ToString());
    EXPECT_EQ(difference.differing, 0);
  }
}

TEST_F(CudaTensorCoreFactsTest, AnElementDoesNotDependOnOtherRowsAndColumns) {
  constexpr float kOthers[] = {std::numeric_limits<float>::quiet_NaN(),
                               std::numeric_limits<float>::infinity(), 0x1p100f, 0x1p-130f};
  const auto is_kept = [](int i) { return i % 8 == 3; };  // one of the columns of every product
  const auto spoil = [&](std::vector<float>& values) {
    const size_t width = values.size() / kSide;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!is_kept(static_cast<int>(i / width))) values[i] = kOthers[testing::SplitMix64(i) % 4];
    }
  };
  for (const Kin& kin : AllKin()) {
    Difference difference;
    for (const Chain& chain : kin.chains) {
      Chain spoilt = chain;
      spoil(spoilt.a);
      spoil(spoilt.b);
      for (const Product product : kin.products) {
        const std::vector<float> expected = Sums(product, chain), sums = Sums(product, spoilt);
        for (size_t i = 0; i < sums.size(); ++i) {
          if (!is_kept(static_cast<int>(i) / kSide) || !is_kept(static_cast<int>(i) % kSide))
            continue;
          difference.Add(expected[i], sums[i]);
        }
      }
    }
    Saw(fmt::format("other values in all other rows and columns, {}", kin.name),
        difference.ToString());
    EXPECT_EQ(difference.differing, 0);
  }
}

TEST_F(CudaTensorCoreFactsTest, AnElementDoesNotDependOnWhereOperandsLie) {
  Difference difference;
  for (const Chain& chain : WideChains()) {
    difference.Add(Sums(Product::kPanels256, chain), Sums(Product::kRows256, chain));
  }
  Saw("wgmma with a in registers and b transposed", difference.ToString());
  EXPECT_EQ(difference.differing, 0);
}

TEST_F(CudaTensorCoreFactsTest, AnElementDoesNotDependOnTheOrderOfTheOperands) {
  for (const Kin& kin : AllKin()) {
    Difference difference;
    for (const Chain& chain : kin.chains) {
      const Chain swapped = {
          .k = chain.k, .a = chain.b, .b = chain.a, .start = Transposed(chain.start)};
      for (const Product product : kin.products) {
        difference.Add(Sums(product, chain), Transposed(Sums(product, swapped)));
      }
    }
    Saw(fmt::format("operands swapped, {}", kin.name), difference.ToString());
    EXPECT_EQ(difference.differing, 0);
  }
}

TEST_F(CudaTensorCoreFactsTest, AFirstProductThatDoesNotAddIsOneThatAddsToZero) {
  for (const auto& [name, product, chains] : {Kin{"bf16", {Product::kPanels64}, WideChains()},
                                              Kin{"e4m3", {Product::kCodes64}, CodesChains()}}) {
    Difference difference;
    for (const Chain& chain : chains) {
      if (!chain.start.empty()) continue;
      Chain zeros = chain;
      zeros.start.assign(kSide * kSide, 0);
      difference.Add(Sums(product.front(), chain), Sums(product.front(), zeros));
    }
    Saw(fmt::format("wgmma that begins a sum, and one that adds to 0, {}", name),
        difference.ToString());
    EXPECT_EQ(difference.differing, 0);
  }
}

TEST_F(CudaTensorCoreFactsTest, TheFamiliesAgreeOrDifferAsWritten) {
  Difference bf16, f16;
  for (const Chain& chain : WideChains()) {
    bf16.Add(Sums(Product::kWarp, chain), Sums(Product::kPanels8, chain));
  }
  for (const Chain& chain : WideChains(11)) {
    f16.Add(Sums(Product::kWarpF16, chain), Sums(Product::kPanels8F16, chain));
  }
  Saw("mma.sync and wgmma, bf16", bf16.ToString());
  Saw("mma.sync and wgmma, f16", f16.ToString());
  EXPECT_EQ(bf16.differing == 0, kFamiliesAgree);
  EXPECT_EQ(f16.differing == 0, kFamiliesAgree);
}

// bf16's exponents and 8 bits are in f16 too here, so fp8 rows may become either.
TEST_F(CudaTensorCoreFactsTest, TheSameValuesInEitherFormatGiveTheSameBits) {
  Difference difference;
  for (const Chain& chain : WideChains()) {
    difference.Add(Sums(Product::kWarp, chain), Sums(Product::kWarpF16, chain));
    difference.Add(Sums(Product::kPanels8, chain), Sums(Product::kPanels8F16, chain));
  }
  Saw("the same values as bf16 and as f16, both families", difference.ToString());
  EXPECT_EQ(difference.differing, 0);
}

float CutOff(double value) {
  const auto nearest = static_cast<float>(value);
  return std::abs(double{nearest}) > std::abs(value) ? std::nextafter(nearest, 0.0f) : nearest;
}

// One instruction's element, by the model; no factor is 0.
float ModelledStep(const StepModel& model, const Chain& chain, int row, int column) {
  float sum = chain.Start(row, column);
  for (int from = 0; from < 16; from += model.products) {
    std::vector<double> terms = {double{sum}};
    int top = sum == 0 ? std::numeric_limits<int>::min() : std::ilogb(sum);
    for (int i = from; i < from + model.products; ++i) {
      const double a = chain.A(row, i), b = chain.B(column, i);
      terms.push_back(a * b);
      top = std::max(top, model.exponent == StepModel::Exponent::kOfFactors
                              ? std::ilogb(a) + std::ilogb(b)
                              : std::ilogb(a * b));
    }
    const double unit = std::ldexp(1.0, top - model.bits);
    int64_t units = 0;
    for (const double term : terms) units += static_cast<int64_t>(term / unit);
    sum = CutOff(static_cast<double>(units) * unit);
  }
  return sum;
}

std::string ToString(const StepModel& model) {
  return fmt::format("{} at a time cut off at 2^-{} of the largest ({})", model.products,
                     model.bits,
                     model.exponent == StepModel::Exponent::kOfFactors ? "factors' exponents"
                                                                       : "products' exponents");
}

TEST_F(CudaTensorCoreFactsTest, AStepAddsAsItsModelDoes) {
  constexpr int kRows = 32;  // are enough to tell models apart
  const Chain chains[] = {WideChain(16, false), WideChain(16, true)};
  struct Family {
    const char* name;
    Product product;
    StepModel model;
  };
  for (const Family& family : {Family{"mma.sync", Product::kWarp, kWarpModel},
                               Family{"wgmma", Product::kPanels8, kWarpgroupModel}}) {
    const std::vector<float> sums[] = {Sums(family.product, chains[0]),
                                       Sums(family.product, chains[1])};
    const auto compare = [&](const StepModel& model) {
      Difference difference;
      for (const size_t c : {0, 1}) {
        for (int i = 0; i < kRows * kSide; ++i) {
          difference.Add(sums[c][static_cast<size_t>(i)],
                         ModelledStep(model, chains[c], i / kSide, i % kSide));
        }
      }
      return difference;
    };
    StepModel best = family.model;
    Difference of_best = compare(best);
    for (const auto exponent : {StepModel::Exponent::kOfFactors, StepModel::Exponent::kOfProduct}) {
      for (const int products : {4, 8, 16}) {
        for (const int bits : {23, 24, 25, 26, 27}) {
          const StepModel model{products, bits, exponent};
          const Difference difference = compare(model);
          // Another that is right too would say that the data cannot tell them apart.
          EXPECT_EQ(difference.differing == 0, model == family.model)
              << family.name << ": " << ToString(model);
          if (difference.differing < of_best.differing) {
            best = model;
            of_best = difference;
          }
        }
      }
    }
    Saw(fmt::format("a step of {}: best model", family.name),
        fmt::format("{}: {}", ToString(best), of_best.ToString()));
  }
}

// Rows of one large term and 15 that lie about its last bits, all of one sign or of both. A quarter
// of the rows begins with nothing, one with a number that takes the large term away, one with its
// double, and one with a number that is as small as the others.
Chain LopsidedChain() {
  Chain chain = {.k = 16,
                 .a = std::vector<float>(kSide * 16),
                 .b = DrawMany(kSide * 16, 4, 8, 0, 0),
                 .start = std::vector<float>(kSide * kSide)};
  for (float& value : chain.b) value = std::abs(value);
  for (int row = 0; row < kSide; ++row) {
    const int large = row / 4 % 16, exponent = -20 - row % 8;
    for (int i = 0; i < 16; ++i) {
      const uint64_t seed = (uint64_t{5} << 32) + static_cast<uint64_t>(row * 16 + i);
      const float small = Draw(seed, 8, exponent, exponent);
      const bool same_sign = row / 64 % 2 == 0;
      float& value = chain.a[static_cast<size_t>(row * 16 + i)];
      value = i == large ? 1.0f : same_sign ? -std::abs(small) : small;
    }
    for (int column = 0; column < kSide; ++column) {
      const float term = chain.B(column, large);  // the large one
      const float starts[] = {0, -term, 2 * term, std::ldexp(term, exponent)};
      chain.start[static_cast<size_t>(row * kSide + column)] = starts[row / 8 % 4];
    }
  }
  return chain;
}

TEST_F(CudaTensorCoreFactsTest, AStepIsWithinItsBoundWhereTermsAreLopsided) {
  constexpr int kBound = 2 * (16 + 2);  // 2u (g + 2) of the largest term
  const Chain chain = LopsidedChain();
  double worst = 0;
  for (const Product product : kBf16Products) {
    const std::vector<float> sums = Sums(product, chain);
    for (size_t e = 0; e < sums.size(); ++e) {
      const auto row = static_cast<int>(e) / kSide, column = static_cast<int>(e) % kSide;
      double exact = chain.Start(row, column), largest = std::abs(exact);
      for (int i = 0; i < 16; ++i) {
        const double term = double{chain.A(row, i)} * double{chain.B(column, i)};
        exact += term;  // without rounding: all bits of all terms lie within 2^2 .. 2^-42
        largest = std::max(largest, std::abs(term));
      }
      const double error = std::abs(double{sums[e]} - exact) / (kUnit * largest);
      ASSERT_LE(error, kBound) << "row " << row << ", column " << column;
      worst = std::max(worst, error);
    }
  }
  EXPECT_GT(worst, 1) << "rounding alone: these terms were to be cut off";
  Saw("error of a step, at most 36 u of its largest term", fmt::format("{:.2f} u", worst));
}

}  // namespace
}  // namespace quire::cuda
