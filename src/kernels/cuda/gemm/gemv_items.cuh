// How products of few rows deal their outputs out to the threads of all multiprocessors, and where weights on their way to a
// thread are.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMV_ITEMS_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMV_ITEMS_CUH_

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

// Of a launch at most; the threads are of the order of sums, too (gemv.h).
inline constexpr int kGemvCtas = 2 * kMultiprocessors;
inline constexpr int kGemvThreads = 256;
inline constexpr int kGemvWarps = kGemvThreads / 32;

// Items are numbered `minors` by `minors`, `majors` times. Of these numbers one in `step` is taken, from `first` on.
class Items {
 public:
  __device__ Items(int first, int step, int majors, int minors) : majors_(majors), minors_(minors) {
    if (minors == 0) majors_ = 0;
    if (majors_ == 0) return;
    major_ = first / minors, minor_ = first % minors;
    major_step_ = step / minors, minor_step_ = step % minors;
  }
  __device__ bool There() const { return major_ < majors_; }
  __device__ int major() const { return major_; }
  __device__ int minor() const { return minor_; }
  __device__ void Next() {
    major_ += major_step_;
    minor_ += minor_step_;
    if (minor_ < minors_) return;
    minor_ -= minors_;
    ++major_;
  }

 private:
  int majors_, minors_;
  int major_ = 0, minor_ = 0, major_step_ = 0, minor_step_ = 0;
};

// A thread's ring of steps in shared memory, of four groups of 16 bytes each, which it alone fills and reads: it waits for
// its own copies, and nobody for another. A step is filled where the next one is read, which is the oldest.
class CopyRing {
 public:
  static constexpr int kGroups = 4;  // of a step
  // On their way or in use: 96 KiB of a multiprocessor's two CTAs.
  static constexpr int kSteps = 3;
  static constexpr int kStepBytes = kGroups * kGemvThreads * 16;  // of a CTA
  static constexpr int kBytes = kSteps * kStepBytes;

  __device__ CopyRing(int thread, const void* shared)
      : begin_(SharedAddress(shared) + static_cast<uint32_t>(thread) * 16), at_(begin_) {}

  __device__ uint32_t Place(int group) const {
    return at_ + static_cast<uint32_t>(group * kGemvThreads * 16);
  }
  __device__ void Wait() const { WaitForCopies<kSteps - 1>(); }
  // What was copied to the step is a group of copies, an empty one behind the last: groups and steps stay in line.
  __device__ void Advance() {
    CommitCopies();
    at_ += kStepBytes;
    if (at_ == begin_ + kBytes) at_ = begin_;
  }

 private:
  const uint32_t begin_;
  uint32_t at_;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMV_ITEMS_CUH_
