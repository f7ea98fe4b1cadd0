// CUDA's runtime on the emulated GPU: a stream does what it is given at once, unless it records a graph. But a kernel that
// may overlap is held back: until the next one in its stream that may takes its turn, or until the device is asked for
// anything else. So the next one begins before it. Kernels of a graph follow each other.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "testing/cuda/emulator/machine.h"

using Work = std::vector<std::function<cudaError_t()>>;

struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};
// What the stream that began to record is given meanwhile, and its branches are.
struct Recording {
  Work work;
  bool has_ended = false, is_spoilt = false;
};
struct CUstream_st {
  std::shared_ptr<Recording> recording;

  bool records() const { return recording != nullptr && !recording->has_ended; }
};
struct CUevent_st {
  std::chrono::steady_clock::time_point reached;
  std::shared_ptr<Recording> recording;  // that it is part of
};

namespace {

constexpr size_t kMemory = size_t{4} << 30;

thread_local cudaError_t last_error = cudaSuccess;
// A kernel that failed leaves the device unusable, as on a GPU.
cudaError_t device_error = cudaSuccess;
std::string misuse;  // that it was
std::mutex device;
constexpr size_t kBytesOfAll = 48 << 10;  // of shared memory, that any kernel may ask for
std::map<const void*, size_t> allowed_bytes;
size_t memory_taken = 0;
// The kernel that is held back, and its stream. As all of the above, of whoever has locked the device.
std::function<void()> held_back;
cudaStream_t held_stream = nullptr;
uint64_t launches_ahead = 0;

void EndHeldBack() {
  if (held_back != nullptr) std::exchange(held_back, nullptr)();
}
cudaError_t StatusOfAll() {
  const std::lock_guard lock(device);
  EndHeldBack();
  return device_error;
}

cudaError_t Told(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t Give(cudaStream_t stream, std::function<cudaError_t()> work) {
  if (stream != nullptr && stream->records()) {
    stream->recording->work.push_back(std::move(work));
    return cudaSuccess;
  }
  StatusOfAll();
  return Told(work());
}

// The size stands in front of what is taken.
constexpr size_t kHeader = 256;

cudaError_t Take(void** data, size_t bytes, bool is_device) {
  const std::lock_guard lock(device);
  if (is_device && (bytes > kMemory || memory_taken + bytes > kMemory))
    return Told(cudaErrorMemoryAllocation);
  void* taken = bytes > size_t{1} << 40
                    ? nullptr
                    : std::aligned_alloc(kHeader, (bytes + 2 * kHeader - 1) / kHeader * kHeader);
  if (taken == nullptr) return Told(cudaErrorMemoryAllocation);
  static_cast<size_t*>(taken)[0] = is_device ? bytes : 0;
  if (is_device) memory_taken += bytes;
  *data = static_cast<std::byte*>(taken) + kHeader;
  return cudaSuccess;
}

cudaError_t GiveBack(void* data) {
  if (data == nullptr) return cudaSuccess;
  const std::lock_guard lock(device);
  EndHeldBack();
  void* taken = static_cast<std::byte*>(data) - kHeader;
  memory_taken -= static_cast<size_t*>(taken)[0];
  std::free(taken);
  return cudaSuccess;
}

unsigned ClusterOf(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension)
      return config.attrs[i].val.clusterDim.x;
  }
  return 1;
}
bool Overlaps(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
      return config.attrs[i].val.programmaticStreamSerializationAllowed != 0;
  }
  return false;
}

