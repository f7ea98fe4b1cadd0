// The ways in which something can be wrong.
//
//   Error          the world's fault: a flag, a file, a request, an argument of the public API. The
//                  message names the thing, what was expected and what came. Nothing was written.
//   InternalError  our fault: a QUIRE_CHECK did not hold.
//   DeviceError    of what computes: a call of an accelerator's driver failed, or a rank did. It is known
//                  here, where there is neither: those who answer requests must tell it from the others.
//
// Running out of pages is none of them: it is a std::optional.
#ifndef QUIRE_BASE_ERROR_H_
#define QUIRE_BASE_ERROR_H_

#include <stdexcept>
#include <string>
#include <utility>

#include "base/format.h"

namespace quire {

enum class ErrorCode {
  kInvalidArgument,   // a value that cannot be right
  kCapacityExceeded,  // right in itself, but more than was planned for
  kOverflow,          // does not fit its integer type
};

const char* ErrorCodeName(ErrorCode code);

class Error : public std::runtime_error {
 public:
  template <class... Args>
  Error(ErrorCode code, fmt::format_string<Args...> message, Args&&... args)
      : std::runtime_error(fmt::format(message, std::forward<Args>(args)...)), code_(code) {}

  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class DeviceError : public std::runtime_error {
 public:
  enum class Lasts {
    kOnce,     // the call failed; others may succeed
    kForever,  // the device's state is lost: every later call of this process fails too
  };
  DeviceError(Lasts lasts, const std::string& message)
      : std::runtime_error(message), lasts_(lasts) {}

  bool is_sticky() const { return lasts_ == Lasts::kForever; }

 private:
  Lasts lasts_;
};

// Throws Error(kInvalidArgument, message) unless `condition`.
template <class... Args>
void Require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) {
    throw Error(ErrorCode::kInvalidArgument, message, std::forward<Args>(args)...);
  }
}

namespace internal {
[[noreturn]] void FailCheck(const char* file, int line, const char* condition,
                            const std::string& values);
inline std::string FormatCheck() { return {}; }
template <class... Args>
std::string FormatCheck(fmt::format_string<Args...> message, Args&&... args) {
  return fmt::format(message, std::forward<Args>(args)...);
}
}  // namespace internal

}  // namespace quire

// QUIRE_CHECK(condition) or QUIRE_CHECK(condition, "values {} {}", a, b): always on; throws
// InternalError with the place, the condition and the values.
#define QUIRE_CHECK(condition, ...)                                              \
  do {                                                                           \
    if (!(condition)) [[unlikely]] {                                             \
      ::quire::internal::FailCheck(__FILE__, __LINE__, #condition,               \
                                   ::quire::internal::FormatCheck(__VA_ARGS__)); \
    }                                                                            \
  } while (false)

// The same for inner loops: compiled only with QUIRE_DCHECKS.
#ifdef QUIRE_DCHECKS
#define QUIRE_DCHECK(...) QUIRE_CHECK(__VA_ARGS__)
#else
#define QUIRE_DCHECK(...) \
  do {                    \
  } while (false)
#endif

#endif  // QUIRE_BASE_ERROR_H_
