// Latent attention of few rows in exact mode: query heads of a token, 32 at most, over bf16 rows of 512 + 64 values.
//
// A split is 1024 keys that are summed one behind the other, tile by tile, so that a row has the same bits in any batch.
// What follows each other is little of it: maxima of tiles, and of each column its sums. So a cluster shares a split: each
// CTA has scores of an eighth of the tiles, then maxima go to all, then weights, and each adds an eighth of the columns
// over all keys. No sum is cut: bits are those of the narrow kernel (mla_attention_narrow.cu). More than 16 heads are two
// clusters side by side.
//
// A split takes a cluster more than an eighth of the time that it takes a CTA. So workers are CTAs, and each runs its
// pieces as the narrow kernel does, but where its cluster would wait for it alone: then all share them, by other roles.
//
//   scorers     two: scores of a tile each, its maxima to all CTAs; what sums are multiplied with before every tile; the
//               tile's weights to all CTAs, and sums of them. The first one then has m and l of the split
//   adder       O^T += V^T P^T, 64 columns over all tiles of the split; what a split ends with
//   producer    looks up pages; copies the rows of two tiles, and 64 columns of all
//
// All of a cluster that shares go through the same splits, and meet before each but the first: so no barrier but those
// that say that something is there is needed, and each of them ends once a split.
#include <cstddef>
#include <cstdint>

#include "device/cuda/kernel.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_worker.cuh"

namespace quire::cuda {
namespace mla::shared_split {
namespace {

constexpr int kCtas = kMlaFewCtas;
constexpr int kTiles = 16;                  // of a split
constexpr int kOwnTiles = kTiles / kCtas;   // tile i is scored by CTA i % kCtas, scorer i / kCtas
constexpr int kAhead = 5;                   // tiles whose values have room beside keys
constexpr int kWarpgroups = kOwnTiles + 2;  // by role: scorers, the adder, the producer
constexpr int kAdder = kOwnTiles, kProducer = kOwnTiles + 1;
constexpr int kScorerThreads = kOwnTiles * kWarpgroup;
constexpr uint32_t kWeightsBytes = kNarrowRows * 128;  // of a tile
constexpr int kParts = 4;                              // of l: keys 2t and 2t + 1 of every eight
static_assert(kCtas * kPanelValues == 512);
// Of a CTA that is a worker of its own, by warpgroup: all begin with 128, the adder takes some of those that the one
// without a role gives back.
constexpr int kLoneAdderRegisters = 184, kIdleRegisters = 24;
static_assert(kWarpgroups == narrow::kRoles + 1);
static_assert(kLoneAdderRegisters + kIdleRegisters <= 2 * 128);

// Where keys were, when their scores are there.
struct WeightsAndValues {
  std::byte weights[kTiles][kWeightsBytes];
  std::byte values[kTiles - kAhead][kPanelBytes];
};

struct SharedSplit : SharedOrders {
  PanelRows<kNarrowRows> q;
  PanelRows<kTileKeys> keys[kOwnTiles];
  alignas(1024) std::byte ahead[kAhead][kPanelBytes];
  alignas(1024) std::byte own_weights[kOwnTiles][kWeightsBytes];  // on their way to all CTAs
  float4 sums[kTiles][kNarrowRows];                               // of weights of a tile, kParts
  float4 pairs[kOwnTiles][kTileKeys / 8][kNarrowRows];  // weights of two keys, of every eight
  float4 warp_tops[kOwnTiles][kNarrowRows];
  float tops[kTiles][kNarrowRows];   // the highest score that a row has of a tile
  float alpha[kTiles][kNarrowRows];  // what sums before the tile are multiplied with
  float m[kTiles][kNarrowRows];      // from the tile on, not scaled
  int32_t key_slots[kTiles * kTileKeys];
  int32_t num_tiles;  // of the split
  PhaseBarrier keys_there[kOwnTiles], values_there[kTiles];
  PhaseBarrier scored;                     // the CTA's products of scores have ended
  PhaseBarrier tops_there, weights_there;  // of all tiles; weights with their sums
  PhaseBarrier followed;                   // alpha and num_tiles are written

