// What experts' products of few rows are made of: rows of weights on their way to a warp that has an output, and its sum.
#ifndef QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_ROWS_CUH_
#define QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_ROWS_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/gemv_items.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {

// A lane has groups of eight inputs, one of every kSpan inputs.
inline constexpr int kSpan = 32 * kGroup;

// The rows of weights of a warp's items, kMatrices for each, step by step. A lane copies a step's groups at once, of one
// matrix or of two: with steps of one group, and half as many warps, a step of V2-Lite took 3.1 ms, not 2.4.
// row(items, matrix) is where a row of bf16 begins, on a multiple of 16 bytes.
template <int kMatrices, class RowOf>
class RowStream {
 public:
  static constexpr int kGroups = CopyRing::kGroups / kMatrices;  // of a row, in a step
  static constexpr int kStepInputs = kGroups * kSpan;

  // Begins with the first steps. `inputs` is a multiple of eight.
  __device__ RowStream(int thread, const void* shared, const Items& items, int inputs, RowOf row)
      : ring_(thread, shared),
        lane_bytes_(thread % 32 * 16),
        items_(items),
        inputs_(inputs),
        row_(row),
        policy_(ReadOncePolicy()) {
    FindRows();
#pragma unroll 1  // code, too, has to come from memory
    for (int i = 0; i < CopyRing::kSteps; ++i) Begin();
  }

  // This lane's groups of the next step; those past the end of the row, of which `left` inputs are there from this
  // lane's first on, are as they were. The step that takes its place is begun.
  __device__ void Next(uint4 (&groups)[kMatrices][kGroups], int left) {
    ring_.Wait();
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (left > i * kSpan) groups[m][i] = LoadShared16(ring_.Place(m * kGroups + i));
      }
    }
    Begin();
  }

 private:
  __device__ void FindRows() {
    left_ = inputs_;
    if (!items_.There()) return;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) rows_[m] = row_(items_, m) + lane_bytes_;
  }
  __device__ void Begin() {
    if (items_.There()) {
      const int left = left_ - lane_bytes_ / 2;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          if (left > i * kSpan)
            CopyAsync16(ring_.Place(m * kGroups + i), rows_[m] + i * kSpan * 2, policy_);
        }
        rows_[m] += kStepInputs * 2;
      }
      left_ -= kStepInputs;
      if (left_ <= 0) {
        items_.Next();
        FindRows();
      }
    }
    ring_.Advance();
  }

  CopyRing ring_;
  const int lane_bytes_;  // from a row's beginning to this lane's first group
  Items items_;           // that are copied
  const int inputs_;
  const RowOf row_;
  const uint64_t policy_;
  const std::byte* rows_[kMatrices] =
      {};         // of the item that is copied, from this lane's next group on
  int left_ = 0;  // inputs of it
};

// Of a lane, for each group of a step: one of the group's first half and one of its second.
template <class Stream>
constexpr int kLaneSums = 2 * Stream::kGroups;

// Multiplies an item's rows of w, as they come, with a row of x, which lies on a multiple of 16 bytes.
template <int kMatrices, class Stream>
__device__ void MultiplyItem(int lane, Stream& stream, int inputs, const Bf16* x_row,
                             float (&sums)[kMatrices][kLaneSums<Stream>]) {
  constexpr int kGroups = Stream::kGroups;
  x_row += lane * kGroup;
#pragma unroll 1  // as above
  for (int rest = inputs; rest > 0; rest -= Stream::kStepInputs) {
    const int left = rest - lane * kGroup;
    uint4 x[kGroups] = {};
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (left > i * kSpan) x[i] = *reinterpret_cast<const uint4*>(x_row + i * kSpan);
    }
    x_row += Stream::kStepInputs;
    uint4 groups[kMatrices][kGroups] = {};
    stream.Next(groups, left);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      float values[kGroup];
      Widen(x[i], values);
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        float w[kGroup];
        Widen(groups[m][i], w);
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
          float& sum = sums[m][2 * i + j / (kGroup / 2)];
          sum = __fmaf_rn(values[j], w[j], sum);
        }
      }
    }
  }
}

// The sum of a warp's sums, in all lanes: a lane's as a tree (0 + 1, 2 + 3, ...), then the lanes' (16 + 16, 8 + 8, ...).
template <int kSums>
__device__ float SumOfWarp(float (&sums)[kSums]) {
#pragma unroll
  for (int step = 1; step < kSums; step *= 2) {
#pragma unroll
    for (int i = 0; i + step < kSums; i += 2 * step) sums[i] = __fadd_rn(sums[i], sums[i + step]);
  }
  float sum = sums[0];
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
  }
  return sum;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMV_ROWS_CUH_
