// An arena is one block of memory, cut into the pieces that a plan lists.
//
// Sizing and handing out are the same code: a function that takes its pieces from a Carver runs
// once over a Carver that only counts, to learn the size, and once over the memory. The two cannot
// disagree.
#ifndef QUIRE_DEVICE_ARENA_H_
#define QUIRE_DEVICE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>

#include "base/tensor_view.h"
#include "base/units.h"

namespace quire {

class Carver {
 public:
  // Every piece begins on a multiple of this: a cache line, and more than any element needs.
  static constexpr size_t kAlignment = 64;

  // Only counts: pieces have no address.
  Carver() = default;
  // Hands out `memory`, which begins on a multiple of kAlignment. Memory of a device is handed out
  // as it is: no element in it is made, for the host cannot touch it.
  explicit Carver(std::span<std::byte> memory, MemorySide side = MemorySide::kHost);

  MemorySide side() const { return side_; }
  bool counting() const { return memory_.data() == nullptr; }

  // The next piece. Throws InternalError if the memory is used up: it was not sized by this code.
  std::span<std::byte> TakeBytes(ByteOffset bytes);

  // The next piece as `count` elements, made by their default constructor (on a device: whatever
  // bytes are there). A counting Carver gives none.
  template <class T>
  std::span<T> Take(int64_t count) {
    static_assert(alignof(T) <= kAlignment && std::is_trivially_destructible_v<T>);
    const std::span<std::byte> bytes = TakeBytes(ByteOffset(sizeof(T)) * count);
    if (counting()) return {};
    T* first = reinterpret_cast<T*>(bytes.data());
    if (side_ == MemorySide::kHost) std::uninitialized_value_construct_n(first, count);
    return {first, static_cast<size_t>(count)};
  }

  // The next piece as an array of `dtype`, which knows its side. What it holds is undefined. From a
  // counting Carver it has a shape and no memory.
  TensorView TakeTensor(DType dtype, std::initializer_list<int64_t> shape) {
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
    const std::span<std::byte> bytes = TakeBytes(ByteOffset(DTypeBytes(dtype)) * elements);
    return TensorView(counting() ? nullptr : bytes.data(), dtype, shape, side_);
  }

  // What has been taken, with the gaps of alignment.
  ByteOffset used() const { return used_; }

 private:
  std::span<std::byte> memory_;
  MemorySide side_ = MemorySide::kHost;
  ByteOffset used_;
};

}  // namespace quire

#endif  // QUIRE_DEVICE_ARENA_H_
