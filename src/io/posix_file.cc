#include "io/posix_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quire::internal {

void ThrowSystemError(const std::filesystem::path& path, const char* action) {
  const int code = errno;
  throw Error(ErrorCode::kInvalidArgument, "{}: {}: {}", path.string(), action,
              std::generic_category().message(code));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)),
      temporary_(path_.string() + ".XXXXXX"),
      file_(::mkostemp(temporary_.data(), O_CLOEXEC)) {
  if (file_.get() < 0) ThrowSystemError(path_, "cannot create");
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      ThrowSystemError(path_, "cannot write");
    }
  }
}

void AtomicFile::Commit() {
  // mkostemp lets nobody else read it.
  if (::fchmod(file_.get(), 0644) != 0) ThrowSystemError(path_, "cannot set permissions");
  // Before the rename, lest a power cut leave the name with an empty file.
  if (::fsync(file_.get()) != 0) ThrowSystemError(path_, "cannot write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) ThrowSystemError(path_, "cannot rename");
  temporary_.clear();
}

}  // namespace quire::internal
