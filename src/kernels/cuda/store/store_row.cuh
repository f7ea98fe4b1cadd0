// Rows of a KV page <-> floats on the device, in the layout of a store: one warp per row, four
// values per lane at a time. Rounding is that of base/narrow_float.h, as on the CPU.
#ifndef QUIRE_KERNELS_CUDA_STORE_STORE_ROW_CUH_
#define QUIRE_KERNELS_CUDA_STORE_STORE_ROW_CUH_

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "attn/kv_layout.h"
#include "attn/kv_store.h"
#include "base/narrow_float.h"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda {

// A KvStore as kernels take it.
struct StoreView {
  std::byte* memory;
  int64_t page_bytes;
  int64_t num_slots;  // of the whole pool
  int32_t page_size;
  KvFormat format;
  KvDims dims;
  KvPart parts[3];

  __device__ bool Holds(int64_t slot) const {
    return static_cast<uint64_t>(slot) < static_cast<uint64_t>(num_slots);
  }
  __device__ bool IsScratch(int64_t slot) const { return slot < page_size; }
  __device__ std::byte* Page(int64_t slot) const { return memory + slot / page_size * page_bytes; }
  __device__ int32_t RowInPage(int64_t slot) const {
    return static_cast<int32_t>(slot % page_size);
  }
  // Where a latent row begins: its pages have no gaps, so rows of the whole pool are equally far
  // apart.
  __device__ const uint8_t* LatentRow(int64_t slot) const {
    return reinterpret_cast<const uint8_t*>(memory) + slot * parts[0].row_stride;
  }
};

inline StoreView ViewOf(const KvStore& store, const KvLayout& layout) {
  StoreView view{.memory = store.Page(kScratchPage),
                 .page_bytes = layout.page_bytes().raw(),
                 .num_slots = layout.page_size().TokensIn(store.num_pages()).raw(),
                 .page_size = layout.page_size().raw(),
                 .format = layout.format(),
                 .dims = layout.dims(),
                 .parts = {}};
  size_t i = 0;
  for (const KvPart& part : layout.parts()) view.parts[i++] = part;
  return view;
}
inline StoreView WriteViewOf(const KvStore& store) { return ViewOf(store, store.layout()); }
inline StoreView ReadViewOf(const KvStore& store) { return ViewOf(store, store.read_layout()); }

// ---- Four values at a time ----

