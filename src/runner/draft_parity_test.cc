// Draft layers and EAGLE-3 heads, and what was published of them: on the CPU, whose numbers are f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/json.h"
#include "model/eagle.h"
#include "runner/cpu_runner.h"
#include "runner/draft_cases.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

// A model, and a head that drafts for it, or null: its own layer.
struct ParityCase {
  const char* name;
  const char* head = nullptr;
};

class LayerDraftParity : public ::testing::TestWithParam<ParityCase> {};

TEST_P(LayerDraftParity, AChainIsThatOfThePublishedLayerHoweverThePromptIsCut) {
  const auto& [name, head_name] = GetParam();
  const std::filesystem::path folder = DraftFixture(name);
  const Json expected = ReadJsonFile(folder / "expected.json");
  std::optional<OpenedHead> head;
  Json drafted = expected.value("draft", Json());
  if (head_name != nullptr) {
    const std::filesystem::path path = std::filesystem::path(QUIRE_EAGLE_HEADS) / head_name;
    drafted = ReadJsonFile(path / "expected.json");
    head = OpenEagleHead(path, ReadModelConfig(folder));
  }
  const auto prompt = expected.at("tokens").get<std::vector<int32_t>>();
  std::vector<int32_t> chain = {expected.at("greedy").at(0).get<int32_t>()};
  for (const Json& token : drafted.at("chain")) chain.push_back(token.get<int32_t>());
  for (const size_t chunk : {size_t{1}, size_t{13}, size_t{64}}) {
    std::vector<SeenDraft> seen;
    const TreeShape shape{.steps = 4, .nodes = 5};
    RunnerOptions options = LayerTargetOptions(DraftOptions(16), shape);
    options.head = head ? &*head : nullptr;
    const auto runner = MakeDrafting(testing::MakeRunner(folder, options), shape, seen);
    const std::vector<PageId> pages = FirstPages(8);
    std::vector<int32_t> text = prompt;
    for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
      const size_t count = std::min(chunk, prompt.size() - begin);
      const StepSequence seq{
          .id = 1,
          .tokens = std::span(prompt).subspan(begin, count),
          .position = TokenCount(begin),
          .pages = pages,
          .want = begin + count == prompt.size() ? Want::kNextToken : Want::kNothing,
          .sampling = {.temperature = 0}};
      const StepResult& result = runner->Step({.sequences = {&seq, 1}});
      if (seq.want == Want::kNextToken) {
        text.push_back(result.sequences[0].answers[0].tokens[0].chosen.token);
      }
    }
    const std::span<const int32_t> all = text;
    const StepSequence next{.id = 1,
                            .tokens = all.last(1),
                            .position = TokenCount(prompt.size()),
                            .pages = pages,
                            .lookahead = TokenCount(4),
                            .want = Want::kNextToken,
                            .sampling = {.temperature = 0},
                            .prompt = prompt,
                            .output = all.last(1)};
    runner->Step({.sequences = {&next, 1}});
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].tokens, chain) << "chunks of " << chunk;
    EXPECT_EQ(seen[0].parents, (std::vector<int32_t>{-1, 0, 1, 2, 3}));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayerDraftParity,
                         ::testing::Values(ParityCase{"v3_mtp"}, ParityCase{"glm_flash_mtp"},
                                           ParityCase{"v32_mtp"}, ParityCase{"v3_groups", "eagle3"},
                                           ParityCase{"v3_groups", "eagle3_norms"}),
                         [](const auto& test) {
                           const char* head = test.param.head;
                           return std::string(test.param.name) +
                                  (head == nullptr ? "" : std::string("_") + head);
                         });

}  // namespace
}  // namespace quire
