// Shared memory of the warpgroup kernels, and how rows get there.
//
// 64 rows (keys or query heads) of 512 + 64 values are nine panels (ptx/warpgroup.cuh) of 64 values: eight
// of the latent part, one of the rope's.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PANELS_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PANELS_CUH_

#include "device/cuda/tensor_map.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda::mla {

inline constexpr uint32_t kPanels = 9, kPanelValues = 64;
inline constexpr uint32_t kPanelBytes = kMlaRows * 2 * kPanelValues;
// Panels that come together, so that products may begin before a tile is whole: kPanelsEach a part, and the last
// one has what is left.
template <uint32_t kNumber, uint32_t kPanelsEach>
struct PanelParts {
  static constexpr uint32_t kParts = kNumber, kPartPanels = kPanelsEach;
  static constexpr __host__ __device__ uint32_t Begin(uint32_t part) { return part * kPartPanels; }
  static constexpr __host__ __device__ uint32_t End(uint32_t part) {
    return part + 1 < kParts ? Begin(part + 1) : kPanels;
  }
  static constexpr __host__ __device__ uint32_t Of(uint32_t panel) {
    return panel / kPartPanels < kParts ? panel / kPartPanels : kParts - 1;
  }
  // Parts that are whole when the first panels are there.
  static constexpr __host__ __device__ uint32_t WholeOf(uint32_t panels) {
    return panels < kPanels ? Of(panels) : kParts;
  }
};

inline constexpr int kStages = 2;  // tiles of keys that there is room for
// Tiles whose rows are looked up at once, where they are converted, and tiles whose rows are listed.
inline constexpr int kTilesAtOnce = 4, kListedTiles = 2 * kTilesAtOnce;

template <int kRows>
struct alignas(1024) PanelRows {
  static constexpr uint32_t kPanelBytes = kRows * 2 * kPanelValues;
  std::byte panels[kPanels][kPanelBytes];
};
// Weights of a tile lie where its rope values were: scores alone read those.
inline constexpr uint32_t kWeightsPanel = 8 * kPanelBytes;

// One pass of the producer's, as the others are told of it.
struct Turn {
  Pass pass;
  bool is_seen_by_all = false;  // every row sees every key
  bool keeps_others = false;    // a value is not finite: rows of other tokens must not meet it
  bool ends_split = false;
  // Products see the tile after a fence of those who read it: threads copied it and did not wait, or a peer stored some.
  bool needs_fence = false;
};

// A piece, as the others are told of it.
struct Order {
  Piece piece;
  RowBlock block;             // without rows: there are no more pieces
  int32_t visible[kMlaRows];  // keys that a row sees from the first on; 0 behind the last row
  uint64_t nodes[kMlaRows];   // and nodes, where a tree's rows go over them together
};
inline constexpr int kOrders = kStages;  // at hand at once

// What roles tell each other of pieces and splits, and what a producer keeps for itself.
struct SharedOrders {
  Order orders[kOrders];
  float2 stats[kMlaRows];                      // m and l of a split that has ended
  float q_units[kMlaRows];                     // what queries are counted in (Fp8Keys)
  PhaseBarrier ended, taken;                   // stats are written; are read
  PhaseBarrier given[kOrders], done[kOrders];  // an order is written; nobody reads it any more
  int64_t slots[2][kTileKeys];  // of the tile at hand and the one before; -1: no key, zeros
};

// ---- 64 rows: whole tiles of keys ----

// The rope's panel comes with the last two of the others.
using TileParts = PanelParts<4, 2>;
// Parts whose room is free together, so that the next tile may come before all values of this one are added:
// half of the latent panels, and the other half with the rope's.
inline constexpr uint32_t kHalves = 2, kHalfParts = TileParts::kParts / kHalves;
inline constexpr uint32_t kHalfPanels = kHalfParts * TileParts::kPartPanels;

