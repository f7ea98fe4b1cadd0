// The model that the flags name, loaded on this machine.
#ifndef QUIRE_CLI_LOCAL_MODEL_H_
#define QUIRE_CLI_LOCAL_MODEL_H_

#include <cstdint>
#include <functional>

#include "cli/flags.h"
#include "cli/load.h"
#include "engine/scheduler.h"
#include "local/local_model.h"
#include "model/config.h"
#include "runner/runner_options.h"

namespace quire::cli {

// For one person at a terminal, who sends one request at a time: one sequence of the model's context,
// or of kMostContextForOne tokens if that is less, so that a context of 160k tokens takes no memory
// unless it is asked for.
inline constexpr TokenCount kMostContextForOne{32768};
RunnerOptions OptionsForOne(const ModelConfig& config);

// What a command that finds fault with its flags, its prompt or its model looks at before weights
// are read.
struct BeforeLoading {
  const TextModel& text;
  const ModelConfig& config;
  TokenCount context;
};

struct LocalModelOptions {
  // Where flags leave it open.
  std::function<RunnerOptions(const ModelConfig& config)> defaults = OptionsForOne;
  std::function<void(const BeforeLoading& before)> check = {};  // throws what is wrong
  SchedulerOptions scheduler = {};
  LoadMessages messages = LoadMessages::kShown;
  SayLine say = SayOnStderr;
};

// OpenLocalModel for the model that FindModel finds.
LocalModel LoadLocalModel(const ModelFlags& flags, const LocalModelOptions& options = {});

// Throws Error(kInvalidArgument), with both counts, unless there is room for a prompt of so many tokens
// and an answer.
void RequireRoom(const ModelConfig& config, TokenCount context, int64_t prompt_tokens);
// Throws Error(kInvalidArgument) if the model has no chat template.
void RequireChat(const TextModel& text);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOCAL_MODEL_H_
