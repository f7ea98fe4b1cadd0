#include "runner/cpu/test_mapped_memory.h"

#include <sys/mman.h>

#include <mutex>
#include <utility>

namespace quire {
namespace {

std::mutex g_mutex;
std::vector<ByteOffset> g_sizes;

// What a Buffer maps beside its size, to find a boundary in.
constexpr ByteOffset kBoundary{int64_t{2} << 20};

}  // namespace

std::vector<ByteOffset> TakeBufferSizes() {
  const std::lock_guard lock(g_mutex);
  return std::exchange(g_sizes, {});
}

// The linker sends calls of X to __wrap_X, and those of __real_X to X.
extern "C" {

void* __real_mmap(void* at, size_t size, int protection, int flags, int file, off_t offset);
void* __wrap_mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0) {
    const std::lock_guard lock(g_mutex);
    g_sizes.push_back(ByteOffset(size) - kBoundary);
  }
  return __real_mmap(at, size, protection, flags, file, offset);
}

}  // extern "C"

}  // namespace quire
