// Rows of a KV page <-> floats, in the layout of a store. Compiled once per SIMD target.
#if defined(QUIRE_KERNELS_CPU_ROW_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_ROW_CODEC_INL_H_
#undef QUIRE_KERNELS_CPU_ROW_CODEC_INL_H_
#else
#define QUIRE_KERNELS_CPU_ROW_CODEC_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attn/kv_layout.h"
#include "base/narrow_float.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Where the floats of a decoded row go: blocks of kBlock floats, block_stride apart. With
// block_stride kBlock that is a plain array. No vector is wider than a block.
struct RowTarget {
  static constexpr int32_t kBlock = 16;
  float* base;
  int64_t block_stride = kBlock;

  HWY_INLINE float* At(int32_t i) const { return base + i / kBlock * block_stride + i % kBlock; }
};

// ---- Arrays of one type, to values [first, first + n) of a row ----

// Calls vector(i, to) for the vectors of whole blocks and one(i) for the rest: a vector must not
// straddle two blocks, so values that begin inside one go one by one.
template <class D, class Vector, class One>
HWY_INLINE void ForVectors(D d, int32_t first, int32_t n, RowTarget to, Vector vector, One one) {
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  int32_t i = 0;
  if (first % RowTarget::kBlock == 0) {
    float* block = to.At(first);
    for (; i + RowTarget::kBlock <= n; i += RowTarget::kBlock, block += to.block_stride) {
      for (int32_t j = 0; j < RowTarget::kBlock; j += lanes) vector(i + j, block + j);
    }
  }
  for (; i < n; ++i) one(i, to.At(first + i));
}

HWY_INLINE void CopyF32(const uint8_t* HWY_RESTRICT from, int32_t first, int32_t n, RowTarget to) {
  const hn::ScalableTag<float> d;
  const float* values = reinterpret_cast<const float*>(from);
  ForVectors(
      d, first, n, to,
      [&](int32_t i, float* at) HWY_ATTR { hn::StoreU(hn::LoadU(d, values + i), d, at); },
      [&](int32_t i, float* at) { *at = values[i]; });
}

HWY_INLINE void WidenBf16(const uint8_t* HWY_RESTRICT from, int32_t first, int32_t n,
                          RowTarget to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<uint32_t, decltype(d)> d32;
  const uint16_t* values = reinterpret_cast<const uint16_t*>(from);
  ForVectors(
      d, first, n, to,
      [&](int32_t i, float* at) HWY_ATTR {
        const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, values + i));
        hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, at);
      },
      [&](int32_t i, float* at) { *at = ToFloat(Bf16{values[i]}); });
}

#if HWY_TARGET != HWY_SCALAR  // which has no halves of vectors
// Whether any of 16 * num_blocks codes is NaN.
HWY_INLINE bool HasFp8NaN(const uint8_t* codes, int32_t num_blocks) {
  const hn::Full128<uint8_t> d;
  auto found = hn::Zero(d);
  for (int32_t i = 0; i < num_blocks; ++i) {
    const auto magnitude = hn::And(hn::LoadU(d, codes + 16 * i), hn::Set(d, uint8_t{0x7f}));
    found = hn::Or(found, hn::VecFromMask(d, hn::Eq(magnitude, hn::Set(d, uint8_t{0x7f}))));
  }
  return !hn::AllFalse(d, hn::MaskFromVec(found));
}

