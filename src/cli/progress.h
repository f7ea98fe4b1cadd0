// What is going on, on stderr: stdout is for results.
#ifndef QUIRE_CLI_PROGRESS_H_
#define QUIRE_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/units.h"

namespace quire::cli {

// One line that changes, if stderr is a terminal; nothing elsewhere.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { Clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool is_terminal() const { return is_terminal_; }
  void Show(const std::string& text);
  void Clear();

 private:
  bool is_terminal_;
  bool is_shown_ = false;
};

// "[#####.....]"
std::string Bar(double part);

// Weights while they are loaded: a bar on a terminal, and a line at the end. Of several ranks they are
// one rank's, and the line has no rate: ranks may load at once, or one after the other.
class LoadingBar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LoadingBar(ByteOffset total, int32_t num_ranks = 1,
                      std::function<Clock::time_point()> now = Clock::now);
  void Update(ByteOffset loaded);
  // Clears the bar, and returns how long it took until all of the weights were there.
  std::string Finish();

 private:
  double Seconds() const;
  std::string RateOf(ByteOffset loaded) const;

  StatusLine line_;
  ByteOffset total_;
  int32_t num_ranks_;
  std::function<Clock::time_point()> now_;
  Clock::time_point begin_ = now_();
  std::optional<double> all_loaded_ = {};  // seconds
  double next_update_ = 0;                 // seconds
};

// A known number of tasks, one after the other: a bar on a terminal, a line each elsewhere.
class TaskBar {
 public:
  explicit TaskBar(int num_tasks) : num_tasks_(num_tasks) {}
  void Begin(const std::string& task);
  // Makes room for other lines.
  void Pause() { line_.Clear(); }

 private:
  StatusLine line_;
  int num_tasks_;
  int num_begun_ = 0;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_PROGRESS_H_
