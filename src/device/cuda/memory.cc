#include "device/cuda/memory.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"

namespace quire::cuda {
namespace {

// `take` is cudaMalloc or cudaMallocHost.
template <class Take>
std::byte* TakeMemory(const char* name, ByteOffset bytes, const char* kind, Take take) {
  Require(bytes >= ByteOffset(0), "{}: a buffer of {} bytes", name, bytes);
  if (bytes == ByteOffset(0)) return nullptr;
  void* data = nullptr;
  const cudaError_t status = take(&data, static_cast<size_t>(bytes.raw()));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told here, and by no later launch
    size_t free = 0, total = 0;
    const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
    throw Error(ErrorCode::kCapacityExceeded, "{}: cannot take {} bytes of {} memory{}", name,
                bytes, kind,
                known ? fmt::format("; the device has {} free of {}", free, total) : "");
  }
  Check(status, name);
  return static_cast<std::byte*>(data);
}

}  // namespace

DeviceBuffer::DeviceBuffer(const char* name, ByteOffset bytes)
    : data_(TakeMemory(name, bytes, "device",
                       [](void** data, size_t size) { return cudaMalloc(data, size); })),
      size_(bytes) {}

// What cudaFree answers is left unread: a destructor could only repeat an error of work before it.
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, ByteOffset())) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PinnedBuffer::PinnedBuffer(const char* name, ByteOffset bytes)
    : data_(TakeMemory(name, bytes, "pinned host",
                       [](void** data, size_t size) { return cudaMallocHost(data, size); })),
      size_(bytes) {}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, ByteOffset())) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void CopyAndWait(void* to, const void* from, size_t bytes, const char* what) {
  Check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), what);
  Check(cudaStreamSynchronize(nullptr), what);
}

void FillAndWait(std::span<std::byte> bytes, int value, const char* what) {
  Check(cudaMemset(bytes.data(), value, bytes.size()), what);
  Check(cudaStreamSynchronize(nullptr), what);
}

}  // namespace quire::cuda
