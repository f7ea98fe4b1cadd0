// Texts that flags name files for.
#ifndef QUIRE_CLI_INPUT_H_
#define QUIRE_CLI_INPUT_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace quire::cli {

// Far more than any prompt or list of tokens that a model takes: a million tokens are 8 MB of either.
inline constexpr int64_t kMaxInputBytes = int64_t{32} << 20;

// All of the file. Throws Error(kInvalidArgument), naming `flag`, if it cannot be read or has more than
// `max_bytes`, of which no more than that is read: a file may have no end.
std::string ReadFile(std::string_view flag, const std::filesystem::path& file,
                     int64_t max_bytes = kMaxInputBytes);
// The same of stdin, for "-".
std::string ReadFileOrStdin(std::string_view flag, const std::string& file,
                            int64_t max_bytes = kMaxInputBytes);

}  // namespace quire::cli

#endif  // QUIRE_CLI_INPUT_H_
