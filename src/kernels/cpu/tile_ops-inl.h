// Attention over one tile of keys, in f32. Compiled once per SIMD target.
//
// Rows (query heads) are lanes: a value of a row is always computed in its own lane by the same
// sequence of operations - dots over d ascending, sums over keys ascending - so its bits depend
// neither on the rows beside it nor on the width of the vectors.
//
// Rows come in blocks of kBlockRows, and what a block needs lies together: with one stride over all
// rows, 128 heads put every line of a block's queries into an eighth of the first-level cache. So
// do columns of keys: summing values walks one block of columns over all keys, which row-major keys
// spread over 36 memory pages (128 heads: 51 -> 54 GFLOP/s on one Neoverse V1 core).
//
//   q       [blocks][dim][kBlockRows]        transposed queries
//   keys    [columns / kBlockColumns][kTileKeys + 1][kBlockColumns], the last key unused
//   p       [blocks][kTileKeys][kBlockRows]  scores, then weights
//   o       [rows][o_stride]                 running sums of weight * value, not normalised
//   m, l    [rows]                           running maximum and sum of weights
#if defined(QUIRE_KERNELS_CPU_TILE_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_TILE_OPS_INL_H_
#undef QUIRE_KERNELS_CPU_TILE_OPS_INL_H_
#else
#define QUIRE_KERNELS_CPU_TILE_OPS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Registers decide the shape of the inner blocks: 32 on AArch64 and AVX-512, 16 before. Sixteen
// accumulators hide the latency of four FMA pipes of four cycles, eight that of two.
#if HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3
inline constexpr int kAccumulators = 16;
#else
inline constexpr int kAccumulators = 8;
#endif
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
static_assert(kBlockRows % kLanes == 0, "a block of rows is a whole number of vectors");
inline constexpr int kRowVecs = static_cast<int>(kBlockRows) / kLanes;
// Keys that kVecs vectors of rows are multiplied with at once.
template <int kVecs>
inline constexpr int kScoreKeys = kAccumulators > kVecs ? kAccumulators / kVecs : 1;

// Half a block, where that is a whole number of vectors: of a model of eight heads a token has no more.
inline constexpr int64_t kHalfRows = kBlockRows / 2;
inline constexpr bool kHasHalves = kHalfRows % kLanes == 0;
inline constexpr int kHalfVecs = kHasHalves ? kRowVecs / 2 : kRowVecs;

// scalar * v + acc. On AArch64 a lane of a loaded vector multiplies directly (fmla by element), so
// scalars are loaded four at a time; elsewhere a broadcast load costs no more than a plain one.
#if HWY_TARGET == HWY_NEON
struct Scalars {
  explicit HWY_INLINE Scalars(const float* from) : quad(hn::LoadU(DF(), from)) {}
  template <int kLane>
  HWY_INLINE VF MulAdd(VF v, VF acc) const {
    return hn::MulAdd(hn::Broadcast<kLane>(quad), v, acc);
  }
  VF quad;
};
#else
struct Scalars {
  explicit HWY_INLINE Scalars(const float* from) : scalars(from) {}
  template <int kLane>
  HWY_INLINE VF MulAdd(VF v, VF acc) const {
    return hn::MulAdd(hn::Set(DF(), scalars[kLane]), v, acc);
  }
  const float* scalars;
};
#endif
inline constexpr int kQuad = 4;

// acc[k] += q[i + kLane] * keys[k][i + kLane], where quads[k] holds keys[k][i .. i + 4).
template <int kLane, int kVecs>
HWY_INLINE void ScoreStep(const float* q, const Scalars (&quads)[kScoreKeys<kVecs>],
                          VF (&acc)[kScoreKeys<kVecs>][kVecs]) {
  const DF d;
  VF qv[kVecs];
  for (int r = 0; r < kVecs; ++r) qv[r] = hn::LoadU(d, q + kLane * kBlockRows + r * kLanes);
  for (int k = 0; k < kScoreKeys<kVecs>; ++k) {
    for (int r = 0; r < kVecs; ++r) {
      acc[k][r] = quads[k].template MulAdd<kLane>(qv[r], acc[k][r]);
    }
  }
}

