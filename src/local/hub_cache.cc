#include "local/hub_cache.h"

#include <algorithm>
#include <fstream>
#include <system_error>

namespace quire {
namespace {

namespace fs = std::filesystem;

// One half of a name: letters, digits, and . _ - inside.
bool IsHubWord(std::string_view word) {
  constexpr size_t kLongest = 96;  // that the Hub takes
  if (word.empty() || word.size() > kLongest || word.front() == '.' || word.front() == '-') {
    return false;
  }
  return std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

fs::path HubCacheFolder(const std::function<const char*(const char* name)>& variable) {
  const auto given = [&](const char* name) {
    const char* value = variable(name);
    return fs::path(value == nullptr ? "" : value);
  };
  // The order of huggingface_hub's constants.py; HUGGINGFACE_HUB_CACHE is the older name.
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const fs::path folder = given(name); !folder.empty()) return folder;
  }
  if (const fs::path home = given("HF_HOME"); !home.empty()) return home / "hub";
  fs::path caches = given("XDG_CACHE_HOME");
  if (caches.empty()) caches = given("HOME") / ".cache";
  return caches / "huggingface" / "hub";
}

bool IsHubName(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && IsHubWord(text.substr(0, slash)) &&
         IsHubWord(text.substr(slash + 1));
}

std::optional<fs::path> FindInHubCache(const fs::path& cache, const std::string& name) {
  if (!IsHubName(name)) return std::nullopt;
  const size_t slash = name.find('/');
  const fs::path model =
      cache / ("models--" + name.substr(0, slash) + "--" + name.substr(slash + 1));
  std::ifstream in(model / "refs" / "main");
  std::string commit;
  if (!(in >> commit) || !IsHubWord(commit)) return std::nullopt;
  const fs::path folder = model / "snapshots" / commit;
  std::error_code ignored;
  if (!fs::exists(folder / "config.json", ignored)) return std::nullopt;
  return folder;
}

}  // namespace quire
