#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "kernels/cuda/roof.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kCtasPerSm = 2;
// Of 16 bytes, in flight per thread: 128 KiB per multiprocessor, where 30 KiB cover the latency of
// memory at its full rate.
constexpr int kLoads = 8;

// splitmix64's mixing, as a hash of the index.
__device__ uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__global__ void FillRandomKernel(Bf16* values, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const auto bits = static_cast<uint32_t>(Mix(static_cast<uint64_t>(i)) >> 40);  // 24
    values[i] = ToBf16(static_cast<float>(bits) * 0x1p-23f - 1.0f);
  }
}

// __ldcs: nothing is read twice, so nothing needs a place in the cache.
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    XorAllKernel(const uint4* words, int64_t count, uint32_t* sum) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint32_t mine = 0;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = __ldcs(words + i + k * stride);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      mine ^= loaded[k].x ^ loaded[k].y ^ loaded[k].z ^ loaded[k].w;
    }
  }
  for (; i < count; i += stride) {
    const uint4 loaded = __ldcs(words + i);
    mine ^= loaded.x ^ loaded.y ^ loaded.z ^ loaded.w;
  }
  mine = __reduce_xor_sync(0xffffffffu, mine);
  if (threadIdx.x % 32 == 0) atomicXor(sum, mine);
}

unsigned NumCtas() { return static_cast<unsigned>(kCtasPerSm * QueryDevice().num_sms); }

}  // namespace

void FillRandom(std::span<Bf16> values, const Stream& stream) {
  LaunchInTurn("fill_random", FillRandomKernel, {.grid = dim3(NumCtas()), .block = dim3(kThreads)},
               stream, values.data(), static_cast<int64_t>(values.size()));
}

void XorAll(std::span<const uint32_t> words, uint32_t* sum, const Stream& stream) {
  Require(words.size() % 4 == 0, "xor_all.words: expected a multiple of 4, got {}", words.size());
  LaunchInTurn("xor_all", XorAllKernel, {.grid = dim3(NumCtas()), .block = dim3(kThreads)}, stream,
               reinterpret_cast<const uint4*>(words.data()), static_cast<int64_t>(words.size() / 4),
               sum);
}

}  // namespace quire::cuda
