// Device memory as the tests of this folder want it: from a vector, and back.
#ifndef QUIRE_DEVICE_CUDA_TEST_MEMORY_H_
#define QUIRE_DEVICE_CUDA_TEST_MEMORY_H_

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

// `values`, on the device.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<T>& values)
      : buffer_("test", ByteOffset(values.size() * sizeof(T))) {
    CopyAndWait(buffer_.data(), values.data(), values.size() * sizeof(T),
                "a test's memory to the device");
  }

  std::span<T> span() const {
    return {reinterpret_cast<T*>(buffer_.data()), buffer_.bytes().size() / sizeof(T)};
  }
  std::span<std::byte> bytes() const { return buffer_.bytes(); }

  // What is there once `stream` has done what it was given.
  std::vector<T> Values(const Stream& stream) const {
    stream.Synchronize();
    std::vector<T> values(span().size());
    CopyAndWait(values.data(), buffer_.data(), values.size() * sizeof(T),
                "a test's memory from the device");
    return values;
  }

 private:
  DeviceBuffer buffer_;
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_TEST_MEMORY_H_