  __device__ uint32_t Weights(int tile) const {
    return SharedAddress(&keys) + static_cast<uint32_t>(tile) * kWeightsBytes;
  }
  __device__ uint32_t Values(int tile) const {
    if (tile < kAhead) return SharedAddress(&ahead) + static_cast<uint32_t>(tile) * kPanelBytes;
    return SharedAddress(&keys) + offsetof(WeightsAndValues, values) +
           static_cast<uint32_t>(tile - kAhead) * kPanelBytes;
  }
};
static_assert(sizeof(SharedSplit) <= 232448, "227 KiB a CTA");
// What a CTA has there: one of them.
union Memory {
  SharedSplit shared;
  SharedParts alone;
};
static_assert(sizeof(WeightsAndValues) <= sizeof(SharedSplit::keys));
static_assert(kWeightsBytes % 1024 == 0);
static_assert(sizeof(SharedSplit::sums[0]) + kWeightsBytes == kNarrowRows * (128 + 4 * kParts));

// A split of a role's; every role has them in the same order.
class Splits {
 public:
  // All threads of the cluster have left the one before. Called by each of them.
  __device__ void Begin() {
    if (has_begun_) {
      SyncCluster();
      parity_ ^= 1;
    }
    has_begun_ = true;
  }
  __device__ uint32_t parity() const { return parity_; }

 private:
  bool has_begun_ = false;
  uint32_t parity_ = 0;
};

__device__ int32_t NumTiles(const RowBlock& block, int32_t begin, int32_t split_keys) {
  return (min(begin + split_keys, block.kv_end) - begin + kTileKeys - 1) / kTileKeys;
}

// ---- Scores, maxima and weights ----

// Of keys and rows a thread has those of NarrowScorer: s[4 j + 2 i + e] is of key 16 warp + lane / 4 + 8 i and row
// 8 j + lane % 4 * 2 + e.
class Scorer : Participant {
 public:
  __device__ Scorer(const MlaKernelArgs& args, SharedSplit& shared, int role)
      : Participant(args, shared, role), shared_(shared), which_(role) {}

  __device__ void Run() {
    ForEachOrder([&] {
      LoadQueries();
      ForEachSplit([&](int32_t split, int32_t, bool has_keys) {
        int32_t num_tiles = 0;
        if (has_keys) num_tiles = RunSplit(split * SplitKeys());
        if (which_ == 0) EndSplit(num_tiles);
      });
    });
  }

 private:
  static constexpr int kThreadRows = 4;
  using Softmax = RowSoftmax<Bf16Keys>;

  static constexpr __device__ int IndexOf(int which, int i) {
    return which / 2 * 4 + i * 2 + which % 2;
  }
  static constexpr __device__ int WhichOf(int index) { return index / 4 * 2 + index % 2; }
  __device__ int32_t RowOf(int which) const { return which / 2 * 8 + thread_ % 4 * 2 + which % 2; }
  __device__ int Warp() const { return thread_ / kWarp; }
  __device__ int KeyOfEight() const { return thread_ % kWarp / 4; }
  __device__ int OwnTile() const { return which_ * kCtas + static_cast<int>(RankInCluster()); }
  __device__ Softmax NewRow() const {
    Softmax row;
    row.SetScale(args_.scale * kLog2E);
    row.Begin();
    return row;
  }

  __device__ void SyncScorers() const { SyncThreads<kScorerThreads>(1 + kWarpgroups); }

  __device__ void LoadQueries() {
    SyncScorers();  // products of the piece before have ended
    if (which_ == 0) {
      CopyQueries</*kAsF16=*/false>(args_, Block(), shared_.q, told_.q_units, thread_);
    }
    SyncScorers();  // queries are written
  }

