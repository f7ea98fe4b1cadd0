// quire generate: one answer to one prompt.
#ifndef QUIRE_CLI_GENERATE_H_
#define QUIRE_CLI_GENERATE_H_

#include <CLI/CLI.hpp>

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing. An interrupted answer throws
// CLI::RuntimeError(130).
void AddGenerate(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_GENERATE_H_
