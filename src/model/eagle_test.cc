#include "model/eagle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "io/safetensors.h"
#include "io/test_files.h"
#include "kernels/cpu/weight_packer.h"
#include "model/test_step.h"
#include "model/weight_source.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::Drafted;
using testing::DraftRow;
using testing::ErrorMessage;
using testing::kTestContext;
using testing::RowOf;
using testing::State;
using testing::TakeCounted;
using testing::TestStep;

const std::filesystem::path kHeads = QUIRE_EAGLE_HEADS;
const std::filesystem::path kTrunks = QUIRE_HF_FIXTURES;

size_t ToIndex(int64_t n) { return static_cast<size_t>(n); }

// One sequence of a trunk and a head.
class HeadedSequence {
 public:
  HeadedSequence(const std::filesystem::path& trunk, const std::filesystem::path& head,
                 int32_t page_size)
      : config_(ReadModelConfig(trunk)),
        head_config_(ReadEagleConfig(head, config_)),
        trunk_step_(config_, page_size),
        head_step_(head_config_.layer, page_size) {
    const auto source = OpenWeightFiles(trunk, config_);
    const auto head_source = OpenWeightFiles(head, head_config_.layer);
    const TokenCount context(kTestContext);
    memory_ = TakeCounted([&](Carver& carver) {
      cpu::CpuWeightPacker packer(carver, trunk_step_.executor());
      ModelWeights weights = LoadWeights(config_, *source, packer);
      EagleWeights head_weights = LoadWeights(head_config_, *head_source, packer);
      if (head_weights.embedding.empty()) head_weights.embedding = weights.embedding;
      const RopeAngles angles = MakeRopeAngles(config_, context, packer);
      const RopeAngles head_angles = MakeRopeAngles(head_config_.layer, context, packer);
      model_ = std::make_unique<Model>(config_, std::move(weights), angles);
      head_ = std::make_unique<EagleHead>(head_config_, std::move(head_weights), head_angles);
    });
    rows_memory_ = TakeCounted([&](Carver& carver) {
      const auto take = [&](int64_t width) {
        return carver.TakeTensor(DType::kF32, {kTestContext, width});
      };
      inputs_ = take(3 * config_.hidden_size);
      normed_inputs_ = take(3 * config_.hidden_size);
      states_ = take(config_.hidden_size);
      picked_ = take(config_.hidden_size);
      normed_ = take(config_.hidden_size);
      own_states_ = take(config_.hidden_size);
      logits_ = take(head_config_.draft_vocab_size);
    });
    for (int32_t i = 0; i < config_.num_layers(); ++i) trunk_step_.AddStore();
    head_step_.AddStore();
  }

  const EagleHead& head() const { return *head_; }

  std::vector<State> Trunk(const std::vector<int32_t>& tokens) {
    const int64_t count = std::ssize(tokens);
    cpu::CpuOps ops = trunk_step_.ops();
    model_->Forward({.tokens = tokens,
                     .positions = trunk_step_.Positions(0, count),
                     .slots = trunk_step_.Slots(0, count),
                     .plan = trunk_step_.MakePlan(0, count),
                     .stores = trunk_step_.stores(),
                     .buffers = trunk_step_.buffers(),
                     .wanted_layers = head_config_.wanted_layers,
                     .layer_inputs = inputs_.FirstRows(count)},
                    ops);
    head_->Fuse({.inputs = inputs_.FirstRows(count),
                 .normed = normed_inputs_.FirstRows(count),
                 .states = states_.FirstRows(count)},
                ops);
    std::vector<State> states;
    for (int64_t i = 0; i < count; ++i) states.push_back(RowOf(states_, i));
    return states;
  }

