// Products of a few rows of x with one chunk of a panel, in registers. Compiled once per SIMD
// target.
//
// Outputs are lanes: a sum is always computed in its own lane, over inputs ascending, one fused
// multiply-add each, so its bits depend neither on the rows that share the registers nor on the
// width of the vectors. Sums that do not stay in registers between two chunks are stored and loaded
// again, which changes no bit.
#if defined(QUIRE_KERNELS_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_GEMM_INL_H_
#undef QUIRE_KERNELS_CPU_GEMM_INL_H_
#else
#define QUIRE_KERNELS_CPU_GEMM_INL_H_
#endif

#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/tile_ops-inl.h"
#include "kernels/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// ---- Packed weights as vectors ----

// A panel's outputs come as pairs of vectors: pair p is outputs p * kLanes and on, and the same 16
// further on.
inline constexpr int64_t kPairDistance = kPanelOutputs / 2;
inline constexpr int kPairs = static_cast<int>(kPairDistance) / kLanes;
static_assert(kPairDistance % kLanes == 0, "half a panel is a whole number of vectors");

struct VecPair {
  VF low, high;
};

// Pair(input): the pair of one input whose first byte `input` is. kPairBytes lie between two pairs,
// kInputBytes between two inputs.
template <WeightFormat kFormat>
struct Weights;

template <>
struct Weights<WeightFormat::kF32> {
  static constexpr int64_t kInputBytes = 4 * kPanelOutputs;
  static constexpr int64_t kPairBytes = 4 * kLanes;
  static HWY_INLINE VecPair Pair(const uint8_t* input) {
    const DF d;
    const float* values = reinterpret_cast<const float*>(input);
    return {hn::Load(d, values), hn::Load(d, values + kPairDistance)};
  }
};

template <>
struct Weights<WeightFormat::kBf16> {
  static constexpr int64_t kInputBytes = 2 * kPanelOutputs;
  static constexpr int64_t kPairBytes = 4 * kLanes;
  static HWY_INLINE VecPair Pair(const uint8_t* input) {
    const DF d;
    const hn::Rebind<uint32_t, DF> d32;
    const auto words = hn::Load(d32, reinterpret_cast<const uint32_t*>(input));
    return {hn::BitCast(d, hn::ShiftLeft<16>(words)),
            hn::BitCast(d, hn::And(words, hn::Set(d32, 0xffff0000u)))};
  }
};