struct SharedTiles : SharedOrders {
  PanelRows<kMlaRows> q;
  PanelRows<kTileKeys> keys[kStages];
  float alpha[kStages][kMlaRows];  // what sums before a tile are multiplied with
  Turn turns[kStages];
  PhaseBarrier full[kStages][TileParts::kParts];  // keys have come
  PhaseBarrier weighted[kStages][2];              // weights of half of them are written
  PhaseBarrier empty[kStages][kHalves];           // their values are added
  PhaseBarrier asked[kStages];                    // products of their scores are on their way
  const std::byte* rows[kListedTiles]
                       [kTileKeys];  // of tiles that are converted one behind the other
};
static_assert(sizeof(SharedTiles) <= 232448, "227 KiB a CTA");

// Where a producer is among them.
class TilePlace {
 public:
  using Parts = TileParts;
  static constexpr int32_t kRows = kMlaRows;  // of queries

  __device__ explicit TilePlace(SharedTiles& shared) : shared_(shared) {}

  __device__ uint32_t Panel(uint32_t panel) const {
    return SharedAddress(&shared_.keys[ring_.stage]) + panel * kPanelBytes;
  }
  __device__ PhaseBarrier& Full(uint32_t part) const { return shared_.full[ring_.stage][part]; }
  __device__ void WaitForRoom(uint32_t part) const {
    shared_.empty[ring_.stage][part / kHalfParts].Wait(ring_.parity ^ 1);
  }
  // The same, where there was room for the part before.
  __device__ void WaitForNextRoom(uint32_t part) const {
    if (part % kHalfParts == 0) WaitForRoom(part);
  }
  __device__ Turn& ThisTurn() const { return shared_.turns[ring_.stage]; }
  // A tile's rows, where they are converted: a list of kListedTiles.
  __device__ const std::byte** Listed(int list) const { return shared_.rows[list]; }
  __device__ void Advance() { ring_.Advance(); }

 private:
  SharedTiles& shared_;
  RingPosition<kStages> ring_;
};

// ---- Up to 16 rows: queries take less, and keys have the room of eight parts of tiles ----

inline constexpr int kNarrowRows = kMlaNarrowRows;
using RingParts = PanelParts<3, 3>;
inline constexpr uint32_t kRoomParts = 8, kTurns = 4;

struct alignas(1024) PartPanels {
  std::byte panels[RingParts::kPartPanels][kPanelBytes];
};

// What the scorer of up to 16 rows keeps for itself.
struct NarrowScorerRoom {
  float4 tops[kNarrowRows];                       // the highest score of a row that each warp has
  float pairs[2][kTileKeys / 8][kNarrowRows][4];  // weights of two keys, of every eight
  float ended_m[kNarrowRows];
};

struct SharedParts : SharedOrders {
  PanelRows<kNarrowRows> q;
  PartPanels keys[kRoomParts];
  float alpha[kTurns][kNarrowRows];
  Turn turns[kTurns];
  NarrowScorerRoom scorer;
  PhaseBarrier full[kRoomParts];
  PhaseBarrier empty[kRoomParts];
  PhaseBarrier weighted[kTurns];
};
static_assert(sizeof(SharedParts) <= 232448, "227 KiB a CTA");

// Where a role is among them: its tile's parts follow each other in a ring that is no multiple of a tile.
class PartPlace {
 public:
  using Parts = RingParts;
  static constexpr int32_t kRows = kNarrowRows;  // of queries

  __device__ explicit PartPlace(SharedParts& shared) : shared_(shared) {}

