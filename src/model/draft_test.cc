#include "model/draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "kernels/cpu/weight_packer.h"
#include "model/test_step.h"
#include "model/weight_source.h"

namespace quire {
namespace {

using testing::Drafted;
using testing::DraftRow;
using testing::kTestContext;
using testing::RowOf;
using testing::State;
using testing::TakeCounted;
using testing::TestStep;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// One sequence of a model that drafts.
class Sequence {
 public:
  Sequence(const std::filesystem::path& folder, int32_t page_size)
      : config_(WithDraftLayer(ReadModelConfig(folder))), step_(config_, page_size) {
    const auto source = OpenWeightFiles(folder, config_);
    memory_ = TakeCounted([&](Carver& carver) {
      cpu::CpuWeightPacker packer(carver, step_.executor());
      ModelWeights weights = LoadWeights(config_, *source, packer);
      const RopeAngles angles = MakeRopeAngles(config_, TokenCount(kTestContext), packer);
      model_ = std::make_unique<Model>(config_, std::move(weights), angles);
    });
    rows_memory_ = TakeCounted([&](Carver& carver) {
      const auto take = [&](int64_t width) {
        return carver.TakeTensor(DType::kF32, {kTestContext, width});
      };
      states_ = take(config_.hidden_size);
      picked_ = take(config_.hidden_size);
      normed_ = take(config_.hidden_size);
      logits_ = take(config_.vocab_size);
    });
    for (int32_t i = 0; i < config_.num_layers(); ++i) step_.AddStore();
    if (config_.indexer) {
      for (int32_t i = 0; i < config_.indexer->num_full(); ++i) step_.AddIndexStore();
    }
    step_.AddStore();
    if (config_.indexer) step_.AddIndexStore();
  }

  // The trunk's states of these tokens, computed `chunk` at a time.
  std::vector<State> Trunk(const std::vector<int32_t>& tokens, int64_t chunk) {
    std::vector<State> states;
    for (int64_t begin = 0; begin < std::ssize(tokens); begin += chunk) {
      const int64_t count = std::min(chunk, std::ssize(tokens) - begin);
      const Plan& plan = step_.MakePlan(begin, count);
      const TensorView normed = states_.FirstRows(count);
      cpu::CpuOps ops = step_.ops();
      model_->Forward({.tokens = std::span(tokens).subspan(Size(begin), Size(count)),
                       .positions = step_.Positions(begin, count),
                       .slots = step_.Slots(begin, count),
                       .plan = plan,
                       .stores = step_.stores().first(NumTrunkStores(config_)),
                       .buffers = step_.buffers(),
                       .chooses = step_.Chooses(plan),
                       .states = normed},
                      ops);
      for (int64_t i = 0; i < count; ++i) states.push_back(RowOf(normed, i));
    }
    return states;
  }

  // Rows of the draft layer: the first goes to the slot of place `begin` of the sequence.
  std::vector<Drafted> Draft(const std::vector<DraftRow>& rows, int64_t begin,
                             const std::vector<int32_t>& tree_parents = {}) {
    const int64_t count = std::ssize(rows);
    std::vector<int32_t> tokens, state_of, all;
    std::vector<TokenCount> positions;
    for (int64_t i = 0; i < count; ++i) {
      const DraftRow& row = rows[Size(i)];
      tokens.push_back(row.token);
      positions.emplace_back(row.position);
      state_of.push_back(static_cast<int32_t>(count - 1 - i));  // any order will do
      all.push_back(static_cast<int32_t>(i));
      std::ranges::copy(row.state, states_.Row<float>(count - 1 - i));
    }
    const std::vector<Slot> slots = step_.Slots(begin, count);
    const Plan& plan = step_.MakePlan(begin, count, tree_parents);
    const ForwardArgs forward{.tokens = tokens,
                              .positions = positions,
                              .slots = slots,
                              .plan = plan,
                              .stores = step_.stores().subspan(NumTrunkStores(config_)),
                              .buffers = step_.buffers(),
                              .chooses = step_.Chooses(plan)};
    cpu::CpuOps ops = step_.ops();
    ForwardDraft(*model_,
                 {.rows = forward, .states = states_.FirstRows(count), .state_of = state_of}, ops);
    DraftLogits(*model_,
                {.hidden = step_.buffers().hidden.FirstRows(count),
                 .rows = all,
                 .picked = picked_.FirstRows(count),
                 .normed = normed_.FirstRows(count),
                 .logits = logits_.FirstRows(count)},
                ops);
    std::vector<Drafted> drafted;
    for (int64_t i = 0; i < count; ++i) {
      drafted.push_back({.state = RowOf(normed_, i), .logits = RowOf(logits_, i)});
    }
    return drafted;
  }

