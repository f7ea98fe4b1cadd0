// Results go to stdout, whole or not at all.
#ifndef QUIRE_CLI_OUTPUT_H_
#define QUIRE_CLI_OUTPUT_H_

#include <string_view>

namespace quire::cli {

// Throws std::system_error if stdout does not take it.
void WriteResult(std::string_view text);

}  // namespace quire::cli

#endif  // QUIRE_CLI_OUTPUT_H_
