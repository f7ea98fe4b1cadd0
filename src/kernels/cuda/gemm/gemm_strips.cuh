// What the kernel of strips is made of: weights and x on their way to a warp, its products, and y.
//
// A warp goes through the inputs of its strip in steps of 64: weights are the 16 rows of a product of tensor cores, and rows
// of x its eight columns. It alone fills and reads its memory, a ring of steps of weights, and its inputs of x behind that.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_STRIPS_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_STRIPS_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/gemm_store.cuh"
#include "kernels/cuda/gemm/gemm_strips.h"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {

inline constexpr int kStripStepBytes = kStripRows * kRowBytes;
static_assert(kStripStepInputs * sizeof(Bf16) == kRowBytes);

// What a warp computes: outputs from first_output on, with matrix `matrix` of w, over inputs [begin, end).
struct StripPlace {
  int matrix, first_output, begin, end;

  __device__ int NumSteps() const {
    return max(0, end - begin + kStripStepInputs - 1) / kStripStepInputs;
  }
};

// A strip's weights on their way to its warp. Eight lanes have the 128 bytes of a row, four rows at once.
class StripWeights {
 public:
  // Begins with the first steps.
  __device__ StripWeights(const TileParams& p, const StripPlace& at, uint32_t ring, int lane)
      : end_(at.end),
        row_bytes_(p.w_row_bytes),
        ring_(ring),
        to_(ring + InPanel(lane / 8, lane % 8)),
        past_(to_ + kStripRingSteps * kStripStepBytes),
        policy_(ReadOncePolicy()),
        own_(lane % 8 * kGroup),
        input_(at.begin) {
    const int64_t matrix = at.matrix * p.w_batch_bytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows 8 to 15 are up's, or the next eight outputs.
      const int output = at.first_output + lane / 8 + (p.gated ? 0 : 8 * half);
      from_[half] = p.w[p.gated ? half : 0] + matrix + min(output, p.outputs - 1) * p.w_row_bytes;
      there_[half] = p.outputs - output;
    }
#pragma unroll 1
    for (int step = 0; step < kStripRingSteps; ++step) Copy();
  }

  // The panel of step `step`, once it is there for the whole warp.
  __device__ uint32_t Wait(int step) const {
    WaitForCopies<kStripRingSteps - 1>();
    __syncwarp();
    return ring_ + static_cast<uint32_t>(step % kStripRingSteps * kStripStepBytes);
  }
  // Called when the warp has read the step that it waited for: the one that takes its place is begun.
  __device__ void Free() {
    __syncwarp();
    Copy();
  }

 private:
  // Copies the next step. A group of copies, be it empty, for each step: groups and steps stay in line.
  //
  // A lane counts its own addresses up: of one that was `to_` and a step's place, the same for the warp, nvcc 13.0 made a
  // copy to [R + UR] with a policy, which is an illegal instruction.
  __device__ void Copy() {
    if (input_ < end_) {
      const int input = input_ + own_;
      const bool has_inputs = input < end_;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Rows four apart. Without an output or an input come zeros.
        const bool there = has_inputs && there_[i / 2] > i % 2 * 4;
        const std::byte* const row = from_[i / 2] + (there ? i % 2 * 4 * row_bytes_ : 0);
        // Four rows on, bit 2 of a chunk's number is the other one: bit 6 of its address, since a ring is on 128 bytes.
        const uint32_t to = to_ + static_cast<uint32_t>(i / 2 * 8 * kRowBytes);
        CopyAsync16(i % 2 == 0 ? to : (to + 4 * kRowBytes) ^ 64, there ? row + input * 2 : row,
                    there ? 16 : 0, policy_);
      }
    }
    CommitCopies();
    input_ += kStripStepInputs;
    to_ += kStripStepBytes;
    if (to_ == past_) to_ -= kStripRingSteps * kStripStepBytes;
  }

  int end_;
  int64_t row_bytes_;
  uint32_t ring_, to_, past_;  // past_: where to_ begins again
  uint64_t policy_;
  const std::byte* from_[2];
  int there_[2];  // outputs from the lane's first one on
  int own_;       // the lane's inputs of a step
  int input_;     // of the step that is copied next
};