// Whole blocks of e4m3 without NaN, times one scale <= 128. In the upper half of a float's bits the
// value is 2^120 too small, subnormals included; scale * 2^120 is finite and exact, so the one
// product rounds as value * scale does.
HWY_INLINE void WidenFp8Blocks(const uint8_t* HWY_RESTRICT from, float scale, int32_t num_blocks,
                               float* HWY_RESTRICT block, int64_t block_stride) {
  const hn::CappedTag<uint16_t, RowTarget::kBlock> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const hn::Half<decltype(d16)> d16_half;
  const hn::Rebind<uint32_t, decltype(d16_half)> d32;
  const hn::Rebind<float, decltype(d16_half)> df;
  const int32_t step = static_cast<int32_t>(hn::Lanes(d16));
  const auto factor = hn::Set(df, scale * 0x1p120f);
  for (int32_t i = 0; i < num_blocks; ++i, block += block_stride) {
    for (int32_t j = 0; j < RowTarget::kBlock; j += step) {
      const auto code = hn::PromoteTo(d16, hn::LoadU(d8, from + RowTarget::kBlock * i + j));
      const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d16, uint16_t{0x80})));
      const auto magnitude = hn::ShiftLeft<4>(hn::And(code, hn::Set(d16, uint16_t{0x7f})));
      const auto upper = hn::Or(sign, magnitude);
      const auto low = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LowerHalf(d16_half, upper)));
      const auto high = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::UpperHalf(d16_half, upper)));
      hn::StoreU(hn::Mul(hn::BitCast(df, low), factor), df, block + j);
      hn::StoreU(hn::Mul(hn::BitCast(df, high), factor), df, block + j + step / 2);
    }
  }
}
#endif

// e4m3 times one scale. NaN codes stay NaN.
HWY_INLINE void WidenFp8(const uint8_t* HWY_RESTRICT from, float scale, int32_t first, int32_t n,
                         RowTarget to) {
  int32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const int32_t num_blocks = first % RowTarget::kBlock == 0 ? n / RowTarget::kBlock : 0;
  if (scale <= 128.0f && !HasFp8NaN(from, num_blocks)) {
    WidenFp8Blocks(from, scale, num_blocks, to.At(first), to.block_stride);
    i = num_blocks * RowTarget::kBlock;
  }
#endif
  for (; i < n; ++i) *to.At(first + i) = ToFloat(Fp8E4m3{from[i]}) * scale;
}

// ---- Rows ----

HWY_INLINE const uint8_t* PartRow(const KvPart& part, const std::byte* page, int32_t row) {
  return reinterpret_cast<const uint8_t*>(page) + part.OffsetOf(row, 0);
}
HWY_INLINE uint8_t* PartRow(const KvPart& part, std::byte* page, int32_t row) {
  return reinterpret_cast<uint8_t*>(page) + part.OffsetOf(row, 0);
}

HWY_INLINE float LoadScale(const uint8_t* scales, int32_t i) {
  float scale;
  std::memcpy(&scale, scales + 4 * i, 4);
  return scale;
}

// Row `row` of a page, as latent_dim + rope_dim floats.
HWY_INLINE void DecodeRow(const KvLayout& layout, const std::byte* page, int32_t row,
                          RowTarget to) {
  const KvDims dims = layout.dims();
  const std::span<const KvPart> parts = layout.parts();
  switch (layout.format()) {
    case KvFormat::kLatentF32:
    case KvFormat::kIndexKeyF32:
      CopyF32(PartRow(parts[0], page, row), 0, dims.values(), to);
      return;
    case KvFormat::kLatentBf16:
    case KvFormat::kIndexKeyBf16:
      WidenBf16(PartRow(parts[0], page, row), 0, dims.values(), to);
      return;
    case KvFormat::kLatentFp8: {
      const uint8_t* codes = PartRow(parts[0], page, row);
      const uint8_t* scales = PartRow(parts[1], page, row);
      for (int32_t i = 0; i < dims.latent_dim; i += kFp8ScaleGroup) {
        WidenFp8(codes + i, LoadScale(scales, i / kFp8ScaleGroup), i,
                 std::min(kFp8ScaleGroup, dims.latent_dim - i), to);
      }
      if (dims.rope_dim > 0) {
        WidenBf16(PartRow(parts[2], page, row), dims.latent_dim, dims.rope_dim, to);
      }
      return;
    }
    case KvFormat::kIndexKeyFp8:
    case KvFormat::kIndexKeyFp8Preshuffled: {
      const KvPart& keys = parts[0];
      const float scale = LoadScale(PartRow(parts[1], page, row), 0);
      for (int32_t i = 0; i < dims.latent_dim; i += keys.chunk_bytes) {
        WidenFp8(reinterpret_cast<const uint8_t*>(page) + keys.OffsetOf(row, i), scale, i,
                 keys.chunk_bytes, to);
      }
      return;
    }
  }
}

