#include "device/cuda/check.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_kernels.h"

namespace quire::cuda {
namespace {

template <class Fn>
std::string MessageOf(Fn fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CudaCheckTest, AnErrorNamesWhatWasDoneAndWhatCudaSays) {
  EXPECT_NO_THROW(Check(cudaSuccess, "nothing"));
  EXPECT_EQ(MessageOf([] { Check(cudaErrorInvalidValue, "copying the tables"); }),
            "copying the tables: invalid argument (cudaErrorInvalidValue)");
  EXPECT_THROW(Check(cudaErrorInvalidValue, "copying"), DeviceError);
}

TEST(CudaCheckTest, ALostContextIsSticky) {
  for (const auto& [status, sticky] : {std::pair{cudaErrorIllegalAddress, true},
                                       {cudaErrorLaunchFailure, true},
                                       {cudaErrorECCUncorrectable, true},
                                       {cudaErrorMemoryAllocation, false},
                                       {cudaErrorInvalidConfiguration, false},
                                       {cudaErrorStreamCaptureInvalidated, false}}) {
    try {
      Check(status, "step");
      FAIL() << "expected a DeviceError";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.is_sticky(), sticky) << error.what();
      EXPECT_EQ(std::string(error.what()).ends_with("cannot use the device any more"), sticky)
          << error.what();
    }
  }
}

TEST(CudaCheckTest, OnlyHopperWillDo) {
  EXPECT_NO_THROW(RequireHopper({.name = "H200", .capability_major = 9, .capability_minor = 0}));
  const DeviceProperties newer{.name = "B200", .capability_major = 10, .capability_minor = 0};
  EXPECT_THROW(RequireHopper(newer), Error);
  EXPECT_EQ(MessageOf([&] { RequireHopper(newer); }),
            "device 'B200': expected compute capability 9.0 (Hopper: H100, H200), got 10.0");
  EXPECT_THROW(RequireHopper({.name = "L40S", .capability_major = 8, .capability_minor = 9}),
               Error);
}

TEST(CudaCheckTest, ADeviceIsDescribedOrItsAbsenceExplained) {
  if (!HaveDevice()) {
    EXPECT_EQ(MessageOf([] { QueryDevice(); }), DeviceProblem());
    GTEST_SKIP() << DeviceProblem();
  }
  const DeviceProperties device = QueryDevice();
  EXPECT_FALSE(device.name.empty());
  EXPECT_GE(device.num_sms, 16);
  EXPECT_GT(device.memory, ByteOffset(int64_t{8} << 30));
  EXPECT_LE(FreeDeviceMemory(), device.memory);
  EXPECT_GE(device.cta_shared_memory, ByteOffset(int64_t{227} << 10));  // of every Hopper
  RecordProperty("device", device.name);
}

TEST(CudaCheckTest, ALaunchThatCannotBeIsNamedAndForgotten) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const std::string message = MessageOf([&] { LaunchTooLarge(stream); });
  EXPECT_TRUE(message.starts_with("too_large: ")) << message;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_NO_THROW(stream.Synchronize());
}

}  // namespace
}  // namespace quire::cuda
