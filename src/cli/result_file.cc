#include "cli/result_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "io/json.h"

namespace quire::cli {

ResultFile::ResultFile(std::string_view flag, std::string path) : path_(std::move(path)) {
  if (path_.empty() || path_ == "-") return;
  out_.open(path_);
  Require(out_.is_open(), "{}: expected a file that can be written, got {}", flag,
          QuoteForMessage(path_));
}

void ResultFile::Write(std::string_view text) {
  if (!out_.is_open()) return;
  out_ << text << std::flush;
  if (!out_) throw std::system_error(errno, std::generic_category(), path_);
}

}  // namespace quire::cli
