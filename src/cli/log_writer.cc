#include "cli/log_writer.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace quire::cli {
namespace {

constexpr int kLookMs = 100;   // how often a log that takes nothing is asked whether to go on
constexpr int kPatience = 10;  // looks without a byte taken, at the end

}  // namespace

LogWriter::LogWriter(int fd, size_t max_bytes)
    : fd_(fd), max_bytes_(max_bytes), thread_([this] { Run(); }) {}

LogWriter::~LogWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  came_.notify_one();
  thread_.join();
}

void LogWriter::Put(std::string_view line) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() + line.size() + 1 > max_bytes_) {
      ++num_dropped_;
      ++num_unreported_;
      return;
    }
    waiting_ += line;
    waiting_ += '\n';
  }
  came_.notify_one();
}

void LogWriter::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [&] { return stopping_ || !waiting_.empty() || num_unreported_ > 0; });
    if (waiting_.empty() && num_unreported_ == 0) return;
    // What was dropped came behind these.
    std::string text = std::exchange(waiting_, {});
    const int64_t dropped = std::exchange(num_unreported_, 0);
    lock.unlock();
    if (dropped > 0) {
      text += fmt::format("quire: {} lines of this log were dropped: it was not read\n", dropped);
    }
    Write(text);
    lock.lock();
  }
}

// A pipe that poll says takes something takes up to PIPE_BUF bytes without waiting. A log that cannot be
// written is no reason to stop serving.
void LogWriter::Write(std::string_view text) const {
  int num_looks = 0;
  while (!text.empty()) {
    pollfd file{.fd = fd_, .events = POLLOUT, .revents = 0};
    const int ready = ::poll(&file, 1, kLookMs);
    if (ready < 0 && errno != EINTR) return;
    if (ready <= 0) {
      if (stopping_ && ++num_looks >= kPatience) return;
      continue;
    }
    const ssize_t written =
        ::write(fd_, text.data(), std::min(text.size(), static_cast<size_t>(PIPE_BUF)));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written <= 0) continue;
    text.remove_prefix(static_cast<size_t>(written));
    num_looks = 0;
  }
}

}  // namespace quire::cli
