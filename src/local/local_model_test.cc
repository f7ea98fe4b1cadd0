#include "local/local_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "runner/adaptive_drafter.h"
#include "runner/shape_chooser.h"
#include "testing/error_message.h"
#include "testing/random_head.h"

namespace quire {
namespace {

using testing::ErrorMessage;

constexpr const char* kFolder = QUIRE_TINY_CHAT;  // a config and a tokenizer, without weights

LocalOptions SmallOptions() {
  LocalOptions options;
  options.device = DeviceChoice::kCpu;
  options.load_format = LoadFormat::kDummy;
  options.context = TokenCount(256);
  options.max_seqs = 2;
  options.num_threads = 1;
  return options;
}

TEST(LocalModelTest, OneCallGivesAnEngineThatAnswers) {
  const LocalModel model = OpenLocalModel(kFolder, SmallOptions());
  EXPECT_EQ(model.folder, kFolder);
  EXPECT_EQ(model.device, DeviceKind::kCpu);
  EXPECT_EQ(model.runners.front()->limits().context, TokenCount(256));
  const TextRequest request{.tokens = {.prompt = EncodePrompt(*model.text, "Once upon a time"),
                                       .sampling = {.temperature = 0},
                                       .max_tokens = 4}};
  const std::vector<TextAnswer> answers = GenerateText(*model.answers, request);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].output_tokens, 4);
}

TEST(LocalModelTest, EventsComeInOrderAndTheLastBytesAreAllOfTheWeights) {
  std::vector<std::string> events;
  ByteOffset planned{0}, loaded{0};
  LocalOptions options = SmallOptions();
  options.events = {.opened = [&](const TextModel&) { events.push_back("opened"); },
                    .warning = [&](const std::string&) { events.push_back("warning"); },
                    .planned =
                        [&](const MemoryPlan& plan) {
                          events.push_back("planned");
                          planned = plan.weights;
                        },
                    .loaded =
                        [&](ByteOffset bytes) {
                          if (events.back() != "loaded") events.push_back("loaded");
                          EXPECT_GE(bytes, loaded);
                          loaded = bytes;
                        },
                    .ready = [&] { events.push_back("ready"); }};
  const LocalModel model = OpenLocalModel(kFolder, options);
  EXPECT_EQ(events, (std::vector<std::string>{"opened", "planned", "loaded", "ready"}));
  EXPECT_EQ(model.runners.front()->memory_plan().weights, planned);
  EXPECT_EQ(loaded, planned);
}

TEST(LocalModelTest, WhatTheCallerThrowsBeforeLoadingEndsIt) {
  LocalOptions options = SmallOptions();
  options.events = {
      .opened = [](const TextModel& text) { Require(text.chat == std::nullopt, "it chats"); },
      .loaded = [](ByteOffset) { ADD_FAILURE() << "weights were read"; }};
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { OpenLocalModel(kFolder, options); }),
            "it chats");
}

TEST(LocalModelTest, AFolderThatIsNoneIsRefusedByItsName) {
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [] { OpenLocalModel("/no/such/folder"); }),
            "model: expected a folder with config.json, got \"/no/such/folder\", which does not "
            "exist");
}

TEST(LocalModelTest, AFolderWithoutWeightsIsRefusedUnlessTheyAreToBeMadeUp) {
  const std::string message = ErrorMessage(
      ErrorCode::kInvalidArgument, [] { OpenLocalModel(kFolder, {.device = DeviceChoice::kCpu}); });
  EXPECT_NE(message.find("expected model.safetensors or model.safetensors.index.json, got neither"),
            std::string::npos)
      << message;
}

TEST(LocalModelTest, MemoryIsBoundByBytesAndByAFraction) {
  LocalOptions options = SmallOptions();
  options.memory_limit = ByteOffset(1000);
  EXPECT_NE(ErrorMessage(ErrorCode::kCapacityExceeded, [&] { OpenLocalModel(kFolder, options); }),
            "");
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).memory_limit, ByteOffset(1000));
  options = SmallOptions();
  options.memory_fraction = 1e-9;
  EXPECT_NE(ErrorMessage(ErrorCode::kCapacityExceeded, [&] { OpenLocalModel(kFolder, options); }),
            "");
  options.memory_fraction = 1.5;
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { OpenLocalModel(kFolder, options); }),
            "memory_fraction: expected above 0 and up to 1, got 1.5");
}

