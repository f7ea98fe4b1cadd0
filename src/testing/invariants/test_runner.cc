#include "testing/invariants/test_runner.h"

#include <filesystem>

namespace quire::testing {

std::unique_ptr<MeteredRunner> MakeTestRunner(const ModelCase& model, RunnerOptions options) {
  options.context = TokenCount(kTestContext);
  options.kv_format = model.kv_format;
  options.index_layout = model.index_layout;
  return MakeRunner(std::filesystem::path(QUIRE_RUNNER_TESTDATA) / model.folder, options,
                    model.weights);
}

std::span<const ModelCase> SparseModels() {
  static constexpr ModelCase kModels[] = {
      {"hf/glm_dsa_types", Weights::kFiles, KvFormat::kLatentBf16},
      {"dummy/sparse", Weights::kDummy, KvFormat::kLatentBf16},
      {"dummy/sparse", Weights::kDummy, KvFormat::kLatentBf16, IndexKeyLayout::kPreshuffled},
  };
  return kModels;
}

std::span<const KvFormat> TrueSizeFormats() {
  static constexpr KvFormat kFormats[] = {KvFormat::kLatentFp8};
  return kFormats;
}

}  // namespace quire::testing
