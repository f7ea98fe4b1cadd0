#include "testing/invariants/test_runner.h"

#include <gtest/gtest.h>

#include "device/cuda/cuda.h"
#include "runner/cuda/test_runner.h"

namespace quire::testing {
namespace {

class NeedsDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!cuda::HaveDevice()) GTEST_SKIP() << cuda::DeviceProblem();
  }
};

const auto* const kNeedsDevice = ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace

std::unique_ptr<MeteredRunner> MakeTestRunner(const ModelCase& model, RunnerOptions options) {
  options.deterministic = true;
  return cuda::MakeDeviceRunner(cuda::kTestData / model.folder, OptionsOf(model, options),
                                model.weights);
}

// The plain kernel runs small models; these go to tensor cores.
std::span<const KvFormat> TrueSizeFormats() {
  static constexpr KvFormat kFormats[] = {KvFormat::kLatentBf16, KvFormat::kLatentFp8};
  return kFormats;
}

}  // namespace quire::testing