TEST(LocalModelTest, WhatIsNotSetTheDeviceDecides) {
  LocalOptions options;
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).max_step_tokens, TokenCount(512));
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).mode, StepMode::kEager);
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).pool_room, PoolRoom::kModest);
  options.max_seqs = 600;  // each of them may have a token in every step
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).max_step_tokens, TokenCount(600));
  options.max_step_tokens = TokenCount(700);
  options.mode = StepMode::kGraph;
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).max_step_tokens, TokenCount(700));
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).mode, StepMode::kGraph);
  EXPECT_EQ(StepTokensFor(DeviceKind::kCuda, TokenCount(600)), TokenCount(8192));
  EXPECT_EQ(StepTokensFor(DeviceKind::kCuda, TokenCount(16384)), TokenCount(16384));
  EXPECT_EQ(StepModeFor(DeviceKind::kCuda), StepMode::kGraph);
}

TEST(LocalModelTest, SpeculationHasRoomBesideTheTokensOfAStepAndChangesNoAnswer) {
  LocalOptions options = SmallOptions();
  options.speculation = {.algorithm = Speculation::Algorithm::kNgram,
                         .shape = {.steps = 3, .nodes = 4}};
  const RunnerOptions room = MakeRunnerOptions(DeviceKind::kCpu, options);
  const RunnerOptions plain = MakeRunnerOptions(DeviceKind::kCpu, SmallOptions());
  EXPECT_EQ(room.tree_nodes, TokenCount(4));
  EXPECT_EQ(room.max_step_tokens, plain.max_step_tokens + TokenCount(3) * plain.max_seqs);
  std::vector<std::vector<int32_t>> answers;
  for (const LocalOptions& each : {SmallOptions(), options}) {
    LocalModel model = OpenLocalModel(kFolder, each);
    EXPECT_EQ(model.engine->limits().max_step_tokens, plain.max_step_tokens);
    // A prompt that repeats itself: there is something to guess.
    Request request{.sampling = {.temperature = 0}, .max_tokens = 30};
    for (int32_t i = 0; i < 24; ++i) request.prompt.push_back(5 + i % 6);
    answers.push_back(Generate(*model.engine, request)[0].tokens);
    EXPECT_EQ(model.engine->counters().drafts > 0, each.speculation.is_on());
  }
  EXPECT_EQ(answers[0], answers[1]);

  options.speculation.shape = {.steps = 9, .nodes = 10};
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] { MakeRunnerOptions(DeviceKind::kCpu, options); }),
            "speculation: steps: expected 1..8, got 9");
}

// The same model with another number in its config: dummy weights have what is asked for.
std::filesystem::path FolderWith(const std::string& key, int value) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / (key + "_" + std::to_string(value));
  std::filesystem::remove_all(folder);
  std::filesystem::copy(kFolder, folder, std::filesystem::copy_options::recursive);
  Json config = ReadJsonFile(folder / "config.json");
  config[key] = value;
  std::ofstream(folder / "config.json") << config.dump();
  return folder;
}

std::filesystem::path FolderWithDraftLayers(int num_layers) {
  return FolderWith("num_nextn_predict_layers", num_layers);
}

TEST(LocalModelTest, MadeUpWeightsAndNoTokenizerGiveMadeUpTokensThatAreAllText) {
  const std::filesystem::path folder = FolderWith("vocab_size", 1000);
  std::filesystem::remove(folder / "tokenizer.json");
  LocalOptions options = SmallOptions();
  std::vector<std::string> warnings;
  options.events.warning = [&](const std::string& text) { warnings.push_back(text); };
  const LocalModel model = OpenLocalModel(folder, options);
  EXPECT_EQ(warnings, std::vector<std::string>{"tokens are made up, as the weights are: " +
                                               folder.string() + " has no tokenizer"});
  EXPECT_EQ(model.text->tokenizer->vocab_size(), 1000);
  EXPECT_EQ(model.text->chat, std::nullopt);
  EXPECT_EQ(model.text->no_chat, "its tokens are made up, since its folder has no tokenizer");
  // Most are words: bytes by themselves may be no character.
  const TextRequest request{
      .tokens = {.prompt = EncodePrompt(*model.text, "Once upon a time"), .max_tokens = 40}};
  const std::string text = GenerateText(*model.answers, request).at(0).text.content;
  EXPECT_GT(std::ranges::count(text, ' '), 20) << text;

  LocalOptions files = SmallOptions();
  files.load_format = LoadFormat::kSafetensors;
  EXPECT_NE(ErrorMessage(ErrorCode::kInvalidArgument, [&] { OpenLocalModel(folder, files); }), "");
}

