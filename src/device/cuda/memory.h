// Memory of the device, and memory of the host that the device can copy from and to by itself.
#ifndef QUIRE_DEVICE_CUDA_MEMORY_H_
#define QUIRE_DEVICE_CUDA_MEMORY_H_

#include <cstddef>
#include <span>

#include "base/units.h"
#include "device/arena.h"

namespace quire::cuda {

// Memory of the device: begins on a multiple of 256 bytes, holds anything, and is for kernels and
// copies; the host cannot touch it. Freeing it waits for what the device is doing.
class DeviceBuffer {
 public:
  // Throws Error(kInvalidArgument) for a negative size and Error(kCapacityExceeded), with `name`,
  // the size and what is free, if the device has not that much.
  DeviceBuffer(const char* name, ByteOffset bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  ByteOffset size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_.raw())}; }

 private:
  std::byte* data_ = nullptr;
  ByteOffset size_;
};

// Memory of the host that stays where it is, so that the device copies from and to it while the host
// does other things. It must not be freed before such copies have ended.
class PinnedBuffer {
 public:
  // Throws as a DeviceBuffer.
  PinnedBuffer(const char* name, ByteOffset bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  ByteOffset size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_.raw())}; }

 private:
  std::byte* data_ = nullptr;
  ByteOffset size_;
};

// Copies to or from the device, at once: whatever any stream is given afterwards sees it. (What
// cudaMemcpy and cudaMemset do alone may still be under way when they return, and our streams do not
// wait for the default one.)
void CopyAndWait(void* to, const void* from, size_t bytes, const char* what);
// Sets every byte, likewise.
void FillAndWait(std::span<std::byte> bytes, int value, const char* what);

// Hands out the device's memory to the same functions that lay out the host's.
inline Carver DeviceCarver(const DeviceBuffer& buffer) {
  return Carver(buffer.bytes(), MemorySide::kDevice);
}

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_MEMORY_H_