  __device__ uint32_t Panel(uint32_t panel) const {
    return SharedAddress(&shared_.keys[Slot(Parts::Of(panel))]) +
           panel % Parts::kPartPanels * kPanelBytes;
  }
  __device__ PhaseBarrier& Full(uint32_t part) const { return shared_.full[Slot(part)]; }
  __device__ void WaitUntilFull(uint32_t part) const { Full(part).Wait(Parity(part)); }
  __device__ void WaitForRoom(uint32_t part) const {
    shared_.empty[Slot(part)].Wait(Parity(part) ^ 1);
  }
  __device__ void WaitForNextRoom(uint32_t part) const { WaitForRoom(part); }
  __device__ void Leave() const {
#pragma unroll
    for (uint32_t part = 0; part < Parts::kParts; ++part) shared_.empty[Slot(part)].Arrive();
  }
  // A turn is written again when all of the tile three before it has been left.
  __device__ uint32_t turn() const { return tile_ % kTurns; }
  __device__ uint32_t TurnBefore() const { return (tile_ + kTurns - 1) % kTurns; }
  // Rows of weights lie where the tile's rope values were.
  __device__ uint32_t Weights() const { return Panel(kPanels - 1); }
  __device__ Turn& ThisTurn() const { return shared_.turns[turn()]; }
  __device__ void Weighted() const { shared_.weighted[turn()].Arrive(); }
  __device__ void WaitForWeights() const { shared_.weighted[turn()].Wait(tile_ / kTurns % 2); }
  // Which of two buffers that tiles have in turn.
  __device__ uint32_t parity() const { return tile_ % 2; }
  __device__ void Advance() { ++tile_; }

 private:
  __device__ uint32_t Slot(uint32_t part) const {
    return (tile_ * Parts::kParts + part) % kRoomParts;
  }
  __device__ uint32_t Parity(uint32_t part) const {
    return (tile_ * Parts::kParts + part) / kRoomParts % 2;
  }

  SharedParts& shared_;
  uint32_t tile_ = 0;  // since the kernel began
};

// How whole tiles come, where page sizes allow: boxes of `panels` panels of `rows` keys, 0 where they do not, and
// of one panel for what is left of them.
struct KeyBoxes {
  CUtensorMap map, one_panel;
  int32_t rows;
  uint32_t panels;
};

struct SourceRow {
  const std::byte* from;
  bool is_row;  // or zeros
};

// ---- bf16 rows: eight threads a row, 128 bytes at a time, 16 rows of 128 threads at once ----

// Begins to copy kRows rows; source(row) says from where, panel(i) to where. Calls begin(part) before each
// part's copies and copied(part, part + 1) behind them.
template <int kRows, class Parts, class Source, class Panel, class Begin, class Copied>
__device__ __forceinline__ void CopyRows(int thread, Source source, Panel panel_at, Begin begin,
                                         Copied copied) {
  const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
  SourceRow rows[kRows / 16];
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
    rows[i] = source(thread / 8 + 16 * i);
    rows[i].from += chunk * 16;
  }
#pragma unroll
  for (uint32_t part = 0; part < Parts::kParts; ++part) {
    begin(part);
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const uint32_t to = PanelChunk(static_cast<uint32_t>(thread / 8 + 16 * i), chunk);
#pragma unroll
      for (uint32_t panel = Parts::Begin(part); panel < Parts::End(part); ++panel) {
        CopyAsync16(panel_at(panel) + to, rows[i].from + panel * 128, rows[i].is_row ? 16 : 0);
      }
    }
    copied(part, part + 1);
  }
}

// A store's rows in bf16, copied as they are: by the copy engine where it can, and without waiting.
struct Bf16Keys {
  static constexpr uint32_t kCtas = 1;  // that have keys come for each other
  static constexpr bool kAreCopied = true;
  static constexpr bool kAreF16 = false;  // latent values, queries and weights are bf16
  static constexpr uint32_t kRowBytes = kPanels * 128;

