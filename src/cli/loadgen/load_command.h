// `quire bench --url`: loads a running server and reports.
#ifndef QUIRE_CLI_LOADGEN_LOAD_COMMAND_H_
#define QUIRE_CLI_LOADGEN_LOAD_COMMAND_H_

#include <string>

#include "cli/loadgen/load_flags.h"

namespace quire::cli {

// Writes the table, or with `json` "-" the JSON, to stdout, and the JSON and the plot to their
// files. Ctrl-C ends the load, and what is there is reported. Throws Exit after the report:
// with 1 if every request failed, with 130 after Ctrl-C.
void LoadServer(LoadFlags flags, const std::string& json, const std::string& command_line);

// The line without the key of --api-key.
std::string WithoutKey(std::string command_line, const std::string& api_key);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_COMMAND_H_