template <int kVecs, size_t... kKeys>
HWY_INLINE void ScoreQuad(const float* q, const float* keys, VF (&acc)[sizeof...(kKeys)][kVecs],
                          std::index_sequence<kKeys...>) {
  const Scalars quads[sizeof...(kKeys)] = {Scalars(keys + kKeys * kBlockColumns)...};
  ScoreStep<0, kVecs>(q, quads, acc);
  ScoreStep<1, kVecs>(q, quads, acc);
  ScoreStep<2, kVecs>(q, quads, acc);
  ScoreStep<3, kVecs>(q, quads, acc);
}

// p[k][row] = dot(q[:][row], keys[k]) for kVecs vectors of one block's rows and kScoreKeys keys. dim is a multiple
// of kBlockColumns: keys and queries are padded with zeros.
// A copy with dim fixed at 576 (512 + 64) was tried and gained nothing: 100.4 against 100.9 GFLOP/s at
// 16 heads, 121 against 122 at 128, on two Neoverse V1 cores.
template <int kVecs>
HWY_INLINE void ScoreBlock(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys, int64_t dim,
                           float* HWY_RESTRICT p) {
  const DF d;
  constexpr int kKeys = kScoreKeys<kVecs>;
  VF acc[kKeys][kVecs];
  for (int k = 0; k < kKeys; ++k) {
    for (int r = 0; r < kVecs; ++r) acc[k][r] = hn::Zero(d);
  }
  for (int64_t i = 0; i < dim; i += kBlockColumns) {
    for (int64_t j = 0; j < kBlockColumns; j += kQuad) {
      ScoreQuad<kVecs>(q + (i + j) * kBlockRows, keys + ColumnOffset(i) + j, acc,
                       std::make_index_sequence<kKeys>());
    }
  }
  for (int k = 0; k < kKeys; ++k) {
    for (int r = 0; r < kVecs; ++r) {
      hn::StoreU(acc[k][r], d, p + k * kBlockRows + r * kLanes);
    }
  }
}

// p[block][key][row] = dot(q, key) for num_blocks blocks of rows, p_stride floats apart. Keys come
// in whole groups: the buffers have kTileKeys of them, and what is past num_keys is never read. Of every
// block the first kVecs vectors of rows are computed.
template <int kVecs = kRowVecs>
HWY_INLINE void ScoreTile(const float* q, int64_t num_blocks, int64_t dim, const float* keys,
                          int32_t num_keys, float* p, int64_t p_stride) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    static_assert(kTileKeys % kScoreKeys<kVecs> == 0, "a tile's keys are whole groups");
    for (int32_t k = 0; k < num_keys; k += kScoreKeys<kVecs>) {
      ScoreBlock<kVecs>(q + block * dim * kBlockRows, keys + k * kBlockColumns, dim,
                        p + block * p_stride + k * kBlockRows);
    }
  }
}