  // What a part of a whole tile has.
  template <class Place>
  static __device__ uint32_t PartBytes(const Place&, uint32_t part) {
    return (Place::Parts::End(part) - Place::Parts::Begin(part)) * kPanelBytes;
  }
  // Begins to copy boxes of a part: keys from `key` of the tile on, which lie from `slot` on.
  template <class Place>
  static __device__ void CopyBoxes(const KeyBoxes& boxes, const StoreView&, const Place& place,
                                   uint32_t part, int32_t key, int64_t slot, uint64_t policy) {
    using Parts = typename Place::Parts;
    const auto copy = [&](const CUtensorMap& map, uint32_t panel) {
      CopyBox(place.Panel(panel) + static_cast<uint32_t>(key) * 128, &map, 0,
              static_cast<int32_t>(slot), static_cast<int32_t>(panel), place.Full(part).Address(),
              policy);
    };
    const uint32_t begin = Parts::Begin(part), end = Parts::End(part);
    for (uint32_t i = 0; i < Parts::kPartPanels; i += boxes.panels) copy(boxes.map, begin + i);
    for (uint32_t panel = begin + Parts::kPartPanels; panel < end; ++panel) {
      copy(boxes.one_panel, panel);
    }
  }

  // Calls begin(part) before the copies of each part, and copied(part, part + 1) behind them, which are under
  // way.
  template <class Source, class Place, class Begin, class Copied>
  static __device__ void Copy(const Place& place, int thread, Source source, Begin begin,
                              Copied copied) {
    CopyRows<kTileKeys, typename Place::Parts>(
        thread, source, [&](uint32_t panel) { return place.Panel(panel); }, begin, copied);
  }

  // Copies, and waits; whether this thread copied a latent value that is not finite.
  template <class Source, class Place>
  static __device__ bool CopyAndLook(const Place& place, int thread, Source source) {
    Copy(
        place, thread, source, [](uint32_t) {}, [](uint32_t, uint32_t) {});
    CommitCopies();
    WaitForCopies<0>();
    const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
    bool found = false;
#pragma unroll 1
    for (uint32_t row = static_cast<uint32_t>(thread) / 8; row < kTileKeys; row += 16) {
#pragma unroll
      for (uint32_t panel = 0; panel < kPanels - 1; ++panel) {
        found |=
            HasNonFinite<kBf16Exponents>(LoadShared16(place.Panel(panel) + PanelChunk(row, chunk)));
      }
    }
    return found;  // the rope part meets no weight
  }
};

// ---- fp8 rows: 512 codes, four scales, 64 bf16 values; their latent part becomes f16 on its way ----
//
// e4m3 to f16 is one instruction for two codes, and their scale another; bf16 would take six. So latent
// values, queries' latent part and weights meet as f16, which has more digits and less range: queries are
// counted in a power of two of their row's (q_units), and weights are lifted (kLift).

// What a scale multiplies codes with. Of one too small for all digits of f16 the fraction comes first, and its
// power of two behind.
struct CodeScale {
  float fraction, power;
  bool is_small;

  static __device__ __forceinline__ CodeScale Of(float scale) {
    constexpr float kLeastNormal = 0x1p-14f;
    const bool is_small = scale < kLeastNormal;
    const uint32_t bits = __float_as_uint(scale);
    return {.fraction = is_small ? __uint_as_float((bits & 0x7f'ffff) | 0x3f80'0000) : scale,
            .power = is_small ? __uint_as_float(bits & 0x7f80'0000) : 1.0f,
            .is_small = is_small};
  }
};

// Sixteen codes times their scale, rounded to f16: `low` the first eight, `high` the rest. By all lanes of a warp.
__device__ inline void Dequantise(uint4 codes, float scale, uint32_t (&low)[4],
                                  uint32_t (&high)[4]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  const CodeScale parts = CodeScale::Of(scale);
  const uint32_t factor = PackF16(parts.fraction, parts.fraction);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t pairs[2];
    WidenToF16(words[i], pairs[0], pairs[1]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      (i < 2 ? low : high)[i % 2 * 2 + j] = MultiplyF16Pairs(pairs[j], factor);
    }
  }
  if (__any_sync(kAllLanes, parts.is_small)) {
    const uint32_t powers = PackF16(parts.power, parts.power);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = MultiplyF16Pairs(low[i], powers);
      high[i] = MultiplyF16Pairs(high[i], powers);
    }
  }
}

// Four threads have a row, 16 codes of a panel each: rows `thread / 4` and 32 below, so that what eight threads store
// lies in different banks.
struct Fp8Rows {
  static constexpr int kRows = 2;
  SourceRow rows[kRows];

