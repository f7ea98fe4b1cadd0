// "Did you mean": what is most like a name that is not there.
#ifndef QUIRE_CLI_SUGGEST_H_
#define QUIRE_CLI_SUGGEST_H_

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quire::cli {

// The one of `names` that a person who typed `word` may have meant: the nearest by letters added,
// left out, replaced or swapped, if those are few; or the only one that begins with `word`.
// nullopt: none.
std::optional<std::string> NearestName(std::string_view word, std::span<const std::string> names);

// "; did you mean NAME?", or nothing.
std::string DidYouMean(std::string_view word, std::span<const std::string> names);

// The same for a path that does not exist: its first part that is not there is compared with what
// is in its folder. Nothing if all of the path is there.
std::string DidYouMeanPath(const std::filesystem::path& path);

}  // namespace quire::cli

#endif  // QUIRE_CLI_SUGGEST_H_
