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
  IndexKeyLayout index_layout = IndexKeyLayout::kAuto;  // of a sparse model

  // Fit for the name of a test.
  std::string Name() const {
    return std::filesystem::path(folder).filename().string() + "_" + KvFormatName(kv_format) +
           (index_layout == IndexKeyLayout::kPreshuffled ? "_preshuffled" : "");
  }
};

// The longest context of the runners under test.
inline constexpr int64_t kTestContext = 320;

// Its answers do not depend on what else it does.
std::unique_ptr<MeteredRunner> MakeTestRunner(const ModelCase& model, RunnerOptions options);

// Models with sparse attention, if they are served here.
std::span<const ModelCase> SparseModels();

// Those worth the time with a model of the true size.
std::span<const KvFormat> TrueSizeFormats();

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_TEST_RUNNER_H_