// The strip's inputs of rows of x, of which x_rows is the first one's first; inputs up to whole steps are 0. Returns when
// they are there for the whole warp.
template <int64_t kRows>
__device__ __forceinline__ void BringX(const std::byte* x_rows, int64_t row_bytes, int rows,
                                       const StripPlace& at, uint32_t to, uint32_t stride,
                                       int lane) {
  constexpr int kAtOnce = 4 / kRows;  // groups of a row: so many loads are under way
  const int groups = at.NumSteps() * kStripStepInputs / kGroup;
  const std::byte* const from = x_rows + int64_t{at.begin} * 2;
#pragma unroll 1
  for (int first = lane; first < groups; first += kAtOnce * kWarp) {
    uint4 x[kAtOnce][kRows];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int group = first + i * kWarp;
      const bool there = at.begin + group * kGroup < at.end;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        x[i][row] = {};
        if (!there || row >= rows) continue;
        x[i][row] = *reinterpret_cast<const uint4*>(from + row * row_bytes + int64_t{group} * 16);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int group = first + i * kWarp;
      if (group >= groups) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (row >= rows) break;
        const uint4& v = x[i][row];
        StoreShared16(to + static_cast<uint32_t>(row) * stride + static_cast<uint32_t>(group) * 16,
                      {v.x, v.y, v.z, v.w});
      }
    }
  }
  __syncwarp();
}

// What a lane has of a step: rows of w and of x, 16 inputs at a time.
struct StripFragments {
  uint32_t w[kStripStepInputs / 16][4], x[kStripStepInputs / 16][2];
};

__device__ __forceinline__ void LoadStep(uint32_t panel, uint32_t x, int lane, StripFragments& to) {
#pragma unroll
  for (int i = 0; i < kStripStepInputs / 16; ++i) {
    if (i % 2 == 0) {  // 32 inputs of x at once
      LoadMatrices(x + static_cast<uint32_t>(i * 32 + lane / 8 * 16), to.x[i][0], to.x[i][1],
                   to.x[i + 1][0], to.x[i + 1][1]);
    }
    uint32_t(&w)[4] = to.w[i];
    LoadMatrices(panel + InPanel(lane & 15, 2 * i + (lane >> 4)), w[0], w[1], w[2], w[3]);
  }
}

// sums += the products: sums[2 half + i] is of row 8 half + lane / 4 of w, and of row lane % 4 * 2 + i of x.
__device__ __forceinline__ void MultiplyStep(const StripFragments& of, float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < kStripStepInputs / 16; ++i)
    MultiplyBf16(sums, of.w[i], of.x[i][0], of.x[i][1]);
}

// sums += all steps' products. Of rows that are not there the lanes read one that is: a column's sums are of its own row
// alone.
__device__ __forceinline__ void MultiplyStrip(const StripPlace& at, StripWeights& weights,
                                              uint32_t x, uint32_t x_stride, int rows, int lane,
                                              float (&sums)[4]) {
  const uint32_t x_row = x + static_cast<uint32_t>(min(lane % 8, rows - 1)) * x_stride;
  const auto load = [&](int step, StripFragments& to) {
    LoadStep(weights.Wait(step), x_row + static_cast<uint32_t>(step * kRowBytes), lane, to);
    weights.Free();
  };
  const int num_steps = at.NumSteps();
  StripFragments next;
  if (num_steps > 0) load(0, next);
    // Products of a step follow each other; the next one's operands come meanwhile.
#pragma unroll 2
  for (int step = 0; step < num_steps; ++step) {
    const StripFragments now = next;
    if (step + 1 < num_steps) load(step + 1, next);
    MultiplyStep(now, sums);
  }
}

// All rows of y, in the batch.
__device__ __forceinline__ void StoreStrip(const TileParams& p, int64_t batch, int first_output,
                                           int lane, float (&sums)[4]) {
  if (p.gated) {
    sums[0] = SiluByReciprocal(sums[0]) * sums[2];
    sums[1] = SiluByReciprocal(sums[1]) * sums[3];
  }
  // All lanes, before one has nothing to store. Then a lane has two outputs of row lane / 4, and the same of eight on.
  TransposeFloats(sums[0], sums[1]);
  TransposeFloats(sums[2], sums[3]);
  const int row = lane / 4, output = first_output + lane % 4 * 2;
  if (row >= p.rows) return;
  StorePair(p, batch, row, output, sums[0], sums[1]);
  if (!p.gated) StorePair(p, batch, row, output + 8, sums[2], sums[3]);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_STRIPS_CUH_
