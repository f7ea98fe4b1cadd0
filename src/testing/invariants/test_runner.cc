#include "testing/invariants/test_runner.h"

#include <filesystem>

namespace quire::testing {

std::unique_ptr<MeteredRunner> MakeTestRunner(const ModelCase& model, RunnerOptions options) {
  return MakeRunner(std::filesystem::path(QUIRE_RUNNER_TESTDATA) / model.folder,
                    OptionsOf(model, options), model.weights);
}

std::span<const KvFormat> TrueSizeFormats() {
  static constexpr KvFormat kFormats[] = {KvFormat::kLatentFp8};
  return kFormats;
}

}  // namespace quire::testing
