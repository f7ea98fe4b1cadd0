// quire inspect: what a model is, and what running it would take.
#ifndef QUIRE_CLI_INSPECT_H_
#define QUIRE_CLI_INSPECT_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing.
void AddInspect(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_INSPECT_H_
