// Speculation changes no token, no log-probability and no reason to end: random requests over drafters
// that are always right, always wrong, right in the last sibling, or anything, over ngrams, and over the
// draft layers of models.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runner/layer_drafter.h"
#include "runner/speculative_runner.h"
#include "testing/invariants/engine_speculation.h"
#include "testing/scripted_drafter.h"

namespace quire::testing {
namespace {

// Every page size, and a sparse model, whose index keys move with the rows.
std::vector<EngineCase> SpeculationCases() {
  std::vector<EngineCase> cases;
  size_t mode = 0;
  for (const int32_t page_size : {1, 16, 61, 64, 128}) {
    cases.push_back(
        {{kSmallModel, Weights::kFiles, KvFormat::kLatentBf16}, page_size, kModes[mode]});
    mode = 1 - mode;
  }
  cases.push_back({kSharingCase, 16, StepMode::kEager});
  return cases;
}

// The other layout of index keys, in a model of the true size.
std::vector<EngineCase> PreshuffledCases() { return {{kShuffledCase, 16, StepMode::kEager}}; }

TEST_P(EngineSpeculation, RightDraftsAreAcceptedAndChangeNothing) {
  const Met met = Run(DraftStyle::kRight, 5, Pages::kAmple);
  EXPECT_GT(met.accepted_tokens, met.drafts);
}

TEST_P(EngineSpeculation, WrongDraftsAreRejectedAndChangeNothing) {
  const Met met = Run(DraftStyle::kWrong, 4, Pages::kScarce);
  EXPECT_GT(met.drafts, 0);
  EXPECT_EQ(met.accepted_tokens, 0);
}

TEST_P(EngineSpeculation, RowsOfTheLastSiblingMoveToTheirPlaces) {
  const Met met = Run(DraftStyle::kLastSibling, 13, Pages::kAmple);
  EXPECT_GT(met.accepted_tokens, met.drafts);
}

TEST_P(EngineSpeculation, RandomTreesChangeNothingThoughPagesAreScarce) {
  const Met met = Run(DraftStyle::kRandom, 9, Pages::kScarce);
  EXPECT_GT(met.accepted_tokens, 0);
  EXPECT_LT(met.accepted_tokens, met.draft_tokens);
}

TEST_P(EngineSpeculation, NgramsChangeNothing) {
  EXPECT_GT(Run(std::nullopt, 5, Pages::kScarce).drafts, 0);
}

// Every page size in turn with another mode, and a sparse model.
std::vector<EngineCase> LayerCases() {
  std::vector<EngineCase> cases;
  size_t mode = 0;
  for (const int32_t page_size : {1, 16, 61, 64, 128}) {
    cases.push_back(
        {{"hf/v3_mtp", Weights::kFiles, KvFormat::kLatentBf16}, page_size, kModes[mode]});
    mode = 1 - mode;
  }
  cases.push_back({{"hf/v32_mtp", Weights::kFiles, KvFormat::kLatentF32}, 16, StepMode::kGraph});
  return cases;
}

TEST_P(EngineLayerDrafts, ChangeNothingThoughPagesAreScarce) {
  const auto seed = static_cast<uint64_t>(GetParam().page_size);
  EXPECT_GT(RunLayer(seed, DraftStyle::kRight, Pages::kScarce).accepted_tokens, 0);
  EXPECT_GT(RunLayer(seed + 1, DraftStyle::kRandom, Pages::kScarce).drafts, 0);
}

TEST_P(EngineLayerDrafts, ChangeNothingWhereRowsMove) {
  const auto seed = static_cast<uint64_t>(GetParam().page_size) + 2;
  EXPECT_GT(RunLayer(seed, DraftStyle::kLastSibling, Pages::kAmple).drafts, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineLayerDrafts, ::testing::ValuesIn(LayerCases()),
                         EngineCaseName);

class EngineSpeculationPreshuffled : public EngineSpeculation {};

TEST_P(EngineSpeculationPreshuffled, RowsOfTheLastSiblingMoveToTheirPlaces) {
  EXPECT_GT(Run(DraftStyle::kLastSibling, 13, Pages::kAmple).accepted_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineSpeculationPreshuffled,
                         ::testing::ValuesIn(PreshuffledCases()), EngineCaseName);
INSTANTIATE_TEST_SUITE_P(Models, EngineSpeculation, ::testing::ValuesIn(SpeculationCases()),
                         EngineCaseName);

}  // namespace
}  // namespace quire::testing
