#include "cli/local_model.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "cli/model_name.h"
#include "local/model_folder.h"

namespace quire::cli {

RunnerOptions OptionsForOne(const ModelConfig& config) {
  return {.context = Min(TokenCount(config.max_context), kMostContextForOne), .max_seqs = 1};
}

LocalModel LoadLocalModel(const ModelFlags& flags, const LocalModelOptions& options) {
  OpenedModel opened = OpenModel(FindModel(flags).folder, flags.load_format);
  LocalOptions local = MakeLocalOptions(flags, options.defaults(*opened.config));
  local.scheduler = options.scheduler;
  local.events = PrintLoading(options.messages, options.say);
  return StartLocalModel(std::move(opened), local);
}

void RequireRoom(const LocalModel& model, int64_t prompt_tokens) {
  const int64_t context = model.runner->limits().context.raw();
  const int64_t most = model.config->max_context;
  const std::string hint =
      most > context ? fmt::format("; --context-length goes up to {}", most) : "";
  Require(prompt_tokens + 1 <= context,
          "the prompt has {} tokens, and with the context length of {} up to {} leave room for an "
          "answer{}",
          prompt_tokens, context, context - 1, hint);
}

}  // namespace quire::cli
