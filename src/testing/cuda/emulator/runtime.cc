// CUDA's runtime on the emulated device: a stream does what it is given at once, unless it records a graph.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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
std::mutex device;
size_t memory_taken = 0;

cudaError_t Told(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t Give(cudaStream_t stream, std::function<cudaError_t()> work) {
  if (stream != nullptr && stream->records()) {
    stream->recording->work.push_back(std::move(work));
    return cudaSuccess;
  }
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

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                     const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = {.data = static_cast<const std::byte*>(data),
          .size = {1, 1, 1},
          .stride = {2, 0, 0},
          .box = {1, 1, 1},
          .rank = rank,
          .swizzle = swizzle};
  if (rank < 2 || rank > 3 || reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const uint32_t most_columns = swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 32 : 64;
  if (box[0] > most_columns) return CUDA_ERROR_INVALID_VALUE;
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

cudaError_t Launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
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
  return Give(config.stream, [grid, thread = std::move(thread)] {
    const std::lock_guard lock(device);
    if (device_error != cudaSuccess) return device_error;
    try {
      RunGrid(grid, thread);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "emulated kernel: %s\n", error.what());
      device_error = cudaErrorLaunchFailure;
    }
    return device_error;
  });
}

cudaError_t MostClusters(int* clusters, const cudaLaunchConfig_t& config) {
  *clusters = kNumSms / static_cast<int>(ClusterOf(config));
  return cudaSuccess;
}

}  // namespace quire::emulator

const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaSuccess ? "no error" : "an error of the emulated device";
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
cudaError_t cudaDeviceSynchronize() { return Told(device_error); }

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
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream != nullptr && stream->records()) {
    stream->recording->is_spoilt = true;
    return Told(cudaErrorStreamCaptureInvalidated);
  }
  return Told(device_error);
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

// ---- What kernels do together ----

namespace quire::emulator {

int Lane() {
  return static_cast<int>((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) %
                          32);
}

namespace {

struct Given {
  uint64_t bits;
  int from;
};

void ShuffleAll(void* const (&theirs)[kLanes]) {
  uint64_t bits[32] = {};
  for (int lane = 0; lane < 32; ++lane) {
    if (theirs[lane] != nullptr) bits[lane] = static_cast<const Given*>(theirs[lane])->bits;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (theirs[lane] == nullptr) continue;
    auto* mine = static_cast<Given*>(theirs[lane]);
    if (theirs[mine->from] != nullptr) mine->bits = bits[mine->from];
  }
}

void Nothing(void* const (&)[kLanes]) {}

// All get what `fold` makes of the lanes' values, one after the other.
template <class T, class Fold>
void FoldAll(void* const (&theirs)[kLanes], T begin, Fold fold) {
  T all = begin;
  for (int lane = 0; lane < 32; ++lane) {
    if (theirs[lane] != nullptr) all = fold(all, *static_cast<const T*>(theirs[lane]), lane);
  }
  for (void* one : theirs) {
    if (one != nullptr) *static_cast<T*>(one) = all;
  }
}

}  // namespace

uint64_t Shuffle(unsigned lanes, uint64_t bits, int from) {
  Given mine{bits, from};
  Meet(lanes, &mine, ShuffleAll, "the other lanes of a shuffle");
  return mine.bits;
}

}  // namespace quire::emulator

using quire::emulator::FoldAll;
using quire::emulator::kLanes;
using quire::emulator::Meet;

void __syncthreads() { quire::emulator::Sync(0, 0); }
int __syncthreads_or(int says) { return quire::emulator::Sync(0, 0, says != 0) > 0 ? 1 : 0; }
int __syncthreads_count(int says) { return quire::emulator::Sync(0, 0, says != 0); }
void __syncwarp(unsigned lanes) {
  Meet(lanes, nullptr, quire::emulator::Nothing, "the other lanes");
}

unsigned __ballot_sync(unsigned lanes, int says) {
  unsigned mine = says != 0 ? 1u : 0u;
  const auto act = [](void* const(&theirs)[kLanes]) {
    FoldAll<unsigned>(theirs, 0,
                      [](unsigned all, unsigned one, int lane) { return all | one << lane; });
  };
  Meet(lanes, &mine, act, "the other lanes of a vote");
  return mine;
}
int __any_sync(unsigned lanes, int says) { return __ballot_sync(lanes, says) != 0 ? 1 : 0; }
int __all_sync(unsigned lanes, int says) { return __ballot_sync(lanes, says == 0) == 0 ? 1 : 0; }
unsigned __match_any_sync(unsigned lanes, unsigned value) {
  uint64_t mine = value;
  const auto act = [](void* const(&theirs)[kLanes]) {
    uint64_t values[32] = {};
    for (int lane = 0; lane < 32; ++lane) {
      if (theirs[lane] != nullptr) values[lane] = *static_cast<const uint64_t*>(theirs[lane]);
    }
    for (int lane = 0; lane < 32; ++lane) {
      if (theirs[lane] == nullptr) continue;
      unsigned same = 0;
      for (int other = 0; other < 32; ++other) {
        if (theirs[other] != nullptr && values[other] == values[lane]) same |= 1u << other;
      }
      *static_cast<uint64_t*>(theirs[lane]) = same;
    }
  };
  Meet(lanes, &mine, act, "the other lanes of a match");
  return static_cast<unsigned>(mine);
}

#define QUIRE_REDUCE(name, type, begin, expression)                                           \
  type name(unsigned lanes, type value) {                                                     \
    type mine = value;                                                                        \
    const auto act = [](void* const(&theirs)[kLanes]) {                                       \
      FoldAll<type>(theirs, begin, [](type all, type one, int) { return type(expression); }); \
    };                                                                                        \
    Meet(lanes, &mine, act, "the other lanes of a sum");                                      \
    return mine;                                                                              \
  }
QUIRE_REDUCE(__reduce_add_sync, unsigned, 0u, all + one)
QUIRE_REDUCE(__reduce_min_sync, unsigned, ~0u, std::min(all, one))
QUIRE_REDUCE(__reduce_max_sync, unsigned, 0u, std::max(all, one))
QUIRE_REDUCE(__reduce_xor_sync, unsigned, 0u, all ^ one)
QUIRE_REDUCE(__reduce_add_sync, int, 0, all + one)
QUIRE_REDUCE(__reduce_min_sync, int, INT32_MAX, std::min(all, one))
QUIRE_REDUCE(__reduce_max_sync, int, INT32_MIN, std::max(all, one))
#undef QUIRE_REDUCE

unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned chosen = selector >> (4 * i) & 7;
    result |= static_cast<unsigned>(bytes >> (8 * chosen) & 0xff) << (8 * i);
  }
  return result;
}
unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
int __float2int_rz(float value) {
  if (value != value) return 0;
  if (value >= 0x1p31f) return INT32_MAX;
  if (value < -0x1p31f) return INT32_MIN;
  return static_cast<int>(value);
}
unsigned long long __float2ull_rn(float value) {
  if (value != value) return uint64_t{1} << 63;
  if (value <= 0) return 0;
  if (value >= 0x1p64f) return ~0ull;
  return static_cast<unsigned long long>(std::nearbyint(value));
}
long long clock64() {
  quire::emulator::Yield();
  return static_cast<long long>(quire::emulator::Clock());
}
