// The tile kernel's parts, in the order in which a CTA runs them: TileLoader, MultiplyStep,
// FoldChunk, Store. gemm_tile.h says what is computed.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_CUH_

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm_store.cuh"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {

// 16 bytes to shared memory: the first `bytes` of `from`, then 0. Nothing else is read.
template <TileLoads kLoads>
__device__ inline void CopyChunk(uint32_t to, const std::byte* from, int bytes) {
  if constexpr (kLoads == TileLoads::kAligned) {
    CopyAsync16(to, from, bytes);
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i < bytes) words[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
    }
    StoreShared16(to, words);
  }
}

// Brings a step's rows of x and w to a stage. Eight neighbouring threads take the 128 bytes of a
// row; a thread's rows are kThreads / 8 apart, so its place in the exchanged chunks is always the
// same. Rows past the end, and inputs past the last, become 0.
template <class T, TileLoads kLoads, bool kIndexed>
class TileLoader {
 public:
  __device__ TileLoader(const TileParams& p, const TilePlace& at)
      : chunk_(static_cast<int>(threadIdx.x) % 8),
        row_(static_cast<int>(threadIdx.x) / 8),
        x_row_bytes_(p.x_row_bytes),
        // One thread of the grid reports a row.
        x_rows_(p, at.row + row_, at.row_end, chunk_ == 0 && at.first_output == 0),
        w_end_(p.outputs) {
    const int64_t batch = at.batch;
    x_ = x_rows_.Origin(p.x + (p.offsets == nullptr ? batch * p.x_batch_bytes : 0), x_row_bytes_);
    // A gated tile's rows are 8 of gate, 8 of up, the next 8 of gate and so on: a thread of the
    // product then holds both sums of an output, in neighbouring fragments.
    const int which = p.gated ? (row_ >> 3) & 1 : 0;
    w_row_ = at.first_output + (p.gated ? (row_ >> 4) * 8 + (row_ & 7) : row_);
    w_row_step_ = p.gated ? kRowStep / 2 : kRowStep;
    w_step_bytes_ = w_row_step_ * p.w_row_bytes;
    w_ = p.w[which] + batch * p.w_batch_bytes + min(w_row_, w_end_ - 1) * p.w_row_bytes;
  }

  // Of the step whose first input is `input`, of inputs up to `end`.
  __device__ void LoadX(uint32_t stage, int input, int end) const {
    constexpr int kXSize = T::kMath == TileMath::kFp8 ? 1 : 2;
    const uint32_t to = stage + InPanel(row_, chunk_);
#pragma unroll
    for (int panel = 0; panel < T::kXPanels; ++panel) {
      const int from = (input + panel * (kRowBytes / kXSize)) * kXSize + chunk_ * 16;
      const int bytes = Clamp16(end * kXSize - from);
#pragma unroll
      for (int i = 0; i < T::kRows / kRowStep; ++i) {
        const bool there = x_rows_.There(i) && bytes > 0;
        CopyChunk<kLoads>(to + panel * T::kRows * kRowBytes + i * kRowStep * kRowBytes,
                          there ? x_ + x_rows_.Offset(i, x_row_bytes_) + from : x_,
                          there ? bytes : 0);
      }
    }
  }
  __device__ void LoadW(uint32_t stage, int input, int end) const {
    constexpr int kWSize = T::kMath == TileMath::kBf16 ? 2 : 1;
    const uint32_t to = stage + InPanel(row_, chunk_);
    const int from = input * kWSize + chunk_ * 16;
    const int bytes = Clamp16(end * kWSize - from);
#pragma unroll
    for (int i = 0; i < T::kOutputs / kRowStep; ++i) {
      const bool there = w_row_ + i * w_row_step_ < w_end_ && bytes > 0;
      const uint32_t chunk = to + T::kXBytes + i * kRowStep * kRowBytes;
      const std::byte* const w = there ? w_ + i * w_step_bytes_ + from : w_;
      if constexpr (kLoads == TileLoads::kAligned && T::kSize == TileSize::kDecode) {
        CopyAsync16(chunk, w, there ? bytes : 0, w_policy_);
      } else {
        CopyChunk<kLoads>(chunk, w, there ? bytes : 0);
      }
    }
  }

 private:
  static constexpr int kRowStep = T::kThreads / 8;  // 16 or 32
  static_assert(kRowStep % 16 == 0);

  __device__ static int Clamp16(int bytes) { return min(max(bytes, 0), 16); }

  const int chunk_, row_;
  const int64_t x_row_bytes_;
  const XRows<T::kRows / kRowStep, kRowStep, kIndexed> x_rows_;
  const int w_end_;
  const uint64_t w_policy_ =
      ReadOncePolicy();  // other tiles' weights are read again, by other rows
  int w_row_, w_row_step_;
  int64_t w_step_bytes_;
  const std::byte *x_, *w_;
};

// A thread's part of a tile: [row fragment][output fragment][4], as MultiplyBf16 lays it out.
template <class T>
using Sums = float[T::kRowFragments][T::kOutputFragments][4];