// exp that keeps NaN; Highway's returns 0 for it.
HWY_INLINE VF ExpKeepNaN(VF x) {
  const DF d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// The maximum that ignores NaN and is the same on every target.
HWY_INLINE VF MaxOf(VF a, VF b) { return hn::IfThenElse(hn::Gt(b, a), b, a); }

// What to subtract before exp: the maximum, or 0 where nothing but -inf was seen.
HWY_INLINE VF Anchor(VF m) {
  const DF d;
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  return hn::IfThenElse(hn::Eq(m, lowest), hn::Zero(d), m);
}

// Which keys of a tile the rows see: all of them, or the first counts[row].
struct SeeAll {
  HWY_INLINE VF Keep(int64_t, int32_t, VF v, VF) const { return v; }
};
struct SeeFirst {
  HWY_INLINE VF Keep(int64_t row, int32_t k, VF v, VF otherwise) const {
    const hn::RebindToSigned<DF> di;
    const auto seen = hn::Lt(hn::Set(di, k), hn::LoadU(di, counts + row));
    return hn::IfThenElse(hn::RebindMask(DF(), seen), v, otherwise);
  }
  const int32_t* counts;  // [rows]
};

// Turns scores into weights exp(scale * score - m), with m raised to the tile's maximum, and 0
// where a row does not see the key; updates m and l, and leaves in alpha what older sums must be
// multiplied with. Of every block, the first kVecs vectors of rows.
template <int kVecs = kRowVecs, class See>
HWY_INLINE void SoftmaxTile(const TileShape& shape, See see, float scale, int32_t num_keys,
                            float* p, float* HWY_RESTRICT m, float* HWY_RESTRICT l,
                            float* HWY_RESTRICT alpha) {
  const DF d;
  const VF scale_v = hn::Set(d, scale);
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  // A block's vectors side by side: one alone would wait for its own exp at every key.
  for (int64_t row = 0; row < shape.rows; row += kBlockRows) {
    float* HWY_RESTRICT block = p + row * kTileKeys;
    VF top[kVecs], anchor[kVecs], sum[kVecs];
    for (int r = 0; r < kVecs; ++r) top[r] = hn::LoadU(d, m + row + r * kLanes);
    for (int32_t k = 0; k < num_keys; ++k) {
      for (int r = 0; r < kVecs; ++r) {
        float* at = block + k * kBlockRows + r * kLanes;
        const VF score = hn::Mul(scale_v, hn::LoadU(d, at));
        hn::StoreU(score, d, at);
        top[r] = MaxOf(top[r], see.Keep(row + r * kLanes, k, score, lowest));
      }
    }
    for (int r = 0; r < kVecs; ++r) {
      const int64_t at = row + r * kLanes;
      anchor[r] = Anchor(top[r]);
      const VF factor = ExpKeepNaN(hn::Sub(hn::LoadU(d, m + at), anchor[r]));
      sum[r] = hn::Mul(factor, hn::LoadU(d, l + at));
      hn::StoreU(factor, d, alpha + at);
      hn::StoreU(top[r], d, m + at);
    }
    for (int32_t k = 0; k < num_keys; ++k) {
      for (int r = 0; r < kVecs; ++r) {
        float* at = block + k * kBlockRows + r * kLanes;
        const VF weight = see.Keep(row + r * kLanes, k,
                                   ExpKeepNaN(hn::Sub(hn::LoadU(d, at), anchor[r])), hn::Zero(d));
        hn::StoreU(weight, d, at);
        sum[r] = hn::Add(sum[r], weight);
      }
    }
    for (int r = 0; r < kVecs; ++r) hn::StoreU(sum[r], d, l + row + r * kLanes);
  }
}

inline constexpr int kValueVecs = kAccumulators / kQuad;
inline constexpr int64_t kValueColumns = kValueVecs * kLanes;

// o[row][cols] = alpha[row] * o[row][cols] + sum_k p[k][row] * keys[k][cols], for kQuad rows and
// kValueVecs vectors of columns.
HWY_INLINE void ValueBlock(const float* HWY_RESTRICT p, const float* HWY_RESTRICT keys,
                           int32_t num_keys, const float* HWY_RESTRICT alpha, float* HWY_RESTRICT o,
                           int64_t o_stride) {
  const DF d;
  VF acc[kQuad][kValueVecs];
  for (int r = 0; r < kQuad; ++r) {
    const VF factor = hn::Set(d, alpha[r]);
    for (int c = 0; c < kValueVecs; ++c) {
      acc[r][c] = hn::Mul(factor, hn::LoadU(d, o + r * o_stride + c * kLanes));
    }
  }
  for (int32_t k = 0; k < num_keys; ++k) {
    const Scalars weights(p + k * kBlockRows);
    for (int c = 0; c < kValueVecs; ++c) {
      const VF value = hn::LoadU(d, keys + ColumnOffset(c * kLanes) + k * kBlockColumns);
      acc[0][c] = weights.template MulAdd<0>(value, acc[0][c]);
      acc[1][c] = weights.template MulAdd<1>(value, acc[1][c]);
      acc[2][c] = weights.template MulAdd<2>(value, acc[2][c]);
      acc[3][c] = weights.template MulAdd<3>(value, acc[3][c]);
    }
  }
  for (int r = 0; r < kQuad; ++r) {
    for (int c = 0; c < kValueVecs; ++c) {
      hn::StoreU(acc[r][c], d, o + r * o_stride + c * kLanes);
    }
  }
}

// The same for all rows and columns. Columns outside, rows inside: a block of columns of all keys
// stays in the first-level cache while every row passes over it.
HWY_INLINE void ValueTile(const TileShape& shape, SeeAll, const float* p, const float* keys,
                          int32_t num_keys, const float* alpha, float* o) {
  static_assert(kColumnPad % kValueColumns == 0, "padded columns are whole blocks");
  for (int64_t col = 0; col < shape.o_stride; col += kValueColumns) {
    for (int64_t row = 0; row < shape.rows; row += kQuad) {
      ValueBlock(p + row / kBlockRows * (kBlockRows * kTileKeys) + row % kBlockRows,
                 keys + ColumnOffset(col), num_keys, alpha + row, o + row * shape.o_stride + col,
                 shape.o_stride);
    }
  }
}

// The same where row r sees the first counts[r] keys only: what it does not see is not multiplied
// with 0 but left out, for 0 times a value that is not finite is not 0.
HWY_INLINE void ValueTile(const TileShape& shape, SeeFirst see, const float* p, const float* keys,
                          int32_t, const float* alpha, float* o) {
  const DF d;
  const int32_t* counts = see.counts;
  for (int64_t col = 0; col < shape.o_stride; col += kValueColumns) {
    for (int64_t row = 0; row < shape.rows; row += kQuad) {
      const float* weights = p + row / kBlockRows * (kBlockRows * kTileKeys) + row % kBlockRows;
      const int32_t common = *std::min_element(counts + row, counts + row + kQuad);
      ValueBlock(weights, keys + ColumnOffset(col), common, alpha + row,
                 o + row * shape.o_stride + col, shape.o_stride);
      for (int64_t r = 0; r < kQuad; ++r) {
        float* sums = o + (row + r) * shape.o_stride + col;
        for (int32_t k = common; k < counts[row + r]; ++k) {
          const VF weight = hn::Set(d, weights[k * kBlockRows + r]);
          for (int c = 0; c < kValueVecs; ++c) {
            const float* value = keys + ColumnOffset(col + c * kLanes) + k * kBlockColumns;
            float* sum = sums + c * kLanes;
            hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, value), hn::LoadU(d, sum)), d, sum);
          }
        }
      }
    }
  }
}

// Folds the state of later keys into that of earlier ones, for `num_rows` rows. One row at a time,
// not a vector of them: rows of one block may see different keys.
HWY_INLINE void FoldRows(int64_t num_rows, int64_t o_stride, const SoftmaxState& later,
                         const SoftmaxState& state) {
  const DF d;
  for (int64_t row = 0; row < num_rows; ++row) {
    const VF max_a = hn::Set(d, state.m[row]);
    const VF max_b = hn::Set(d, later.m[row]);
    const VF new_max = MaxOf(max_a, max_b);
    const VF a = ExpKeepNaN(hn::Sub(max_a, Anchor(new_max)));
    const VF b = ExpKeepNaN(hn::Sub(max_b, Anchor(new_max)));
    state.m[row] = hn::GetLane(new_max);
    state.l[row] = hn::GetLane(a) * state.l[row] + hn::GetLane(b) * later.l[row];
    float* sums = state.o + row * o_stride;
    const float* later_sums = later.o + row * o_stride;
    for (int64_t c = 0; c < o_stride; c += kLanes) {
      const VF scaled = hn::Mul(a, hn::LoadU(d, sums + c));
      hn::StoreU(hn::MulAdd(b, hn::LoadU(d, later_sums + c), scaled), d, sums + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