// The scale for n values: amax / 448. `least_amax` is the floor of amax; where the scale would not
// be a normal float it is 1, and the values become zero. NaNs do not count; infinities saturate.
HWY_INLINE float Fp8Scale(const float* from, int32_t n, float least_amax) {
  float amax = least_amax;
  for (int32_t i = 0; i < n; ++i) amax = std::max(amax, std::abs(from[i]));
  const float scale = std::min(amax, std::numeric_limits<float>::max()) / kFp8E4m3Max;
  return scale < std::numeric_limits<float>::min() ? 1.0f : scale;
}

HWY_INLINE void NarrowBf16(const float* from, int32_t n, uint8_t* to) {
  for (int32_t i = 0; i < n; ++i) {
    const Bf16 value = ToBf16(from[i]);
    std::memcpy(to + 2 * i, &value, 2);
  }
}

HWY_INLINE void NarrowFp8(const float* from, int32_t n, float scale, uint8_t* to) {
  for (int32_t i = 0; i < n; ++i) to[i] = ToFp8E4m3(from[i] / scale).bits;
}

// The floor of amax for index keys (docs/formats.md).
inline constexpr float kIndexKeyLeastAmax = 1e-4f;

// Writes row `row` of a page from latent_dim + rope_dim floats.
HWY_INLINE void EncodeRow(const KvLayout& layout, const float* HWY_RESTRICT from, std::byte* page,
                          int32_t row) {
  const KvDims dims = layout.dims();
  const std::span<const KvPart> parts = layout.parts();
  switch (layout.format()) {
    case KvFormat::kLatentF32:
    case KvFormat::kIndexKeyF32:
      std::memcpy(PartRow(parts[0], page, row), from, static_cast<size_t>(parts[0].row_bytes));
      return;
    case KvFormat::kLatentBf16:
    case KvFormat::kIndexKeyBf16:
      NarrowBf16(from, dims.values(), PartRow(parts[0], page, row));
      return;
    case KvFormat::kLatentFp8: {
      uint8_t* codes = PartRow(parts[0], page, row);
      uint8_t* scales = PartRow(parts[1], page, row);
      for (int32_t i = 0; i < dims.latent_dim; i += kFp8ScaleGroup) {
        const int32_t n = std::min(kFp8ScaleGroup, dims.latent_dim - i);
        const float scale = Fp8Scale(from + i, n, 0.0f);
        NarrowFp8(from + i, n, scale, codes + i);
        std::memcpy(scales + 4 * (i / kFp8ScaleGroup), &scale, 4);
      }
      if (dims.rope_dim > 0) {
        NarrowBf16(from + dims.latent_dim, dims.rope_dim, PartRow(parts[2], page, row));
      }
      return;
    }
    case KvFormat::kIndexKeyFp8:
    case KvFormat::kIndexKeyFp8Preshuffled: {
      const KvPart& keys = parts[0];
      const float scale = Fp8Scale(from, dims.latent_dim, kIndexKeyLeastAmax);
      for (int32_t i = 0; i < dims.latent_dim; i += keys.chunk_bytes) {
        NarrowFp8(from + i, keys.chunk_bytes, scale,
                  reinterpret_cast<uint8_t*>(page) + keys.OffsetOf(row, i));
      }
      std::memcpy(PartRow(parts[1], page, row), &scale, 4);
      return;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
