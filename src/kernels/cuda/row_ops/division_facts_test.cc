// That the operations of a division are enough where UncheckedDivisor says so hangs on the reciprocal that the device
// begins with, which no manual gives to the last bit.
#include "kernels/cuda/row_ops/division_facts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/cuda/test_memory.h"
#include "kernels/cuda/test_rows.h"

namespace quire::cuda {
namespace {

using CudaDivisionTest = StreamTest;

// All mantissas of divisors, those of the lowest and of the highest exponent.
TEST_F(CudaDivisionTest, ScoresNeedNoCheckOfTheirDivision) {
  // 1 by the last number below 2, and 0xd55553 by 0xfffffd (24 bits each): a reciprocal one unit too high in its last
  // place would give other quotients there, of a thousand million that were tried.
  std::vector<float> x = {0, 1, 0x1.aaaaa6p-1f, 0x1.aaaaa6p-40f, 0x1p-70f};
  std::mt19937_64 random(11);
  for (int exponent = 0; exponent < 70; ++exponent) {
    const auto mantissa = static_cast<float>((1u << 23) + random() % (1u << 23));
    x.push_back(std::ldexp(mantissa, -24 - exponent));
  }
  const DeviceVector<float> device_x(x);
  for (const float scale : {1.0f, 2.0f, 512.0f}) {
    const DeviceVector<uint32_t> different(std::vector<uint32_t>(x.size(), 0));
    CountDifferentQuotients(scale, device_x.span(), different.span(), stream());
    const std::vector<uint32_t> counts = different.Values(stream());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(counts[i], 0u) << x[i] << " by divisors from " << scale << " on";
    }
  }
}

}  // namespace
}  // namespace quire::cuda
