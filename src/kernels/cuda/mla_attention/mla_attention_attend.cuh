// One tile of keys against the rows of a CTA, on the tensor cores.
//
//   scores   S = Q K^T        each warp some rows and keys, all 576 values ascending
//   softmax  weights as bf16 into the tile's rope part, which nobody needs any more
//   values   O += P V         each warp all rows and 64 of the 512 columns, keys ascending
//
// An element of S or O is always summed by the same chain of m16n8k16 products, whichever warp has
// it and whatever stands in other rows: so the number of 16-row groups, kGroups, changes no bit.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ATTEND_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ATTEND_CUH_

#include "kernels/cuda/mla_attention/mla_attention_tile.cuh"

namespace quire::cuda::mla {

inline constexpr int kValueColumns = kLatent / kWarps;  // of a warp
static_assert(kValueColumns * 2 == kLine, "a warp's columns are one line of every row");

// Lane numbers as addresses need them. Eight consecutive lanes address eight consecutive rows, so a
// lane's permutation is lane % 8 everywhere. Chunk 2j + c of a line lies where chunk c does, with
// 32 j exclusively or-ed: lines begin on multiples of 128.
struct Lanes {
  uint32_t warp, lane;

  __device__ explicit Lanes(int thread)
      : warp(static_cast<uint32_t>(thread) / kWarp), lane(static_cast<uint32_t>(thread) % kWarp) {}
  // Chunk lane / 16: two matrices of rows, then the next chunk.
  __device__ uint32_t by_rows() const { return Permuted(lane / 16, lane); }
  // Chunk lane / 8 % 2: two chunks, then the next eight rows.
  __device__ uint32_t by_keys() const { return Permuted(lane / 8 % 2, lane); }
  // The row of an accumulator's first half within its group of 16, and its first column of eight.
  __device__ uint32_t row() const { return lane / 4; }
  __device__ uint32_t column() const { return lane % 4 * 2; }
};

// ---- Scores ----
//
// A score is the sum of two chains of 18 products, over the halves that the warpgroup kernel's CTAs have
// (mla_attention_halves.cuh): latent values [0, 256) and rope values [0, 32), and the others. mma.sync
// and wgmma give the same bits (docs/numerics.md), so rows have the same in either kernel. What a product
// needs is read while the one before is under way.

inline constexpr uint32_t kProducts = (kLatent + kRope) / 16;

// Where the `line`th 64 values, those of four products, begin in row `row` of a tile of kRows rows.
template <int kRows>
__device__ uint32_t LineOf(uint32_t tile, uint32_t row, uint32_t line) {
  return line < 8 ? tile + row * kLatentBytes + line * kLine
                  : tile + kRows * kLatentBytes + row * kRopeBytes;
}

// With four groups: warp w has rows of group w / 2 and keys [32 (w % 2), + 32). Queries are read
// from shared memory: registers are full of sums.
struct WideScores {
  static constexpr int kKeyGroups = 4;  // of eight keys, per warp
  static constexpr uint32_t kWarpsPerRow = 2;

  static __device__ uint32_t Group(const Lanes& at) { return at.warp / 2; }
  static __device__ uint32_t FirstKey(const Lanes& at) { return at.warp % 2 * 32; }

  static constexpr bool kKeepsQueries = false;
  __device__ void LoadQueries(uint32_t, const Lanes&) {}

