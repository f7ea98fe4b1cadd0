// quire eval: how many questions of a file a model answers right.
#ifndef QUIRE_CLI_EVAL_EVAL_H_
#define QUIRE_CLI_EVAL_EVAL_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing.
void AddEval(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_EVAL_EVAL_H_
