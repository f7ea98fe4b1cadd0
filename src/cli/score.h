// quire score: how likely a model finds each token of a text.
#ifndef QUIRE_CLI_SCORE_H_
#define QUIRE_CLI_SCORE_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing.
void AddScore(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_SCORE_H_