  __device__ void Multiply(uint32_t q, uint32_t keys, const Lanes& at, float (&s)[kKeyGroups][4]) {
    const uint32_t row = Group(at) * 16 + at.lane % 16;
    const uint32_t key = FirstKey(at) + at.lane % 8 + at.lane / 16 * 8;
    // Of the line at hand; running, so that addresses of all lines do not fill registers.
    Line line{.q = q + row * kLatentBytes + at.by_rows(),
              .keys = keys + key * kLatentBytes + at.by_keys(),
              .next_keys = 16 * kLatentBytes};
    Line rope{.q = q + kMlaRows * kLatentBytes + row * kRopeBytes + at.by_rows(),
              .keys = keys + kRopeBegin + key * kRopeBytes + at.by_keys(),
              .next_keys = 16 * kRopeBytes};
    float first[kKeyGroups][4];  // the first chain, when it has ended
    Operands operands[2];
    line.Load(0, operands[0]);
#pragma unroll 1
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll 1
      for (uint32_t i = 0; i < kLatentLines / 2; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          if (j == 3) line = line.Next();
          const Line& next = j == 3 && i + 1 == kLatentLines / 2 ? rope : line;
          next.Load((j + 1) % 4, operands[(j + 1) % 2]);
          MultiplyAll(operands[j % 2], s);
        }
      }
      rope.Load(1, operands[1]);
      MultiplyAll(operands[0], s);
      rope = {rope.q ^ 64, rope.keys ^ 64, rope.next_keys};
      if (half == 0) line.Load(0, operands[0]);
      MultiplyAll(operands[1], s);
#pragma unroll
      for (int i = 0; i < 4 * kKeyGroups; ++i) {
        float& sum = s[i / 4][i % 4];
        if (half == 1) {
          sum += first[i / 4][i % 4];
        } else {
          first[i / 4][i % 4] = sum;
          sum = 0.0f;
        }
      }
    }
  }

 private:
  static constexpr uint32_t kLatentLines = kLatent / 64;

  struct Operands {
    uint32_t a[4], b[8];
  };
  static __device__ void MultiplyAll(const Operands& now, float (&sums)[kKeyGroups][4]) {
#pragma unroll
    for (int n = 0; n < kKeyGroups; ++n)
      MultiplyBf16(sums[n], now.a, now.b[2 * n], now.b[2 * n + 1]);
  }

  // Where a lane reads the 64 values of four products.
  struct Line {
    uint32_t q, keys;
    uint32_t next_keys;  // from the first sixteen keys to the others

    __device__ Line Next() const { return {q + kLine, keys + kLine, next_keys}; }
    __device__ void Load(uint32_t j, Operands& to) const {
      const uint32_t from = keys ^ 32 * j;
      LoadMatrices(q ^ 32 * j, to.a[0], to.a[1], to.a[2], to.a[3]);
      LoadMatrices(from, to.b[0], to.b[1], to.b[2], to.b[3]);
      LoadMatrices(from + next_keys, to.b[4], to.b[5], to.b[6], to.b[7]);
    }
  };
};

// With one group: warp w has keys [8 w, + 8). The queries of the first kKept products, an even
// number, stay in registers.
template <int kKept>
struct NarrowScores {
  static constexpr int kKeyGroups = 1;
  static constexpr uint32_t kWarpsPerRow = 8;

  static __device__ uint32_t Group(const Lanes&) { return 0; }
  static __device__ uint32_t FirstKey(const Lanes& at) { return at.warp * 8; }