// By whoever has locked the device. Notes what goes wrong.
void RunKernel(const quire::emulator::Grid& grid, const std::function<void()>& thread,
               std::function<void()> before) {
  if (device_error != cudaSuccess) return;
  try {
    if (before == nullptr) {
      RunGrid(grid, thread);
    } else {
      RunGridAhead(grid, thread, std::move(before), launches_ahead++);
    }
  } catch (const std::exception& error) {
    if (device_error != cudaSuccess) return;  // of the kernel before
    misuse = fmt::format("a misuse of the emulated GPU: {}", error.what());
    device_error = cudaErrorLaunchFailure;
  }
}

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                     const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = {.data = static_cast<const std::byte*>(data),
          .size = {1, 1, 1},
          .stride = {2, 0, 0},
          .box = {1, 1, 1},
          .swizzle = swizzle};
  if (rank < 2 || rank > 3 || reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const uint32_t most_columns = swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 32 : 64;
  if (box[0] > most_columns || box[0] % 8 != 0) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t d = 0; d < rank; ++d) {
    map->size[d] = size[d];
    map->box[d] = box[d];
    if (d > 0) map->stride[d] = stride[d - 1];
    if (size[d] == 0 || size[d] > uint64_t{1} << 32 || box[d] == 0 || box[d] > 256 ||
        (d > 0 && (stride[d - 1] % 16 != 0 || stride[d - 1] == 0))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace quire::emulator {

cudaError_t Allow(const void* kernel, int shared_bytes) {
  if (shared_bytes < 0 || static_cast<size_t>(shared_bytes) > kSharedBytes)
    return Told(cudaErrorInvalidValue);
  const std::lock_guard lock(device);
  allowed_bytes[kernel] = static_cast<size_t>(shared_bytes);
  return cudaSuccess;
}

cudaError_t Launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread) {
  const Grid grid = {.ctas = config.gridDim,
                     .threads = config.blockDim,
                     .cluster = ClusterOf(config),
                     .shared_bytes = config.dynamicSmemBytes};
  const uint64_t threads = uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  if (threads == 0 || threads > kMostThreads || grid.ctas.x == 0 || grid.ctas.y == 0 ||
      grid.ctas.y > 65535 || grid.ctas.z == 0 || grid.shared_bytes > kSharedBytes ||
      grid.ctas.x % grid.cluster != 0) {
    return Told(cudaErrorInvalidConfiguration);
  }
  {
    const std::lock_guard lock(device);
    const auto found = allowed_bytes.find(kernel);
    const size_t most = std::max(kBytesOfAll, found == allowed_bytes.end() ? 0 : found->second);
    if (grid.shared_bytes > most) return Told(cudaErrorInvalidValue);
  }
  if (!Overlaps(config) || (config.stream != nullptr && config.stream->records())) {
    return Give(config.stream, [grid, thread = std::move(thread)] {
      const std::lock_guard lock(device);
      RunKernel(grid, thread, nullptr);
      return device_error;
    });
  }
  const std::lock_guard lock(device);
  if (held_back != nullptr && held_stream == config.stream) {
    RunKernel(grid, thread, std::exchange(held_back, nullptr));
  } else {
    EndHeldBack();
    held_back = [grid, thread = std::move(thread)] { RunKernel(grid, thread, nullptr); };
    held_stream = config.stream;
  }
  return Told(device_error);
}

cudaError_t MostClusters(int* clusters, const cudaLaunchConfig_t& config) {
  *clusters = kNumSms / static_cast<int>(ClusterOf(config));
  return cudaSuccess;
}

}  // namespace quire::emulator

const char* cudaGetErrorString(cudaError_t status) {
  if (status == cudaSuccess) return "no error";
  return status == cudaErrorLaunchFailure && !misuse.empty() ? misuse.c_str()
                                                             : "an error of the emulated GPU";
}
const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaError";
  }
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int number) {
  return number == 0 ? cudaSuccess : Told(cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
  *found = {.name = "emulated",
            .uuid = {},
            .totalGlobalMem = kMemory,
            .major = 9,
            .minor = 0,
            .multiProcessorCount = quire::emulator::kNumSms,
            .l2CacheSize = 50 << 20,
            .sharedMemPerBlockOptin = quire::emulator::kSharedBytes};
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return Told(StatusOfAll()); }

cudaError_t cudaMalloc(void** data, size_t bytes) { return Take(data, bytes, true); }
cudaError_t cudaMallocHost(void** data, size_t bytes) { return Take(data, bytes, false); }
cudaError_t cudaFree(void* data) { return GiveBack(data); }
cudaError_t cudaFreeHost(void* data) { return GiveBack(data); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(device);
  *free = kMemory - memory_taken;
  *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return Give(stream, [=] {
    std::memmove(to, from, bytes);
    return device_error;
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Give(stream, [=] {
    std::memset(to, value, bytes);
    return device_error;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  StatusOfAll();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream != nullptr && stream->records()) {
    stream->recording->is_spoilt = true;
    return Told(cudaErrorStreamCaptureInvalidated);
  }
  return Told(StatusOfAll());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->recording != nullptr && !event->recording->has_ended)
    stream->recording = event->recording;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->records() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->records()) {
    stream->recording->is_spoilt = true;
    return Told(cudaErrorStreamCaptureInvalidated);
  }
  stream->recording = std::make_shared<Recording>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::shared_ptr<Recording> recording = std::exchange(stream->recording, nullptr);
  if (recording == nullptr || recording->has_ended) return Told(cudaErrorInvalidValue);
  recording->has_ended = true;
  if (recording->is_spoilt) return Told(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(recording->work)};
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->recording = stream->records() ? stream->recording : nullptr;
  StatusOfAll();
  event->reached = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return Give(stream, [event] {
    event->reached = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->reached - begin->reached).count();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return Give(stream, [graph] {
    for (const auto& work : graph->work) {
      if (const cudaError_t status = work(); status != cudaSuccess) return status;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(name, "cuTensorMapEncodeTiled") != 0) return Told(cudaErrorInvalidValue);
  *found = reinterpret_cast<void*>(&EncodeTiled);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
