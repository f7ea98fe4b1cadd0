#include "cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace quire::cli {
namespace {

void RequireSystem(bool condition, const char* what) {
  if (!condition) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

bool LineReader::TakeLine(std::string& line) {
  const size_t end = held_.find('\n');
  if (end == std::string::npos) return false;
  line = held_.substr(0, end);
  held_.erase(0, end + 1);
  return true;
}

LineReader::Outcome LineReader::Next(const Interrupt& interrupt, std::string& line) {
  while (true) {
    if (interrupt.raised()) {
      held_.clear();
      return Outcome::kInterrupted;
    }
    if (TakeLine(line)) return Outcome::kLine;
    pollfd wanted[] = {{.fd = fd_, .events = POLLIN, .revents = 0},
                       {.fd = interrupt.fd(), .events = POLLIN, .revents = 0}};
    RequireSystem(poll(wanted, 2, -1) >= 0 || errno == EINTR, "poll");
    if (interrupt.raised() || wanted[0].revents == 0) continue;
    char bytes[4096];
    const ssize_t size = read(fd_, bytes, sizeof(bytes));
    RequireSystem(size >= 0 || errno == EINTR, "stdin");
    if (size > 0) held_.append(bytes, static_cast<size_t>(size));
    if (size != 0) continue;
    line = std::exchange(held_, {});
    return line.empty() ? Outcome::kEnd : Outcome::kLine;
  }
}

}  // namespace quire::cli
