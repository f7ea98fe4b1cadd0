// A log that holds up nobody: lines are queued, and written by a thread of its own.
#ifndef QUIRE_CLI_LOG_WRITER_H_
#define QUIRE_CLI_LOG_WRITER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace quire::cli {

class LogWriter {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // `fd` stays open, and is the caller's. At most `max_bytes` of lines wait,
  // beside those that are being written.
  explicit LogWriter(int fd, size_t max_bytes = kMaxBytes);
  // Writes what waits, but gives up a log that takes nothing for a second.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // From any thread; never waits for the log. A line that does not fit is dropped: once there is room
  // again, the log says how many were.
  void Put(std::string_view line);

  int64_t num_dropped() const { return num_dropped_; }

 private:
  void Run();
  void Write(std::string_view text) const;

  const int fd_;
  const size_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::string waiting_;         // lines with their ends
  int64_t num_unreported_ = 0;  // dropped, and the log does not say so yet
  std::atomic<int64_t> num_dropped_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOG_WRITER_H_