  static constexpr bool kKeepsQueries = kKept > 0;
  __device__ void LoadQueries(uint32_t q, const Lanes& at) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) LoadQuery(q, static_cast<uint32_t>(i), at, kept_[i]);
  }

  __device__ void Multiply(uint32_t q, uint32_t keys, const Lanes& at, float (&s)[kKeyGroups][4]) {
    float second[4] = {};
    uint32_t a[2][2][4], b[2][4];
    LoadPair(q, keys, PairAt(0), at, a[0], b[0]);
#pragma unroll
    for (int step = 0; step < kPairs; ++step) {
      const int now = step % 2, next = 1 - now;
      if (step + 1 < kPairs) LoadPair(q, keys, PairAt(step + 1), at, a[next], b[next]);
      const int i = 2 * PairAt(step);
      float(&sum)[4] = step % 2 == 0 ? s[0] : second;
      MultiplyBf16(sum, i < kKept ? kept_[i] : a[now][0], b[now][0], b[now][1]);
      MultiplyBf16(sum, i < kKept ? kept_[i + 1] : a[now][1], b[now][2], b[now][3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] += second[i];
  }

 private:
  static constexpr int kPairs = kProducts / 2;
  // Pairs of products by turns, of the first chain and of the second.
  static constexpr int PairAt(int step) {
    constexpr int kLatentPairs = kLatent / 32;
    return step < kLatentPairs ? step / 2 + step % 2 * (kLatentPairs / 2) : step;
  }

  static __device__ void LoadQuery(uint32_t q, uint32_t i, const Lanes& at, uint32_t (&a)[4]) {
    LoadMatrices((LineOf<16>(q, at.lane % 16, i / 4) + at.by_rows()) ^ 32 * (i % 4), a[0], a[1],
                 a[2], a[3]);
  }
  // Of products 2 pair and 2 pair + 1: four chunks of eight keys at once.
  static __device__ void LoadPair(uint32_t q, uint32_t keys, int pair, const Lanes& at,
                                  uint32_t (&a)[2][4], uint32_t (&b)[4]) {
    const uint32_t p = static_cast<uint32_t>(pair);
    const uint32_t line = LineOf<kTileKeys>(keys, FirstKey(at) + at.lane % 8, p / 2);
    LoadMatrices((line + Permuted(at.lane / 8, at.lane)) ^ 64 * (p % 2), b[0], b[1], b[2], b[3]);
    if (2 * pair < kKept) return;
    LoadQuery(q, 2 * p, at, a[0]);
    LoadQuery(q, 2 * p + 1, at, a[1]);
  }

  uint32_t kept_[kKept > 0 ? kKept : 1][4];
};

// ---- Softmax ----

// Scores of this thread become weights: bf16 at `p`, and their sums and the rows' maxima in
// `stats`. Rows see the first visible[row] - key keys of the tile, those outside [first, end) none.
// Barriers: 1 (all wait): `tops` are written, and nobody reads keys' rope part any more, where the
// weights go. The caller's next one: weights, alpha, sums and m are written.
template <class Scores>
__device__ void Softmax(float (&s)[Scores::kKeyGroups][4], float scale, int32_t key, int32_t first,
                        int32_t end, int parity, uint32_t p, RowStats& stats, const Lanes& at) {
  const uint32_t group = Scores::Group(at) * 16, first_key = Scores::FirstKey(at);
  constexpr uint32_t kTopsStride = 2 * kMlaRows / Scores::kWarpsPerRow;
  const uint32_t warp_in_row = at.warp % Scores::kWarpsPerRow;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t row = group + at.row() + 8 * half;
    const bool takes_part = static_cast<int32_t>(row) >= first && static_cast<int32_t>(row) < end;
    const int32_t count = takes_part ? stats.visible[row] - key : 0;
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2 * Scores::kKeyGroups; ++i) {
      float& score = s[i / 2][2 * half + i % 2];
      const int32_t k = static_cast<int32_t>(first_key + i / 2 * 8 + at.column()) + i % 2;
      score = k < count ? score * scale : -INFINITY;
      top = fmaxf(top, score);
    }
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    if (at.lane % 4 == 0) stats.tops[warp_in_row * kTopsStride + row] = top;
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t row = group + at.row() + 8 * half;
    const float before = stats.m[parity][row];
    float top = before;
#pragma unroll
    for (uint32_t w = 0; w < Scores::kWarpsPerRow; ++w) {
      top = fmaxf(top, stats.tops[w * kTopsStride + row]);
    }
    const float anchor = Anchor(top);
#pragma unroll
    for (int n = 0; n < Scores::kKeyGroups; ++n) {
      const float low = Base2Exponent::Exp(s[n][2 * half] - anchor);
      const float high = Base2Exponent::Exp(s[n][2 * half + 1] - anchor);
      const uint32_t chunk = first_key / 8 + static_cast<uint32_t>(n);
      StoreShared4(p + row * kRopeBytes + Permuted(chunk, row) + at.column() * 2,
                   PackBf16(low, high));
      stats.sums[chunk][at.lane % 4][row] = low + high;
    }
    if (warp_in_row == 0 && at.lane % 4 == 0) {
      stats.m[parity ^ 1][row] = top;
      stats.alpha[row] = Base2Exponent::Exp(before - anchor);
    }
  }
}

// ---- Values ----

template <int kGroups>
using Sums = float[kGroups][kValueColumns / 8][4];

