#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/error.h"
#include "io/posix_file.h"

namespace quire {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer.
  const internal::FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) internal::ThrowSystemError(path_, "cannot open");
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) internal::ThrowSystemError(path_, "cannot read size");
  Require(S_ISREG(status.st_mode), "{}: cannot map: not a regular file", path_.string());
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;  // the system refuses to map nothing
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) internal::ThrowSystemError(path_, "cannot map");
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::Unmap() noexcept {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void DropCachedPages(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(mapped.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + mapped.size()) / page * page;
  // Advice only: if it is not taken, the memory is given back with the map.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace quire
