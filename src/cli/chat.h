// quire chat: a conversation at a terminal, or with a file of messages.
#ifndef QUIRE_CLI_CHAT_H_
#define QUIRE_CLI_CHAT_H_

#include "cli/command.h"

namespace quire::cli {

// Adds the subcommand; it runs at the end of parsing. If stdin is no terminal, an interrupt throws
// Exit{130}, and so does, with 1, the end of input if a message could not be answered.
void AddChat(CLI::App& quire);

}  // namespace quire::cli

#endif  // QUIRE_CLI_CHAT_H_