__device__ inline void LoadWeights(uint32_t p, uint32_t group, uint32_t step, const Lanes& at,
                                   uint32_t (&a)[4]) {
  const uint32_t row = p + (group * 16 + at.lane % 16) * kRopeBytes + at.by_rows();
  LoadMatrices(row ^ 32 * step, a[0], a[1], a[2], a[3]);
}
// Sixteen keys and sixteen of the warp's columns.
__device__ inline void LoadValues(uint32_t keys, uint32_t step, uint32_t columns, const Lanes& at,
                                  uint32_t (&b)[4]) {
  const uint32_t row = keys + (step * 16 + at.lane % 16) * kLatentBytes + at.warp * kLine;
  LoadMatricesTransposed((row + at.by_rows()) ^ 32 * columns, b[0], b[1], b[2], b[3]);
}

template <int kGroups>
__device__ void AddValues(uint32_t p, uint32_t keys, const RowStats& stats, const Lanes& at,
                          Sums<kGroups>& o) {
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    const float low = stats.alpha[m * 16 + at.row()], high = stats.alpha[m * 16 + at.row() + 8];
    if (!__any_sync(kAllLanes, low != 1.0f || high != 1.0f)) continue;
#pragma unroll
    for (int n = 0; n < kValueColumns / 8; ++n) {
      o[m][n][0] *= low;
      o[m][n][1] *= low;
      o[m][n][2] *= high;
      o[m][n][3] *= high;
    }
  }
  constexpr uint32_t kColumnSteps = kValueColumns / 16, kSteps = kTileKeys / 16 * kColumnSteps;
  uint32_t a[kGroups][4], b[2][4];
  LoadValues(keys, 0, 0, at, b[0]);
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t step = i / kColumnSteps, c = i % kColumnSteps, next = i + 1;
    if (c == 0) {
#pragma unroll
      for (uint32_t m = 0; m < kGroups; ++m) LoadWeights(p, m, step, at, a[m]);
    }
    if (next < kSteps) LoadValues(keys, next / kColumnSteps, next % kColumnSteps, at, b[next % 2]);
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      MultiplyBf16(o[m][2 * c], a[m], b[i % 2][0], b[i % 2][1]);
      MultiplyBf16(o[m][2 * c + 1], a[m], b[i % 2][2], b[i % 2][3]);
    }
  }
}

// The same, but sums of rows outside [first, end) stay as they are, also where a value is not
// finite and 0 times it is not 0.
template <int kGroups>
__device__ void AddValuesOfRows(uint32_t p, uint32_t keys, int32_t first, int32_t end,
                                const RowStats& stats, const Lanes& at, Sums<kGroups>& o) {
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    const int32_t row = m * 16 + static_cast<int32_t>(at.row());
    const bool keep[2] = {row < first || row >= end, row + 8 < first || row + 8 >= end};
    const float alpha[2] = {stats.alpha[row], stats.alpha[row + 8]};
#pragma unroll
    for (uint32_t c = 0; c < kValueColumns / 16; ++c) {
      float sums[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sums[i / 4][i % 4] = o[m][2 * c + i / 4][i % 4] * alpha[i % 4 / 2];
      }
#pragma unroll
      for (uint32_t step = 0; step < kTileKeys / 16; ++step) {
        uint32_t a[4], b[4];
        LoadWeights(p, static_cast<uint32_t>(m), step, at, a);
        LoadValues(keys, step, c, at, b);
        MultiplyBf16(sums[0], a, b[0], b[1]);
        MultiplyBf16(sums[1], a, b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& sum = o[m][2 * c + i / 4][i % 4];
        sum = keep[i % 4 / 2] ? sum : sums[i / 4][i % 4];
      }
    }
  }
}

// l of the rows, after the barrier behind Softmax: four sums a row, over two of every eight keys each, as
// the threads of the warpgroup kernel have them.
template <int kGroups>
__device__ void AddWeights(RowStats& stats, int thread) {
  const int row = thread % kMlaRows, part = thread / kMlaRows;
  if (row >= 16 * kGroups) return;
  float sum = stats.sums[0][part][row];
#pragma unroll
  for (int i = 1; i < kTileKeys / 8; ++i) sum += stats.sums[i][part][row];
  stats.parts[part][row] = __fmaf_rn(stats.alpha[row], stats.parts[part][row], sum);
}
__device__ inline float SumOfParts(const RowStats& stats, int row) {
  return (stats.parts[0][row] + stats.parts[1][row]) + (stats.parts[2][row] + stats.parts[3][row]);
}

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_ATTEND_CUH_
