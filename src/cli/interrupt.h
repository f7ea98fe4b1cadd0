// Ctrl-C as something to ask for, where it shall not end the program.
#ifndef QUIRE_CLI_INTERRUPT_H_
#define QUIRE_CLI_INTERRUPT_H_

#include <csignal>

namespace quire::cli {

inline constexpr int kInterruptedCode = 130;  // 128 + SIGINT, as shells say it

// While there is one, SIGINT ends nothing: it is noted here. One at a time in a process.
class Interrupt {
 public:
  // kOnce: the first is noted, and the next one ends the program, should it hang.
  enum class Times { kAlways, kOnce };

  explicit Interrupt(Times times);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Whether one came since the last Clear.
  bool raised() const;
  void Clear();
  // Readable while raised: for poll(), which then cannot miss one.
  int fd() const { return fd_; }

 private:
  int fd_ = -1;  // of a pipe, which the signal handler writes to
  struct sigaction before_ = {};
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_INTERRUPT_H_
