#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "cli/colour.h"

namespace quire::cli {

struct LineEditor::State {
  std::string prompt;
  EditLine* editor = nullptr;
  History* history = nullptr;
  const Interrupt* interrupt = nullptr;  // while a line is read
  mbstate_t decoder = {};

  ~State() {
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
  }
};

namespace {

constexpr int kHistoryLines = 1000;
constexpr wchar_t kReplacement = 0xFFFD;

// Libedit asks the locale what bytes mean; where nobody has set one, they are UTF-8 all the same.
void UseUtf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

LineEditor::State* StateOf(EditLine* editor) {
  void* state = nullptr;
  el_get(editor, EL_CLIENTDATA, &state);
  return static_cast<LineEditor::State*>(state);
}

char* PromptOf(EditLine* editor) { return StateOf(editor)->prompt.data(); }

// One byte of stdin. 1, 0 at its end, or -1: it cannot be read, or `interrupt` was raised first.
int ReadByte(const Interrupt& interrupt, char& byte) {
  while (true) {
    pollfd wanted[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                       {.fd = interrupt.fd(), .events = POLLIN, .revents = 0}};
    if (poll(wanted, 2, -1) < 0 && errno != EINTR) return -1;
    if (interrupt.raised()) return -1;
    if (wanted[0].revents == 0) continue;
    const ssize_t size = read(STDIN_FILENO, &byte, 1);
    if (size >= 0 || errno != EINTR) return static_cast<int>(size);
  }
}

// What libedit calls for the next character.
int ReadCharacter(EditLine* editor, wchar_t* character) {
  LineEditor::State& state = *StateOf(editor);
  while (true) {
    char byte = 0;
    const int size = ReadByte(*state.interrupt, byte);
    if (size != 1) return size;
    const size_t used = std::mbrtowc(character, &byte, 1, &state.decoder);
    if (used == static_cast<size_t>(-2)) continue;  // there is more of it
    if (used == static_cast<size_t>(-1)) {
      state.decoder = {};
      *character = kReplacement;
    }
    return 1;
  }
}

}  // namespace

bool LineEditor::CanEdit() { return isatty(STDIN_FILENO) == 1 && StderrIsTerminal(); }

LineEditor::LineEditor(const std::string& prompt) : state_(std::make_unique<State>()) {
  UseUtf8();
  state_->prompt = prompt;
  state_->editor = el_init("quire", stdin, stderr, stderr);
  state_->history = history_init();
  if (state_->editor == nullptr || state_->history == nullptr) {
    throw std::runtime_error("the terminal cannot be used to edit lines");
  }
  HistEvent event;
  history(state_->history, &event, H_SETSIZE, kHistoryLines);
  history(state_->history, &event, H_SETUNIQUE, 1);
  el_set(state_->editor, EL_CLIENTDATA, state_.get());
  el_set(state_->editor, EL_PROMPT, PromptOf);
  el_set(state_->editor, EL_HIST, history, state_->history);
  el_set(state_->editor, EL_GETCFN, ReadCharacter);
  el_set(state_->editor, EL_EDITOR, "emacs");
  el_set(state_->editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(state_->editor, nullptr);
}

LineEditor::~LineEditor() = default;

LineReader::Outcome LineEditor::Next(const Interrupt& interrupt, std::string& line) {
  state_->interrupt = &interrupt;
  // Before the prompt is shown: what is typed then is shown once, by libedit, and not by the
  // terminal too.
  el_set(state_->editor, EL_PREP_TERM, 1);
  int count = 0;
  errno = 0;
  const char* text = el_gets(state_->editor, &count);
  const int error = errno;
  state_->interrupt = nullptr;
  state_->decoder = {};
  if (interrupt.raised()) {
    el_reset(state_->editor);  // what was typed is forgotten
    return LineReader::Outcome::kInterrupted;
  }
  if (text == nullptr && count < 0) {
    throw std::system_error(error, std::generic_category(), "stdin");
  }
  if (text == nullptr || count == 0) return LineReader::Outcome::kEnd;
  line.assign(text);
  if (line.ends_with('\n')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(state_->history, &event, H_ENTER, line.c_str());
  return LineReader::Outcome::kLine;
}

}  // namespace quire::cli
