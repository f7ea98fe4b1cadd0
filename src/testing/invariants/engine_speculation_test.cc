// Speculation changes no token, no log-probability and no reason to end: random requests over drafters
// that are always right, always wrong, right in the last sibling, or anything, over ngrams, and over the
// draft layers of models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/ngram_drafter.h"
#include "runner/layer_drafter.h"
#include "runner/speculative_runner.h"
#include "testing/invariants/engine_cases.h"
#include "testing/invariants/engine_random.h"
#include "testing/mixed_drafter.h"
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

class EngineSpeculation : public EngineRandom {
 protected:
  EngineSpeculation() : EngineRandom(25) {}

  // nullopt: by ngrams.
  void Speculate(std::optional<DraftStyle> style, int64_t num_nodes) {
    const DraftRoom room = DraftRoom::OfNodes(num_nodes);
    auto target = MakeTestRunner(GetParam().model, TargetOptions(CaseOptions(1), room));
    std::unique_ptr<Drafter> drafter;
    if (style) {
      drafter = std::make_unique<ScriptedDrafter>(
          [this](const StepSequence& seq) { return Next(seq); }, *style,
          target->limits().vocab_size, static_cast<uint64_t>(num_nodes));
    } else {
      drafter = std::make_unique<NgramDrafter>(kMaxSeqs, target->limits().context);
    }
    runner_ = std::make_unique<SpeculativeRunner>(std::move(target), std::move(drafter), room);
  }

  // By the model's draft layer; about half of the drafts are a script's, so that some are right.
  void SpeculateByLayer(const TreeShape& shape, DraftStyle style) {
    auto target = MakeTestRunner(GetParam().model, LayerTargetOptions(CaseOptions(1), shape));
    auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape);
    auto scripted = std::make_unique<ScriptedDrafter>(
        [this](const StepSequence& seq) { return Next(seq); }, style, target->limits().vocab_size,
        static_cast<uint64_t>(shape.nodes));
    runner_ = std::make_unique<SpeculativeRunner>(
        std::move(target), std::make_unique<MixedDrafter>(std::move(layer), std::move(scripted)),
        shape.Room());
  }

  // The loop numbers requests by their seeds, from 1.
  std::span<const int32_t> Next(const StepSequence& seq) {
    const Request& request = earlier_[static_cast<size_t>(seq.sampling.seed) - 1];
    const LoneAnswer& alone = lone_.Answer(request, seq.first_sample, TokenCount(kContext));
    const std::span<const int32_t> output = alone.report.output;
    return output.subspan(std::min(seq.output.size(), output.size()));
  }

  Met Run(std::optional<DraftStyle> style, int64_t num_nodes, Pages pages) {
    SCOPED_TRACE(::testing::Message() << "style " << (style ? static_cast<int>(*style) : -1) << ", "
                                      << num_nodes << " nodes");
    Speculate(style, num_nodes);
    Met met;
    RunWorkload(1, pages, met);
    return met;
  }
};

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

class EngineLayerDrafts : public EngineSpeculation {
 protected:
  // Any that can be, by the seed.
  static TreeShape DrawShape(uint64_t seed) {
    Random random(seed);
    TreeShape shape{.steps = random.Between(1, kMaxDraftSteps),
                    .branches = random.Between(1, kMaxDraftBranches)};
    const int64_t most = std::min(shape.candidates() + 1, kMaxDraftNodes);
    shape.nodes = shape.branches == 1 ? shape.steps + 1 : random.Between(2, most);
    return shape;
  }

  Met RunLayer(uint64_t seed, DraftStyle style, Pages pages) {
    const TreeShape shape = DrawShape(seed);
    SCOPED_TRACE(::testing::Message()
                 << "shape " << shape.steps << "-" << shape.branches << "-" << shape.nodes);
    SpeculateByLayer(shape, style);
    Met met;
    RunWorkload(seed, pages, met);
    return met;
  }
};

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
