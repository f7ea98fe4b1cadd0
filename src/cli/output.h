// Results go to stdout.
#ifndef QUIRE_CLI_OUTPUT_H_
#define QUIRE_CLI_OUTPUT_H_

#include <string_view>

namespace quire::cli {

// At once. Throws std::system_error if stdout does not take it.
void WriteResult(std::string_view text);

}  // namespace quire::cli

#endif  // QUIRE_CLI_OUTPUT_H_