// Where a thread's warp and fragments lie in the tile.
template <class T>
struct WarpPlace {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int row = static_cast<int>(threadIdx.x) / 32 / T::kOutputWarps * T::kWarpRows;
  int output = static_cast<int>(threadIdx.x) / 32 % T::kOutputWarps * T::kWarpOutputs;
  // The row of w in the first two output fragments whose address LoadMatrices takes from this lane.
  int w_row = output + ((lane >> 4) << 3) + (lane & 7);
};

// 32 bytes of 16 rows of x from `panel`, as bytes lie in the fragments of m16n8k16.
__device__ inline void LoadX(uint32_t panel, int row, int step, int lane, uint32_t (&a)[4]) {
  LoadMatrices(panel + InPanel(row + (lane & 15), 2 * step + (lane >> 4)), a[0], a[1], a[2], a[3]);
}

// The same of all the warp's rows of w: b[j] are outputs 8 j .. 8 j + 7.
template <class T>
__device__ inline void LoadW(uint32_t panel, const WarpPlace<T>& at, int step,
                             uint32_t (&b)[T::kOutputFragments][2]) {
#pragma unroll
  for (int j = 0; j < T::kOutputFragments; j += 2) {
    LoadMatrices(panel + InPanel(at.w_row + 8 * j, 2 * step + ((at.lane >> 3) & 1)), b[j][0],
                 b[j][1], b[j + 1][0], b[j + 1][1]);
  }
}

template <class T>
__device__ void MultiplyStepBf16(uint32_t x, uint32_t w, const WarpPlace<T>& at, Sums<T>& sums) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 16 inputs each
    uint32_t b[T::kOutputFragments][2];
    LoadW<T>(w, at, step, b);
#pragma unroll
    for (int i = 0; i < T::kRowFragments; ++i) {
      uint32_t a[4];
      LoadX(x, at.row + 16 * i, step, at.lane, a);
#pragma unroll
      for (int j = 0; j < T::kOutputFragments; ++j) MultiplyBf16(sums[i][j], a, b[j][0], b[j][1]);
    }
  }
}

// sums = those of 128 inputs: sm_90 has no e4m3 mma.sync, but a warpgroup's product, of 64 rows and 64 outputs here.
// All threads have fenced what they copied.
template <class T>
__device__ void MultiplyStepFp8(uint32_t x, uint32_t w, Sums<T>& sums) {
  static_assert(T::kThreads == kWarpgroup && T::kRows == 64 && T::kRowFragments == 1);
  float of_step[4 * T::kOutputFragments];
  HoldSums(of_step);
  BeginProducts();
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {  // 32 inputs each
    MultiplyCodes(of_step, PanelOperand(x, step * 32), PanelOperand(w, step * 32), step > 0);
  }
  CommitProducts();
  WaitForProducts<0>();
  HoldSums(of_step);
#pragma unroll
  for (int i = 0; i < 4 * T::kOutputFragments; ++i) sums[0][i / 4][i % 4] = of_step[i];
}

// Codes are widened to bf16 in registers. A lane's four are inputs 4t .. 4t + 3, which stand for columns 2t, 2t + 1,
// 2t + 8, 2t + 9: x, bf16 in two panels, is read in that order.
template <class T>
__device__ void MultiplyStepKeepX(uint32_t x, uint32_t w, const WarpPlace<T>& at, Sums<T>& sums) {
  const int group = at.lane >> 2, t = at.lane & 3;
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 inputs each
    uint32_t codes[T::kOutputFragments][2], b[T::kOutputFragments][4];
    LoadW<T>(w, at, step, codes);
#pragma unroll
    for (int j = 0; j < T::kOutputFragments; ++j) {
      WidenToBf16(codes[j][0], b[j][0], b[j][1]);
      WidenToBf16(codes[j][1], b[j][2], b[j][3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 inputs, 32 bytes of x, each
      const int sixteen = 2 * step + half;
      const uint32_t panel = x + sixteen / 4 * T::kRows * kRowBytes;
      const int chunk = sixteen % 4 * 2 + (t >> 1);
#pragma unroll
      for (int i = 0; i < T::kRowFragments; ++i) {
        const int row = at.row + 16 * i + group;
        const uint32_t in_chunk = (t & 1) * 8;
        uint32_t a[4];
        LoadShared8(panel + InPanel(row, chunk) + in_chunk, a[0], a[2]);
        LoadShared8(panel + InPanel(row + 8, chunk) + in_chunk, a[1], a[3]);
#pragma unroll
        for (int j = 0; j < T::kOutputFragments; ++j) {
          MultiplyBf16(sums[i][j], a, b[j][2 * half], b[j][2 * half + 1]);
        }
      }
    }
  }
}

template <class T>
__device__ inline void MultiplyStep(uint32_t stage, const WarpPlace<T>& at, Sums<T>& sums) {
  const uint32_t w = stage + T::kXBytes;
  if constexpr (T::kMath == TileMath::kBf16) MultiplyStepBf16<T>(stage, w, at, sums);
  if constexpr (T::kMath == TileMath::kFp8) MultiplyStepFp8<T>(stage, w, sums);
  if constexpr (T::kMath == TileMath::kFp8KeepX) MultiplyStepKeepX<T>(stage, w, at, sums);
}

// The scales of one chunk of 128 inputs: of a thread's rows, and of gate and up.
template <class T>
struct ChunkScales {
  float x[2 * T::kRowFragments];
  float w[2];

  template <bool kIndexed>
  __device__ ChunkScales(const TileParams& p, const TilePlace& at,
                         const XRows<2 * T::kRowFragments, 8, kIndexed>& x_rows, int chunk) {
    const int64_t block =
        at.batch * p.w_scale_batch + at.first_output / kScaleBlock * p.w_scale_stride + chunk;
    w[0] = p.w_scales[0][block];
    w[1] = p.w_scales[1][block];
#pragma unroll
    for (int i = 0; i < 2 * T::kRowFragments; ++i) {
      x[i] = 1.0f;
      if constexpr (T::kMath == TileMath::kFp8) {
        if (x_rows.There(i)) x[i] = p.x_scales[x_rows[i] * p.x_scale_stride + chunk];
      }
    }
  }
};

// total += scale * sums; sums = 0.
template <class T>
__device__ inline void FoldChunk(const ChunkScales<T>& scales, Sums<T>& sums, Sums<T>& total) {
#pragma unroll
  for (int i = 0; i < T::kRowFragments; ++i) {
#pragma unroll
    for (int j = 0; j < T::kOutputFragments; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float scale = scales.w[j & 1] * scales.x[2 * i + (e >> 1)];
        total[i][j][e] = __fmaf_rn(scale, sums[i][j][e], total[i][j][e]);
        sums[i][j][e] = 0;
      }
    }
  }
}

