// The program as a function: what its main does.
#ifndef QUIRE_CLI_PROGRAM_H_
#define QUIRE_CLI_PROGRAM_H_

namespace quire::cli {

// Parses the command line and runs what was asked for. Returns what the program ends with: 0, 2 if a
// flag, a file or a token cannot be right, 130 if ctrl-C stopped an answer, and 1 for everything
// else; errors are one line on stderr, and then nothing is on stdout but what of an answer had come.
int RunProgram(int argc, char** argv);

}  // namespace quire::cli

#endif  // QUIRE_CLI_PROGRAM_H_