  // Returns how many tiles the split has.
  __device__ __forceinline__ int32_t RunSplit(int32_t begin) {
    splits_.Begin();
    const int32_t num_tiles = NumTiles(Block(), begin, SplitKeys());
    if (which_ == 0 && thread_ == 0) {
      shared_.num_tiles = num_tiles;
      const auto tiles = static_cast<uint32_t>(num_tiles);
      shared_.tops_there.ArriveExpecting(tiles * sizeof(shared_.tops[0]));
      shared_.weights_there.ArriveExpecting(tiles * (kWeightsBytes + sizeof(shared_.sums[0])));
    }
    const int tile = OwnTile();
    const bool has_tile = tile < num_tiles;
    float s[2 * kThreadRows];
    shared_.keys_there[which_].Wait(splits_.parity());  // or that there are none
    if (has_tile) {
      Score(s);
      MaskKeys(begin + tile * kTileKeys, s);
    }
    shared_.scored.Arrive();
    if (has_tile) ShareTops(tile, s);
    shared_.tops_there.WaitInCluster(splits_.parity());
    FollowMaxima(num_tiles);
    Sync();  // m of the scorer's tile is written
    shared_.followed.Arrive();
    if (has_tile) ShareWeights(tile, s);
    return num_tiles;
  }

  // The chain of products of PanelScores.
  __device__ __forceinline__ void Score(float (&s)[2 * kThreadRows]) {
    constexpr uint32_t kQueryBytes = PanelRows<kNarrowRows>::kPanelBytes;
    const uint32_t q = UniformHere(SharedAddress(&shared_.q));
    const uint32_t keys = UniformHere(SharedAddress(&shared_.keys[which_]));
    FenceForProducts();  // threads copied them
    HoldSums(s);
    BeginProducts();
#pragma unroll
    for (uint32_t panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        MultiplyPanels(s, PanelOperand(keys, panel * kPanelBytes + i * 32),
                       PanelOperand(q, panel * kQueryBytes + i * 32), panel > 0 || i > 0);
      }
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(s);
  }

  // -inf where the token does not see a key.
  __device__ void MaskKeys(int32_t begin, float (&s)[2 * kThreadRows]) const {
    const int32_t visible = ThisOrder().visible[0];
    if (begin + kTileKeys <= visible) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (begin + Warp() * 16 + KeyOfEight() + 8 * i < visible) continue;
#pragma unroll
      for (int which = 0; which < kThreadRows; ++which) s[IndexOf(which, i)] = -INFINITY;
    }
  }

  // The highest score that each row has of the tile, to all CTAs.
  __device__ void ShareTops(int tile, const float (&s)[2 * kThreadRows]) {
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      float most = fmaxf(s[IndexOf(which, 0)], s[IndexOf(which, 1)]);
#pragma unroll
      for (int lanes = 4; lanes < kWarp; lanes *= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, lanes));
      }
      if (thread_ % kWarp < 4) (&shared_.warp_tops[which_][RowOf(which)].x)[Warp()] = most;
    }
    Sync();  // those of all warps are written
    static_assert(kCtas * kNarrowRows == kWarpgroup);
    const int row = thread_ % kNarrowRows;
    const float4 tops = shared_.warp_tops[which_][row];
    StoreAt(static_cast<uint32_t>(thread_ / kNarrowRows), SharedAddress(&shared_.tops[tile][row]),
            fmaxf(fmaxf(tops.x, tops.y), fmaxf(tops.z, tops.w)), shared_.tops_there.Address());
  }

  // A thread has a row of a tile, and goes over the maxima of the tiles before it.
  __device__ void FollowMaxima(int32_t num_tiles) {
    static_assert(kTiles * kNarrowRows == kScorerThreads);
    const int row = thread_ % kNarrowRows, tile = which_ * kCtas + thread_ / kNarrowRows;
    if (tile >= num_tiles) return;
    Softmax softmax = NewRow();
    for (int i = 0; i < tile; ++i) softmax.Skip(shared_.tops[i][row]);
    shared_.alpha[tile][row] = softmax.Follow(shared_.tops[tile][row]);
    shared_.m[tile][row] = softmax.Unscaled();
  }

  // Scores become weights, which go to all CTAs, and so do sums of them.
  __device__ __forceinline__ void ShareWeights(int tile, float (&s)[2 * kThreadRows]) {
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      Softmax row = NewRow();
      row.SetUnscaled(shared_.m[tile][RowOf(which)]);
#pragma unroll
      for (int i = 0; i < 2; ++i) s[IndexOf(which, i)] = row.WeightOf(s[IndexOf(which, i)]);
    }
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = PackWeights<Bf16Keys>(s + 2 * i);  // keys alternate
    const uint32_t lane = static_cast<uint32_t>(thread_) % kWarp, matrix = lane / 8;
    const uint32_t chunk = static_cast<uint32_t>(Warp()) * 2 + matrix % 2;
    const uint32_t own = SharedAddress(&shared_.own_weights[which_]);
    StoreMatricesTransposed(own + PanelChunk(matrix / 2 * 8 + lane % 8, chunk), packed);
    // As NarrowScorer has them.