  template <class Source>
  static __device__ __forceinline__ Fp8Rows Of(int thread, Source source) {
    Fp8Rows from;
#pragma unroll
    for (int i = 0; i < kRows; ++i) from.rows[i] = source(thread / 4 + 32 * i);
    return from;
  }
};

// 128 codes of a row have one scale, and are two panels' values.
class Fp8Block {
 public:
  // Begins to load block `block`.
  __device__ __forceinline__ void Load(int thread, const Fp8Rows& from, uint32_t block) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const SourceRow& row = from.rows[i];
      const std::byte* codes = row.from + block * 128 + static_cast<uint32_t>(thread) % 4 * 16;
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        codes_[panel][i] = row.is_row ? LoadHere16(codes + panel * kPanelValues) : uint4{};
      }
      scales_[i] = row.is_row ? LoadHere<float>(row.from + kScales + block * 4) : 0.0f;
    }
  }

  // Stores what was loaded as f16, and calls look(eight values) for all of it.
  template <class Place, class Look>
  __device__ __forceinline__ void Store(const Place& place, int thread, uint32_t block,
                                        Look look) const {
    const uint32_t lane = static_cast<uint32_t>(thread) % 4;
    const uint32_t swap = static_cast<uint32_t>(thread) / 4 % 8;  // all rows', modulo 8
#pragma unroll
    for (uint32_t panel = 0; panel < 2; ++panel) {
      const uint32_t at = place.Panel(block * 2 + panel) + static_cast<uint32_t>(thread) / 4 * 128;
#pragma unroll
      for (uint32_t i = 0; i < kRows; ++i) {
        uint32_t low[4], high[4];
        Dequantise(codes_[panel][i], scales_[i], low, high);
        look(low);
        look(high);
        const uint32_t row = at + i * 32 * 128;
        StoreShared16(row + (2 * lane ^ swap) * 16, low);
        StoreShared16(row + ((2 * lane + 1) ^ swap) * 16, high);
      }
    }
  }

 private:
  static constexpr int kRows = Fp8Rows::kRows;
  static constexpr uint32_t kScales = 512;

  uint4 codes_[2][kRows];  // of a panel and row
  float scales_[kRows];
};

// A store's rows in fp8, converted by the warpgroup that has them come.
struct Fp8Keys {
  static constexpr uint32_t kCtas = 1;
  static constexpr uint32_t kRowBytes = 656, kRope = 528, kBlocks = 4;
  static constexpr uint32_t kRowThreads = 4;    // of whole tiles
  static constexpr bool kReadersFence = false;  // or the producer does, where tiles are whole
  // Of a thread, under way at once: four would be a tile, and leave no registers.
  static constexpr uint32_t kBlocksAhead = 2;
  static constexpr bool kAreCopied = false;
  static constexpr bool kAreF16 = true;

  static __device__ uint32_t FirstRow() { return 0; }
  template <class Parts>
  static constexpr __device__ uint32_t PeerBytes(uint32_t) {
    return 0;
  }

  // Calls copied(part, end) behind the parts [part, end) that are whole. There is room for all of them.
  template <class Source, class Place, class Begin, class Copied>
  static __device__ void Copy(const Place& place, int thread, Source source, Begin begin,
                              Copied copied) {
    for (uint32_t part = 0; part < Place::Parts::kParts; ++part) begin(part);
    Convert(place, thread, source, copied, [](const uint32_t(&)[4]) {});
  }
  // Whether this thread copied a latent value that is not finite.
  template <class Source, class Place>
  static __device__ bool CopyAndLook(const Place& place, int thread, Source source) {
    bool found = false;
    Convert(
        place, thread, source, [](uint32_t, uint32_t) {},
        [&](const uint32_t(&v)[4]) {
          found |= HasNonFinite<kF16Exponents>({v[0], v[1], v[2], v[3]});
        });
    return found;
  }

