// Models that Hugging Face's tools have downloaded on this machine.
#ifndef QUIRE_LOCAL_HUB_CACHE_H_
#define QUIRE_LOCAL_HUB_CACHE_H_

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// The folder that those tools keep models in: what HF_HUB_CACHE says, or HF_HOME/hub, or
// huggingface/hub in XDG_CACHE_HOME or ~/.cache. `variable` returns a variable of the environment,
// or nullptr.
std::filesystem::path HubCacheFolder(const std::function<const char*(const char* name)>& variable);

// Whether `text` can be the name of a model there: "owner/name".
bool IsHubName(std::string_view text);

// The folder with the files of `name`, an "owner/name", as its branch main was when it was
// downloaded. nullopt: it is not there, or not with a config.json.
std::optional<std::filesystem::path> FindInHubCache(const std::filesystem::path& cache,
                                                    const std::string& name);

}  // namespace quire

#endif  // QUIRE_LOCAL_HUB_CACHE_H_