#pragma unroll
    for (int i = 0; i < 2 * kThreadRows; ++i) {
      const float pair = s[i] + __shfl_xor_sync(kAllLanes, s[i], 4);
      if (KeyOfEight() % 2 != 0) continue;
      float4& four = shared_.pairs[which_][Warp() * 2 + i % 4 / 2][RowOf(WhichOf(i))];
      (&four.x)[KeyOfEight() / 2] = pair;
    }
    Sync();  // weights and pairs are written
    const uint32_t barrier = shared_.weights_there.Address();
    const uint32_t at = static_cast<uint32_t>(thread_) * 16;
    const uint4 bits = LoadShared16(own + at);
    const float4 weights{__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                         __uint_as_float(bits.w)};
    static_assert(kWeightsBytes == kWarpgroup * 16);
#pragma unroll
    for (uint32_t rank = 0; rank < kCtas; ++rank) {
      StoreAt(rank, shared_.Weights(tile) + at, weights, barrier);
    }
    const int row = thread_ % kNarrowRows;
    float4 sum{};
#pragma unroll
    for (int eight = 0; eight < kTileKeys / 8; ++eight) {
      const float4 pair = shared_.pairs[which_][eight][row];
      sum = make_float4(sum.x + pair.x, sum.y + pair.y, sum.z + pair.z, sum.w + pair.w);
    }
    StoreAt(static_cast<uint32_t>(thread_ / kNarrowRows), SharedAddress(&shared_.sums[tile][row]),
            sum, barrier);
  }

  // m and l of the split, for the adder.
  __device__ void EndSplit(int32_t num_tiles) {
    float l = 0.0f;
    const int row = thread_ / kParts, part = thread_ % kParts;
    if (num_tiles > 0) {
      shared_.weights_there.WaitInCluster(splits_.parity());
      shared_.followed.Wait(splits_.parity());
    }
    told_.taken.Wait(ended_parity_ ^ 1);
    if (thread_ < kParts * kNarrowRows) {
      for (int i = 0; i < num_tiles; ++i) {
        l = __fmaf_rn(shared_.alpha[i][row], l, (&shared_.sums[i][row].x)[part]);
      }
      l += __shfl_xor_sync(kAllLanes, l, 1);
      l += __shfl_xor_sync(kAllLanes, l, 2);
      Softmax softmax = NewRow();
      if (num_tiles > 0) softmax.SetUnscaled(shared_.m[num_tiles - 1][row]);
      if (part == 0) told_.stats[row] = make_float2(softmax.Maximum(), l);
    }
    told_.ended.Arrive();
    ended_parity_ ^= 1;
  }

  SharedSplit& shared_;
  const int which_;
  Splits splits_;
  uint32_t ended_parity_ = 0;
};

// ---- Values ----

// Of 64 columns a warp has 16.
struct SplitColumns {
  static constexpr int32_t Of(int patch) { return patch * 8; }
};

