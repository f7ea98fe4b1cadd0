// An array between two guards: a test's output buffer that notices writes outside it.
#ifndef QUIRE_TESTING_RED_ZONE_H_
#define QUIRE_TESTING_RED_ZONE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace quire::testing {

// T is trivially copyable. The array begins filled with the guard byte too, so that an entry that
// was never written is recognised (Untouched).
template <class T>
class RedZone {
 public:
  static constexpr size_t kGuard = 64;  // elements before and behind
  static constexpr unsigned char kFill = 0xA5;

  explicit RedZone(size_t size) : memory_((size + 2 * kGuard) * sizeof(T), kFill), size_(size) {}

  std::span<T> span() { return {reinterpret_cast<T*>(memory_.data()) + kGuard, size_}; }
  T* data() { return span().data(); }
  std::vector<T> values() { return {span().begin(), span().end()}; }

  // "" if both guards are whole.
  std::string Damage() const {
    const size_t guard_bytes = kGuard * sizeof(T);
    for (size_t i = 0; i < guard_bytes; ++i) {
      if (memory_[i] != kFill) return fmt::format("written {} bytes before", guard_bytes - i);
      if (memory_[memory_.size() - guard_bytes + i] != kFill) {
        return fmt::format("written {} bytes behind", i + 1);
      }
    }
    return {};
  }

  // Whether nothing at all was written, inside or outside.
  bool Untouched() const {
    for (unsigned char byte : memory_) {
      if (byte != kFill) return false;
    }
    return true;
  }

 private:
  std::vector<unsigned char> memory_;
  size_t size_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_RED_ZONE_H_
