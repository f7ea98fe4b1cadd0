// Lines from a terminal, a pipe or a file, with an eye on ctrl-C.
#ifndef QUIRE_CLI_LINE_READER_H_
#define QUIRE_CLI_LINE_READER_H_

#include <string>

#include "cli/interrupt.h"

namespace quire::cli {

class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted };

  // Reads from `fd`, which stays open.
  explicit LineReader(int fd) : fd_(fd) {}

  // kLine: the next one, without its newline; the last may have none. kInterrupted: whatever was read and
  // not returned is forgotten. Throws std::system_error if the file cannot be read.
  Outcome Next(const Interrupt& interrupt, std::string& line);

 private:
  bool TakeLine(std::string& line);

  int fd_;
  std::string held_;  // read, and not given out
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_LINE_READER_H_
