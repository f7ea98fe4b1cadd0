#include "testing/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__clang__)
#define QUIRE_CLANG_TSAN __has_feature(thread_sanitizer)
#else
#define QUIRE_CLANG_TSAN 0
#endif

namespace {

std::atomic<int64_t> allocations = 0;

}  // namespace

#if QUIRE_CLANG_TSAN

// This runtime's operators cannot be replaced (they are linked in whole, before anything else), but it
// tells whoever wants to know of all that it hands out.
extern "C" void __sanitizer_malloc_hook(const volatile void*, size_t) {
  allocations.fetch_add(1, std::memory_order_relaxed);
}

#else

namespace {

// malloc and free, and not the replaced operators: those belong to the sanitizers in a sanitized
// build, and they see malloc just as well.
void* CountedOrNull(size_t size) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}

void* CountedOrNull(size_t size, std::align_val_t alignment) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const size_t unit = static_cast<size_t>(alignment);
  const size_t whole_units = size == 0 ? unit : (size + unit - 1) / unit * unit;
  return std::aligned_alloc(unit, whole_units);
}

template <class... Alignment>
void* Counted(size_t size, Alignment... alignment) {
  void* memory = CountedOrNull(size, alignment...);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// All forms: a sanitizer's runtime has its own of each, and a pair must come from one family.
void* operator new(size_t size) { return Counted(size); }
void* operator new[](size_t size) { return Counted(size); }
void* operator new(size_t size, std::align_val_t alignment) { return Counted(size, alignment); }
void* operator new[](size_t size, std::align_val_t alignment) { return Counted(size, alignment); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return CountedOrNull(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return CountedOrNull(size); }
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return CountedOrNull(size, alignment);
}
void* operator new[](size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return CountedOrNull(size, alignment);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}

#endif  // QUIRE_CLANG_TSAN

namespace quire::testing {

int64_t AllocationCount() { return allocations.load(std::memory_order_relaxed); }

}  // namespace quire::testing
