#include "base/error.h"

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
  throw InternalError(fmt::format("{}:{}: check failed: {}{}{}", file, line, condition,
                                  values.empty() ? "" : ": ", values));
}

}  // namespace internal
}  // namespace quire
