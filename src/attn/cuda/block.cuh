// The threads of a CTA, as attn/plan_build.h asks for them, and its reports.
#ifndef QUIRE_ATTN_CUDA_BLOCK_CUH_
#define QUIRE_ATTN_CUDA_BLOCK_CUH_

#include <cstdint>

#include "attn/plan_build.h"
#include "base/host_device.h"
#include "device/cuda/status.cuh"

namespace quire::cuda {

// The functions below are called from code for host and device, and empty on the host, where no
// kernel runs: what is marked for a device alone could not be called from there.

// A CTA of kThreads threads, a multiple of 32, that scans up to kValues sums at once.
template <int kThreads, int kValues>
class Cta {
 public:
  static constexpr int kWarps = kThreads / 32;
  // Two sets of sums in turn: a warp that is ahead, in the next scan, leaves those alone that others
  // still read, and one barrier per scan is enough.
  struct Shared {
    int64_t sums[2][kValues][kWarps];
  };

  QUIRE_HD explicit Cta(Shared& shared) : shared_(shared) {}

  QUIRE_HD int32_t thread() const {
#ifdef QUIRE_ON_DEVICE
    return static_cast<int32_t>(threadIdx.x);
#else
    return 0;
#endif
  }
  QUIRE_HD int32_t threads() const { return kThreads; }

  QUIRE_HD void Sync() const {
#ifdef QUIRE_ON_DEVICE
    __syncthreads();
#endif
  }
  QUIRE_HD bool Any(bool value) const {
#ifdef QUIRE_ON_DEVICE
    return __syncthreads_or(value ? 1 : 0) != 0;
#else
    return value;
#endif
  }

  template <int N>
  QUIRE_HD void Scan(const int64_t (&value)[N], int64_t (&before)[N], int64_t (&total)[N]) {
    static_assert(N <= kValues && kThreads % 32 == 0);
#ifdef QUIRE_ON_DEVICE
    auto& sums = shared_.sums[turn_];
    turn_ = 1 - turn_;
    ScanWarp(value, before, sums);
    __syncthreads();  // all warps have written their sums
    const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      total[i] = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp) before[i] += total[i];
        total[i] += sums[i][w];
      }
    }
#else
    for (int i = 0; i < N; ++i) before[i] = total[i] = value[i];
#endif
  }

 private:
#ifdef QUIRE_ON_DEVICE
  // What each lane has before it of its own warp, and the warp's sums.
  template <int N>
  __device__ static void ScanWarp(const int64_t (&value)[N], int64_t (&before)[N],
                                  int64_t (&sums)[kValues][kWarps]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    int64_t any = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) any |= value[i];
    // Most warps have nothing to add in most steps: those of 64 sequences are two.
    const bool is_empty = !__any_sync(0xffffffffu, any != 0);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      int64_t sum = value[i];  // of the lanes up to this one
      if (!is_empty) {
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
          const int64_t other = __shfl_up_sync(0xffffffffu, sum, distance);
          if (lane >= distance) sum += other;
        }
      }
      if (lane == 31) sums[i][warp] = sum;
      before[i] = sum - value[i];
    }
  }
#endif

  Shared& shared_;
  int turn_ = 0;
};

// Into the status word.
struct StepReporter {
  StatusWord status;
  Launch launch;

  QUIRE_HD void operator()(StepFault fault, int32_t index) const {
#ifdef QUIRE_ON_DEVICE
    const DeviceFault code = fault == StepFault::kPage   ? DeviceFault::kPage
                             : fault == StepFault::kTree ? DeviceFault::kToken
                                                         : DeviceFault::kCapacity;
    Report(status, code, launch, static_cast<uint32_t>(index));
#else
    (void)fault;
    (void)index;
#endif
  }
};

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_BLOCK_CUH_
