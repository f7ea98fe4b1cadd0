#include "cli/model_name.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "cli/suggest_path.h"
#include "io/json.h"
#include "local/hub_cache.h"
#include "local/model_folder.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

std::string LastName(fs::path folder) {
  folder = fs::absolute(folder).lexically_normal();
  return folder.has_filename() ? folder.filename().string()
                               : folder.parent_path().filename().string();
}

fs::path HubCache() {
  return HubCacheFolder([](const char* name) { return std::getenv(name); });
}

// What was typed of a model; empty: nothing.
std::string ModelText(const ModelFlags& flags) {
  const bool typed_both = !flags.model.empty() && flags.named && flags.named->where == "--model";
  Require(!typed_both, "MODEL, --model: expected one of them, got both");
  if (!flags.model.empty()) return flags.model;
  return flags.named ? flags.named->text : "";
}

}  // namespace

fs::path BundledModel() {
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

NamedFolder FindModel(const ModelFlags& flags) {
  const std::string text = ModelText(flags);
  const fs::path folder = text.empty() ? BundledModel() : fs::path(text);
  if (text.empty() || fs::exists(folder)) return {.folder = folder, .name = LastName(folder)};
  const std::string near = DidYouMeanPath(folder);
  Require(IsHubName(text),
          "model: expected a folder with config.json, got {}, which does not exist{}",
          QuoteForMessage(text), near);
  const fs::path cache = HubCache();
  const std::optional<fs::path> found = FindInHubCache(cache, text);
  Require(
      found.has_value(),
      "model: expected a folder with config.json, got {}, which does not exist and is not in the "
      "Hugging Face cache, {}{}",
      QuoteForMessage(text), cache.string(),
      near.empty() ? "; this downloads it: hf download " + text : near);
  return {.folder = *found, .name = text};
}

bool LooksLikeModel(const std::string& text) {
  std::error_code ignored;
  if (fs::is_directory(text, ignored) || FindInHubCache(HubCache(), text)) return true;
  return text.find('/') != std::string::npos && text.find_first_of(" \t\r\n") == std::string::npos;
}

}  // namespace quire::cli
