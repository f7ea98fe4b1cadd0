// quire serve: an OpenAI-compatible server.
#ifndef QUIRE_CLI_SERVE_H_
#define QUIRE_CLI_SERVE_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing.
void AddServe(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_SERVE_H_