  // Tile behind tile: kBlocksAhead blocks are always under way, at a tile's end those of the next one.
  class Run {
   public:
    template <class Place>
    __device__ explicit Run(const Place&) {}

    // Begins with the tile whose rows `source` says.
    template <class Source>
    __device__ __forceinline__ void Begin(int thread, Source source) {
      const Fp8Rows from = Fp8Rows::Of(thread, source);
#pragma unroll
      for (uint32_t block = 0; block < kBlocksAhead; ++block) {
        blocks_[block].Load(thread, from, block);
      }
    }
    // Converts it, and begins with the next one. Calls begin(part) for all parts, then copied(part, end) behind the
    // parts [part, end) that are whole.
    template <class Source, class Next, class Place, class Begins, class Copied>
    __device__ __forceinline__ void Copy(const Place& place, int thread, Source source, Next next,
                                         Begins begin, Copied copied) {
      for (uint32_t part = 0; part < Place::Parts::kParts; ++part) begin(part);
      const auto look = [](const uint32_t(&)[4]) {};
      Fp8Rows from = Fp8Rows::Of(thread, source);
      CopyRope(place, thread, from);
#pragma unroll
      for (uint32_t block = 0; block < kBlocks; ++block) {
        blocks_[block % kBlocksAhead].Store(place, thread, block, look);
        if (block == kBlocks - kBlocksAhead) from = Fp8Rows::Of(thread, next);
        blocks_[block % kBlocksAhead].Load(thread, from, (block + kBlocksAhead) % kBlocks);
        if (block == kBlocks - 1) WaitForCopies<0>();
        if (block > 0) copied(FirstPartOf<Place>(block), EndPartOf<Place>(block));
      }
    }

   private:
    static_assert(kBlocks % kBlocksAhead == 0);

    Fp8Block blocks_[kBlocksAhead];
  };

 private:
  // The parts that are whole with a block, of two panels or with the rope's. The first two blocks are told of
  // together: a fence less.
  template <class Place>
  static constexpr __device__ uint32_t FirstPartOf(uint32_t block) {
    return block > 1 ? EndPartOf<Place>(block - 1) : 0;
  }
  template <class Place>
  static constexpr __device__ uint32_t EndPartOf(uint32_t block) {
    return Place::Parts::WholeOf(block + 1 < kBlocks ? 2 * (block + 1) : kPanels);
  }

  template <class Source, class Place, class Copied, class Look>
  static __device__ void Convert(const Place& place, int thread, Source source, Copied copied,
                                 Look look) {
    const Fp8Rows from = Fp8Rows::Of(thread, source);
    Fp8Block blocks[kBlocksAhead];
#pragma unroll
    for (uint32_t block = 0; block < kBlocksAhead; ++block) blocks[block].Load(thread, from, block);
    CopyRope(place, thread, from);
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) {
      blocks[block % kBlocksAhead].Store(place, thread, block, look);
      if (block + kBlocksAhead < kBlocks) {
        blocks[block % kBlocksAhead].Load(thread, from, block + kBlocksAhead);
      }
      if (block + 1 == kBlocks) WaitForCopies<0>();
      if (block > 0) copied(FirstPartOf<Place>(block), EndPartOf<Place>(block));
    }
  }

  // Begins to copy this thread's part of the rope's values.
  template <class Place>
  static __device__ __forceinline__ void CopyRope(const Place& place, int thread,
                                                  const Fp8Rows& from) {
    const uint32_t lane = static_cast<uint32_t>(thread) % 4;
#pragma unroll
    for (uint32_t i = 0; i < Fp8Rows::kRows; ++i) {
      const uint32_t row = static_cast<uint32_t>(thread) / 4 + 32 * i;
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const uint32_t chunk = lane + 4 * j;
        CopyAsync16(place.Panel(kPanels - 1) + PanelChunk(row, chunk),
                    from.rows[i].from + kRope + chunk * 16, from.rows[i].is_row ? 16 : 0);
      }
    }
    CommitCopies();
  }
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PANELS_CUH_
