// quire bench: how fast this machine runs a model, against what it could do at most.
#ifndef QUIRE_CLI_BENCH_H_
#define QUIRE_CLI_BENCH_H_

#include <string>

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing. `command_line` is put into the report.
void AddBench(CLI::App& quire, const std::string& command_line);

}  // namespace quire::cli

#endif  // QUIRE_CLI_BENCH_H_