  std::vector<Drafted> Draft(const std::vector<DraftRow>& rows, int64_t begin,
                             const std::vector<int32_t>& tree_parents = {}) {
    const int64_t count = std::ssize(rows);
    std::vector<int32_t> tokens, all;
    std::vector<TokenCount> positions;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(rows[ToIndex(i)].token);
      positions.emplace_back(rows[ToIndex(i)].position);
      all.push_back(static_cast<int32_t>(i));
      std::ranges::copy(rows[ToIndex(i)].state, states_.Row<float>(i));
    }
    const std::vector<Slot> slots = head_step_.Slots(begin, count);
    const ForwardArgs forward{.tokens = tokens,
                              .positions = positions,
                              .slots = slots,
                              .plan = head_step_.MakePlan(begin, count, tree_parents),
                              .stores = head_step_.stores(),
                              .buffers = head_step_.buffers()};
    cpu::CpuOps ops = head_step_.ops();
    head_->Forward({.rows = forward, .states = states_.FirstRows(count), .state_of = all}, ops);
    head_->Logits({.hidden = head_step_.buffers().hidden.FirstRows(count),
                   .rows = all,
                   .picked = picked_.FirstRows(count),
                   .normed = normed_.FirstRows(count),
                   .logits = logits_.FirstRows(count)},
                  own_states_.FirstRows(count), ops);
    std::vector<Drafted> drafted;
    for (int64_t i = 0; i < count; ++i) {
      drafted.push_back({.state = RowOf(own_states_, i), .logits = RowOf(logits_, i)});
    }
    return drafted;
  }

 private:
  const ModelConfig config_;
  const EagleConfig head_config_;
  TestStep trunk_step_, head_step_;
  std::unique_ptr<Buffer> memory_, rows_memory_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<EagleHead> head_;
  TensorView inputs_, normed_inputs_, states_, picked_, normed_, own_states_, logits_;
};

constexpr double kHeadTolerance = 2e-4;

class EagleTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EagleTest, TokensAndLogProbabilitiesAreThoseOfDoublePrecision) {
  const Json expected = ReadJsonFile(kHeads / GetParam() / "expected.json");
  const std::filesystem::path trunk = kTrunks / expected.at("trunk").get<std::string>();
  const Json given = ReadJsonFile(trunk / "expected.json");
  std::vector<int32_t> tokens = given.at("tokens").get<std::vector<int32_t>>();
  HeadedSequence sequence(trunk, kHeads / GetParam(), 16);
  const std::vector<State> states = sequence.Trunk(tokens);
  tokens.push_back(given.at("greedy").at(0).get<int32_t>());

  std::vector<DraftRow> rows;
  for (int64_t p = 0; p < std::ssize(states); ++p) {
    rows.push_back({.token = tokens[ToIndex(p + 1)], .position = p, .state = states[ToIndex(p)]});
  }
  std::vector<Drafted> drafted = sequence.Draft(rows, 0);
  const std::span<const int32_t> ids = sequence.head().token_ids();
  ASSERT_EQ(expected.at("tokens").size(), drafted.size());
  double worst = 0;
  for (size_t i = 0; i < drafted.size(); ++i) {
    const int32_t best = drafted[i].Best();
    EXPECT_EQ(ids[ToIndex(best)], expected.at("tokens").at(i).get<int32_t>()) << "row " << i;
    const double error =
        std::abs(drafted[i].Logprob(best) - expected.at("logprobs").at(i).get<double>());
    worst = std::max(worst, error);
    EXPECT_LT(error, kHeadTolerance) << "row " << i;
  }
  RecordProperty("worst_error", std::to_string(worst));
  const Json& chain = expected.at("chain");
  for (size_t i = 0; i < chain.size(); ++i) {
    const int32_t best = drafted.back().Best();
    const auto token = chain.at(i).get<int32_t>();
    EXPECT_EQ(ids[ToIndex(best)], token) << "draft " << i;
    EXPECT_NEAR(drafted.back().Logprob(best), expected.at("chain_logprobs").at(i).get<double>(),
                kHeadTolerance)
        << "draft " << i;
    const int64_t place = std::ssize(drafted);
    drafted.push_back(
        sequence.Draft({{.token = token, .position = place, .state = drafted.back().state}}, place)
            .front());
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, EagleTest, ::testing::Values("eagle3", "eagle3_norms"),
                         [](const auto& test) { return std::string(test.param); });

// ---- Refusals ----

ModelConfig TrunkConfig() { return ReadModelConfig(kTrunks / "v3_groups"); }

EagleConfig ParseHead(const std::function<void(Json&)>& change,
                      const ModelConfig& trunk = TrunkConfig()) {
  Json json = ReadJsonFile(kHeads / "eagle3" / "config.json");
  change(json);
  return ParseEagleConfig(JsonRef(json, "config.json"), trunk);
}

std::string HeadRefusal(const std::function<void(Json&)>& change) {
  return ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)ParseHead(change); });
}