// Of values and rows a thread has those of NarrowAdder, of one product.
class Adder : RowSums<1, 8, SplitColumns> {
 public:
  __device__ Adder(const MlaKernelArgs& args, SharedSplit& shared, int32_t worker)
      : RowSums(args, shared, worker, kAdder), shared_(shared) {
    const auto rank = static_cast<int32_t>(RankInCluster());
    const int32_t warp = thread_ / kWarp;
    part_ = {.row = 0,
             .column = rank * static_cast<int32_t>(kPanelValues) + warp * 16,
             .tells = rank == 0 && warp == 0};
  }

  __device__ void Run() {
    RunSplits<kPatches>(
        [&] {
          AddSplit();
          return true;
        },
        [&] { TurnToPatches(o_[0]); });
  }

 private:
  static constexpr int kSums = 8, kThreadRows = 4;

  __device__ __forceinline__ void AddSplit() {
    splits_.Begin();
    const uint32_t parity = splits_.parity();
    shared_.followed.Wait(parity);
    const int32_t num_tiles = shared_.num_tiles;
    shared_.weights_there.WaitInCluster(parity);
    float(&o)[kSums] = o_[0];
    HoldSums(o);
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      shared_.values_there[tile].Wait(parity);
      FenceForProducts();  // threads copied them, and others stored weights
      Rescale(shared_.alpha[tile], o);
      const uint32_t values = Uniform(shared_.Values(tile));
      const uint32_t weights = Uniform(shared_.Weights(tile));
      BeginProducts();
#pragma unroll
      for (uint32_t step = 0; step < 4; ++step) {
        MultiplyTurned(o, PanelOperand(values, step * 16 * 128), PanelOperand(weights, step * 32),
                       true);
      }
      CommitProducts();
    }
    WaitForProducts<0>();
    HoldSums(o);
    // The producer arrives for tiles that a short split does not have, too.
    for (int tile = num_tiles; tile < kTiles; ++tile) shared_.values_there[tile].Wait(parity);
  }

  // Multiplies older sums, whose products have to end for that; seldom.
  __device__ __forceinline__ void Rescale(const float (&alpha)[kNarrowRows], float (&o)[kSums]) {
    float mine[kThreadRows];
    bool changes = false;
#pragma unroll
    for (int which = 0; which < kThreadRows; ++which) {
      mine[which] = alpha[which / 2 * 8 + thread_ % 4 * 2 + which % 2];
      changes |= mine[which] != 1.0f;
    }
    if (!__any_sync(kAllLanes, changes)) return;
    WaitForProducts<0>();
    HoldSums(o);
#pragma unroll
    for (int i = 0; i < kSums; ++i) o[i] *= mine[i / 4 * 2 + i % 2];
    HoldSums(o);
  }

  SharedSplit& shared_;
  Splits splits_;
};

// ---- Copies ----

class KeyProducer : Participant {
 public:
  __device__ KeyProducer(const MlaKernelArgs& args, SharedSplit& shared)
      : Participant(args, shared, kProducer), shared_(shared) {}

  // The pieces of `worker`, of rows [row_begin, + 16) of each tile.
  __device__ void Run(int32_t worker, int32_t row_begin) {
    ForEachPiece(args_.plan, worker, [&](const Piece& piece) {
      if (piece.tile.q_count * args_.num_heads <= row_begin) return;
      if (piece.tile.q_begin.raw() + piece.tile.q_count > args_.num_tokens) return;
      Give(piece, RowBlock::Of(args_, piece.tile, row_begin, kNarrowRows));
      ForEachSplit([&](int32_t split, int32_t, bool has_keys) {
        if (has_keys) RunSplit(split * SplitKeys());
      });
      orders_.Advance();
    });
    Give({}, {});
  }

 private:
  // Hands out an order, once nobody reads the one before the last. A tile is one token.
  __device__ void Give(const Piece& piece, const RowBlock& block) {
    Order& order = told_.orders[orders_.stage];
    told_.done[orders_.stage].Wait(orders_.parity ^ 1);
    if (thread_ == 0) {
      order.piece = piece;
      order.block = block;
    }
    if (thread_ < kMlaRows) {
      order.visible[thread_] = thread_ < block.num_rows ? block.VisibleTo(args_, 0) : 0;
    }
    Sync();  // all of it is written
    told_.given[orders_.stage].Arrive();
  }

