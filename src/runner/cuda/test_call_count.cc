#include "runner/cuda/test_call_count.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace quire::cuda {
namespace {

std::atomic<int64_t> g_waits{0};
std::atomic<int64_t> g_allocations{0};
std::mutex g_mutex;
std::vector<ByteOffset> g_sizes;

}  // namespace

CallCounts CallsSoFar() { return {.waits = g_waits, .allocations = g_allocations}; }

std::vector<ByteOffset> TakeDeviceSizes() {
  const std::lock_guard lock(g_mutex);
  return std::exchange(g_sizes, {});
}

// The linker sends calls of X to __wrap_X, and those of __real_X to X.
extern "C" {

cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  ++g_waits;
  return __real_cudaStreamSynchronize(stream);
}

cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  ++g_waits;
  return __real_cudaEventSynchronize(event);
}

cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __wrap_cudaDeviceSynchronize() {
  ++g_waits;
  return __real_cudaDeviceSynchronize();
}

cudaError_t __real_cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind kind);
cudaError_t __wrap_cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind kind) {
  ++g_waits;
  return __real_cudaMemcpy(to, from, count, kind);
}

cudaError_t __real_cudaMalloc(void** data, size_t size);
cudaError_t __wrap_cudaMalloc(void** data, size_t size) {
  ++g_allocations;
  {
    const std::lock_guard lock(g_mutex);
    g_sizes.push_back(ByteOffset(size));
  }
  return __real_cudaMalloc(data, size);
}

cudaError_t __real_cudaMallocHost(void** data, size_t size);
cudaError_t __wrap_cudaMallocHost(void** data, size_t size) {
  ++g_allocations;
  return __real_cudaMallocHost(data, size);
}

}  // extern "C"

}  // namespace quire::cuda
