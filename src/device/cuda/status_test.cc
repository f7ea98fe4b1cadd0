#include "device/cuda/status.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_kernels.h"

namespace quire::cuda {
namespace {

TEST(CudaStatusTest, AWordCarriesFaultLaunchAndIndexWhole) {
  for (const uint32_t launch : {0u, 1u, 0x800001u, 0xffffffu}) {
    for (const uint32_t index : {0u, 1u, 0x80000001u, 0xffffffffu}) {
      const DeviceReport report = DecodeReport(EncodeReport(DeviceFault::kPage, launch, index));
      EXPECT_EQ(report.fault, DeviceFault::kPage);
      EXPECT_EQ(report.launch, launch);
      EXPECT_EQ(report.index, index);
    }
  }
  // A launch that does not fit must not change the fault.
  EXPECT_EQ(DecodeReport(EncodeReport(DeviceFault::kPage, 0xffffffffu, 0)).fault,
            DeviceFault::kPage);
  EXPECT_NE(EncodeReport(DeviceFault::kCapacity, 0, 0), 0u);
}

TEST(CudaStatusTest, AReportNamesFaultLaunchAndIndex) {
  const auto launch = static_cast<uint32_t>(Launch::kMlaAttention);
  EXPECT_EQ(
      Describe({.fault = DeviceFault::kPage, .launch = launch, .index = 4'000'000'000u}),
      fmt::format("device fault 2: a page that the pool does not have, found by mla_attention "
                  "(launch {}) at index 4000000000",
                  launch));
  EXPECT_EQ(Describe({.fault = static_cast<DeviceFault>(200), .launch = 70'000, .index = 0}),
            "device fault 200: an unknown fault, found by an unnamed launch (launch 70000) at "
            "index 0");
}

TEST(CudaStatusTest, EveryLaunchHasANameOfItsOwn) {
  std::set<std::string> names;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Launch::kCount); ++i) names.insert(LaunchName(i));
  EXPECT_EQ(names.size(), static_cast<size_t>(Launch::kCount));
  EXPECT_STREQ(LaunchName(static_cast<uint32_t>(Launch::kEmbed)), "embed");
  EXPECT_STREQ(LaunchName(static_cast<uint32_t>(Launch::kStoreMove)), "store_move");
  EXPECT_STREQ(LaunchName(static_cast<uint32_t>(Launch::kTest)), "test");
}

TEST(CudaStatusTest, TheFirstReportStaysUntilCleared) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Status status;
  status.Read(stream);
  stream.Synchronize();
  EXPECT_FALSE(status.report().has_value());
  EXPECT_NO_THROW(status.ThrowIfReported());

  ReportFromAll(status.word(), DeviceFault::kNone, 1, 32, stream);  // reports nothing
  ReportFromAll(status.word(), DeviceFault::kToken, 1, 1, stream);
  ReportFromAll(status.word(), DeviceFault::kExpert, 8, 256, stream);
  EXPECT_FALSE(status.report().has_value());  // not read yet
  status.Read(stream);
  stream.Synchronize();
  ASSERT_TRUE(status.report().has_value());
  EXPECT_EQ(status.report()->fault, DeviceFault::kToken);
  EXPECT_EQ(status.report()->launch, static_cast<uint32_t>(Launch::kTest));
  EXPECT_EQ(status.report()->index, 0u);
  try {
    status.ThrowIfReported();
    FAIL() << "expected an InternalError";
  } catch (const InternalError& error) {
    EXPECT_EQ(std::string(error.what()), Describe(*status.report()));
  }

  status.Clear(stream);
  status.Read(stream);
  stream.Synchronize();
  EXPECT_FALSE(status.report().has_value());
}

TEST(CudaStatusTest, OneOfManyThreadsIsReportedWhole) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Status status;
  ReportFromAll(status.word(), DeviceFault::kCapacity, 64, 256, stream);
  status.Read(stream);
  stream.Synchronize();
  ASSERT_TRUE(status.report().has_value());
  EXPECT_EQ(status.report()->fault, DeviceFault::kCapacity);
  EXPECT_LT(status.report()->index, 64u * 256u);
}

TEST(CudaStatusTest, ReportingNowhereIsHarmless) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  ReportFromAll({}, DeviceFault::kCapacity, 1, 32, stream);
  EXPECT_NO_THROW(stream.Synchronize());
}

}  // namespace
}  // namespace quire::cuda
