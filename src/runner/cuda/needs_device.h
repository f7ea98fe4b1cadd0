// For binaries all of whose tests need a device: where there is none, they are skipped.
#ifndef QUIRE_RUNNER_CUDA_NEEDS_DEVICE_H_
#define QUIRE_RUNNER_CUDA_NEEDS_DEVICE_H_

#include <gtest/gtest.h>

#include "device/cuda/cuda.h"

namespace quire::cuda {

class NeedsDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

inline const auto* const kNeedsDevice = ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_NEEDS_DEVICE_H_
