// Runners of small models where a test wants them: on the CPU or on a device. Two binaries run the
// same tests of the engine; each links one maker.
#ifndef QUIRE_TESTING_INVARIANTS_TEST_RUNNER_H_
#define QUIRE_TESTING_INVARIANTS_TEST_RUNNER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "attn/kv_layout.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"
#include "testing/step_jobs.h"

namespace quire::testing {

// A model of src/runner/testdata.
struct ModelCase {
  const char* folder;  // "hf/v3_groups"
  Weights weights;
  KvFormat kv_format;
  // Of a sparse model.
  IndexKeyType index_type = IndexKeyType::kAuto;
  IndexKeyLayout index_layout = IndexKeyLayout::kAuto;
  int32_t index_top_k = 0;  // 0: the model's own

  // Fit for the name of a test.
  std::string Name() const {
    std::string name =
        std::filesystem::path(folder).filename().string() + "_" + KvFormatName(kv_format);
    if (index_type != IndexKeyType::kAuto) name += std::string("_") + IndexName();
    if (index_layout == IndexKeyLayout::kPreshuffled) name += "_preshuffled";
    if (index_top_k != 0) name += "_top" + std::to_string(index_top_k);
    return name;
  }

 private:
  const char* IndexName() const {
    switch (index_type) {
      case IndexKeyType::kAuto:
        return "auto";
      case IndexKeyType::kF32:
        return "f32keys";
      case IndexKeyType::kBf16:
        return "bf16keys";
      case IndexKeyType::kFp8:
        return "fp8keys";
    }
    return "";
  }
};

// The longest context of the runners under test.
inline constexpr int64_t kTestContext = 320;

// `options` as the model wants them, wherever it runs.
inline RunnerOptions OptionsOf(const ModelCase& model, RunnerOptions options) {
  options.context = TokenCount(kTestContext);
  options.kv_format = model.kv_format;
  options.index_type = model.index_type;
  options.index_layout = model.index_layout;
  options.index_top_k = model.index_top_k;
  return options;
}

// Its answers do not depend on what else it does.
std::unique_ptr<MeteredRunner> MakeTestRunner(const ModelCase& model, RunnerOptions options);

// Those worth the time with a model of the true size.
std::span<const KvFormat> TrueSizeFormats();

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_TEST_RUNNER_H_
