// EAGLE-3 heads change no token either: of random weights.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/eagle.h"
#include "testing/invariants/engine_speculation.h"
#include "testing/random_head.h"

namespace quire::testing {
namespace {

// Page sizes in both modes, and a sparse model, of which the head is not.
std::vector<EngineCase> HeadCases() {
  std::vector<EngineCase> cases;
  size_t mode = 1;
  for (const int32_t page_size : {1, 16, 61, 64}) {
    cases.push_back(
        {{kSmallModel, Weights::kFiles, KvFormat::kLatentBf16}, page_size, kModes[mode]});
    mode = 1 - mode;
  }
  cases.push_back({kSharingCase, 16, StepMode::kGraph});
  return cases;
}

class EngineHeadDrafts : public EngineLayerDrafts {
 protected:
  static OpenedHead MakeHead() {
    const ModelConfig trunk =
        ReadModelConfig(std::filesystem::path(QUIRE_RUNNER_TESTDATA) / GetParam().model.folder);
    const std::string name = "engine_head_" + GetParam().Name();
    return OpenEagleHead(WriteRandomHead(std::filesystem::path(::testing::TempDir()) / name, trunk),
                         trunk);
  }

  const OpenedHead head_ = MakeHead();
};

TEST_P(EngineHeadDrafts, ChangeNothingThoughPagesAreScarce) {
  const auto seed = static_cast<uint64_t>(GetParam().page_size) + 5;
  EXPECT_GT(RunLayer(seed, DraftStyle::kRight, Pages::kScarce, &head_).accepted_tokens, 0);
}

TEST_P(EngineHeadDrafts, ChangeNothingWhereRowsMove) {
  const auto seed = static_cast<uint64_t>(GetParam().page_size) + 7;
  EXPECT_GT(RunLayer(seed, DraftStyle::kLastSibling, Pages::kAmple, &head_).drafts, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineHeadDrafts, ::testing::ValuesIn(HeadCases()),
                         EngineCaseName);

}  // namespace
}  // namespace quire::testing
