#ifndef QUIRE_CLI_SUGGEST_PATH_H_
#define QUIRE_CLI_SUGGEST_PATH_H_

#include <filesystem>
#include <string>

namespace quire::cli {

// "; did you mean PATH?" for a path that does not exist, or nothing: its first part that is not there is
// compared with what is in its folder. Nothing if all of the path is there.
std::string DidYouMeanPath(const std::filesystem::path& path);

}  // namespace quire::cli

#endif  // QUIRE_CLI_SUGGEST_PATH_H_
