// Lines from a person at a terminal, who edits them and fetches earlier ones back.
#ifndef QUIRE_CLI_LINE_EDITOR_H_
#define QUIRE_CLI_LINE_EDITOR_H_

#include <memory>
#include <string>

#include "cli/interrupt.h"
#include "cli/line_reader.h"

namespace quire::cli {

// Of stdin; shows the line on stderr. The keys are those of Emacs, or what ~/.editrc says; up and
// down go through the lines of this editor, which are kept nowhere else. One at a time in a
// process.
class LineEditor {
 public:
  // Whether stdin and stderr are a terminal to edit lines at.
  static bool CanEdit();

  // Throws std::runtime_error if the terminal cannot be used.
  explicit LineEditor(const std::string& prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Shows the prompt, and does what LineReader::Next does. Between two calls the terminal
  // edits nothing, and is in its usual mode.
  LineReader::Outcome Next(const Interrupt& interrupt, std::string& line);

  struct State;  // libedit's, for what libedit calls

 private:
  std::unique_ptr<State> state_;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_LINE_EDITOR_H_
