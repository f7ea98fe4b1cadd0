#include "cli/local_model.h"

#include <fmt/format.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quire::cli {

namespace fs = std::filesystem;

fs::path DefaultModel() {
  const fs::path name = fs::path("models") / "quire-grade-school";
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string places;
  // build/PRESET/quire and bin/quire.
  for (const fs::path& place :
       {fs::path(), program / ".." / "..", program / ".." / "share" / "quire"}) {
    const fs::path folder = (place / name).lexically_normal();
    if (fs::exists(folder / "config.json", ignored) && HasWeightFiles(folder)) return folder;
    places += (places.empty() ? "" : ", ") + folder.string();
  }
  throw Error(ErrorCode::kInvalidArgument,
              "MODEL: expected the folder of a model, got none, and the bundled one is not in {}; "
              "name it, or set QUIRE_MODEL",
              places);
}

RunnerOptions OptionsForOne(const ModelConfig& config) {
  return {.context = Min(TokenCount(config.max_context), kMostContextForOne), .max_seqs = 1};
}

namespace {

// Published folders are right; one that is not is better known before its first strange answer.
void WarnOfVocabulary(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.vocab_size() <= config.vocab_size) return;
  fmt::print(stderr,
             "warning: the tokenizer has {} tokens and the model {}: prompts with the others are "
             "refused\n",
             tokenizer.vocab_size(), config.vocab_size);
}

}  // namespace

LocalModel LoadLocalModel(const ModelFlags& flags, const LocalModelOptions& options) {
  LocalModel model;
  model.folder = flags.model.empty() ? DefaultModel() : flags.model;
  OpenedModel opened = OpenModel(model.folder, flags.load_format);
  model.text = std::make_unique<const TextModel>(OpenTextModel(model.folder));
  WarnOfVocabulary(*model.text->tokenizer, *opened.config);
  const RunnerOptions room = MakeOptions(flags, options.defaults(*opened.config));
  model.runner = LoadRunner(opened, flags.device, room, options.messages);
  model.config = std::move(opened.config);
  model.engine = std::make_unique<Engine>(*model.runner, options.scheduler);
  model.answers = std::make_unique<TextEngine>(*model.engine, *model.text);
  return model;
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
