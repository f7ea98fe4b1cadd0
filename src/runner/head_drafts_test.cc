// The drafts of EAGLE-3 heads, on the CPU and on a device.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/eagle.h"
#include "runner/draft_cases.h"
#include "runner/test_backend.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/random_head.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

std::filesystem::path HeadPath(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / name;
}

// A model, and a head: of a fixture, or of random weights.
struct HeadedModel {
  const char* folder;
  const char* head = nullptr;  // null: random

  OpenedHead Open() const {
    const ModelConfig trunk = ReadModelConfig(DraftFixture(folder));
    if (head != nullptr) {
      return OpenEagleHead(std::filesystem::path(QUIRE_EAGLE_HEADS) / head, trunk);
    }
    return OpenEagleHead(
        testing::WriteRandomHead(HeadPath("drafter_head_" + std::string(folder)), trunk), trunk);
  }
  // Without a shape: plain steps.
  std::unique_ptr<MeteredRunner> Make(const RunnerOptions& plain, const TreeShape* shape) const {
    if (shape == nullptr) return testing::MakeBackendRunner(DraftFixture(folder), plain);
    const OpenedHead opened = Open();
    RunnerOptions options = LayerTargetOptions(plain, *shape);
    options.head = &opened;
    return testing::MakeBackendRunner(DraftFixture(folder), options);
  }
};

struct HeadHistoryCase {
  HeadedModel model;
  int32_t page_size;
  StepMode mode;
  TreeShape shape;
};

class HeadDraftHistory : public ::testing::TestWithParam<HeadHistoryCase> {};

TEST_P(HeadDraftHistory, DraftsDependOnTheTextAloneAndChangeNone) {
  const HeadHistoryCase& given = GetParam();
  const auto make = [&](int32_t page_size, const TreeShape* shape) {
    return given.model.Make(DraftOptions(page_size, given.mode), shape);
  };
  ExpectDraftsDependOnTheTextAlone(given.shape, make, given.page_size);
}

const HeadHistoryCase kHeadHistoryCases[] = {
    {{"v3_groups", "eagle3"}, 1, StepMode::kEager, {.steps = 3, .branches = 1, .nodes = 4}},
    {{"v3_groups", "eagle3"}, 61, StepMode::kGraph, {.steps = 2, .branches = 8, .nodes = 9}},
    {{"v3_groups", "eagle3_norms"}, 16, StepMode::kGraph, {.steps = 5, .branches = 3, .nodes = 17}},
    {{"glm_dsa"}, 64, StepMode::kEager, {.steps = 3, .branches = 4, .nodes = 8}}};

INSTANTIATE_TEST_SUITE_P(Shapes, HeadDraftHistory, ::testing::ValuesIn(kHeadHistoryCases),
                         [](const auto& test) {
                           const HeadedModel& model = test.param.model;
                           return std::string(model.folder) + "_" +
                                  (model.head != nullptr ? model.head : "random") + "_page" +
                                  std::to_string(test.param.page_size);
                         });

// A head knows some of the model's tokens, and says which of those they are. A step takes no memory.
TEST(HeadDraftsTest, AHeadDraftsTokensOfTheModelAndAllocatesNothing) {
  const HeadedModel model{"kimi_k2"};
  const TreeShape shape{.steps = 3, .branches = 8, .nodes = 32};
  std::vector<SeenDraft> seen;
  const auto runner = MakeDrafting(model.Make(DraftOptions(16), &shape), shape, seen);
  AnswerAll(*runner, 12);
  std::set<int32_t> tokens;
  for (const SeenDraft& each : seen) tokens.insert(each.tokens.begin() + 1, each.tokens.end());
  EXPECT_GT(tokens.size(), 10u);
  for (const int32_t token : tokens) EXPECT_EQ(token % 3, 0);

  auto target = model.Make(DraftOptions(16), &shape);
  auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape);
  SpeculativeRunner alone(std::move(target), std::move(layer), shape.Room());
  std::vector<Draftee> draftees = MakeDraftees(alone.limits());
  for (int turn = 0; turn < 15; ++turn) {
    std::vector<StepSequence> batch;
    for (const Draftee& each : draftees) batch.push_back(each.Next(alone.limits().lookahead));
    const int64_t before = testing::AllocationCount();
    const StepResult& result = alone.Step({.sequences = batch});
    EXPECT_EQ(testing::AllocationCount() - before, 0) << "step " << turn;
    for (size_t i = 0; i < batch.size(); ++i) draftees[i].Take(batch[i], result.sequences[i]);
  }
}

TEST(HeadDraftsTest, MoreBranchesThanAHeadHasTokensAreRefused) {
  const ModelConfig trunk = ReadModelConfig(DraftFixture("v3_groups"));
  const auto narrow = [](std::vector<StoredTensor>& tensors) {
    for (StoredTensor& tensor : tensors) {
      if (tensor.name != "lm_head.weight" && tensor.name != "d2t") continue;
      const size_t each = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
      tensor.bytes = tensor.bytes.first(each * 4);
      tensor.shape[0] = 4;
    }
  };
  const OpenedHead head = OpenEagleHead(
      testing::WriteRandomHead(
          HeadPath("drafter_head_narrow"), trunk,
          {.config = [](Json& config) { config["draft_vocab_size"] = 4; }, .tensors = narrow}),
      trunk);
  RunnerOptions options =
      LayerTargetOptions(DraftOptions(16), {.steps = 2, .branches = 5, .nodes = 8});
  options.head = &head;
  EXPECT_EQ(testing::ErrorMessage(
                [&] { testing::MakeBackendRunner(DraftFixture("v3_groups"), options); }),
            "speculation: branches: expected up to the draft model's 4 tokens, got 5");
}

}  // namespace
}  // namespace quire