  // Over tokens that the trunk has seen, `chunk` at a time: row p takes tokens[p + 1] and states[p].
  std::vector<Drafted> Extend(const std::vector<int32_t>& tokens, const std::vector<State>& states,
                              int64_t chunk) {
    std::vector<Drafted> drafted;
    for (int64_t begin = 0; begin < std::ssize(states); begin += chunk) {
      std::vector<DraftRow> rows;
      for (int64_t p = begin; p < std::min(begin + chunk, std::ssize(states)); ++p) {
        rows.push_back({.token = tokens[Size(p + 1)], .position = p, .state = states[Size(p)]});
      }
      std::ranges::move(Draft(rows, begin), std::back_inserter(drafted));
    }
    return drafted;
  }

 private:
  const ModelConfig config_;
  TestStep step_;
  std::unique_ptr<Buffer> memory_, rows_memory_;
  std::unique_ptr<Model> model_;
  TensorView states_, picked_, normed_, logits_;
};

// ---- Parity ----

struct ParityCase {
  const char* name;
  std::filesystem::path folder;
  std::filesystem::path expected;
};

const std::filesystem::path kFixtureFolder = QUIRE_HF_FIXTURES;

ParityCase FixtureCase(const char* name) {
  return {name, kFixtureFolder / name, kFixtureFolder / name / "expected.json"};
}

std::vector<ParityCase> ParityCases() {
  return {FixtureCase("v3_mtp"), FixtureCase("glm_flash_mtp"), FixtureCase("v32_mtp"),
          ParityCase{"bundled", QUIRE_BUNDLED_MODEL,
                     std::filesystem::path(QUIRE_MODEL_DRAFTS) / "quire-grade-school.json"}};
}

struct ExpectedDraft {
  explicit ExpectedDraft(const std::filesystem::path& path) {
    const Json json = ReadJsonFile(path);
    json.at("tokens").get_to(prompt);
    tokens = prompt;
    tokens.push_back(json.at("greedy").at(0).get<int32_t>());
    json.at("draft").at("logprobs").get_to(logprobs);
    json.at("draft").at("chain").get_to(chain);
    json.at("draft").at("chain_logprobs").get_to(chain_logprobs);
  }
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // the prompt, and what follows
  std::vector<double> logprobs;
  std::vector<int32_t> chain;
  std::vector<double> chain_logprobs;
};

// What float32 rounds differently, through the trunk and a layer more.
constexpr double kTolerance = 2e-4;

// All rows: those of the extension, then those of the chain.
std::vector<Drafted> DraftChain(Sequence& sequence, const ExpectedDraft& expected, int64_t chunk) {
  const std::vector<State> states = sequence.Trunk(expected.prompt, chunk);
  std::vector<Drafted> rows = sequence.Extend(expected.tokens, states, chunk);
  for (size_t i = 0; i + 1 < expected.chain.size(); ++i) {
    const int64_t place = std::ssize(rows);
    const std::vector<DraftRow> next = {
        {.token = expected.chain[i], .position = place, .state = rows.back().state}};
    rows.push_back(sequence.Draft(next, place).front());
  }
  return rows;
}

class DraftParityTest : public ::testing::TestWithParam<ParityCase> {};

TEST_P(DraftParityTest, LogProbabilitiesAreThoseOfThePublishedLayer) {
  const ExpectedDraft expected(GetParam().expected);
  ASSERT_EQ(expected.logprobs.size() + 1, expected.prompt.size());
  ASSERT_EQ(expected.chain.size(), 4u);
  Sequence sequence(GetParam().folder, 16);
  const std::vector<Drafted> rows = DraftChain(sequence, expected, 13);
  double worst = 0;
  for (size_t i = 0; i < expected.logprobs.size(); ++i) {
    const double error = std::abs(rows[i].Logprob(expected.tokens[i + 2]) - expected.logprobs[i]);
    worst = std::max(worst, error);
    ASSERT_LT(error, kTolerance) << "row " << i;
  }
  for (size_t i = 0; i < expected.chain.size(); ++i) {
    const Drafted& row = rows[expected.prompt.size() - 1 + i];
    EXPECT_EQ(row.Best(), expected.chain[i]) << "draft " << i;
    EXPECT_NEAR(row.Logprob(expected.chain[i]), expected.chain_logprobs[i], kTolerance)
        << "draft " << i;
  }
  RecordProperty("worst_error", std::to_string(worst));
}

TEST_P(DraftParityTest, ChunksAndPagesChangeNoBit) {
  const ExpectedDraft expected(GetParam().expected);
  Sequence whole(GetParam().folder, 64);
  const std::vector<Drafted> rows = DraftChain(whole, expected, kTestContext);
  for (const int32_t page_size : {1, 61}) {
    Sequence cut(GetParam().folder, page_size);
    EXPECT_TRUE(DraftChain(cut, expected, 7) == rows) << "pages of " << page_size;
  }
}

// Of every node of a tree what a sequence of its path alone says.
TEST_P(DraftParityTest, NodesOfATreeSeeTheTokensBeforeItTheirAncestorsAndThemselves) {
  const ExpectedDraft expected(GetParam().expected);
  Sequence sequence(GetParam().folder, 16);
  const std::vector<State> states = sequence.Trunk(expected.prompt, 32);
  const State root = sequence.Extend(expected.tokens, states, 32).back().state;
  const int64_t end = std::ssize(states);
  // Three branches of two levels; the second level's nodes hang on nodes 2, 0 and 2.
  const std::vector<int32_t> parents = {-1, -1, -1, 2, 0, 2};
  const std::vector<int32_t> tokens = {5, 9, 5, 11, 7, 12};
  std::vector<DraftRow> level;
  for (size_t i = 0; i < 3; ++i) {
    level.push_back({.token = tokens[i], .position = end, .state = root});
  }
  std::vector<Drafted> nodes = sequence.Draft(level, end, {-1, -1, -1});
  level.clear();
  for (size_t i = 3; i < 6; ++i) {
    level.push_back({.token = tokens[i],
                     .position = end + 1,
                     .state = nodes[static_cast<size_t>(parents[i])].state});
  }
  std::ranges::move(sequence.Draft(level, end + 3, parents), std::back_inserter(nodes));
  EXPECT_EQ(nodes[0], nodes[2]) << "the same path twice";

  Sequence alone(GetParam().folder, 16);
  alone.Trunk(expected.prompt, 32);
  alone.Extend(expected.tokens, states, 32);
  for (size_t i = 3; i < 6; ++i) {
    const auto parent = static_cast<size_t>(parents[i]);
    const Drafted first =
        alone.Draft({{.token = tokens[parent], .position = end, .state = root}}, end).front();
    EXPECT_EQ(first, nodes[parent]) << "node " << parent;
    const Drafted second =
        alone.Draft({{.token = tokens[i], .position = end + 1, .state = first.state}}, end + 1)
            .front();
    EXPECT_EQ(second, nodes[i]) << "node " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftParityTest, ::testing::ValuesIn(ParityCases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
