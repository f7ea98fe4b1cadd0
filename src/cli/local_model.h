// A model of this machine, from its folder to text in and out.
#ifndef QUIRE_CLI_LOCAL_MODEL_H_
#define QUIRE_CLI_LOCAL_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "cli/flags.h"
#include "cli/load.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "model/config.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"
#include "textgen/text_engine.h"
#include "textgen/text_model.h"

namespace quire::cli {

// What answers, and what it is made of: each member uses those above it.
struct LocalModel {
  std::filesystem::path folder;
  std::unique_ptr<const ModelConfig> config;
  std::unique_ptr<const TextModel> text;
  std::unique_ptr<MeteredRunner> runner;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TextEngine> answers;
};

// The folder of the model that runs where none is named: the bundled one, from models/ here, from the
// source tree that this program was built in, or from where it was installed. Throws
// Error(kInvalidArgument) with where it was looked for.
std::filesystem::path DefaultModel();

// For one person at a terminal, who sends one request at a time: one sequence of the model's context,
// or of kMostContextForOne tokens if that is less, so that a context of 160k tokens takes no memory
// unless it is asked for.
inline constexpr TokenCount kMostContextForOne{32768};
RunnerOptions OptionsForOne(const ModelConfig& config);

struct LocalModelOptions {
  // Where flags leave it open.
  std::function<RunnerOptions(const ModelConfig& config)> defaults = OptionsForOne;
  SchedulerOptions scheduler = {};
  LoadMessages messages = LoadMessages::kShown;
};

// Opens the folder, loads the weights and starts the engine. What the folder lacks is found before the
// weights are read. Throws Error as OpenModel, OpenTextModel and MakeMemoryPlan do.
LocalModel LoadLocalModel(const ModelFlags& flags, const LocalModelOptions& options = {});

// Throws Error(kInvalidArgument), with both counts, unless there is room for a prompt of so many tokens
// and an answer.
void RequireRoom(const LocalModel& model, int64_t prompt_tokens);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOCAL_MODEL_H_
