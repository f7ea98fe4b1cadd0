// Shared memory of the warpgroup kernel, and how rows get there.
//
// The two CTAs of a cluster have the same rows and keys, and half of the columns each: CTA 0 latent
// values [0, 256) and rope values [0, 32), CTA 1 the others. So a tile of 64 keys takes 36 KiB of a
// multiprocessor's shared memory, and is read from memory once. 64 rows (keys or query heads) of a
// half are five panels (ptx/warpgroup.cuh): four of 64 latent values, one of 32 rope values.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_HALVES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_HALVES_CUH_

#include <cuda_bf16.h>

#include "device/cuda/tensor_map.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda::mla {

inline constexpr int kHalfLatent = 256, kHalfRope = 32;  // values
inline constexpr uint32_t kPanels = kHalfLatent / 64;
inline constexpr uint32_t kPanelBytes = kMlaRows * 128;
inline constexpr uint32_t kHalfRopeBytes = kMlaRows * 2 * kHalfRope;
inline constexpr uint32_t kRowBytes = 2 * (512 + 64), kLatentRowBytes = 2 * 512;  // in bf16

struct alignas(1024) HalfRows {
  std::byte latent[kPanels][kPanelBytes];
  std::byte rope[kHalfRopeBytes];
};
inline constexpr uint32_t kRopePanel = offsetof(HalfRows, rope);

// One pass of the producer's, as the consumers are told of it.
struct Turn {
  Pass pass;
  bool keeps_others;  // a value is not finite: rows of other tokens must not meet it
  bool ends_split;
  bool by_engine = false;  // copied by the copy engine, not by threads
};

// What one CTA's consumer threads hand to the same threads of the other CTA. A thread has sums of two
// rows, g and g + 8 of its warp's sixteen, and makes weights of one: CTA 0 of g, CTA 1 of g + 8.
struct Mail {
  float4 scores[4][kWarpgroup];     // sums over the other half of the columns, of our row
  uint4 weights[2][kWarpgroup];     // of the other row, as bf16
  float alpha[kWarpgroup / 4];      // of the other row: what older sums are multiplied with
  float2 stats[2][kWarpgroup / 4];  // m and l of the other row, when a split ends; by turns
  PhaseBarrier scores_in, weights_in, stats_in;

  static constexpr uint32_t kScoresBytes = kWarpgroup * 64;
  static constexpr uint32_t kWeightsBytes = kWarpgroup * (32 + 1);
  static constexpr uint32_t kStatsBytes = kWarpgroup / 4 * 8;
};

// With kGroups groups of 64 rows, a consumer warpgroup each.
template <int kGroups>
struct SharedHalves {
  static constexpr int kRowGroups = kGroups;
  static constexpr int kStages = kGroups == 1 ? 4 : 3;

  HalfRows q[kGroups];
  HalfRows keys[kStages];
  Mail mail[kGroups];
  Turn turns[kStages];
  PhaseBarrier full[kStages], empty[kStages];
  Piece pieces[kGroups];
  RowBlock blocks[kGroups];
  RowBlock all_rows;
  float4 folded[kGroups][kWarpgroup];  // m and l of a thread's two rows, of the splits before
  int64_t slots[2][kTileKeys];         // of the tile at hand and of the next; -1: no key, zeros
  uint32_t found_there[2];  // whether the other CTA's half holds a value that is not finite
  PhaseBarrier found_in;
};
static_assert(sizeof(SharedHalves<1>) <= 232448 && sizeof(SharedHalves<2>) <= 232448,
              "227 KiB a CTA");

// How whole tiles come, where page sizes allow: boxes of `rows` keys, 0 where they do not.
struct KeyBoxes {
  CUtensorMap latent, rope;
  int32_t rows;
};

// Where chunk `chunk` of a row's half lies in the store's row, for CTA `rank`: 32 chunks of latent
// values, then 4 of the rope's.
__device__ inline uint32_t HalfSource(uint32_t rank, uint32_t chunk) {
  return chunk < 32 ? rank * 512 + chunk * 16 : kLatentRowBytes + rank * 64 + (chunk - 32) * 16;
}
__device__ inline uint32_t HalfChunk(uint32_t row, uint32_t chunk) {
  if (chunk < 32) {
    return chunk / 8 * kPanelBytes + PanelChunk<PanelRow::k128Bytes>(row, chunk % 8);
  }
  return kRopePanel + PanelChunk<PanelRow::k64Bytes>(row, chunk - 32);
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

// ---- bf16 rows: eight threads a row, 128 bytes at a time; each thread has four rows ----

struct SourceRow {
  const std::byte* from;
  bool is_row;  // or zeros
};

// Begins to copy the halves of 64 rows; source(row) says from where.
template <class Source>
__device__ inline void CopyHalfRows(uint32_t rank, uint32_t to, int thread, Source source) {
  const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = static_cast<uint32_t>(thread) / 8 + 16 * i;
    const SourceRow of = source(row);
    const int bytes = of.is_row ? 16 : 0;
#pragma unroll
    for (uint32_t panel = 0; panel < kPanels; ++panel) {
      const uint32_t c = panel * 8 + chunk;
      CopyAsync16(to + HalfChunk(row, c), of.from + HalfSource(rank, c), bytes);
    }
    if (chunk < 4) {
      CopyAsync16(to + HalfChunk(row, 32 + chunk), of.from + HalfSource(rank, 32 + chunk), bytes);
    }
  }
}

struct CopyBf16 {
  // Begins to copy the keys of `slots`.
  static __device__ void Issue(const StoreView& store, const int64_t* slots, uint32_t rank,
                               uint32_t to, int thread) {
    CopyHalfRows(rank, to, thread, [&](uint32_t row) {
      // Without a key nothing is read; the address must be one of the pool all the same.
      const int64_t slot = slots[row];
      return SourceRow{reinterpret_cast<const std::byte*>(store.LatentRow(slot >= 0 ? slot : 0)),
                       slot >= 0};
    });
  }

  // Whether this thread copied a value that is not finite. Its own copies have ended.
  static __device__ bool FoundNonFinite(uint32_t at, int thread) {
    const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
    bool found = false;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = static_cast<uint32_t>(thread) / 8 + 16 * i;
      for (uint32_t panel = 0; panel < kPanels; ++panel) {
        found |= HasNonFinite(LoadShared16(at + HalfChunk(row, panel * 8 + chunk)));
      }
    }
    return found;  // the rope part meets no weight
  }
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_HALVES_CUH_
