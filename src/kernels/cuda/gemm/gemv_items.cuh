// How products of few rows deal their outputs out to the threads of all multiprocessors.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMV_ITEMS_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMV_ITEMS_CUH_

#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

inline constexpr int kStreamCtas = 2 * kMultiprocessors;
inline constexpr int kStreamThreads = 256;
inline constexpr int kStreamWarps = kStreamThreads / 32;

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

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMV_ITEMS_CUH_
