// What Gemv of many outputs is made of: rows of weights on their way to a team of threads, four at a time, and the
// sums of four outputs.
//
// A team is so many threads that each has one group of a row's inputs at most, or, of long rows, a CTA. So a thread has
// its part of x in registers for all four outputs, and what follows the last multiplication is short.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMV_QUADS_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMV_QUADS_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/gemv_items.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {

inline constexpr int kQuad = CopyRing::kGroups;  // outputs: a step has a group of each

// Matrices that are multiplied, one behind the other.
struct QuadWeights {
  Rows<const Bf16> rows;  // the first matrix
  int64_t step;           // from one matrix to the next, in values
  int32_t outputs, inputs;
};

// A thread's groups of its team's quads, in order. `quads` are numbered by matrices, and of one by its outputs.
template <int kTeam>
class QuadStream {
 public:
  // Begins with the first steps.
  __device__ QuadStream(int thread, const void* shared, const QuadWeights& w, const Items& quads)
      : w_(w),
        ring_(thread, shared),
        first_group_(thread % kTeam),
        quads_(quads),
        policy_(ReadOncePolicy()) {
    FindQuad();
#pragma unroll 1  // code, too, has to come from memory
    for (int i = 0; i < CopyRing::kSteps; ++i) Begin();
  }

  // This thread's groups of the next step, if the rows have them. The step that takes its place is begun.
  __device__ void Next(uint4 (&groups)[kQuad], bool has) {
    ring_.Wait();
    if (has) {
#pragma unroll
      for (int n = 0; n < kQuad; ++n) groups[n] = LoadShared16(ring_.Place(n));
    }
    Begin();
  }

 private:
  __device__ void FindQuad() {
    group_ = first_group_;
    if (!quads_.There()) return;
    const int output = quads_.minor() * kQuad;
    last_ = min(kQuad, w_.outputs - output) - 1;
    from_ = reinterpret_cast<const std::byte*>(w_.rows[output] + quads_.major() * w_.step) +
            first_group_ * 16;
  }
  // Copies a step. For an output that there is not comes the last one again.
  __device__ void Begin() {
    if (quads_.There()) {
      if (group_ < w_.inputs / kGroup) {
#pragma unroll
        for (int n = 0; n < kQuad; ++n) {
          CopyAsync16(ring_.Place(n), from_ + min(n, last_) * w_.rows.stride * 2, policy_);
        }
      }
      from_ += kTeam * 16;
      group_ += kTeam;
      if (group_ - first_group_ >= w_.inputs / kGroup) {
        quads_.Next();
        FindQuad();
      }
    }
    ring_.Advance();
  }

  const QuadWeights& w_;
  CopyRing ring_;
  const int first_group_;
  Items quads_;  // that are copied
  const uint64_t policy_;
  const std::byte* from_ = nullptr;  // of the first output's row, the group that is copied next
  int group_ = 0, last_ = 0;         // that group; the last output of the quad that there is
};

// Lane 8 n has the sum of the warp's sums[n], as a tree (16 + 16, 8 + 8, ...). Halves of the warp have two outputs each
// from the first step on, quarters one.
__device__ inline float SumOfQuad(const float (&sums)[kQuad], int lane) {
  const auto add = [](float mine, float given, int half) {
    return __fadd_rn(mine, __shfl_xor_sync(~0u, given, half));
  };
  const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
  const float even_sum = add(upper ? sums[2] : sums[0], upper ? sums[0] : sums[2], 16);
  const float odd_sum = add(upper ? sums[3] : sums[1], upper ? sums[1] : sums[3], 16);
  float sum = add(odd ? odd_sum : even_sum, odd ? even_sum : odd_sum, 8);
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) sum = add(sum, sum, half);
  return sum;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMV_QUADS_CUH_
