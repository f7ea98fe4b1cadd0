// A file that a flag names for a result.
#ifndef QUIRE_CLI_RESULT_FILE_H_
#define QUIRE_CLI_RESULT_FILE_H_

#include <fstream>
#include <string>
#include <string_view>

namespace quire::cli {

// Opened at once: not to be able to write it is better known before a long run than after.
class ResultFile {
 public:
  // Neither "" nor "-", which is stdout, is a file: then Write does nothing. Throws
  // Error(kInvalidArgument) with `flag` if the file cannot be opened.
  ResultFile(std::string_view flag, std::string path);

  // Throws std::system_error if the file does not take it.
  void Write(std::string_view text);

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_RESULT_FILE_H_
