// Colour, for people at a terminal alone.
#ifndef QUIRE_CLI_COLOUR_H_
#define QUIRE_CLI_COLOUR_H_

#include <string>

namespace quire::cli {

// Whether stderr is a terminal that moves its cursor: none in a pipe or a file, nor where TERM is
// "dumb".
bool StderrIsTerminal();

// The text for stderr as it is, or coloured if that is a terminal and NO_COLOR
// (https://no-color.org) is not set to anything.
std::string Dimmed(const std::string& text);
std::string Red(const std::string& text);
std::string Yellow(const std::string& text);

}  // namespace quire::cli

#endif  // QUIRE_CLI_COLOUR_H_
