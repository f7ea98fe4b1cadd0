// What the tests of this folder share: files in folders of their own, and messages of refusals.
#ifndef QUIRE_IO_TEST_FILES_H_
#define QUIRE_IO_TEST_FILES_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace quire {

// A new folder, removed with all that is in it.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_io_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  // Writes a file into the folder and returns its path.
  std::filesystem::path Write(const std::string& name, std::string_view contents) const {
    std::ofstream(path_ / name, std::ios::binary) << contents;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The message of the Error that fn throws, with every `hidden` (a temporary folder) as "DIR".
template <class Fn>
std::string InvalidArgument(Fn fn, const std::filesystem::path& hidden = {}) {
  std::string message;
  try {
    fn();
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    message = error.what();
  }
  const std::string folder = hidden.string();
  for (size_t at; !folder.empty() && (at = message.find(folder)) != std::string::npos;) {
    message.replace(at, folder.size(), "DIR");
  }
  return message;
}

}  // namespace quire

#endif  // QUIRE_IO_TEST_FILES_H_
