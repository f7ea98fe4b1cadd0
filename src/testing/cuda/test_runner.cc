#include "testing/invariants/test_runner.h"

#include "runner/cuda/needs_device.h"
#include "runner/cuda/test_runner.h"

namespace quire::testing {

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
