// Shared memory of the kernel that has fp8 rows as they are stored, and how rows get there.
//
// A row is 512 e4m3 codes, a scale of every 128 of them, and 64 bf16 values: 656 bytes, whose rows in shared memory
// begin four banks behind each other. Whoever multiplies codes loads them from there, and makes f16 of them in
// registers: f16(code * f16(scale)), as Fp8Keys does on the way to panels.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODES_CUH_

#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda::mla {

inline constexpr uint32_t kCodeRowBytes = 656, kCodeScales = 512, kCodeRope = 528;
inline constexpr uint32_t kCodeBlock = 128, kCodeBlocks = 4;  // codes of one scale
inline constexpr uint32_t kCodeTileBytes = kTileKeys * kCodeRowBytes;
inline constexpr uint32_t kCodeStages = 4;  // tiles of keys that there is room for
// Warps that have a tile's scores, 16 keys each, and those that add values, 64 columns each.
inline constexpr int kCodeScorers = 4, kCodeAdders = 8;

struct SharedCodes : SharedOrders {
  PanelRows<kNarrowRows> q;
  alignas(128) std::byte keys[kCodeStages][kCodeTileBytes];
  alignas(
      128) std::byte weights[kCodeStages][kNarrowRows * 128];  // a panel of f16, rows of 64 keys
  // What codes of a block and key are multiplied with, and behind it where scales are small: f16.
  alignas(8) uint16_t factors[kCodeStages][kCodeBlocks][kTileKeys];
  alignas(8) uint16_t powers[kCodeStages][kCodeBlocks][kTileKeys];
  bool has_small[kCodeStages];
  float alpha[kCodeStages][kNarrowRows];
  Turn turns[kCodeStages];
  NarrowScorerRoom scorer;
  PhaseBarrier full[kCodeStages];
  PhaseBarrier empty[kCodeStages];
  PhaseBarrier weighted[kCodeStages];
};
static_assert(sizeof(SharedCodes) <= 232448, "227 KiB a CTA");

// Where a role is among them.
class CodePlace {
 public:
  // A tile comes as one.
  struct Parts {
    static constexpr uint32_t kParts = 1;
  };
  static constexpr int32_t kRows = kNarrowRows;  // of queries

  __device__ explicit CodePlace(SharedCodes& shared) : shared_(shared) {}

  // Of the tile's first key.
  __device__ uint32_t Rows() const { return SharedAddress(shared_.keys[ring_.stage]); }
  __device__ uint32_t Weights() const { return SharedAddress(shared_.weights[ring_.stage]); }
  __device__ PhaseBarrier& Full(uint32_t) const { return shared_.full[ring_.stage]; }
  __device__ void WaitUntilFull() const { shared_.full[ring_.stage].Wait(ring_.parity); }
  __device__ void WaitForRoom(uint32_t) const { shared_.empty[ring_.stage].Wait(ring_.parity ^ 1); }
  __device__ void WaitForNextRoom(uint32_t part) const { WaitForRoom(part); }
  __device__ void Leave() const { shared_.empty[ring_.stage].Arrive(); }
  __device__ void Weighted() const { shared_.weighted[ring_.stage].Arrive(); }
  __device__ void WaitForWeights() const { shared_.weighted[ring_.stage].Wait(ring_.parity); }
  __device__ uint32_t turn() const { return static_cast<uint32_t>(ring_.stage); }
  __device__ uint32_t TurnBefore() const { return (turn() + kCodeStages - 1) % kCodeStages; }
  __device__ Turn& ThisTurn() const { return shared_.turns[ring_.stage]; }
  // Which of two buffers that tiles have in turn.
  __device__ uint32_t parity() const { return turn() % 2; }
  __device__ void Advance() { ring_.Advance(); }

 private:
  static_assert(kCodeStages % 2 == 0);

  SharedCodes& shared_;
  RingPosition<kCodeStages> ring_;
};

// Rows as they are stored, copied by the copy engine where it can, and without waiting.
struct CodeKeys {
  static constexpr bool kAreCopied = true;
  static constexpr bool kAreF16 = true;
  static constexpr uint32_t kRowBytes = kCodeRowBytes;

  static __device__ uint32_t PartBytes(const CodePlace&, uint32_t) { return kCodeTileBytes; }
  // Keys of a page lie together. Threads read what was there before, which the copy engine does not see by itself.
  static __device__ void CopyBoxes(const KeyBoxes& boxes, const StoreView& store,
                                   const CodePlace& place, uint32_t part, int32_t key, int64_t slot,
                                   uint64_t policy) {
    FenceForProducts();
    CopyBytes(place.Rows() + static_cast<uint32_t>(key) * kRowBytes,
              reinterpret_cast<const std::byte*>(store.LatentRow(slot)),
              static_cast<uint32_t>(boxes.rows) * kRowBytes, place.Full(part).Address(), policy);
  }

  // A warp copies 16 rows, 16 bytes a lane at a time.
  template <class Source, class Begin, class Copied>
  static __device__ void Copy(const CodePlace& place, int thread, Source source, Begin begin,
                              Copied copied) {
    constexpr uint32_t kRowChunks = kRowBytes / 16, kWarpRows = kTileKeys / kCopyWarps;
    constexpr uint32_t kTimes = CeilDiv(kWarpRows * kRowChunks, uint32_t{kWarp}), kAtOnce = 7;
    static_assert(kTimes % kAtOnce == 0);
    const uint32_t first = static_cast<uint32_t>(thread) / kWarp * kWarpRows;
    const uint32_t lane = static_cast<uint32_t>(thread) % kWarp;
    const uint32_t to = place.Rows() + first * kRowBytes + lane * 16;
    begin(0);
#pragma unroll
    for (uint32_t time = 0; time < kTimes; time += kAtOnce) {
      SourceRow chunks[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t chunk = min((time + i) * kWarp + lane, kWarpRows * kRowChunks - 1);
        chunks[i] = source(static_cast<int>(first + chunk / kRowChunks));
        chunks[i].from += chunk % kRowChunks * 16;
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if ((time + i) * kWarp + lane >= kWarpRows * kRowChunks) continue;
        CopyAsync16(to + (time + i) * kWarp * 16, chunks[i].from, chunks[i].is_row ? 16 : 0);
      }
    }
    copied(0, 1);
  }

  // Copies, and waits; whether one of the values that this thread looks at is not finite.
  template <class Source>
  static __device__ bool CopyAndLook(const CodePlace& place, int thread, Source source) {
    Copy(
        place, thread, source, [](uint32_t) {}, [](uint32_t, uint32_t) {});
    CommitCopies();
    WaitForCopies<0>();
    __syncwarp();  // the warp's rows are there: a lane looks at half of one
    const uint32_t row = place.Rows() + static_cast<uint32_t>(thread) / 2 * kRowBytes;
    bool found = false;
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < kCodeScales / 32; ++chunk) {
      const uint32_t i = static_cast<uint32_t>(thread) % 2 * (kCodeScales / 32) + chunk;
      uint32_t low[4], high[4];
      Dequantise(LoadShared16(row + i * 16),
                 __uint_as_float(LoadShared4(row + kCodeScales + i / 8 * 4)), low, high);
      found |= HasNonFinite<kF16Exponents>({low[0], low[1], low[2], low[3]}) ||
               HasNonFinite<kF16Exponents>({high[0], high[1], high[2], high[3]});
    }
    return found;  // the rope part meets no weight
  }

 private:
  static constexpr uint32_t kCopyWarps = kWarpgroup / kWarp;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODES_CUH_
