// Memory of the CPU device: zero-filled, page-aligned, and taken from the machine only where it is
// touched, so that a pool can be reserved at its full size.
#ifndef QUIRE_DEVICE_BUFFER_H_
#define QUIRE_DEVICE_BUFFER_H_

#include <cstddef>
#include <span>

#include "base/units.h"

namespace quire {

class Buffer {
 public:
  // Throws Error(kInvalidArgument) for a negative size and Error(kCapacityExceeded), naming `name`
  // and the size, if the machine refuses the reservation.
  Buffer(const char* name, ByteOffset bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  ByteOffset size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_.raw())}; }

 private:
  void* mapped_ = nullptr;
  std::byte* data_ = nullptr;
  ByteOffset size_;
};

}  // namespace quire

#endif  // QUIRE_DEVICE_BUFFER_H_
