#include "cli/input.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "cli/suggest_path.h"
#include "io/json.h"

namespace quire::cli {
namespace {

// Grows with what comes.
std::string ReadAll(std::string_view flag, const std::string& name, std::FILE* in,
                    int64_t max_bytes) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  std::string text;
  while (std::ssize(text) <= max_bytes) {
    const size_t before = text.size();
    text.resize(before + static_cast<size_t>(std::min(kPiece, max_bytes + 1 - std::ssize(text))));
    const size_t count = std::fread(text.data() + before, 1, text.size() - before, in);
    text.resize(before + count);
    if (count > 0) continue;
    Require(std::ferror(in) == 0, "{}: {}: cannot read: {}", flag, QuoteForMessage(name),
            std::generic_category().message(errno));
    return text;
  }
  throw Error(ErrorCode::kInvalidArgument, "{}: {}: expected at most {} bytes, got more", flag,
              QuoteForMessage(name), max_bytes);
}

}  // namespace

std::string ReadFile(std::string_view flag, const std::filesystem::path& file, int64_t max_bytes) {
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file.c_str(), "rb"), close);
  const int error = errno;
  Require(in != nullptr, "{}: expected a file that can be read, got {}: {}{}", flag,
          QuoteForMessage(file.string()), std::generic_category().message(error),
          error == ENOENT ? DidYouMeanPath(file) : "");
  return ReadAll(flag, file.string(), in.get(), max_bytes);
}

std::string ReadFileOrStdin(std::string_view flag, const std::string& file, int64_t max_bytes) {
  return file == "-" ? ReadAll(flag, "stdin", stdin, max_bytes) : ReadFile(flag, file, max_bytes);
}

}  // namespace quire::cli
