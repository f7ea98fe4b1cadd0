#include "cli/suggest_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/suggest.h"
#include "io/json.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostEntries = 10000;  // of a folder that are looked at

std::vector<std::string> EntriesOf(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end;
       !error && entry != end && names.size() < kMostEntries; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);  // a folder has no order of its own
  return names;
}

}  // namespace

std::string DidYouMeanPath(const fs::path& path) {
  std::error_code error;
  fs::path there;
  auto part = path.begin();
  for (; part != path.end(); ++part) {
    if (!fs::exists(there / *part, error)) break;
    there /= *part;
  }
  if (part == path.end()) return "";
  const auto name = NearestName(part->string(), EntriesOf(there.empty() ? "." : there));
  if (!name) return "";
  there /= *name;
  for (++part; part != path.end(); ++part) there /= *part;
  if (!fs::exists(there, error)) return "";
  return fmt::format("; did you mean {}?", QuoteForMessage(there.string()));
}

}  // namespace quire::cli