// Stores a tile from the registers that hold it.
template <class T>
__device__ void StoreSums(const TileParams& p, const TilePlace& at, const WarpPlace<T>& warp,
                          const Sums<T>& sums) {
  const int64_t batch = p.offsets == nullptr ? at.batch : 0;
#pragma unroll
  for (int i = 0; i < T::kRowFragments; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row + warp.row + 16 * i + 8 * half + (warp.lane >> 2);
      if (row >= at.row_end) continue;
#pragma unroll
      for (int j = 0; j < T::kOutputFragments; ++j) {
        const int column = 2 * (warp.lane & 3);
        const float* s = sums[i][j] + 2 * half;
        if (!p.gated) {
          StorePair(p, batch, row, at.first_output + warp.output + 8 * j + column, s[0], s[1]);
        } else if (j % 2 == 0) {
          const float* up = sums[i][j + 1] + 2 * half;
          StorePair(p, batch, row, at.first_output + (warp.output + 8 * j) / 2 + column,
                    SiluByReciprocal(s[0]) * up[0], SiluByReciprocal(s[1]) * up[1]);
        }
      }
    }
  }
}

// Adds the ranges' sums of a cluster, ascending, and stores the result: every CTA has put its sums into its own shared
// memory, [kRows][kOutputs], and takes the rows whose number is its rank modulo the cluster's size. All threads call it.
template <int kRows, int kOutputs, int kThreads>
__device__ void AddRanges(const TileParams& p, const TilePlace& at, float* shared) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();  // every CTA's sums are in its shared memory
  constexpr int kPairs = kOutputs / 2;
  const int ranks = p.num_splits, num_rows = min(kRows, at.row_end - at.row);
  for (int i = static_cast<int>(threadIdx.x);; i += kThreads) {
    const int row = i / kPairs * ranks + at.split, output = i % kPairs * 2;
    if (row >= num_rows) break;
    float2 sum = {0, 0};
    for (int rank = 0; rank < ranks; ++rank) {
      const float* theirs = cluster.map_shared_rank(shared, static_cast<unsigned>(rank));
      const float2 part = *reinterpret_cast<const float2*>(theirs + row * kOutputs + output);
      sum = rank == 0 ? part : float2{sum.x + part.x, sum.y + part.y};
    }
    StorePair(p, at.batch, at.row + row, at.first_output + output, sum.x, sum.y);
  }
  cluster.sync();  // no CTA ends while another reads its shared memory
}

// Stores a tile whose ranges of inputs the CTAs of a cluster have.
template <class T>
__device__ void StoreSplitSums(const TileParams& p, const TilePlace& at, const WarpPlace<T>& warp,
                               const Sums<T>& sums, float* shared) {
#pragma unroll
  for (int i = 0; i < T::kRowFragments; ++i) {
#pragma unroll
    for (int j = 0; j < T::kOutputFragments; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = warp.row + 16 * i + 8 * (e >> 1) + (warp.lane >> 2);
        shared[row * T::kOutputs + warp.output + 8 * j + 2 * (warp.lane & 3) + (e & 1)] =
            sums[i][j][e];
      }
    }
  }
  AddRanges<T::kRows, T::kOutputs, T::kThreads>(p, at, shared);
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_TILE_CUH_