TEST(LocalModelTest, ADraftLayerGuessesAndChangesNoAnswer) {
  const std::filesystem::path folder = FolderWithDraftLayers(1);
  const Request request{
      .prompt = {5, 9, 12, 3, 7}, .sampling = {.temperature = 0}, .max_tokens = 30};
  std::vector<std::vector<int32_t>> answers;
  for (const TreeShape& shape :
       {TreeShape{.steps = 3, .nodes = 4}, TreeShape{.steps = 3, .branches = 4, .nodes = 8}}) {
    LocalOptions options = SmallOptions();
    answers.push_back(Generate(*OpenLocalModel(folder, options).engine, request)[0].tokens);
    options.speculation = {.algorithm = Speculation::Algorithm::kEagle, .shape = shape};
    LocalModel model = OpenLocalModel(folder, options);
    EXPECT_EQ(model.engine->limits().lookahead, TokenCount(shape.Room().slots - 1));
    answers.push_back(Generate(*model.engine, request)[0].tokens);
    EXPECT_GT(model.engine->counters().drafts, 0);
    EXPECT_EQ(answers[answers.size() - 2], answers.back());
  }
}

TEST(LocalModelTest, ModelsThatCannotDraftAreRefusedByName) {
  LocalOptions options = SmallOptions();
  options.speculation = {.algorithm = Speculation::Algorithm::kEagle};
  for (const int num_layers : {0, 2}) {
    const std::string message = ErrorMessage(ErrorCode::kInvalidArgument, [&] {
      OpenLocalModel(FolderWithDraftLayers(num_layers), options);
    });
    EXPECT_NE(message.find("drafting: expected a model with one draft layer, got "
                           "num_nextn_predict_layers " +
                           std::to_string(num_layers)),
              std::string::npos)
        << message;
  }
  options.context = TokenCount(4);
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] { MakeRunnerOptions(DeviceKind::kCpu, options); }),
            "speculation: context length: expected more than the 4 tokens of a draft, got 4");
}

LocalOptions HeadOptions(const std::filesystem::path& head) {
  LocalOptions options = SmallOptions();
  options.speculation = {.algorithm = Speculation::Algorithm::kEagle3,
                         .shape = {.steps = 3, .branches = 4, .nodes = 8},
                         .draft_model = head};
  return options;
}

std::filesystem::path HeadFolder(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / name;
}

TEST(LocalModelTest, AnEagle3HeadGuessesAndChangesNoAnswer) {
  const std::filesystem::path folder = FolderWith("num_hidden_layers", 3);
  const std::filesystem::path head =
      testing::WriteRandomHead(HeadFolder("local_head"), ReadModelConfig(folder));
  const Request request{
      .prompt = {5, 9, 12, 3, 7}, .sampling = {.temperature = 0}, .max_tokens = 30};
  const auto plain = Generate(*OpenLocalModel(folder, SmallOptions()).engine, request)[0].tokens;
  LocalOptions options = HeadOptions(head);
  ByteOffset planned{0}, loaded{0};
  options.events = {.planned = [&](const MemoryPlan& plan) { planned = plan.weights; },
                    .loaded =
                        [&](ByteOffset bytes) {
                          EXPECT_GE(bytes, loaded);
                          loaded = bytes;
                        }};
  LocalModel model = OpenLocalModel(folder, options);
  EXPECT_EQ(loaded, planned);
  EXPECT_GT(model.runners.front()->memory_plan().draft_weights, ByteOffset(0));
  EXPECT_EQ(Generate(*model.engine, request)[0].tokens, plain);
  EXPECT_GT(model.engine->counters().drafts, 0);
}

