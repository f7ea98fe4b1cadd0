// Speculation changes no token, no log-probability and no reason to end: random requests over drafters
// that are always right, always wrong, right in the last sibling, or anything, over ngrams, and over the
// draft layers of models.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "decode/ngram_drafter.h"
#include "runner/adaptive_drafter.h"
#include "runner/layer_drafter.h"
#include "runner/shape_chooser.h"
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

// Of every number of sequences another shape pays, of some none.
ShapeCosts CostsThatChange(int64_t most_seqs, size_t num_shapes) {
  ShapeCosts costs;
  for (int64_t num_seqs = 1; num_seqs <= most_seqs; ++num_seqs) {
    ShapeCost cost{.num_seqs = num_seqs, .seconds = {num_seqs % 4 == 3 ? 1e-6 : 1.0}};
    for (size_t i = 0; i < num_shapes; ++i) {
      cost.seconds.push_back(i % 4 == static_cast<size_t>(num_seqs % 4) ? 0.01 : 1.0);
    }
    costs.steps.push_back(cost);
  }
  return costs;
}

TEST_P(EngineSpeculation, NgramsWhoseLengthsAreChosenChangeNothing) {
  const std::vector<TreeShape> shapes = CandidateShapes(1, 16);
  const DraftRoom room = ShapeAround(shapes).Room();
  auto target = MakeTestRunner(GetParam().model, TargetOptions(CaseOptions(1), room));
  auto ngrams = std::make_unique<NgramDrafter>(kMaxSeqs, target->limits().context);
  auto drafter = std::make_unique<AdaptiveDrafter>(std::move(ngrams), nullptr, shapes, kMaxSeqs);
  drafter->ChooseBy(CostsThatChange(kMaxSeqs, shapes.size()));
  runner_ = std::make_unique<SpeculativeRunner>(std::move(target), std::move(drafter), room);
  Met met;
  RunWorkload(static_cast<uint64_t>(GetParam().page_size) + 21, Pages::kScarce, met);
  EXPECT_GT(met.drafts, 0);
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

// Shapes change with the number of sequences, and none pays for some: rows of the layer are then missing.
TEST_P(EngineLayerDrafts, ChangeNothingWhereShapesAreChosen) {
  const std::vector<TreeShape> shapes = CandidateShapes(8, 32);
  const TreeShape around = ShapeAround(shapes);
  auto target = MakeTestRunner(GetParam().model, LayerTargetOptions(CaseOptions(1), around));
  auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), around);
  const auto use_shape = [&layer = *layer](const TreeShape& shape) { layer.UseShape(shape); };
  auto drafter = std::make_unique<AdaptiveDrafter>(std::move(layer), use_shape, shapes, kMaxSeqs);
  drafter->ChooseBy(CostsThatChange(kMaxSeqs, shapes.size()));
  runner_ =
      std::make_unique<SpeculativeRunner>(std::move(target), std::move(drafter), around.Room());
  Met met;
  RunWorkload(static_cast<uint64_t>(GetParam().page_size) + 9, Pages::kScarce, met);
  EXPECT_GT(met.drafts, 0);
}

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
