#include "cli/colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace quire::cli {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string Coloured(const char* code, const std::string& text) {
  if (!StderrIsTerminal() || !Variable("NO_COLOR").empty()) return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace

bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1 && Variable("TERM") != "dumb"; }

std::string Dimmed(const std::string& text) { return Coloured("2", text); }
std::string Red(const std::string& text) { return Coloured("31", text); }
std::string Yellow(const std::string& text) { return Coloured("33", text); }

}  // namespace quire::cli
