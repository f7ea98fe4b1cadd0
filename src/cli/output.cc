#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace quire::cli {

void WriteResult(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw std::system_error(errno, std::generic_category(), "stdout");
  }
}

}  // namespace quire::cli
