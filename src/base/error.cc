#include "base/error.h"

#include <algorithm>
#include <string_view>

namespace quire {

const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kCapacityExceeded:
      return "capacity exceeded";
    case ErrorCode::kOverflow:
      return "overflow";
  }
  return "unknown";
}

namespace internal {

void FailCheck(const char* file, int line, const char* condition, const std::string& values) {
  // From the source tree on: the message may go to someone on another machine.
  std::string_view path = file;
  path.remove_prefix(std::min(path.rfind("src/"), path.size()) % path.size());
  throw InternalError(fmt::format("{}:{}: check failed: {}{}{}", path, line, condition,
                                  values.empty() ? "" : ": ", values));
}

}  // namespace internal
}  // namespace quire
