// What the sources of this folder share about files of the operating system.
#ifndef QUIRE_IO_POSIX_FILE_H_
#define QUIRE_IO_POSIX_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace quire::internal {

// Throws Error(kInvalidArgument) "path: action: the system's reason", the reason being errno.
[[noreturn]] void ThrowSystemError(const std::filesystem::path& path, const char* action);

// Closes the descriptor, unless negative, at the end of its life.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();

  int get() const { return fd_; }

 private:
  int fd_;
};

// A file that appears under its name when complete, in the place of what stood there, or never.
// Every function throws Error(kInvalidArgument) with the path and the system's reason.
class AtomicFile {
 public:
  // Creates a file of another name in the same folder.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  // Without Commit, nothing remains.
  ~AtomicFile();

  void Write(std::span<const std::byte> bytes);
  // On disk and under its name. Called once, last.
  void Commit();

 private:
  std::filesystem::path path_;
  std::string temporary_;  // "" after Commit
  FileDescriptor file_;
};

}  // namespace quire::internal

#endif  // QUIRE_IO_POSIX_FILE_H_
