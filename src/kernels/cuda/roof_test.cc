#include "kernels/cuda/roof.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "device/cuda/test_memory.h"
#include "kernels/cuda/test_rows.h"
#include "testing/error_message.h"
#include "testing/splitmix64.h"

namespace quire::cuda {
namespace {

class CudaRoofTest : public StreamTest {};

// What was left out would be missing from the exclusive or.
TEST_F(CudaRoofTest, EveryWordIsReadOnce) {
  for (const size_t count : {size_t{0}, size_t{4}, size_t{2052}, size_t{1} << 16,
                             (size_t{1} << 23) + 4, (size_t{3} << 22) + 1028}) {
    std::vector<uint32_t> words(count);
    for (size_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(testing::SplitMix64(i));
    const DeviceVector<uint32_t> sum(std::vector<uint32_t>{7});
    words.resize(std::max<size_t>(count, 4));
    const DeviceVector<uint32_t> there(words);
    XorAll(there.span().first(count), sum.span().data(), stream());
    words.resize(count);
    EXPECT_EQ(sum.Values(stream())[0],
              std::accumulate(words.begin(), words.end(), uint32_t{7}, std::bit_xor<>()))
        << count << " words";
  }
}

TEST_F(CudaRoofTest, WordsThatAreNotFourByFourAreRefused) {
  const DeviceVector<uint32_t> words(std::vector<uint32_t>(8));
  EXPECT_EQ(
      testing::ErrorMessage([&] { XorAll(words.span().first(6), words.span().data(), stream()); }),
      "xor_all.words: expected a multiple of 4, got 6");
}

// Each eighth of -1..1 has its share.
TEST_F(CudaRoofTest, RandomNumbersFillTheirRangeEvenly) {
  constexpr size_t kCount = 80'000;
  const DeviceVector<Bf16> values(std::vector<Bf16>(kCount, ToBf16(100)));
  FillRandom(values.span(), stream());
  std::vector<int> eighths(8);
  for (const Bf16 value : values.Values(stream())) {
    const float number = ToFloat(value);
    ASSERT_TRUE(number >= -1 && number <= 1) << number;
    ++eighths[static_cast<size_t>(std::min(7.0f, (number + 1) * 4))];
  }
  for (const int eighth : eighths) {
    EXPECT_GT(eighth, 9'000);
    EXPECT_LT(eighth, 11'000);
  }
}

TEST_F(CudaRoofTest, BothRoofsAreMeasured) {
  const Roofs roofs = MeasureRoofs(1);
  EXPECT_GT(roofs.read_bytes_per_s, 0);
  EXPECT_GT(roofs.flops_per_s, 0);
}

}  // namespace
}  // namespace quire::cuda