  __device__ void RunSplit(int32_t begin) {
    splits_.Begin();
    const int32_t num_tiles = NumTiles(Block(), begin, SplitKeys());
    LookUp(begin, num_tiles * kTileKeys);
    const auto rank = static_cast<int>(RankInCluster());
    for (int i = 0; i < kOwnTiles; ++i) {
      const int tile = i * kCtas + rank;
      if (tile < num_tiles) CopyTile(tile, i);
      shared_.keys_there[i].ArriveAfterCopies();
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile == kAhead) shared_.scored.Wait(splits_.parity());
      if (tile < num_tiles) CopyValues(tile, static_cast<uint32_t>(rank));
      shared_.values_there[tile].ArriveAfterCopies();
    }
  }

  // Where the split's keys lie: those of a thread are asked for at once.
  __device__ void LookUp(int32_t begin, int32_t num_keys) {
    constexpr int kOwn = kTiles * kTileKeys / kWarpgroup;
    const int32_t visible = ThisOrder().visible[0];
    PagedKey keys[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int32_t key = begin + i * kWarpgroup + thread_;
      // Of a tree, tiles of the token's own begin on a multiple of kTileKeys.
      Pass pass = Block().PassAt(key / kTileKeys * kTileKeys);
      pass.key = key;
      keys[i] = Block().PageOf(args_, Block().ListedAt(args_, pass, 0, visible));
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int32_t own = i * kWarpgroup + thread_;
      if (own < num_keys) {
        shared_.key_slots[own] = static_cast<int32_t>(Block().SlotOf(args_, keys[i]));
      }
    }
    Sync();  // all are written
  }

  // Row `row` of a tile; without a key zeros, and an address of the pool all the same.
  __device__ SourceRow RowAt(int tile, int row) const {
    const int32_t slot = shared_.key_slots[tile * kTileKeys + row];
    return {reinterpret_cast<const std::byte*>(args_.store.LatentRow(slot >= 0 ? slot : 0)),
            slot >= 0};
  }
  __device__ void CopyTile(int tile, int which) {
    CopyRows<kTileKeys, PanelParts<1, kPanels>>(
        thread_, [&](int row) { return RowAt(tile, row); },
        [&](uint32_t panel) { return SharedAddress(&shared_.keys[which]) + panel * kPanelBytes; },
        [](uint32_t) {}, [](uint32_t, uint32_t) {});
  }
  // Of every row the CTA's columns.
  __device__ void CopyValues(int tile, uint32_t rank) {
    const uint32_t chunk = static_cast<uint32_t>(thread_) % 8, to = shared_.Values(tile);
#pragma unroll
    for (int i = 0; i < kTileKeys / 16; ++i) {
      const int row = thread_ / 8 + 16 * i;
      const SourceRow source = RowAt(tile, row);
      CopyAsync16(to + PanelChunk(static_cast<uint32_t>(row), chunk),
                  source.from + rank * 128 + chunk * 16, source.is_row ? 16 : 0);
    }
  }

  SharedSplit& shared_;
  Splits splits_;
};

// ---- Kernel ----

__device__ void InitBarriers(SharedSplit& shared) {
  for (PhaseBarrier& there : shared.keys_there) there.Init(kWarpgroup);
  for (PhaseBarrier& there : shared.values_there) there.Init(kWarpgroup);
  shared.scored.Init(kScorerThreads);
  shared.tops_there.Init(1);
  shared.weights_there.Init(1);
  shared.followed.Init(kScorerThreads);
  shared.ended.Init(kWarpgroup);
  shared.taken.Init(kWarpgroup);
  for (PhaseBarrier& given : shared.given) given.Init(kWarpgroup);
  for (PhaseBarrier& done : shared.done) done.Init(kScorerThreads + kWarpgroup);
  FenceBarrierInit();
}

