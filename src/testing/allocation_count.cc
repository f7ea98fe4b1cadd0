#include "testing/allocation_count.h"

#include <malloc.h>

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
std::atomic<int64_t> allocated_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;

void CountNew(size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto size = static_cast<int64_t>(bytes);
  const int64_t now = allocated_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (peak < now && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void CountDelete(size_t bytes) noexcept {
  allocated_bytes.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace

#if QUIRE_CLANG_TSAN

// This runtime's operators cannot be replaced (they are linked in whole, before anything else), but it
// tells whoever wants to know of all that it hands out.
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* memory);
extern "C" void __sanitizer_malloc_hook(const volatile void* memory, size_t) {
  CountNew(__sanitizer_get_allocated_size(memory));
}
extern "C" void __sanitizer_free_hook(const volatile void* memory) {
  CountDelete(__sanitizer_get_allocated_size(memory));
}

#else

namespace {

// malloc and free, and not the replaced operators: those belong to the sanitizers in a sanitized
// build, and they see malloc just as well.
void* CountedOrNull(size_t size) noexcept {
  void* memory = std::malloc(size == 0 ? 1 : size);
  CountNew(::malloc_usable_size(memory));
  return memory;
}

void* CountedOrNull(size_t size, std::align_val_t alignment) noexcept {
  const size_t unit = static_cast<size_t>(alignment);
  const size_t whole_units = size == 0 ? unit : (size + unit - 1) / unit * unit;
  void* memory = std::aligned_alloc(unit, whole_units);
  CountNew(::malloc_usable_size(memory));
  return memory;
}

void Free(void* memory) noexcept {
  CountDelete(::malloc_usable_size(memory));
  std::free(memory);
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

void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  Free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  Free(memory);
}

#endif  // QUIRE_CLANG_TSAN

namespace quire::testing {

int64_t AllocationCount() { return allocations.load(std::memory_order_relaxed); }
int64_t AllocatedBytes() { return allocated_bytes.load(std::memory_order_relaxed); }
int64_t PeakBytes() { return peak_bytes.load(std::memory_order_relaxed); }
void ResetPeakBytes() { peak_bytes = allocated_bytes.load(); }

}  // namespace quire::testing