// f16 bits as f32. Highway's fallback for machines that do not convert has no infinities and NaNs.
template <class D16>
HWY_INLINE VF WidenF16(D16, hn::Vec<D16> bits) {
  const DF d;
#if HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(d, hn::BitCast(d16, bits));
#else
  const hn::Rebind<int32_t, DF> d32;
  const auto wide = hn::PromoteTo(d32, bits);
  const auto sign = hn::And(wide, hn::Set(d32, static_cast<int32_t>(0x80000000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(d32, 0x7fff)));
  // As f32 bits the value is 2^(127 - 15) too small; the product is exact, subnormals included.
  const VF value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const auto is_special = hn::Gt(magnitude, hn::Set(d32, (0x7c00 << 13) - 1));
  const auto special = hn::BitCast(d, hn::Or(magnitude, hn::Set(d32, 0x7f800000)));
  const VF absolute = hn::IfThenElse(hn::RebindMask(d, is_special), special, value);
  return hn::Or(absolute, hn::BitCast(d, sign));
#endif
}

template <>
struct Weights<WeightFormat::kF16> {
  static constexpr int64_t kInputBytes = 2 * kPanelOutputs;
  static constexpr int64_t kPairBytes = 2 * kLanes;
  static HWY_INLINE VecPair Pair(const uint8_t* input) {
    const hn::Rebind<int16_t, DF> d;
    const int16_t* bits = reinterpret_cast<const int16_t*>(input);
    return {WidenF16(d, hn::Load(d, bits)), WidenF16(d, hn::Load(d, bits + kPairDistance))};
  }
};

// An e4m3 code moved to the exponent and mantissa of an f16 is its value times 2^-8, subnormals
// included, and f16 widens exactly. As the upper bits of an f32 it would be 2^-120 times its value,
// which products with small x do not survive. NaN codes do not come here: Pack refuses them.
inline constexpr float kFp8Unit = 0x1p8f;

// The f16 bits of codes that stand in the upper bytes of words. The shift copies the sign into the
// highest bit of the exponent, too: off with it.
template <class D16>
HWY_INLINE hn::Vec<D16> F16FromUpperBytes(D16 d16, hn::Vec<D16> words) {
  return hn::And(hn::ShiftRight<1>(words), hn::Set(d16, static_cast<int16_t>(0xbf80)));
}

template <>
struct Weights<WeightFormat::kFp8Block> {
  static constexpr int64_t kInputBytes = kPanelOutputs;
  static constexpr int64_t kPairBytes = 2 * kLanes;
  static HWY_INLINE VecPair Pair(const uint8_t* input) {
    const hn::Rebind<int16_t, DF> d;
    const auto words = hn::Load(d, reinterpret_cast<const int16_t*>(input));
    return {WidenF16(d, F16FromUpperBytes(d, hn::ShiftLeft<8>(words))),
            WidenF16(d, F16FromUpperBytes(d, words))};
  }
};

// All pairs of an input. With all in an array first, clang copies each by a call under a sanitizer.
HWY_INLINE void LoadPair(VecPair pair, VF& low, VF& high) {
  low = pair.low;
  high = pair.high;
}
template <class W, size_t... kPair>
HWY_INLINE void LoadPairs(const uint8_t* input, VF (&low)[sizeof...(kPair)],
                          VF (&high)[sizeof...(kPair)], std::index_sequence<kPair...>) {
  (LoadPair(W::Pair(input + kPair * W::kPairBytes), low[kPair], high[kPair]), ...);
}

#if HWY_TARGET != HWY_SCALAR  // which has no halves of vectors
// Two pairs of e4m3 at a time fill a vector of 16-bit words: one row reads 7.9 GB/s from the
// first-level cache of a Neoverse V1, with half vectors 4.8. (f16 19, bf16 33, f32 100 GB/s; what
// limits the first two is the conversion from f16, one vector in a cycle.)
HWY_INLINE void LoadTwoFp8Pairs(const uint8_t* input, VF* HWY_RESTRICT low, VF* HWY_RESTRICT high) {
  const hn::Repartition<int16_t, DF> d;
  const hn::Half<decltype(d)> half;
  const auto words = hn::Load(d, reinterpret_cast<const int16_t*>(input));
  const auto low_bits = F16FromUpperBytes(d, hn::ShiftLeft<8>(words));
  const auto high_bits = F16FromUpperBytes(d, words);
  low[0] = WidenF16(half, hn::LowerHalf(half, low_bits));
  high[0] = WidenF16(half, hn::LowerHalf(half, high_bits));
  low[1] = WidenF16(half, hn::UpperHalf(half, low_bits));
  high[1] = WidenF16(half, hn::UpperHalf(half, high_bits));
}
template <class W>
requires(std::is_same_v<W, Weights<WeightFormat::kFp8Block>>) HWY_INLINE
    void LoadPairs(const uint8_t* input, VF (&low)[4], VF (&high)[4],
                   std::index_sequence<0, 1, 2, 3>) {
  LoadTwoFp8Pairs(input, low, high);
  LoadTwoFp8Pairs(input + 2 * W::kPairBytes, low + 2, high + 2);
}
#endif

// The f32 values of `inputs` inputs of a chunk, as a kF32 chunk has them. Stored in the order of
// their addresses: pair by pair it takes a third longer on a Neoverse V1.
template <WeightFormat kFormat, size_t... kPair>
HWY_INLINE void WidenInput(const uint8_t* from, float* to, std::index_sequence<kPair...>) {
  VF low[kPairs], high[kPairs];
  LoadPairs<Weights<kFormat>>(from, low, high, std::make_index_sequence<kPairs>());
  (hn::Store(low[kPair], DF(), to + kPair * kLanes), ...);
  (hn::Store(high[kPair], DF(), to + kPairDistance + kPair * kLanes), ...);
}
template <WeightFormat kFormat>
HWY_INLINE void WidenChunk(const uint8_t* HWY_RESTRICT from, int64_t inputs,
                           float* HWY_RESTRICT to) {
  constexpr auto kAll = std::make_index_sequence<kPairs>();
  for (int64_t k = 0; k < inputs; ++k) {
    WidenInput<kFormat>(from + k * Weights<kFormat>::kInputBytes, to + k * kPanelOutputs, kAll);
  }
}

// ---- Rows times a chunk ----

// Rows whose sums are held in registers together, two vectors of each at least.
#if HWY_TARGET == HWY_NEON
inline constexpr int kMaxTileRows = 8;
#elif HWY_TARGET <= HWY_AVX3
inline constexpr int kMaxTileRows = 12;
#else
inline constexpr int kMaxTileRows = 6;
#endif

// Inputs that a tile multiplies between two tests of its loop. Most of the code under a sanitizer is
// its checks, and clang takes minutes over four inputs of them.
#ifdef QUIRE_SANITIZED
inline constexpr int kUnrolledInputs = 1;
#else
inline constexpr int kUnrolledInputs = 4;
#endif

// Pairs whose sums are held together: the more, the fewer loads of x, but they must leave registers
// for the weights, and more of them where those are widened.
constexpr int TilePairs(int rows, WeightFormat format) {
  const int most = format == WeightFormat::kF32 ? kAccumulators * 3 / 2 : kAccumulators * 5 / 4;
  int pairs = kPairs;
  while (pairs > 1 && 2 * pairs * rows > most) pairs /= 2;
  return pairs;
}

// A chunk of x for a tile of several rows: [ceil(rows / kQuad)][kChunkInputs][kQuad], quads of rows.
// Eight rows and one pair in a loop of their own reach 79 of 83 GFLOP/s on a Neoverse V1 with quads
// of rows, 61 with quads of inputs, as a row has them; a tile, with its loads and stores, 75.
inline constexpr int64_t kQuadStep = kChunkInputs * kQuad;

// What a tile multiplies, and what it asks the cache for meanwhile: for each input one byte of what
// comes next.
struct TileArgs {
  const uint8_t* w = nullptr;
  const float* scales = nullptr;  // or null
  const float* x = nullptr;
  int64_t x_stride = kQuadStep;  // floats from quad to quad, or from row to row
  int64_t inputs = 0;
  float* sums = nullptr;  // [rows][kPanelOutputs]
  const uint8_t* ahead = nullptr;
  int64_t ahead_step = 0;       // bytes from input to input
  int64_t ahead_pass_step = 0;  // bytes from pass to pass over the inputs
};

// The sums of kRows rows and as many pairs as there are kPair. Everything that touches them is
// unrolled by index sequences: with loops GCC keeps them in memory.
template <int kRows, class Pairs>
struct Tile;

template <int kRows, size_t... kPair>
struct Tile<kRows, std::index_sequence<kPair...>> {
  using Rows = std::make_index_sequence<kRows>;
  using Sums = VF[sizeof...(kPair)][kRows];

  // low, high += x * weights of one input, where x[i] holds rows kTogether * i and on.
  template <int kTogether, size_t kScalars, size_t... kRow>
  static HWY_INLINE void AddPair(const VecPair& pair, const Scalars (&x)[kScalars],
                                 VF (&low)[kRows], VF (&high)[kRows],
                                 std::index_sequence<kRow...>) {
    constexpr int kN = kTogether;
    (void(low[kRow] = x[kRow / kN].template MulAdd<kRow % kN>(pair.low, low[kRow])), ...);
    (void(high[kRow] = x[kRow / kN].template MulAdd<kRow % kN>(pair.high, high[kRow])), ...);
  }

  template <class W, int kTogether, size_t... kI>
  static HWY_INLINE void AddInput(const uint8_t* w, const float* x, int64_t x_stride, Sums& low,
                                  Sums& high, std::index_sequence<kI...>) {
    const Scalars scalars[sizeof...(kI)] = {Scalars(x + kI * x_stride)...};
    (AddPair<kTogether>(W::Pair(w + kPair * W::kPairBytes), scalars, low[kPair], high[kPair],
                        Rows()),
     ...);
  }

  // The x of kTogether rows lies together: of a quad, or of one row as it is in memory.
  template <class W, int kTogether>
  static HWY_INLINE void AddInputs(const uint8_t* w, const TileArgs& args, const uint8_t* ahead,
                                   Sums& low, Sums& high) {
    constexpr auto kEach = std::make_index_sequence<(kRows + kTogether - 1) / kTogether>();
    const float* const x = args.x;
    const int64_t x_stride = kTogether == kQuad ? kQuadStep : args.x_stride;
    const int64_t inputs = args.inputs;
    const int64_t ahead_step = args.ahead_step;
#pragma GCC unroll kUnrolledInputs
    for (int64_t k = 0; k < inputs; ++k, ahead += ahead_step) {
      hwy::Prefetch(ahead);
      AddInput<W, kTogether>(w + k * W::kInputBytes, x + k * kTogether, x_stride, low, high, kEach);
    }
  }

  // The sums of one half of a pair, from and to memory.
  template <size_t... kRow>
  static HWY_INLINE void Clear(VF (&sums)[kRows], std::index_sequence<kRow...>) {
    (void(sums[kRow] = hn::Zero(DF())), ...);
  }
  template <size_t... kRow>
  static HWY_INLINE void Load(const float* from, VF (&sums)[kRows], std::index_sequence<kRow...>) {
    (void(sums[kRow] = hn::Load(DF(), from + kRow * kPanelOutputs)), ...);
  }
  template <size_t... kRow>
  static HWY_INLINE void Store(const VF (&sums)[kRows], float* to, std::index_sequence<kRow...>) {
    (hn::Store(sums[kRow], DF(), to + kRow * kPanelOutputs), ...);
  }
  // to += scales * sums, where sums are of codes as Weights<kFp8Block> widens them.
  template <size_t... kRow>
  static HWY_INLINE void AddScaled(const VF (&sums)[kRows], const float* scales, float* to,
                                   std::index_sequence<kRow...>) {
    const DF d;
    const VF scale = hn::Mul(hn::Load(d, scales), hn::Set(d, kFp8Unit));
    (hn::Store(hn::MulAdd(scale, sums[kRow], hn::Load(d, to + kRow * kPanelOutputs)), d,
               to + kRow * kPanelOutputs),
     ...);
  }

  // What the registers begin with: the sums so far, or zeros where the chunk's are to be scaled.
  static HWY_INLINE void Begin(const float* scales, const float* sums, Sums& low, Sums& high) {
    if (scales == nullptr) {
      (Load(sums + kPair * kLanes, low[kPair], Rows()), ...);
      (Load(sums + kPairDistance + kPair * kLanes, high[kPair], Rows()), ...);
    } else {
      (Clear(low[kPair], Rows()), ...);
      (Clear(high[kPair], Rows()), ...);
    }
  }
  static HWY_INLINE void End(const Sums& low, const Sums& high, const float* scales, float* sums) {
    float* const upper = sums + kPairDistance;
    if (scales == nullptr) {
      (Store(low[kPair], sums + kPair * kLanes, Rows()), ...);
      (Store(high[kPair], upper + kPair * kLanes, Rows()), ...);
    } else {
      const float* const upper_scales = scales + kPairDistance;
      (AddScaled(low[kPair], scales + kPair * kLanes, sums + kPair * kLanes, Rows()), ...);
      (AddScaled(high[kPair], upper_scales + kPair * kLanes, upper + kPair * kLanes, Rows()), ...);
    }
  }
};

// Passes over the inputs that a tile makes.
constexpr int TilePasses(int rows, WeightFormat format) { return kPairs / TilePairs(rows, format); }

// sums[row][output] += x * w over one chunk, or over several that lie end to end; with scales,
// += scale * (x * w).
template <WeightFormat kFormat, int kTogether, int kRows>
HWY_NOINLINE void MultiplyTile(const TileArgs& args) {
  using W = Weights<kFormat>;
  constexpr int kTilePairs = TilePairs(kRows, kFormat);
  using T = Tile<kRows, std::make_index_sequence<kTilePairs>>;
  for (int pass = 0; pass < TilePasses(kRows, kFormat); ++pass) {
    const int first = pass * kTilePairs;
    const float* const scales = args.scales == nullptr ? nullptr : args.scales + first * kLanes;
    float* const sums = args.sums + first * kLanes;
    typename T::Sums low, high;
    T::Begin(scales, sums, low, high);
    T::template AddInputs<W, kTogether>(args.w + first * W::kPairBytes, args,
                                        args.ahead + pass * args.ahead_pass_step, low, high);
    T::End(low, high, scales, sums);
  }
}

// low, high += x[kLane of its quad] * the weights of one input.
template <class W, int kLane, size_t... kPair>
HWY_INLINE void AddRowInput(const uint8_t* w, const Scalars& x, VF (&low)[sizeof...(kPair)][1],
                            VF (&high)[sizeof...(kPair)][1], std::index_sequence<kPair...>) {
  VF w_low[kPairs], w_high[kPairs];
  LoadPairs<W>(w + kLane * W::kInputBytes, w_low, w_high, std::make_index_sequence<kPairs>());
  (void(low[kPair][0] = x.template MulAdd<kLane>(w_low[kPair], low[kPair][0])), ...);
  (void(high[kPair][0] = x.template MulAdd<kLane>(w_high[kPair], high[kPair][0])), ...);
}

// How far ahead of one row's sums the weights are asked for: 79% of the read roof without, 83% at
// 1 KiB, 35% at 4 KiB (two Neoverse V1 cores, bf16).
inline constexpr int64_t kRowPrefetch = 1024;
inline constexpr int64_t kCacheLine = 64;

template <class W>
HWY_INLINE void AddRow(const uint8_t* w, const float* x, int64_t inputs, VF (&low)[kPairs][1],
                       VF (&high)[kPairs][1]) {
  constexpr auto kAll = std::make_index_sequence<kPairs>();
  for (; inputs >= kQuad; inputs -= kQuad, w += kQuad * W::kInputBytes, x += kQuad) {
    for (int64_t line = 0; line < kQuad * W::kInputBytes; line += kCacheLine) {
      hwy::Prefetch(w + kRowPrefetch + line);
    }
    const Scalars quad(x);
    AddRowInput<W, 0>(w, quad, low, high, kAll);
    AddRowInput<W, 1>(w, quad, low, high, kAll);
    AddRowInput<W, 2>(w, quad, low, high, kAll);
    AddRowInput<W, 3>(w, quad, low, high, kAll);
  }
  if (inputs == 0) return;
  const Scalars quad(x);
  AddRowInput<W, 0>(w, quad, low, high, kAll);
  if (inputs > 1) AddRowInput<W, 1>(w, quad, low, high, kAll);
  if (inputs > 2) AddRowInput<W, 2>(w, quad, low, high, kAll);
}

// The same for a single row, as it lies in memory, and all of the panel at once: the weights are
// read straight through. x is padded to whole quads.
template <WeightFormat kFormat>
HWY_NOINLINE void MultiplyRow(const uint8_t* w, const float* scales, const float* x, int64_t inputs,
                              float* sums) {
  using W = Weights<kFormat>;
  using T = Tile<1, std::make_index_sequence<kPairs>>;
  typename T::Sums low, high;
  T::Begin(scales, sums, low, high);
  AddRow<W>(w, x, inputs, low, high);
  T::End(low, high, scales, sums);
}

using TileFunction = void (*)(const TileArgs& args);

template <WeightFormat kFormat, int kTogether, size_t... kRowsLessOne>
HWY_INLINE TileFunction TileOfRows(int rows, std::index_sequence<kRowsLessOne...>) {
  static constexpr TileFunction kTiles[] = {MultiplyTile<kFormat, kTogether, kRowsLessOne + 1>...};
  return kTiles[rows - 1];
}

// The tile for 1..kMaxTileRows rows, in quads.
template <WeightFormat kFormat>
HWY_INLINE TileFunction TileOf(int rows) {
  return TileOfRows<kFormat, kQuad>(rows, std::make_index_sequence<kMaxTileRows>());
}

// Rows that a tile reads as they lie in memory: packing so few takes 5 to 10% of the product. A machine that
// multiplies by elements of a vector (Scalars) needs them packed.
#if HWY_TARGET == HWY_NEON
inline constexpr int kMostRowsInPlace = 1;
#else
inline constexpr int kMostRowsInPlace = kQuad;
#endif

// The tile for 1..kMostRowsInPlace such rows.
template <WeightFormat kFormat>
HWY_INLINE TileFunction TileInPlaceOf(int rows) {
  return TileOfRows<kFormat, 1>(rows, std::make_index_sequence<kMostRowsInPlace>());
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
