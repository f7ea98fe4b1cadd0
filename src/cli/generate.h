// quire generate: one answer to one prompt.
#ifndef QUIRE_CLI_GENERATE_H_
#define QUIRE_CLI_GENERATE_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing. An interrupted answer throws Exit{130}.
void AddGenerate(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_GENERATE_H_
