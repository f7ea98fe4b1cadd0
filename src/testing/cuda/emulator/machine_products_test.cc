// Products of the emulated GPU: what they give, when they are there, and what is said of kernels that get them wrong.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "base/narrow_float.h"
#include "device/cuda/kernel.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "testing/cuda/emulator/machine_testing.h"

namespace quire::cuda {
namespace {

class EmulatorProductTest : public ::testing::Test {
 protected:
  static constexpr int kRows = 64, kColumns = 16, kInputs = 16, kCtas = 16;
  // Of several CTAs, of which each draws when its products end.
  static constexpr Grid kWarpgroupGrids = {
      .ctas = kCtas, .threads = kWarpgroup, .shared_bytes = 16 << 10};

  void SetUp() override {
    // Of which sums of products are exact.
    std::minstd_rand random(5);
    const auto draw = [&] { return static_cast<float>(static_cast<int>(random() % 33) - 16) / 4; };
    for (float& value : a_) value = draw();
    for (float& value : b_) value = draw();
  }

  // Row `row` of sum[i] of a thread, as ptx/warpgroup.cuh says.
  static int RowOf(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
  }
  static int ColumnOf(int i) { return i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

  void Fill(int panel, const float* values, int rows) const {
    for (int row = 0; row < rows; ++row) {
      for (int k = 0; k < kInputs; ++k) {
        const uint16_t bits = ToBf16(values[row * kInputs + k]).bits;
        std::memcpy(LaunchedShared<1024>() + panel +
                        PanelChunk(static_cast<uint32_t>(row), static_cast<uint32_t>(k / 8)) +
                        k % 8 * 2,
                    &bits, sizeof(bits));
      }
    }
  }

  // Begins sum = a b^T; the operands lie in two panels.
  void BeginProduct(float (&sum)[kColumns / 2]) const {
    constexpr int kSecond = 8 << 10;
    if (threadIdx.x == 0) {
      Fill(0, a_.data(), kRows);
      Fill(kSecond, b_.data(), kColumns);
    }
    FenceForProducts();
    __syncthreads();
    const uint32_t memory = SharedAddress(LaunchedShared<1024>());
    BeginProducts();
    MultiplyPanels(sum, PanelOperand(memory), PanelOperand(memory, kSecond), false);
    CommitProducts();
  }

  float Expected(int row, int column) const {
    double sum = 0;
    for (int k = 0; k < kInputs; ++k) {
      sum += double{a_[static_cast<size_t>(row * kInputs + k)]} *
             double{b_[static_cast<size_t>(column * kInputs + k)]};
    }
    return static_cast<float>(sum);
  }

  std::array<float, kRows * kInputs> a_;
  std::array<float, kColumns * kInputs> b_;
};

TEST_F(EmulatorProductTest, AWarpgroupsSumsAreThereOnceTheyAreWaitedFor) {
  int wrong = 0, early = 0;
  RunGrid(kWarpgroupGrids, [&] {
    float sum[kColumns / 2] = {};
    BeginProduct(sum);
    if (threadIdx.x == 0) early += sum[0] != 0.0f;
    __syncthreads();
    WaitForProducts<0>();
    for (int i = 0; i < kColumns / 2; ++i) wrong += sum[i] != Expected(RowOf(i), ColumnOf(i));
  });
  EXPECT_LT(early, kCtas);
  EXPECT_EQ(wrong, 0);
}

// Somebody writes over an operand before the product has read it.
TEST_F(EmulatorProductTest, AnOperandThatIsGivenAwayTooSoonGivesOtherSums) {
  int wrong = 0;
  RunGrid(kWarpgroupGrids, [&] {
    float sum[kColumns / 2] = {};
    BeginProduct(sum);
    __syncthreads();
    if (threadIdx.x == 0) std::memset(LaunchedShared<1024>(), 0, 1024);
    __syncthreads();
    WaitForProducts<0>();
    for (int i = 0; i < kColumns / 2; ++i) wrong += sum[i] != Expected(RowOf(i), ColumnOf(i));
  });
  EXPECT_GT(wrong, 0);
}

TEST_F(EmulatorProductTest, LanesThatNameDifferentOperandsAreAMisuse) {
  const std::string misuse = MisuseOf(kWarpgroupGrid, [] {
    float sum[4] = {};
    const uint32_t memory = SharedAddress(LaunchedShared<1024>());
    MultiplyPanels(sum, PanelOperand(memory, threadIdx.x % 32 == 3 ? 32 : 0), PanelOperand(memory),
                   false);
  });
  EXPECT_NE(misuse.find("a product whose lanes name different operands"), std::string::npos)
      << misuse;
}

TEST_F(EmulatorProductTest, AWarpsProductHasTheBitsOfAWarpgroups) {
  int wrong = 0;
  RunGrid({.ctas = 1, .threads = 32}, [&] {
    const auto pair = [](const float* values) { return PackBf16(values[0], values[1]); };
    const int group = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
    const float* mine = a_.data() + group * kInputs + 2 * t;
    const uint32_t a[4] = {pair(mine), pair(mine + 8 * kInputs), pair(mine + 8),
                           pair(mine + 8 * kInputs + 8)};
    const float* column = b_.data() + group * kInputs + 2 * t;
    float sum[4] = {};
    MultiplyBf16(sum, a, pair(column), pair(column + 8));
    for (int i = 0; i < 4; ++i) wrong += sum[i] != Expected(RowOf(i), ColumnOf(i));
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(EmulatorProductTest, ProductsThatNobodyWaitsForAreAMisuse) {
  const std::string misuse = MisuseOf(kWarpgroupGrid, [] {
    float sum[4] = {};
    const uint32_t memory = SharedAddress(LaunchedShared<1024>());
    MultiplyPanels(sum, PanelOperand(memory), PanelOperand(memory), false);
    CommitProducts();
  });
  EXPECT_NE(misuse.find("products nobody waited for"), std::string::npos) << misuse;
}

}  // namespace
}  // namespace quire::cuda
