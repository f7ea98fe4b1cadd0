// CUDA's language and runtime, as far as the project uses them, on the machine of testing/cuda/emulator.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_CUDA_RUNTIME_API_H_
#define QUIRE_TESTING_CUDA_EMULATOR_CUDA_RUNTIME_API_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

// ---- The language ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Of a CTA, whose threads are fibers of one thread.
#define __shared__ thread_local

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __align__(8) int2 {
  int x, y;
};
struct __align__(16) int4 {
  int x, y, z, w;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

// ---- What threads do together ----

void __syncthreads();
int __syncthreads_or(int says);
int __syncthreads_count(int says);
void __syncwarp(unsigned lanes = ~0u);
unsigned __ballot_sync(unsigned lanes, int says);
int __any_sync(unsigned lanes, int says);
int __all_sync(unsigned lanes, int says);
unsigned __match_any_sync(unsigned lanes, unsigned value);
unsigned __reduce_add_sync(unsigned lanes, unsigned value);
unsigned __reduce_min_sync(unsigned lanes, unsigned value);
unsigned __reduce_max_sync(unsigned lanes, unsigned value);
unsigned __reduce_xor_sync(unsigned lanes, unsigned value);
int __reduce_add_sync(unsigned lanes, int value);
int __reduce_min_sync(unsigned lanes, int value);
int __reduce_max_sync(unsigned lanes, int value);

namespace quire::emulator {
// What lane `from` gave, or one's own where it is none of the lanes.
uint64_t Shuffle(unsigned lanes, uint64_t bits, int from);
int Lane();
template <class T>
T ShuffleAny(unsigned lanes, T value, int from) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(lanes, bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline int Within(int from, int width, bool is_there) {
  return is_there ? (Lane() & ~(width - 1)) + from : Lane();
}
}  // namespace quire::emulator

template <class T>
T __shfl_sync(unsigned lanes, T value, int from, int width = 32) {
  using namespace quire::emulator;
  return ShuffleAny(lanes, value, Within(from & (width - 1), width, true));
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = 32) {
  using namespace quire::emulator;
  const int from = (Lane() & (width - 1)) ^ mask;
  return ShuffleAny(lanes, value, Within(from, width, from < width));
}
template <class T>
T __shfl_up_sync(unsigned lanes, T value, unsigned distance, int width = 32) {
  using namespace quire::emulator;
  const int from = (Lane() & (width - 1)) - static_cast<int>(distance);
  return ShuffleAny(lanes, value, Within(from, width, from >= 0));
}
template <class T>
T __shfl_down_sync(unsigned lanes, T value, unsigned distance, int width = 32) {
  using namespace quire::emulator;
  const int from = (Lane() & (width - 1)) + static_cast<int>(distance);
  return ShuffleAny(lanes, value, Within(from, width, from < width));
}

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, static_cast<T>(*at + value));
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, static_cast<T>(*at | value));
}
template <class T>
T atomicXor(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, static_cast<T>(*at ^ value));
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *at;
  if (old == expected) *at = value;
  return old;
}

// ---- Arithmetic ----

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
using std::isfinite;
using std::isnan;
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
unsigned __byte_perm(unsigned a, unsigned b, unsigned selector);
unsigned __vmaxu2(unsigned a, unsigned b);
int __float2int_rz(float value);
unsigned long long __float2ull_rn(float value);
template <class T>
T __ldcs(const T* from) {
  return *from;
}
long long clock64();

// CUDA's overloads for what is mixed, as the language converts it; of floats a NaN loses.
template <class A, class B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  else
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  else
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

// ---- The runtime ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorContained = 226,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorTensorMemoryLeak = 721,
  cudaErrorMpsClientTerminated = 809,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorExternalDevice = 911,
  cudaErrorUnknown = 999,
};
extern "C" const char* cudaGetErrorString(cudaError_t status);
extern "C" const char* cudaGetErrorName(cudaError_t status);
extern "C" cudaError_t cudaGetLastError();

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount, l2CacheSize;
  size_t sharedMemPerBlockOptin;
};
extern "C" cudaError_t cudaGetDeviceCount(int* count);
extern "C" cudaError_t cudaGetDevice(int* device);
extern "C" cudaError_t cudaSetDevice(int device);
extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device);
extern "C" cudaError_t cudaDeviceSynchronize();

enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
extern "C" cudaError_t cudaMalloc(void** data, size_t bytes);
extern "C" cudaError_t cudaMallocHost(void** data, size_t bytes);
extern "C" cudaError_t cudaFree(void* data);
extern "C" cudaError_t cudaFreeHost(void* data);
extern "C" cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;

template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
  void* taken = nullptr;
  const cudaError_t status = cudaMalloc(&taken, bytes);
  *data = static_cast<T*>(taken);
  return status;
}
extern "C" cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
extern "C" cudaError_t cudaMemset(void* to, int value, size_t bytes);
extern "C" cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                       cudaMemcpyKind kind, cudaStream_t stream);
extern "C" cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);

inline constexpr unsigned cudaStreamNonBlocking = 1;
extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream);
extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream);
extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);

inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2,
                          cudaEventRecordExternal = 1;
extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event);
extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
extern "C" cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                unsigned flags);
extern "C" cudaError_t cudaEventQuery(cudaEvent_t event);
extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event);
extern "C" cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin,
                                            cudaEvent_t end);

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                            unsigned long long flags);
extern "C" cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream);
extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace quire::emulator {
// A kernel has 48 KiB of shared memory, unless it was allowed more.
cudaError_t Allow(const void* kernel, int shared_bytes);
cudaError_t Launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread);
cudaError_t MostClusters(int* clusters, const cudaLaunchConfig_t& config);
}  // namespace quire::emulator

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return quire::emulator::Allow(reinterpret_cast<const void*>(kernel), bytes);
}
template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  return quire::emulator::Launch(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, given = std::tuple<std::decay_t<Params>...>(std::forward<Args>(args)...)] {
        std::apply(kernel, given);
      });
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, Kernel*,
                                           const cudaLaunchConfig_t* config) {
  return quire::emulator::MostClusters(clusters, *config);
}

#endif  // QUIRE_TESTING_CUDA_EMULATOR_CUDA_RUNTIME_API_H_
