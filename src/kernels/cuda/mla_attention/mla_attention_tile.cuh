// Tiles of the tensor-core kernel in shared memory, and how they get there.
//
// A tile is 64 rows (keys or query heads) of 512 + 64 bf16 values. Its latent part is [64][1024
// bytes], its rope part [64][128 bytes] behind it. Within every 128 bytes of a row the eight chunks
// of 16 bytes are permuted by row % 8, so that eight rows of one chunk lie in different banks.
// Where a key comes from changes nothing here: page size changes no bit.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_TILE_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_TILE_CUH_

#include <cuda_bf16.h>

#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/instructions.cuh"

namespace quire::cuda::mla {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kLatent = 512, kRope = 64;
inline constexpr uint32_t kLatentBytes = 2 * kLatent, kRopeBytes = 2 * kRope;  // of a row
inline constexpr uint32_t kRopeBegin = kTileKeys * kLatentBytes;               // in a tile
inline constexpr uint32_t kTileBytes = kTileKeys * (kLatentBytes + kRopeBytes);
inline constexpr uint32_t kLine = 128;  // bytes within which chunks are permuted
inline constexpr int kRowChunks = (kLatentBytes + kRopeBytes) / 16;
static_assert(kMlaRows == kTileKeys, "queries have a tile of the same shape as keys");

// A row of latent_fp8 as the store holds it: 512 codes, four scales, 64 bf16 values.
inline constexpr uint32_t kFp8RowBytes = 656, kFp8Scales = 512, kFp8Rope = 528;
inline constexpr uint32_t kFp8TileBytes = kTileKeys * kFp8RowBytes;

// Row statistics. Who writes which and when is said in mla_attention_attend.cuh.
struct RowStats {
  float m[2][kMlaRows];      // running maxima, times log2(e): before and after a tile, by turns
  float parts[4][kMlaRows];  // running sums of weights, over two of every eight keys
  float l[kMlaRows];         // their sum, when a split ends
  float alpha[kMlaRows];     // what older sums are multiplied with
  float tops[2 * kMlaRows];  // maxima of a tile, by group of warps
  float sums[kTileKeys / 8][4][kMlaRows];  // weights of two keys each
  int32_t visible[kMlaRows];               // keys that a row sees; 0 behind the last row
};

// The piece at hand, here rather than in registers, which are full.
struct PieceState {
  Piece piece;
  RowBlock block;
  int64_t slots[kTileKeys];  // of the next tile to load; -1: no key, zeros
};

// Shared memory of the kernels. What a kernel asks for is the sizeof of its struct.
//
// For 16 rows: two CTAs share a multiprocessor, and one computes while the other's tile is filled.
struct SharedBf16 {
  std::byte keys[kTileBytes];
  std::byte q[16 * (kLatentBytes + kRopeBytes)];
  RowStats stats;
  PieceState state;
};
struct SharedFp8 {
  std::byte q[kTileBytes];
  std::byte keys[kTileBytes];
  std::byte raw[kFp8TileBytes];  // the next tile, as the store holds it
  RowStats stats;
  PieceState state;
};
static_assert(sizeof(SharedFp8) <= 232448, "227 KiB a CTA");
// What a multiprocessor has, and what CUDA takes of it for every CTA.
inline constexpr size_t kSmBytes = 233472, kCtaBytes = 1024;
static_assert(MlaFewRowsCtas(KvFormat::kLatentBf16) == kSmBytes / (sizeof(SharedBf16) + kCtaBytes));
static_assert(MlaFewRowsCtas(KvFormat::kLatentFp8) == kSmBytes / (sizeof(SharedFp8) + kCtaBytes));

// Offset of chunk `chunk` (of the line it lies in: 0..7) of a row whose number is `row` mod 8.
__device__ inline uint32_t Permuted(uint32_t chunk, uint32_t row) {
  return ((chunk ^ row) & 7) * 16;
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Whether one of eight bf16 values is infinite or NaN.
__device__ inline bool HasNonFinite(uint4 v) {
  auto bad = [](uint32_t pair) {
    return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
  };
  return bad(v.x) || bad(v.y) || bad(v.z) || bad(v.w);
}

// ---- Loading: eight threads a row, 128 bytes at a time; each thread has two rows ----

inline constexpr uint32_t kLoadRows = 2;

// Begins to copy a tile of bf16 rows.
__device__ inline void IssueBf16(const StoreView& store, const int64_t* slots, uint32_t tile,
                                 int thread) {
  const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
#pragma unroll
  for (uint32_t i = 0; i < kLoadRows; ++i) {
    const uint32_t row = static_cast<uint32_t>(thread) / 8 + 32 * i;
    const int64_t slot = slots[row];
    const bool is_key = slot >= 0;
    // Without a key nothing is read; the address must be one of the pool all the same.
    const std::byte* from =
        reinterpret_cast<const std::byte*>(store.LatentRow(is_key ? slot : 0)) + chunk * 16;
    const uint32_t to = tile + row * kLatentBytes + Permuted(chunk, row);
#pragma unroll
    for (uint32_t line = 0; line < kLatentBytes / kLine; ++line) {
      CopyAsync16(to + line * kLine, from + line * kLine, is_key ? 16 : 0);
    }
    CopyAsync16(tile + kRopeBegin + row * kRopeBytes + Permuted(chunk, row), from + kLatentBytes,
                is_key ? 16 : 0);
  }
}

// Whether this thread copied a value that is not finite. Its own copies have ended.
__device__ inline bool CopiedNonFinite(uint32_t tile, int thread) {
  const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
  bool found = false;
  for (uint32_t i = 0; i < kLoadRows; ++i) {
    const uint32_t row = static_cast<uint32_t>(thread) / 8 + 32 * i;
    for (uint32_t line = 0; line < kLatentBytes / kLine; ++line) {
      found |= HasNonFinite(
          LoadShared16(tile + row * kLatentBytes + line * kLine + Permuted(chunk, row)));
    }
  }
  return found;  // the rope part meets no weight
}

// Begins to copy a tile of fp8 rows, as they are.
__device__ inline void IssueFp8(const StoreView& store, const int64_t* slots, uint32_t raw,
                                int thread) {
#pragma unroll
  for (uint32_t i = 0; i < kLoadRows; ++i) {
    const uint32_t row = static_cast<uint32_t>(thread) / 8 + 32 * i;
    const int64_t slot = slots[row];
    const bool is_key = slot >= 0;
    const std::byte* from = reinterpret_cast<const std::byte*>(store.LatentRow(is_key ? slot : 0));
    for (uint32_t at = static_cast<uint32_t>(thread) % 8 * 16; at < kFp8RowBytes; at += kLine) {
      CopyAsync16(raw + row * kFp8RowBytes + at, from + at, is_key ? 16 : 0);
    }
  }
}

// Sixteen codes times their scale, rounded to bf16: `low` the first eight, `high` the rest.
__device__ inline void Dequantise(uint4 codes, float scale, uint32_t (&low)[4],
                                  uint32_t (&high)[4]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t pairs[2];
    WidenToF16(words[i], pairs[0], pairs[1]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      __half2 narrow;
      memcpy(&narrow, &pairs[j], sizeof(narrow));
      const float2 wide = __half22float2(narrow);
      (i < 2 ? low : high)[i % 2 * 2 + j] = PackBf16(wide.x * scale, wide.y * scale);
    }
  }
}

// Turns this thread's share of a raw tile into bf16: a row's quarter, which is the 128 values of
// one scale. Returns whether one of them is not finite. Quarters begin at different chunks: they
// are 128 bytes apart, that is in the same banks.
__device__ inline bool ConvertFp8(uint32_t raw, uint32_t tile, int thread) {
  const uint32_t row = static_cast<uint32_t>(thread) / 4,
                 quarter = static_cast<uint32_t>(thread) % 4;
  const uint32_t from = raw + row * kFp8RowBytes;
  const float scale = LoadSharedFloat(from + kFp8Scales + 4 * quarter);
  bool found = false;
#pragma unroll 2
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t part = (i + 2 * quarter) % 8;
    uint32_t low[4], high[4];
    Dequantise(LoadShared16(from + quarter * 128 + part * 16), scale, low, high);
    found |= HasNonFinite(make_uint4(low[0], low[1], low[2], low[3])) ||
             HasNonFinite(make_uint4(high[0], high[1], high[2], high[3]));
    // 16 values are two chunks of a line of 64 values.
    const uint32_t line = tile + row * kLatentBytes + (quarter * 2 + part / 4) * kLine;
    StoreShared16(line + Permuted(part % 4 * 2, row), low);
    StoreShared16(line + Permuted(part % 4 * 2 + 1, row), high);
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint4 v = LoadShared16(from + kFp8Rope + (2 * quarter + i) * 16);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    StoreShared16(tile + kRopeBegin + row * kRopeBytes + Permuted(2 * quarter + i, row), words);
  }
  return found;
}

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_TILE_CUH_
