#include "device/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"

namespace quire {

namespace {

// Kernels walk many memory pages at once (a tile of keys is 36 of 4 KiB), so buffers ask for large
// ones: they begin on a 2 MiB boundary, and the kernel is told.
constexpr size_t kLargePage = size_t{2} << 20;

// What is mapped for a buffer of `bytes`: enough to find a boundary in.
size_t MappedBytes(ByteOffset bytes) { return static_cast<size_t>(bytes.raw()) + kLargePage; }

}  // namespace

Buffer::Buffer(const char* name, ByteOffset bytes) : size_(bytes) {
  Require(bytes >= ByteOffset(0), "{}: a buffer of {} bytes", name, bytes);
  if (bytes == ByteOffset(0)) return;
  // MAP_NORESERVE: a KV pool is reserved whole and touched page by page.
  mapped_ = mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    throw Error(ErrorCode::kCapacityExceeded, "{}: cannot reserve {} bytes: {}", name, bytes,
                std::strerror(errno));
  }
  void* aligned = mapped_;
  size_t space = MappedBytes(bytes);
  data_ = static_cast<std::byte*>(
      std::align(kLargePage, static_cast<size_t>(bytes.raw()), aligned, space));
  madvise(data_, space, MADV_HUGEPAGE);  // advice only: without large pages it is just slower
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(mapped_, MappedBytes(size_));
}

Buffer::Buffer(Buffer&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, ByteOffset())) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace quire