template <class T>
__device__ inline bool IsAligned(const T* at, size_t bytes) {
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

__device__ inline float Widen(float value) { return value; }
__device__ inline float Widen(Bf16 value) { return ToFloat(value); }
__device__ inline void Narrow(float value, float& to) { to = value; }
__device__ inline void Narrow(float value, Bf16& to) { to = ToBf16(value); }

__device__ inline float4 LoadFour(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ inline float4 LoadFour(const Bf16* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  return {internal::FloatFromBits(bits.x << 16), internal::FloatFromBits(bits.x & 0xffff0000u),
          internal::FloatFromBits(bits.y << 16), internal::FloatFromBits(bits.y & 0xffff0000u)};
}
__device__ inline void StoreFour(float4 v, float* to) { *reinterpret_cast<float4*>(to) = v; }
__device__ inline void StoreFour(float4 v, Bf16* to) {
  *reinterpret_cast<uint2*>(to) = {ToBf16(v.x).bits | static_cast<uint32_t>(ToBf16(v.y).bits) << 16,
                                   ToBf16(v.z).bits | static_cast<uint32_t>(ToBf16(v.w).bits)
                                                          << 16};
}

// values[i .. i + 4); 0 at and past n.
template <class T>
__device__ inline float4 LoadQuad(const T* values, int32_t i, int32_t n) {
  if (i + 4 <= n && IsAligned(values + i, 4 * sizeof(T))) return LoadFour(values + i);
  float4 v{0.0f, 0.0f, 0.0f, 0.0f};
  if (i < n) v.x = Widen(values[i]);
  if (i + 1 < n) v.y = Widen(values[i + 1]);
  if (i + 2 < n) v.z = Widen(values[i + 2]);
  if (i + 3 < n) v.w = Widen(values[i + 3]);
  return v;
}

// to[i .. i + 4) = v, below n only.
template <class T>
__device__ inline void StoreQuad(float4 v, T* to, int32_t i, int32_t n) {
  if (i + 4 <= n && IsAligned(to + i, 4 * sizeof(T))) {
    StoreFour(v, to + i);
    return;
  }
  if (i < n) Narrow(v.x, to[i]);
  if (i + 1 < n) Narrow(v.y, to[i + 1]);
  if (i + 2 < n) Narrow(v.z, to[i + 2]);
  if (i + 3 < n) Narrow(v.w, to[i + 3]);
}

// ---- e4m3 with a scale ----

// fmaxf leaves NaNs out, as the CPU's comparison does.
__device__ inline float MaxMagnitude(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
__device__ inline float WarpMax(float value) {
  for (int distance = kWarp / 2; distance >= 1; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// amax / 448, or 1 where that is not a normal float.
__device__ inline float Fp8Scale(float amax) {
  const float scale = __fdiv_rn(fminf(amax, FLT_MAX), kFp8E4m3Max);
  return scale < FLT_MIN ? 1.0f : scale;
}

// A NaN goes past the division, which would lose its sign here and not on the CPU.
__device__ inline uint32_t Fp8Code(float value, float scale) {
  return ToFp8E4m3(isnan(value) ? value : __fdiv_rn(value, scale)).bits;
}

__device__ inline void StoreCodes(float4 v, float scale, uint8_t* to, int32_t i, int32_t n) {
  const uint32_t codes = Fp8Code(v.x, scale) | Fp8Code(v.y, scale) << 8 |
                         Fp8Code(v.z, scale) << 16 | Fp8Code(v.w, scale) << 24;
  if (i + 4 <= n && IsAligned(to + i, 4)) {
    *reinterpret_cast<uint32_t*>(to + i) = codes;
    return;
  }
  for (int32_t j = 0; j < 4 && i + j < n; ++j) to[i + j] = static_cast<uint8_t>(codes >> 8 * j);
}

__device__ inline float4 LoadCodes(const uint8_t* from, float scale, int32_t i, int32_t n) {
  uint32_t codes = 0;
  if (i + 4 <= n && IsAligned(from + i, 4)) {
    codes = *reinterpret_cast<const uint32_t*>(from + i);
  } else {
    for (int32_t j = 0; j < 4 && i + j < n; ++j) codes |= uint32_t{from[i + j]} << 8 * j;
  }
  auto value = [&](int32_t j) {
    return __fmul_rn(ToFloat(Fp8E4m3{static_cast<uint8_t>(codes >> 8 * j)}), scale);
  };
  return {value(0), value(1), value(2), value(3)};
}

__device__ inline float LoadScale(const uint8_t* scales, int32_t i) {
  return reinterpret_cast<const float*>(scales)[i];  // scales are on 4-byte boundaries
}

// The floor of amax for index keys (docs/formats.md).
inline constexpr float kIndexKeyLeastAmax = 1e-4f;

// ---- Rows: a warp each ----
//
// A Source has Latent(i) and Rope(i): the four values from i on, 0 past the end. Loops are not unrolled: a row is
// short, and its warp waits for the code too.

template <class T, class Source>
__device__ void EncodePlain(const StoreView& store, uint8_t* row, const Source& source, int lane) {
  T* latent = reinterpret_cast<T*>(row);
  T* rope = latent + store.dims.latent_dim;
#pragma unroll 1
  for (int32_t i = 4 * lane; i < store.dims.latent_dim; i += 4 * kWarp) {
    StoreQuad(source.Latent(i), latent, i, store.dims.latent_dim);
  }
#pragma unroll 1
  for (int32_t i = 4 * lane; i < store.dims.rope_dim; i += 4 * kWarp) {
    StoreQuad(source.Rope(i), rope, i, store.dims.rope_dim);
  }
}

// A warp's quads are just the values that share one scale.
static_assert(kFp8ScaleGroup == 4 * kWarp);

template <class Source>
__device__ void EncodeLatentFp8(const StoreView& store, uint8_t* row, const Source& source,
                                int lane) {
  const int32_t n = store.dims.latent_dim;
  float* scales = reinterpret_cast<float*>(row + store.parts[1].begin);
#pragma unroll 1
  for (int32_t group = 0; group * kFp8ScaleGroup < n; ++group) {
    const int32_t i = group * kFp8ScaleGroup + 4 * lane;
    const float4 v = source.Latent(i);
    const float scale = Fp8Scale(WarpMax(MaxMagnitude(v)));
    StoreCodes(v, scale, row, i, n);
    if (lane == 0) scales[group] = scale;
  }
  Bf16* rope = reinterpret_cast<Bf16*>(row + store.parts[2].begin);
#pragma unroll 1
  for (int32_t i = 4 * lane; i < store.dims.rope_dim; i += 4 * kWarp) {
    StoreQuad(source.Rope(i), rope, i, store.dims.rope_dim);
  }
}

template <class Source>
__device__ void EncodeIndexKey(const StoreView& store, uint8_t* page, int32_t row,
                               const Source& source, int lane) {
  const int32_t n = store.dims.latent_dim;  // a multiple of 4, as chunks are: no quad is cut
  float amax = kIndexKeyLeastAmax;
  for (int32_t i = 4 * lane; i < n; i += 4 * kWarp) {
    amax = fmaxf(amax, MaxMagnitude(source.Latent(i)));
  }
  const float scale = Fp8Scale(WarpMax(amax));
  for (int32_t i = 4 * lane; i < n; i += 4 * kWarp) {
    StoreCodes(source.Latent(i), scale, page + store.parts[0].OffsetOf(row, i), 0, 4);
  }
  if (lane == 0) *reinterpret_cast<float*>(page + store.parts[1].OffsetOf(row, 0)) = scale;
}

// Writes the row at `slot`, which the pool holds. All lanes of a warp call it.
template <class Source>
__device__ void EncodeRow(const StoreView& store, int64_t slot, const Source& source, int lane) {
  uint8_t* page = reinterpret_cast<uint8_t*>(store.Page(slot));
  const int32_t row = store.RowInPage(slot);
  uint8_t* bytes = page + int64_t{row} * store.parts[0].row_stride;
  switch (store.format) {
    case KvFormat::kLatentF32:
    case KvFormat::kIndexKeyF32:
      EncodePlain<float>(store, bytes, source, lane);
      return;
    case KvFormat::kLatentBf16:
    case KvFormat::kIndexKeyBf16:
      EncodePlain<Bf16>(store, bytes, source, lane);
      return;
    case KvFormat::kLatentFp8:
      EncodeLatentFp8(store, bytes, source, lane);
      return;
    case KvFormat::kIndexKeyFp8:
    case KvFormat::kIndexKeyFp8Preshuffled:
      EncodeIndexKey(store, page, row, source, lane);
      return;
  }
}

// The four values of the row at `slot` from i on, of its latent or of its rope part.
struct RowReader {
  __device__ RowReader(const StoreView& s, int64_t slot)
      : store(s),
        page(reinterpret_cast<const uint8_t*>(s.Page(slot))),
        row(s.RowInPage(slot)),
        bytes(page + int64_t{row} * s.parts[0].row_stride) {}

  __device__ float4 Latent(int32_t i) const {
    const int32_t n = store.dims.latent_dim;
    switch (store.format) {
      case KvFormat::kLatentF32:
      case KvFormat::kIndexKeyF32:
        return LoadQuad(reinterpret_cast<const float*>(bytes), i, n);
      case KvFormat::kLatentBf16:
      case KvFormat::kIndexKeyBf16:
        return LoadQuad(reinterpret_cast<const Bf16*>(bytes), i, n);
      case KvFormat::kLatentFp8:
        return LoadCodes(bytes, LoadScale(bytes + store.parts[1].begin, i / kFp8ScaleGroup), i, n);
      case KvFormat::kIndexKeyFp8:
      case KvFormat::kIndexKeyFp8Preshuffled:
        break;
    }
    return LoadCodes(page + store.parts[0].OffsetOf(row, i),
                     LoadScale(page + store.parts[1].OffsetOf(row, 0), 0), 0, 4);
  }
  __device__ float4 Rope(int32_t i) const {
    const int32_t n = store.dims.rope_dim;
    if (store.format == KvFormat::kLatentF32) {
      return LoadQuad(reinterpret_cast<const float*>(bytes) + store.dims.latent_dim, i, n);
    }
    const int32_t begin =
        store.format == KvFormat::kLatentFp8 ? store.parts[2].begin : 2 * store.dims.latent_dim;
    return LoadQuad(reinterpret_cast<const Bf16*>(bytes + begin), i, n);
  }

  const StoreView& store;
  const uint8_t* page;
  int32_t row;
  const uint8_t* bytes;  // of a latent row
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_STORE_STORE_ROW_CUH_