TEST(EagleConfigTest, WantedLayersAreTheFilesOrTheDefault) {
  const EagleConfig config = ParseHead([](Json&) {});
  EXPECT_EQ(config.wanted_layers, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(config.draft_vocab_size, 40);
  EXPECT_EQ(config.layer.layers, std::vector{LayerKind::kDense});
  ModelConfig deep = TrunkConfig();
  deep.layers.resize(61, LayerKind::kMoe);
  EXPECT_EQ(ParseHead([](Json& json) { json.erase("eagle_config"); }, deep).wanted_layers,
            (std::vector<int32_t>{2, 30, 58}));
  // A list that begins with 1 counts from behind the layers.
  EXPECT_EQ(ParseHead(
                [](Json& json) {
                  json["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 29, 57};
                },
                deep)
                .wanted_layers,
            (std::vector<int32_t>{2, 30, 58}));
}

TEST(EagleConfigTest, AHeadOfAnotherModelIsRefusedByKey) {
  EXPECT_EQ(HeadRefusal([](Json& json) { json["hidden_size"] = 64; }),
            "config.json: hidden_size: expected the target model's, 32, got 64");
  EXPECT_EQ(HeadRefusal([](Json& json) { json["vocab_size"] = 100; }),
            "config.json: vocab_size: expected the target model's, 101, got 100");
  const std::vector<std::pair<std::string, Json>> changes = {
      {"architectures", {"LlamaForCausalLMEagle3"}},
      {"num_hidden_layers", 2},
      {"norm_before_residual", true},
      {"draft_vocab_size", 102}};
  for (const auto& change : changes) {
    const std::string refusal =
        HeadRefusal([&](Json& json) { json[change.first] = change.second; });
    EXPECT_NE(refusal.find(change.first), std::string::npos) << refusal;
  }
  for (const Json& ids : {Json{0, 1, 3}, Json{0, 2, 1}, Json{0, 1}, Json{1, 2, 3}}) {
    EXPECT_NE(HeadRefusal([&](Json& json) {
                json["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids;
              }).find("eagle_aux_hidden_state_layer_ids"),
              std::string::npos)
        << ids;
  }
  EXPECT_NE(HeadRefusal([](Json& json) {
              json.erase("eagle_config");
            }).find("a target model of 3 layers has no default"),
            std::string::npos);
}

// The message of refusing the head with other tensors.
std::string TensorRefusal(const std::function<void(std::vector<StoredTensor>&)>& change) {
  const TensorSet files = TensorSet::Open(kHeads / "eagle3");
  std::vector<StoredTensor> tensors(files.tensors().begin(), files.tensors().end());
  change(tensors);
  TempDir dir;
  WriteSafetensors(dir.path() / "model.safetensors", tensors);
  const EagleConfig config = ReadEagleConfig(kHeads / "eagle3", TrunkConfig());
  return InvalidArgument(
      [&] {
        SerialExecutor serial;
        Carver counter;
        cpu::CpuWeightPacker packer(counter, serial);
        (void)LoadWeights(config, *OpenWeightFiles(dir.path(), config.layer), packer);
      },
      dir.path());
}

TEST(EagleWeightsTest, MissingUnknownAndMisshapenTensorsAreRefusedByName) {
  for (const char* name :
       {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "midlayer.input_layernorm.weight",
        "midlayer.mlp.up_proj.weight", "midlayer.self_attn.kv_b_proj.weight"}) {
    EXPECT_NE(TensorRefusal([&](std::vector<StoredTensor>& tensors) {
                std::erase_if(tensors,
                              [&](const StoredTensor& tensor) { return tensor.name == name; });
              }).find(name),
              std::string::npos)
        << name;
  }
  EXPECT_NE(TensorRefusal([](std::vector<StoredTensor>& tensors) {
              StoredTensor more = tensors.front();
              more.name = "midlayer.self_attn.q_norm.weight";
              tensors.push_back(more);
            }).find("midlayer.self_attn.q_norm.weight"),
            std::string::npos);
  EXPECT_NE(TensorRefusal([](std::vector<StoredTensor>& tensors) {
              for (StoredTensor& tensor : tensors) {
                if (tensor.name == "fc.weight") std::swap(tensor.shape[0], tensor.shape[1]);
              }
            }).find("tensor 'fc.weight': expected shape [32, 96], got [96, 32]"),
            std::string::npos);
}

TEST(EagleWeightsTest, ATokenThatTheTargetDoesNotHaveIsRefused) {
  std::vector<std::byte> bytes;
  const std::string refusal = TensorRefusal([&](std::vector<StoredTensor>& tensors) {
    for (StoredTensor& tensor : tensors) {
      if (tensor.name != "d2t") continue;
      bytes.assign(tensor.bytes.begin(), tensor.bytes.end());
      const int64_t offset = 101 - 7;
      std::memcpy(bytes.data() + 7 * sizeof(int64_t), &offset, sizeof(offset));
      tensor.bytes = bytes;
    }
  });
  EXPECT_EQ(refusal, "tensor 'd2t': expected offsets to tokens 0..100, got 94 at [7]");
}

}  // namespace
}  // namespace quire
