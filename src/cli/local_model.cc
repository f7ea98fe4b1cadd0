#include "cli/local_model.h"

#include <fmt/format.h>

#include <memory>
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
  if (options.check) {
    const auto text = std::make_shared<const TextModel*>();
    local.events.opened = [text](const TextModel& opened_text) { *text = &opened_text; };
    local.events.planned = [text, check = options.check, config = opened.config.get(),
                            print = local.events.planned](const MemoryPlan& plan) {
      check({.text = **text, .config = *config, .context = plan.limits.context});
      if (print) print(plan);
    };
  }
  const bool could_draft = opened.config->num_draft_layers == 1 && !local.speculation.is_on();
  if (could_draft && options.messages == LoadMessages::kShown) {
    options.say(
        "the model has a draft layer: --speculative-algorithm eagle guesses tokens with it");
  }
  return StartLocalModel(std::move(opened), local);
}

void RequireRoom(const ModelConfig& config, TokenCount context, int64_t prompt_tokens) {
  const int64_t most = config.max_context;
  const std::string hint =
      most > context.raw() ? fmt::format("; --context-length goes up to {}", most) : "";
  Require(prompt_tokens + 1 <= context.raw(),
          "the prompt has {} tokens, and with the context length of {} up to {} leave room for an "
          "answer{}",
          prompt_tokens, context, context.raw() - 1, hint);
}

void RequireChat(const TextModel& text) {
  Require(text.chat.has_value(), "this model has no chat template: {}", text.no_chat);
}

}  // namespace quire::cli
