#include "local/local_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "testing/error_message.h"

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
  EXPECT_EQ(model.runner->limits().context, TokenCount(256));
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
  EXPECT_EQ(model.runner->memory_plan().weights, planned);
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

// The same model, said to have draft layers: dummy weights have what is asked for.
std::filesystem::path FolderWithDraftLayers(int num_layers) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("drafts_" + std::to_string(num_layers));
  std::filesystem::remove_all(folder);
  std::filesystem::copy(kFolder, folder, std::filesystem::copy_options::recursive);
  Json config = ReadJsonFile(folder / "config.json");
  config["num_nextn_predict_layers"] = num_layers;
  std::ofstream(folder / "config.json") << config.dump();
  return folder;
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