// What a CTA does where its cluster shares the pieces of one worker.
__device__ __forceinline__ void RunShared(const MlaKernelArgs& args, SharedSplit& shared, int role,
                                          int32_t worker, int32_t row_begin) {
  if (threadIdx.x == 0) InitBarriers(shared);
  ArriveAtCluster();  // with barriers that others use
  TakeTurn();
  __syncthreads();
  WaitForCluster();
  if (role < kOwnTiles) {
    Scorer(args, shared, role).Run();
  } else if (role == kAdder) {
    Adder(args, shared, worker).Run();
  } else {
    KeyProducer(args, shared).Run(worker, row_begin);
  }
}

// What it does as a worker of its own, to which the others of its cluster mean nothing.
__device__ __forceinline__ void RunAlone(const MlaKernelArgs& args, const KeyBoxes& boxes,
                                         SharedParts& shared, int role, int32_t worker,
                                         int32_t row_begin) {
  if (threadIdx.x == 0) narrow::InitBarriers(shared);
  PrefetchKeyBoxes(boxes);
  TakeTurn();
  __syncthreads();
  if (role == narrow::kRoles) {
    GiveRegistersBack<kIdleRegisters>();
  } else {
    narrow::RunRole<kLoneAdderRegisters>(args, boxes, shared, role, worker, row_begin);
  }
}

// Which workers of a cluster have pieces: bit i says it of CTA i. Before the turn, since the kernel before does not write
// the plan (mla_attention.h): all CTAs read the same.
__device__ uint32_t WorkersWithPieces(const Schedule& plan, int32_t cluster) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  bool has_pieces = false;
  if (lane < kCtas) {
    const WorkerStart* starts =
        plan.workers.data() + MlaExactWorker(cluster, lane, plan.work.num_workers);
    const auto load = [&](const int32_t& from) {
      return LoadHere<int32_t>(reinterpret_cast<const std::byte*>(&from));
    };
    const int32_t tile = load(starts[0].tile), split = load(starts[0].split);
    const int32_t end_tile = load(starts[1].tile), end_split = load(starts[1].split);
    has_pieces = tile != end_tile || split != end_split;
  }
  return __ballot_sync(kAllLanes, has_pieces);
}

// Clusters of the same workers are neighbours, one for every kNarrowRows rows: they read the same keys.
__global__ void __launch_bounds__(kWarpgroups* kWarpgroup, 1)
    MlaFewExact(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes,
                int32_t row_clusters) {
  std::byte* const memory = LaunchedShared<1024>();
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / kCtas / row_clusters;
  const int32_t row_begin = static_cast<int32_t>(blockIdx.x) / kCtas % row_clusters * kNarrowRows;
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const uint32_t with_pieces = WorkersWithPieces(args.plan, cluster);
  const bool is_shared = __popc(with_pieces) == 1;
  const int32_t cta =
      is_shared ? __ffs(static_cast<int>(with_pieces)) - 1 : static_cast<int32_t>(RankInCluster());
  const int32_t worker = MlaExactWorker(cluster, cta, args.plan.work.num_workers);
  if (is_shared) {
    RunShared(args, *reinterpret_cast<SharedSplit*>(memory), role, worker, row_begin);
  } else {
    RunAlone(args, boxes, *reinterpret_cast<SharedParts*>(memory), role, worker, row_begin);
  }
}

}  // namespace
}  // namespace mla::shared_split

void LaunchMlaFewExact(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                       StatusWord status) {
  using namespace mla::shared_split;
  const MlaKernelArgs kernel_args = KernelArgsOf(args, lists, status);
  const int32_t row_clusters = CeilDiv(kernel_args.tile_rows, mla::kNarrowRows);
  mla::LaunchRoles<Memory>(
      "MlaFewExact", MlaFewExact,
      {.grid = dim3(static_cast<unsigned>(kernel_args.plan.work.num_workers * row_clusters)),
       .block = dim3(kWarpgroups * kWarpgroup),
       .cluster = kCtas},
      stream, kernel_args, mla::KeyBoxesOf<mla::RingParts>(kernel_args, lists), row_clusters);
}

}  // namespace quire::cuda
