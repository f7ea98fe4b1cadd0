// quire doctor: what this machine and this build are like, and whether anything stands in the way.
#ifndef QUIRE_CLI_DOCTOR_DOCTOR_H_
#define QUIRE_CLI_DOCTOR_DOCTOR_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing. Ends with 1 if something keeps quire from
// running.
void AddDoctor(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_DOCTOR_DOCTOR_H_
