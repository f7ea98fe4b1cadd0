#include "cli/local_model.h"

#include <fmt/format.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "local/model_folder.h"

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

LocalModel LoadLocalModel(const ModelFlags& flags, const LocalModelOptions& options) {
  OpenedModel opened =
      OpenModel(flags.model.empty() ? DefaultModel() : flags.model, flags.load_format);
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
