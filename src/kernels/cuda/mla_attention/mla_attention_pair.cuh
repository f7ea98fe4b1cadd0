// fp8 rows that two CTAs convert for each other: a tile of queries has more rows than a CTA, so CTAs beside each other
// have the same keys. The two are a cluster, and each converts half of every whole tile, for itself and for its peer.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PAIR_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PAIR_CUH_

#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda::mla {

inline constexpr uint32_t kPair = 2;  // CTAs
__device__ inline uint32_t PeerRank() { return RankInCluster() ^ 1; }

// Barriers that the peer stores or arrives at are waited for as others are, at the scope of a CTA: what is handed on lies in
// shared memory alone, and at the cluster's scope (WaitInCluster) every wait would empty L1, too.
//
// Tiles that not every row sees as a whole each CTA converts by itself, as Fp8Keys does: what it has to know of their
// values before it tells of them is of all keys.
struct PairedFp8Keys : Fp8Keys {
  static constexpr uint32_t kCtas = kPair;
  // What the peer stores is seen by products only after a fence of those who read it. A fence of the producer's own
  // would wait for the codes that are under way.
  static constexpr bool kReadersFence = true;
  static constexpr uint32_t kTileRows = kTileKeys / kPair;  // that a CTA converts
  // Eight threads store a row of a panel, 128 bytes, with one instruction: so it is sent in one piece.
  static constexpr uint32_t kRowThreads = 8;

  static __device__ uint32_t FirstRow() { return RankInCluster() * kTileRows; }
  // What comes from the peer with a part of a tile.
  template <class Parts>
  static constexpr __device__ uint32_t PeerBytes(uint32_t part) {
    return (Parts::End(part) - Parts::Begin(part)) * kTileRows * 2 * kPanelValues;
  }

  // Tile behind tile. All that a thread has of the next one is under way while it waits for room, and nothing is while
  // it converts: whoever waits for a load waits for all that were begun before.
  class Run {
   public:
    template <class Place>
    __device__ explicit Run(const Place& place) : way_(WayTo(PeerRank(), place.Panel(0))) {}

    // Begins with the tile whose rows `source` says.
    template <class Source>
    __device__ __forceinline__ void Begin(int thread, Source source) {
      const uint32_t lane = static_cast<uint32_t>(thread) % kRowThreads;
#pragma unroll
      for (uint32_t i = 0; i < kRows; ++i) {
        const std::byte* row = source(static_cast<int>(RowOf(thread, i))).from;
#pragma unroll
        for (uint32_t block = 0; block < kBlocks; ++block) {
          blocks_[block].scales[i] = LoadHere<float>(row + kScales + block * 4);
        }
#pragma unroll
        for (uint32_t panel = 0; panel < kPanels - 1; ++panel) {
          blocks_[panel / 2].codes[panel % 2][i] =
              LoadHere8(row + panel * kPanelValues + lane * kThreadValues);
        }
        rope_[i] = LoadHere16(row + kRope + lane * 2 * kThreadValues);
      }
    }
    // Converts it, and begins with the next one. Calls begin(part) before each part, and copied(part, part + 1) when it
    // is stored.
    template <class Source, class Next, class Place, class Begins, class Copied>
    __device__ __forceinline__ void Copy(const Place& place, int thread, Source, Next next,
                                         Begins begin, Copied copied) {
      static_assert(Place::Parts::kParts == kBlocks && Place::Parts::kPartPanels == 2);
      const uint32_t row = RowOf(thread, 0);
      const uint32_t at = PanelChunk(row, static_cast<uint32_t>(thread) % kRowThreads);
#pragma unroll
      for (uint32_t block = 0; block < kBlocks; ++block) {
        begin(block);
        const uint32_t counts = place.Full(block).Address() + way_;
        const auto store = [&](uint32_t panel, uint32_t i, const uint32_t(&values)[4]) {
          const uint32_t to = place.Panel(panel) + at + i * kStep * 128;
          StoreShared16(to, values);
          StoreThere16(to + way_, values, counts);
        };
        blocks_[block].Store(block, store);
        if (block + 1 == kBlocks) StoreRope(store);
        copied(block, block + 1);
      }
      Begin(thread, next);
    }

   private:
    static constexpr uint32_t kRows = 2;                         // of a thread
    static constexpr uint32_t kStep = kWarpgroup / kRowThreads;  // from one to the other
    static constexpr uint32_t kThreadValues = kPanelValues / kRowThreads;
    static constexpr uint32_t kScales = 512;
    static_assert(kRows * kStep == kTileRows);

    // 128 codes of a row, of which a thread has eight of each panel.
    struct Block {
      uint2 codes[2][kRows];  // of a panel and row
      float scales[kRows];

      template <class Put>
      __device__ __forceinline__ void Store(uint32_t block, Put store) const {
        CodeScale parts[kRows];
#pragma unroll
        for (uint32_t i = 0; i < kRows; ++i) parts[i] = CodeScale::Of(scales[i]);
        if (__any_sync(kAllLanes, parts[0].is_small || parts[1].is_small)) {
          StoreScaled<true>(block, parts, store);
        } else {
          StoreScaled<false>(block, parts, store);
        }
      }
      template <bool kAreSmall, class Put>
      __device__ __forceinline__ void StoreScaled(uint32_t block, const CodeScale (&parts)[kRows],
                                                  Put store) const {
#pragma unroll
        for (uint32_t panel = 0; panel < 2; ++panel) {
#pragma unroll
          for (uint32_t i = 0; i < kRows; ++i) {
            uint32_t values[4];
            WidenHalvesToF16(codes[panel][i].x, values[0], values[1]);
            WidenHalvesToF16(codes[panel][i].y, values[2], values[3]);
            Multiply(values, parts[i].fraction);
            if constexpr (kAreSmall) Multiply(values, parts[i].power);
            store(block * 2 + panel, i, values);
          }
        }
      }
      static __device__ __forceinline__ void Multiply(uint32_t (&values)[4], float factor) {
        const uint32_t factors = PackF16(factor, factor);
#pragma unroll
        for (uint32_t& pair : values) pair = MultiplyF16Pairs(pair, factors);
      }
    };

    // In the tile.
    static __device__ __forceinline__ uint32_t RowOf(int thread, uint32_t i) {
      return FirstRow() + static_cast<uint32_t>(thread) / kRowThreads + i * kStep;
    }
    template <class Put>
    __device__ __forceinline__ void StoreRope(Put store) const {
#pragma unroll
      for (uint32_t i = 0; i < kRows; ++i) {
        const uint32_t values[4] = {rope_[i].x, rope_[i].y, rope_[i].z, rope_[i].w};
        store(kPanels - 1, i, values);
      }
    }

    const uint32_t way_;  // to the peer's shared memory
    Block blocks_[kBlocks];
    uint4 rope_[kRows];
  };
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PAIR_CUH_