TEST(LocalModelTest, ShapesThatAreChosenChangeNoAnswer) {
  const std::filesystem::path folder = FolderWithDraftLayers(1);
  const Request request{
      .prompt = {5, 9, 12, 3, 7}, .sampling = {.temperature = 0}, .max_tokens = 60};
  const auto plain = Generate(*OpenLocalModel(folder, SmallOptions()).engine, request)[0].tokens;
  LocalOptions options = SmallOptions();
  options.speculation.algorithm = Speculation::Algorithm::kEagle;
  options.speculation.choices = CandidateShapes(4, 8);
  options.speculation.shape = ShapeAround(options.speculation.choices);
  LocalModel model = OpenLocalModel(folder, options);
  EXPECT_EQ(model.engine->limits().lookahead, TokenCount(5 * 4 - 1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Generate(*model.engine, request)[0].tokens, plain);
}

TEST(LocalModelTest, ADraftModelThatCannotBeIsRefusedBeforeMemoryIsTaken) {
  const std::filesystem::path folder = FolderWith("num_hidden_layers", 3);
  const ModelConfig trunk = ReadModelConfig(folder);
  const auto refusal = [&](const LocalOptions& given) {
    LocalOptions options = given;
    options.events.planned = [](const MemoryPlan&) { ADD_FAILURE() << "memory was planned"; };
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { OpenLocalModel(folder, options); });
  };
  const auto refusal_with = [&](const testing::HeadChanges& changes) {
    const std::filesystem::path head = HeadFolder("refused_head");
    std::filesystem::remove_all(head);
    return refusal(HeadOptions(testing::WriteRandomHead(head, trunk, changes)));
  };
  const auto key = [](const std::string& name, const Json& value) {
    return testing::HeadChanges{.config = [=](Json& config) { config[name] = value; }};
  };
  const Json aux = {{"eagle_aux_hidden_state_layer_ids", {0, 1, 3}}};
  const std::pair<testing::HeadChanges, const char*> cases[] = {
      {key("hidden_size", 128), "hidden_size: expected the target model's, 64, got 128"},
      {key("vocab_size", 900), "vocab_size: expected the target model's, 909, got 900"},
      {key("eagle_config", aux), "eagle_aux_hidden_state_layer_ids"},
      {key("draft_vocab_size", 300), "tensor 'lm_head.weight': expected shape [300, 64]"},
      {{.tensors = [](auto& tensors) { tensors.pop_back(); }}, "\"d2t\""},
      {{.tensors = [](auto& tensors) { tensors.front().name = "fcs.weight"; }}, "\"fc.weight\""},
      {{.tensors =
            [](auto& tensors) {
              tensors.push_back(tensors.front());
              tensors.back().name = "midlayer.extra.weight";
            }},
       "'midlayer.extra.weight'"},
      {{.tensors =
            [](auto& tensors) {  // offsets of 2 * i, as if all were behind the last token
              static const std::vector<int64_t> far(303, 909);
              tensors.back().bytes = std::as_bytes(std::span(far));
            }},
       "tensor 'd2t': expected offsets to tokens 0..908, got 909 at [0]"}};
  for (const auto& [changes, expected] : cases) {
    const std::string message = refusal_with(changes);
    EXPECT_NE(message.find(expected), std::string::npos) << message << "\nexpected " << expected;
  }
  EXPECT_NE(refusal(HeadOptions("/no/such/folder")).find("draft model: expected a folder"),
            std::string::npos);
  EXPECT_EQ(refusal(HeadOptions("")),
            "speculation: eagle3: expected the folder of a draft model, got none");
  LocalOptions ranks = HeadOptions("/anything");
  ranks.tp_size = 2;
  EXPECT_EQ(refusal(ranks), "speculation: eagle3: expected one rank, got 2");
}

TEST(DeviceTest, AutoIsTheGpuWhereItCanBeUsedAndOtherwiseTheCpu) {
  const bool usable = DeviceProblem(DeviceKind::kCuda).empty();
  EXPECT_EQ(ChooseDevice(DeviceChoice::kAuto), usable ? DeviceKind::kCuda : DeviceKind::kCpu);
  EXPECT_EQ(ChooseDevice(DeviceChoice::kCpu), DeviceKind::kCpu);
  EXPECT_EQ(DeviceProblem(DeviceKind::kCpu), "");
}

TEST(DeviceTest, AGpuThatCannotBeUsedIsRefusedWithTheReason) {
  const std::string problem = DeviceProblem(DeviceKind::kCuda);
  if (problem.empty()) GTEST_SKIP() << "there is a GPU that can be used";
  LocalOptions options = SmallOptions();
  options.device = DeviceChoice::kCuda;
  const std::string message = "device: expected one that can be used, got cuda: " + problem;
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { OpenLocalModel(kFolder, options); }),
            message);
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [] { MemoryOf(DeviceKind::kCuda); }),
            message);
  EXPECT_EQ(problem.find("built without CUDA") == std::string::npos, IsBuiltWithCuda());
}

}  // namespace
}  // namespace quire
