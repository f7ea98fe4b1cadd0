// Latent attention of few rows: query heads of a token, 16 at most, over bf16 rows of 512 + 64 values, outside of
// exact mode. Reading keys bounds it, or for short sequences the way to the first of them.
//
// A worker is a CTA, or a cluster of them: each has a share of a piece's keys, 32 at a time: a stage. In the end each
// folds a share of the columns of what all have.
//
//   producers   four warps: look up pages and copy keys, as far ahead as there is room
//   workers     eight warps. For scores each has a quarter of the values and half of the keys; the quarters meet in
//               shared memory. Then each makes the weights of two rows, and with everybody's weights adds values
//               to its 64 columns.
#include <cuda/atomic>

#include "attn/plan_build.h"
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace mla::few {
namespace {

constexpr int kWorkers = 8, kProducers = 4;  // warps
constexpr int32_t kStageKeys = 32;
constexpr uint32_t kRowBytes = 2 * (512 + 64);
// Rows that follow each other begin 16 bytes further in the banks, so that eight of them are read at once.
constexpr uint32_t kRowPitch = kRowBytes + 16;
// Of a worker: products of 16 values for scores, and columns of values.
constexpr int kQuarters = 4, kQuarterSteps = (512 + 64) / 16 / kQuarters;
constexpr int kColumns = 512 / kWorkers;

constexpr int kRows = kMlaFewRows;

// What the CTAs of a cluster have of a piece: of all of them, the columns that this one folds.
template <int kCtas>
struct ClusterParts {
  static constexpr int kPatches = 512 / kPatchColumns / kCtas;
  static constexpr int kOfAWarp = kPatches < kWorkers ? 1 : kPatches / kWorkers;

  alignas(16) float4 sums[kCtas][kPatches][kWarp];
  float m[kCtas][kRows], l[kCtas][kRows];
  PhaseBarrier there;  // all have come
  PhaseBarrier read;   // every CTA has read what it had before
  bool is_last;        // to store a partial of a merge
  static constexpr uint32_t kBytes = sizeof(sums) + sizeof(m) + sizeof(l);
};
template <>
struct ClusterParts<1> {
  static constexpr int kOfAWarp = 1;
};

template <int kCtas>
struct SharedFew {
  static constexpr int kStages = kCtas == 1 ? 5 : 4;

  alignas(128) std::byte q[kRows][kRowPitch];
  std::byte keys[kStages][kStageKeys][kRowPitch];
  float scores[kQuarters][kRows][kStageKeys + 8];
  Bf16 weights[kRows][kStageKeys + 8];
  float alpha[kRows];                          // what sums before the stage are multiplied with
  float2 stats[kRows];                         // m and l, when a piece ends
  PhaseBarrier full[kStages], empty[kStages];  // keys have come; nobody reads them any more
  PhaseBarrier asked, heard;                   // queries have come; everybody has them
  ClusterParts<kCtas> parts;
};
static_assert(sizeof(SharedFew<1>) <= 232448 && sizeof(SharedFew<kMlaFewCtas>) <= 232448,
              "227 KiB a CTA");

struct FewArgs : MlaKernelArgs {
  PageDivider pages;
  int32_t split;
};

// A token's splits that a worker has, and of their keys, and of other nodes' of its tree, the CTA's share: [begin, end).
struct FewPiece {
  int32_t seq, token;
  int32_t kv_end;  // the token sees the keys before it, but of a tree's nodes those of its path
  int32_t nodes_begin;  // INT32_MAX where there are none
  int32_t kv_len;
  int32_t old_end;  // keys before it are of earlier steps
  int32_t page_row;
  int32_t begin, end;
  int32_t partial;  // that it becomes if others have splits of the token, too
  bool is_partial;

  __device__ bool HasNodes() const { return nodes_begin != INT32_MAX; }
  // The nodes that the token sees. Asked for before the turn, as the plan is.
  __device__ uint64_t Nodes(const FewArgs& args) const {
    if (!HasNodes()) return 0;
    const auto* mask = reinterpret_cast<const std::byte*>(args.plan.TreeMask(TokenCount(token)));
    return LoadHere<uint32_t>(mask) | uint64_t{LoadHere<uint32_t>(mask + 4)} << 32;
  }
  // Stages rank * n / ctas and on, of n.
  __device__ void TakeShare(uint32_t rank, uint32_t ctas) {
    const int32_t first = begin;
    const uint32_t stages =
        (static_cast<uint32_t>(max(end - first, 0)) + kStageKeys - 1) / kStageKeys;
    begin = first + static_cast<int32_t>(stages * rank / ctas) * kStageKeys;
    end = min(end, first + static_cast<int32_t>(stages * (rank + 1) / ctas) * kStageKeys);
  }
};

// A worker's starts, and of the plan's tiles and sequences the first ones, of which each lane has one: all are asked for
// at once, and before the kernel takes its turn. Worker, tile and sequence would be waited for one after the other.
template <int kCtas>
class FewPieces {
 public:
  // All lanes of a warp ask together.
  __device__ FewPieces(const FewArgs& args, int32_t worker) : args_(args) {
    const WorkerStart* start = args.plan.workers.data() + worker;
    begin_tile_ = Load(&start[0].tile);
    begin_split_ = Load(&start[0].split);
    first_partial_ = Load(&start[0].first_partial);
    end_tile_ = Load(&start[1].tile);
    end_split_ = Load(&start[1].split);
    const size_t lane = threadIdx.x % kWarp;
    // What a step does not use of them is there, too.
    if (lane < args.plan.tiles.size()) tile_ = TileAt(lane);
    if (lane < args.plan.kv_len.size()) place_ = PlaceAt(lane);
  }

  // Calls fn(piece) for every piece of the worker.
  template <class Fn>
  __device__ void ForEach(Fn fn) const {
    int32_t partial = first_partial_;
#pragma unroll 1
    for (int32_t i = begin_tile_; i <= end_tile_; ++i) {
      const bool ends_early = i == end_tile_;  // the next worker has the rest, or all of it
      const int32_t first = i == begin_tile_ ? begin_split_ : 0;
      if (ends_early && first >= end_split_) return;
      FewPiece few = PieceOf(i);
      few.begin = first * args_.split;
      few.end = ends_early ? min(end_split_ * args_.split, few.kv_end) : few.kv_end;
      few.is_partial = ends_early || first > 0;
      few.partial = partial;
      if (few.is_partial) ++partial;
      if (few.token >= args_.num_tokens) continue;
      if constexpr (kCtas > 1) few.TakeShare(RankInCluster(), kCtas);
      fn(few);
    }
  }

 private:
  struct Tile {
    int32_t seq, token, kv_end;
  };
  struct Place {
    int32_t committed, kv_len, row;
  };

  // The low half of what has 64 bits, too.
  static __device__ int32_t Load(const void* from) {
    return LoadHere<int32_t>(static_cast<const std::byte*>(from));
  }
  __device__ Tile TileAt(size_t i) const {
    const QueryTile* tile = args_.plan.tiles.data() + i;
    return {.seq = Load(&tile->seq), .token = Load(&tile->q_begin), .kv_end = Load(&tile->kv_end)};
  }
  __device__ Place PlaceAt(size_t i) const {
    return {.committed = Load(args_.plan.committed.data() + i),
            .kv_len = Load(args_.plan.kv_len.data() + i),
            .row = Load(args_.plan.row_of.data() + i)};
  }
  __device__ FewPiece PieceOf(int32_t i) const {
    Tile tile{.seq = __shfl_sync(kAllLanes, tile_.seq, i),
              .token = __shfl_sync(kAllLanes, tile_.token, i),
              .kv_end = __shfl_sync(kAllLanes, tile_.kv_end, i)};
    if (i >= kWarp) tile = TileAt(static_cast<size_t>(i));
    Place place{.committed = __shfl_sync(kAllLanes, place_.committed, tile.seq),
                .kv_len = __shfl_sync(kAllLanes, place_.kv_len, tile.seq),
                .row = __shfl_sync(kAllLanes, place_.row, tile.seq)};
    if (tile.seq >= kWarp) place = PlaceAt(static_cast<size_t>(tile.seq));
    FewPiece few{
        .seq = tile.seq,
        .token = tile.token,
        .kv_end = tile.kv_end,
        .nodes_begin = INT32_MAX,
        .kv_len = place.kv_len,
        .old_end = min(place.committed, place.kv_len) - static_cast<int32_t>(args_.num_tokens),
        .page_row = place.row};
    // Bits depend on the step anyway: a tree's nodes are gone over together. A list is of the token's own keys.
    if (place.committed != place.kv_len && (kCtas > 1 || args_.lists.chosen == nullptr)) {
      few.nodes_begin = place.committed;
      // Nodes may reach behind what the longest path sees.
      if (few.kv_end > place.committed) few.kv_end = place.kv_len;
    }
    return few;
  }

  const FewArgs& args_;
  int32_t begin_tile_, begin_split_, first_partial_, end_tile_, end_split_;
  Tile tile_ = {};
  Place place_ = {};
};

// The keys that the token sees: the first of them, and nodes of its path.
struct Sight {
  int32_t keys = 0;
  int32_t nodes_begin = INT32_MAX;
  uint64_t nodes = 0;

  static __device__ Sight Of(const FewArgs& args, const FewPiece& few) {
    return {.keys = min(few.nodes_begin, few.kv_end),
            .nodes_begin = few.nodes_begin,
            .nodes = few.Nodes(args)};
  }
  __device__ bool Has(int32_t key) const {
    const int32_t node = key - nodes_begin;
    return key < keys || (node >= 0 && node < 64 && (nodes >> node & 1) != 0);
  }
};

// Each of its warps copies eight keys of a stage, and looks up those of four stages at once: a round.
template <int kCtas>
class FewProducer {
 public:
  __device__ FewProducer(const FewArgs& args, SharedFew<kCtas>& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarp % kProducers),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarp) {}

  __device__ void Run(const FewPieces<kCtas>& pieces) {
    pieces.ForEach([&](const FewPiece& few) { Copy(few); });
    TakeTurn();  // where there was no piece
  }

 private:
  static constexpr int32_t kRoundKeys = 4 * kStageKeys;

  // A key takes two steps to be found, each of which asks memory for what the next one needs: they are taken one and
  // two rounds before it is copied. The plan is older than the kernel before this one, and so are keys of earlier
  // steps: they are asked for before the turn, as far as there is room. Queries, and keys of this step, are not.
  __device__ void Copy(const FewPiece& few) {
    if (HasLists()) TakeTurn();  // which the kernel before may have written
    const uint64_t nodes = few.Nodes(args_);
    int32_t own = few.begin + lane_ / 8 * kStageKeys + warp_ * 8 + lane_ % 8;
    PagedKey paged = PageOf(few, ListedAt(few, nodes, own));
    int32_t listed = ListedAt(few, nodes, own += kRoundKeys);
    const int32_t old_end = min(few.old_end, few.begin + kRoundKeys);
    bool has_asked = false;
#pragma unroll 1
    for (int32_t key = few.begin; key < few.end;) {
      const int32_t slot = SlotOf(few, paged);
      paged = PageOf(few, listed);
      listed = ListedAt(few, nodes, own += kRoundKeys);
#pragma unroll 1
      for (int32_t first = 0; first < kWarp && key < few.end; first += 8, key += kStageKeys) {
        if (!has_asked && key + kStageKeys > old_end) {
          CopyQueries(few);
          has_asked = true;
        }
        CopyStage(slot, first);
      }
    }
    if (!has_asked) CopyQueries(few);
  }

  // Rows that there are not are the first one's.
  __device__ void CopyQueries(const FewPiece& few) {
    TakeTurn();
    shared_.heard.Wait(asked_parity_ ^ 1);
    const int32_t to = warp_ * 4 + lane_ / 8, row = to < args_.num_heads ? to : 0;
    const Bf16* from = args_.q.Row<Bf16>(few.token, row);
    CopyRow(shared_.q[to], reinterpret_cast<const std::byte*>(from), true);
    shared_.asked.ArriveAfterCopies();
    asked_parity_ ^= 1;
  }

  // ---- Where a key lies ----

  // Behind the last key comes the last one again, which nobody sees there. Where there is none, there may be no pages.
  __device__ int32_t ListedAt(const FewPiece& few, uint64_t nodes, int32_t key) const {
    if (few.begin >= few.end) return RowBlock::kNoKey;
    key = min(key, few.end - 1);
    if (HasLists()) {
      const int32_t* chosen = args_.lists.chosen + int64_t{few.token} * args_.lists.top_k + key;
      return LoadHere<int32_t>(reinterpret_cast<const std::byte*>(chosen));
    }
    const int32_t node = key - few.nodes_begin;
    return node < 0 || (nodes >> node & 1) != 0 ? key : RowBlock::kNoKey;
  }
  __device__ PagedKey PageOf(const FewPiece& few, int32_t listed) const {
    if (listed == RowBlock::kNoKey) return {.page = 0, .offset = RowBlock::kNoKey};
    int32_t position = listed;
    if (HasLists()) {
      const RowBlock block{.tile = {.seq = few.seq, .q_begin = TokenCount(few.token)},
                           .kv_len = few.kv_len};
      position = block.ChosenPosition(args_, listed);
    }
    const int32_t index = args_.pages.PageOf(position);
    const PageId* page = args_.plan.RowAt(few.page_row) + index;
    return {.page = index < args_.plan.row_width.raw()
                        ? LoadHere<int32_t>(reinterpret_cast<const std::byte*>(page))
                        : -1,
            .offset = position - index * args_.pages.page_size};
  }
  // Of a node of another path -1.
  __device__ int32_t SlotOf(const FewPiece& few, PagedKey key) const {
    if (key.offset == RowBlock::kNoKey) return -1;
    return static_cast<int32_t>(
        cuda::SlotOf(args_.store, key, few.seq, Launch::kMlaAttention, args_.status));
  }
  __device__ bool HasLists() const { return kCtas == 1 && args_.lists.chosen != nullptr; }

  // ---- Copies ----

  // Of the keys whose slots lanes from `first` on have; for a node of another path zeros.
  __device__ void CopyStage(int32_t slot, int32_t first) {
    shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
#pragma unroll
    for (int32_t i = 0; i < 8; i += 4) {
      const int32_t row = i + lane_ / 8;
      const int32_t its_slot = __shfl_sync(kAllLanes, slot, first + row);
      const uint8_t* from = args_.store.LatentRow(its_slot >= 0 ? its_slot : 0);
      CopyRow(shared_.keys[ring_.stage][warp_ * 8 + row], reinterpret_cast<const std::byte*>(from),
              its_slot >= 0);
    }
    shared_.full[ring_.stage].ArriveAfterCopies();
    ring_.Advance();
  }
  // By eight lanes; zeros where there is none.
  __device__ void CopyRow(const std::byte* to, const std::byte* from, bool is_row) const {
    const uint32_t chunk = static_cast<uint32_t>(lane_) % 8 * 16;
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes; i += 128) {
      CopyAsync16(SharedAddress(to) + chunk + i, from + chunk + i, is_row ? 16 : 0);
    }
  }

  const FewArgs& args_;
  SharedFew<kCtas>& shared_;
  const int32_t warp_, lane_;
  RingPosition<SharedFew<kCtas>::kStages> ring_;
  uint32_t asked_parity_ = 0;
};

// A lane of a product has, with group = lane / 4, rows group and group + 8, and two of every eight keys or columns.
// Of weights a warp makes those of two rows, a lane those of two keys of one row.
template <int kCtas>
class FewWorker {
  using Parts = ClusterParts<kCtas>;

 public:
  __device__ FewWorker(const FewArgs& args, SharedFew<kCtas>& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<uint32_t>(threadIdx.x) / kWarp),
        lane_(static_cast<uint32_t>(threadIdx.x) % kWarp),
        scale_(args.scale * kLog2E) {}

  __device__ void Run(const FewPieces<kCtas>& pieces) {
    TakeTurn();
    pieces.ForEach([&](const FewPiece& few) {
      if constexpr (kCtas > 1) {
        if (few.is_partial) FindMerge(few);  // long before keys come
      }
      Begin(few);
#pragma unroll 1
      for (int32_t key = few.begin; key < few.end; key += kStageKeys) RunStage(key);
      Finish(few);
    });
  }

 private:
  static constexpr uint32_t kRowLanes = 16;  // that weigh a row
  static constexpr float kSlack = 8.0f;

  __device__ void Begin(const FewPiece& few) {
    ExpectParts();
    sight_ = Sight::Of(args_, few);
    m_ = -INFINITY;
    l_ = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o_[i / 4][i % 4] = 0.0f;
    shared_.asked.Wait(asked_parity_);
    const uint32_t from =
        SharedAddress(shared_.q[lane_ % 16]) + lane_ / 16 * 16 + Quarter() * (32 * kQuarterSteps);
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
      LoadMatrices(from + i * 32, q_[i][0], q_[i][1], q_[i][2], q_[i][3]);
    }
    shared_.heard.Arrive();
    asked_parity_ ^= 1;
  }

  __device__ void RunStage(int32_t key) {
    const uint32_t keys = SharedAddress(shared_.keys[ring_.stage]);
    shared_.full[ring_.stage].Wait(ring_.parity);
    Score(keys);
    Sync();  // scores are written, and weights of the stage before are read
    Weigh(key);
    Sync();  // weights are written, and scores are read
    Rescale();
    AddValues(keys);
    shared_.empty[ring_.stage].Arrive();
    ring_.Advance();
  }

  // ---- Scores and weights ----

  __device__ void Score(uint32_t keys) const {
    const uint32_t first = warp_ / kQuarters * 16;
    const uint32_t from = keys + (first + lane_ / 16 * 8 + lane_ % 8) * kRowPitch +
                          lane_ / 8 % 2 * 16 + Quarter() * (32 * kQuarterSteps);
    // A product waits for the one before that adds to the same sums.
    float s[2][4] = {}, odd[2][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
      uint32_t b[4];
      LoadMatrices(from + i * 32, b[0], b[1], b[2], b[3]);
      float(&to)[2][4] = i % 2 == 0 ? s : odd;
      MultiplyBf16(to[0], q_[i], b[0], b[1]);
      MultiplyBf16(to[1], q_[i], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] += odd[i / 4][i % 4];
    const uint32_t row = lane_ / 4, column = first + lane_ % 4 * 2;
    float(&scores)[kRows][kStageKeys + 8] = shared_.scores[Quarter()];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      *reinterpret_cast<float2*>(&scores[row][column + i * 8]) = make_float2(s[i][0], s[i][1]);
      *reinterpret_cast<float2*>(&scores[row + 8][column + i * 8]) = make_float2(s[i][2], s[i][3]);
    }
  }

  // exp2(scale (score - m)). m follows the maximum only where weights would pass 2^kSlack otherwise, so that sums
  // are seldom multiplied.
  __device__ void Weigh(int32_t key) {
    const uint32_t row = OwnRow(), first = lane_ % kRowLanes * 2;
    float s[2] = {};
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const auto from = *reinterpret_cast<const float2*>(&shared_.scores[quarter][row][first]);
      s[0] += from.x;
      s[1] += from.y;
    }
    if (key + kStageKeys > sight_.keys) {
      const int32_t own = key + static_cast<int32_t>(first);
      if (!sight_.Has(own)) s[0] = -INFINITY;
      if (!sight_.Has(own + 1)) s[1] = -INFINITY;
    }
    float top = fmaxf(s[0], s[1]);
#pragma unroll
    for (int lanes = 1; lanes < static_cast<int>(kRowLanes); lanes *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
    }
    const float before = m_;
    if (scale_ * (top - before) > kSlack) m_ = top;
    const float anchor = scale_ * Anchor(m_);
    const float alpha = Base2Exponent::Exp(scale_ * before - anchor);  // 1 where m stays
    s[0] = Base2Exponent::Exp(__fmaf_rn(scale_, s[0], -anchor));
    s[1] = Base2Exponent::Exp(__fmaf_rn(scale_, s[1], -anchor));
    l_ = __fmaf_rn(alpha, l_, s[0] + s[1]);
    *reinterpret_cast<uint32_t*>(&shared_.weights[row][first]) = PackBf16(s[0], s[1]);
    if (lane_ % kRowLanes == 0) shared_.alpha[row] = alpha;
  }

  // ---- Values ----

  // Multiplies older sums.
  __device__ void Rescale() {
    const float alpha[2] = {shared_.alpha[lane_ / 4], shared_.alpha[lane_ / 4 + 8]};
    if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o_[i / 4][i % 4] *= alpha[i % 4 / 2];
  }

  __device__ void AddValues(uint32_t keys) {
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
      uint32_t w[4];
      LoadMatrices(SharedAddress(&shared_.weights[lane_ % 16][step * 16 + lane_ / 16 * 8]), w[0],
                   w[1], w[2], w[3]);
      const uint32_t from = keys + (step * 16 + lane_ % 16) * kRowPitch + lane_ / 16 * 16;
#pragma unroll
      for (uint32_t pair = 0; pair < kColumns / 16; ++pair) {
        uint32_t b[4];
        LoadMatricesTransposed(from + (warp_ * kColumns + pair * 16) * 2, b[0], b[1], b[2], b[3]);
        MultiplyBf16(o_[2 * pair], w, b[0], b[1]);
        MultiplyBf16(o_[2 * pair + 1], w, b[2], b[3]);
      }
    }
  }

  // ---- What a piece ends with ----

  // What two rows have, those of a lane, in patches beside each other.
  template <int kCount>
  struct PatchState {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    float4 sums[kCount] = {};
  };

  __device__ void Finish(const FewPiece& few) {
#pragma unroll
    for (int lanes = 1; lanes < static_cast<int>(kRowLanes); lanes *= 2) {
      l_ += __shfl_xor_sync(kAllLanes, l_, lanes);
    }
    if constexpr (kCtas == 1) {
      FinishAlone(few);
    } else {
      GiveParts();
      shared_.parts.there.WaitInCluster(parts_parity_);
      parts_parity_ ^= 1;
      FinishParts(few);
    }
  }

  __device__ void FinishAlone(const FewPiece& few) {
    Sync();  // those of the piece before are read
    if (lane_ % kRowLanes == 0) shared_.stats[OwnRow()] = make_float2(scale_ * m_, l_);
    Sync();
    const float2 stats[2] = {shared_.stats[lane_ / 4], shared_.stats[lane_ / 4 + 8]};
    PatchState<kColumns / 8> state{.m = {stats[0].x, stats[1].x}, .l = {stats[0].y, stats[1].y}};
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      state.sums[i] = make_float4(o_[i][0], o_[i][1], o_[i][2], o_[i][3]);
    }
    const int32_t column = static_cast<int32_t>(warp_) * kColumns;
    if (few.is_partial) {
      StorePartial(few.partial, column, state);
    } else {
      WriteResult(few, column, state);
    }
  }

  // ---- Of a cluster ----

  // When a piece begins: every CTA has read the parts of the one before, and expects new ones.
  __device__ void ExpectParts() {
    if constexpr (kCtas > 1) {
      if (parts_begun_) {
        Sync();  // all threads have read them
        if (threadIdx.x < kCtas) shared_.parts.read.ArriveAt(threadIdx.x);
      }
      if (threadIdx.x == 0) shared_.parts.there.ArriveExpecting(Parts::kBytes);
    }
  }
  // Each CTA gets its columns, and m and l of all rows.
  __device__ void GiveParts() {
    Parts& parts = shared_.parts;
    if (parts_begun_) {
      parts.read.WaitInCluster(read_parity_);
      read_parity_ ^= 1;
    }
    parts_begun_ = true;
    const uint32_t rank = RankInCluster(), barrier = parts.there.Address();
#pragma unroll
    for (uint32_t i = lane_ % kRowLanes; i < 2 * kCtas; i += kRowLanes) {
      const float(&to)[kRows] = i % 2 == 0 ? parts.m[rank] : parts.l[rank];
      StoreAt(i / 2, SharedAddress(&to[OwnRow()]), i % 2 == 0 ? scale_ * m_ : l_, barrier);
    }
#pragma unroll
    for (uint32_t i = 0; i < kColumns / 8; ++i) {
      const uint32_t patch = warp_ * (kColumns / 8) + i;
      StoreAt(patch / Parts::kPatches,
              SharedAddress(&parts.sums[rank][patch % Parts::kPatches][lane_]),
              make_float4(o_[i][0], o_[i][1], o_[i][2], o_[i][3]), barrier);
    }
  }
  // First the cluster's parts; then, by whoever is the last CTA of its rank to have stored them as a partial, all
  // partials of the merge. So nobody waits for a CTA that may not have begun, and no kernel has to follow.
  __device__ void FinishParts(const FewPiece& few) {
    PatchState<Parts::kOfAWarp> state;
    bool is_whole = !few.is_partial;
    int32_t count = kCtas, next = 0, end = 0;  // parts that are there; partials that are not yet
    while (true) {
      if (HasPatch()) FoldParts(count, state);
      if (!is_whole) {
        if (!StoreShare(few.partial, state) || !IsLast()) return;
        is_whole = true;
        state = {};
        end = merge_.num_partials;
      }
      if (next == end) break;
      count = min(kCtas, end - next);
      BringPartials(next, count);
      next += count;
    }
    if (HasPatch()) WriteResult(few, FoldedColumn(), state);
  }
  // The first patch that the warp folds, of the CTA's and of all.
  __device__ uint32_t FoldedPatch() const { return warp_ * Parts::kOfAWarp; }
  __device__ bool HasPatch() const { return FoldedPatch() < Parts::kPatches; }
  __device__ int32_t FoldedColumn() const {
    return static_cast<int32_t>((RankInCluster() * Parts::kPatches + FoldedPatch()) *
                                kPatchColumns);
  }

  // The merge that the piece's partial is of.
  __device__ void FindMerge(const FewPiece& few) {
    const int32_t num_merges = args_.plan.counts->num_merges;
    const auto room = static_cast<int32_t>(args_.plan.merges.size());
    merge_ = {};
    int32_t first = 0;
#pragma unroll 1
    do {
      const int32_t own = first + static_cast<int32_t>(lane_);
      Merge merge;  // asked for before it is known whether the step has it
      if (own < room) merge = args_.plan.merges[static_cast<size_t>(own)];
      const int32_t number = few.partial - merge.first_partial;
      const bool is_own = own < num_merges && number >= 0 && number < merge.num_partials;
      const uint32_t found = __ballot_sync(kAllLanes, is_own);
      if (found != 0) {
        const int from = __ffs(static_cast<int>(found)) - 1;
        merge_ = {.tile = __shfl_sync(kAllLanes, merge.tile, from),
                  .first_partial = __shfl_sync(kAllLanes, merge.first_partial, from),
                  .num_partials = __shfl_sync(kAllLanes, merge.num_partials, from)};
        merge_number_ = first + from;
      }
      first += kWarp;
    } while (first < num_merges);
  }

  // m and l of a partial as one rank has stored them, beside sums that are a rank's own anyway: so whoever reads them
  // need not know of the other ranks. They lie where other kernels keep a worker's sums; there are fewer partials
  // than such states, two of each worker.
  __device__ float* StatsAt(int64_t partial) const {
    const int64_t floats = MlaStateFloats(args_.tile_rows, 512);
    return args_.folded + partial * floats + RankInCluster() * (2 * kRows);
  }
  // All threads; false if there is no room for it.
  __device__ bool StoreShare(int64_t index, const PatchState<Parts::kOfAWarp>& state) const {
    const int64_t end = merge_.first_partial + merge_.num_partials;
    if (end > min(args_.max_partials, int64_t{2} * args_.plan.work.num_workers) || end == 0) {
      if (threadIdx.x == 0 && RankInCluster() == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return false;
    }
    if (!HasPatch()) return true;
    float4* const sums =
        &StateAt(args_, args_.partials, index).Sums(0, FoldedColumn(), static_cast<int>(lane_));
#pragma unroll
    for (int i = 0; i < Parts::kOfAWarp; ++i) sums[i * kWarp] = state.sums[i];
    if (warp_ == 0 && lane_ % 4 == 0) {
      float* const stats = StatsAt(index) + lane_ / 4;
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        stats[8 * which] = state.m[which];
        stats[kRows + 8 * which] = state.l[which];
      }
    }
    return true;
  }
  // Whether all other partials of the merge are stored, and seen by all threads, as far as this rank folds them.
  __device__ bool IsLast() {
    Sync();  // all threads have stored
    if (threadIdx.x == 0) {
      const auto count = static_cast<size_t>(merge_number_ * kCtas) + RankInCluster();
      int32_t& arrived = args_.plan.arrived[count];
      // What all threads stored is before it, and what others stored is before what is loaded next.
      const bool is_last =
          ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device>(arrived).fetch_add(
              1, ::cuda::memory_order_acq_rel) == merge_.num_partials - 1;
      if (is_last) arrived = 0;  // for the next kernel
      shared_.parts.is_last = is_last;
    }
    Sync();
    return shared_.parts.is_last;
  }
  // Partials of the merge from `first` on become parts, and what is missing zeros.
  __device__ void BringPartials(int32_t first, int32_t count) {
    Parts& parts = shared_.parts;
    const int64_t partial = merge_.first_partial + first;
    Sync();                             // those that were there are read
    static_assert(kWarp == 2 * kRows);  // a warp brings m and l of a partial
    const float* stats = StatsAt(partial) + lane_;
    const auto stride = static_cast<int32_t>(MlaStateFloats(args_.tile_rows, 512));
#pragma unroll 1
    for (auto i = static_cast<int32_t>(warp_); i < kCtas; i += kWorkers) {
      const float* to = lane_ < kRows ? &parts.m[i][lane_] : &parts.l[i][lane_ - kRows];
      const float* from = stats + (i < count ? i : 0) * stride;
      CopyAsync4(SharedAddress(to), reinterpret_cast<const std::byte*>(from), i < count ? 4 : 0);
    }
    if (HasPatch()) {
      const float4* sums =
          &StateAt(args_, args_.partials, partial).Sums(0, FoldedColumn(), static_cast<int>(lane_));
#pragma unroll 1
      for (int32_t i = 0; i < kCtas; ++i) {
        const float4* from = sums + (i < count ? i : 0) * (stride / 4);
#pragma unroll
        for (int j = 0; j < Parts::kOfAWarp; ++j) {
          CopyAsync16(SharedAddress(&parts.sums[i][FoldedPatch() + j][lane_]),
                      reinterpret_cast<const std::byte*>(from + j * kWarp), i < count ? 16 : 0);
        }
      }
    }
    CommitCopies();
    WaitForCopies<0>();
    Sync();  // all of them have come
  }

  // Into the state; those from `count` on hold zeros. Of the parts' weights each lane of four makes some, and all of
  // them need all.
  __device__ void FoldParts(int32_t count, PatchState<Parts::kOfAWarp>& state) const {
    constexpr int kOwn = kCtas / 4;
    const Parts& parts = shared_.parts;
    float weights[kOwn][2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const uint32_t row = lane_ / 4 + 8 * static_cast<uint32_t>(which);
      float m[kOwn], top = state.m[which], l = 0.0f;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int32_t part = static_cast<int32_t>(lane_ % 4) * kOwn + i;
        m[i] = part < count ? parts.m[part][row] : -INFINITY;
        top = fmaxf(top, m[i]);
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float anchor = Anchor(top);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int32_t part = static_cast<int32_t>(lane_ % 4) * kOwn + i;
        weights[i][which] = Base2Exponent::Exp(m[i] - anchor);
        l = __fmaf_rn(weights[i][which], parts.l[part][row], l);
      }
      l += __shfl_xor_sync(kAllLanes, l, 1);
      l += __shfl_xor_sync(kAllLanes, l, 2);
      const float before = Base2Exponent::Exp(state.m[which] - anchor);
      state.m[which] = top;
      state.l[which] = __fmaf_rn(before, state.l[which], l);
#pragma unroll
      for (float4& sums : state.sums) {
        (which == 0 ? sums.x : sums.z) *= before;
        (which == 0 ? sums.y : sums.w) *= before;
      }
    }
#pragma unroll
    for (int owner = 0; owner < 4; ++owner) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int from = static_cast<int>(lane_ / 4 * 4) + owner;
        AddPart(owner * kOwn + i, __shfl_sync(kAllLanes, weights[i][0], from),
                __shfl_sync(kAllLanes, weights[i][1], from), state);
      }
    }
  }
  __device__ void AddPart(int32_t part, float weight, float weight_below,
                          PatchState<Parts::kOfAWarp>& state) const {
#pragma unroll
    for (int i = 0; i < Parts::kOfAWarp; ++i) {
      const float4 later = shared_.parts.sums[part][FoldedPatch() + i][lane_];
      float4& sums = state.sums[i];
      sums.x = __fmaf_rn(weight, later.x, sums.x);
      sums.y = __fmaf_rn(weight, later.y, sums.y);
      sums.z = __fmaf_rn(weight_below, later.z, sums.z);
      sums.w = __fmaf_rn(weight_below, later.w, sums.w);
    }
  }

  // ---- Results ----

  template <int kCount>
  __device__ void StorePartial(int64_t index, int32_t column,
                               const PatchState<kCount>& state) const {
    if (index >= args_.max_partials) {
      if (column == 0 && lane_ == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return;
    }
    const StateView to = StateAt(args_, args_.partials, index);
    float4* const sums = &to.Sums(0, column, static_cast<int>(lane_));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i * kWarp] = state.sums[i];
    if (column != 0 || lane_ % 4 != 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const auto row = static_cast<int32_t>(lane_) / 4 + 8 * which;
      if (row >= args_.tile_rows) return;
      to.m[row] = state.m[which];
      to.l[row] = state.l[which];
    }
  }
  template <int kCount>
  __device__ void WriteResult(const FewPiece& few, int32_t column,
                              const PatchState<kCount>& state) const {
    const int32_t own = column + static_cast<int32_t>(lane_) % 4 * 2;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int32_t row = static_cast<int32_t>(lane_) / 4 + 8 * which;
      if (row >= args_.num_heads) break;
      const float factor = ShareOfOne(state.l[which]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float4& sums = state.sums[i];
        const float x = (which == 0 ? sums.x : sums.z) * factor;
        const float y = (which == 0 ? sums.y : sums.w) * factor;
        // A tile is one token, whose heads are its rows.
        if (args_.out.is_bf16) {
          *reinterpret_cast<uint32_t*>(args_.out.Row<Bf16>(few.token, row) + own + i * 8) =
              PackBf16(x, y);
        } else {
          *reinterpret_cast<float2*>(args_.out.Row<float>(few.token, row) + own + i * 8) =
              make_float2(x, y);
        }
      }
    }
    if (own != 0 || args_.lse.data == nullptr) return;
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const int32_t row = static_cast<int32_t>(lane_) / 4 + 8 * which;
      if (row >= args_.num_heads) return;
      const float m = which == 0 ? state.m[0] : state.m[1];
      const float l = which == 0 ? state.l[0] : state.l[1];
      WriteLse(args_, few.token, row, l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(m, l));
    }
  }

  // What the warp's scores are of.
  __device__ uint32_t Quarter() const { return warp_ % kQuarters; }
  __device__ int32_t OwnRow() const { return static_cast<int32_t>(warp_ * 2 + lane_ / kRowLanes); }

  __device__ void Sync() const { SyncThreads<kWorkers * kWarp>(1); }

  const FewArgs& args_;
  SharedFew<kCtas>& shared_;
  const uint32_t warp_, lane_;
  const float scale_;
  uint32_t q_[kQuarterSteps][4];
  float o_[kColumns / 8][4];
  Sight sight_;
  float m_ = 0, l_ = 0;  // of the row that the lane weighs; m not scaled, l of the lane's keys
  RingPosition<SharedFew<kCtas>::kStages> ring_;
  uint32_t asked_parity_ = 0;
  // Of a cluster: whether parts of a piece were given, and phases of their barriers.
  bool parts_begun_ = false;
  Merge merge_;  // of the piece
  int32_t merge_number_ = 0;
  uint32_t parts_parity_ = 0, read_parity_ = 0;
};

template <int kCtas>
__global__ void __launch_bounds__((kWorkers + kProducers) * kWarp, 1)
    MlaFew(const __grid_constant__ FewArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  using Shared = SharedFew<kCtas>;
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const FewPieces<kCtas> pieces(args, static_cast<int32_t>(blockIdx.x) / kCtas);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kStages; ++stage) {
      shared.full[stage].Init(kProducers * kWarp);
      shared.empty[stage].Init(kWorkers * kWarp);
    }
    shared.asked.Init(kProducers * kWarp);
    shared.heard.Init(kWorkers * kWarp);
    if constexpr (kCtas > 1) {
      shared.parts.there.Init(1);
      shared.parts.read.Init(kCtas);
    }
    FenceBarrierInit();
  }
  if constexpr (kCtas > 1) ArriveAtCluster();  // with barriers that others may use
  __syncthreads();
  if (threadIdx.x / kWarp >= kWorkers) {
    FewProducer<kCtas>(args, shared).Run(pieces);
    if constexpr (kCtas > 1) WaitForCluster();
  } else {
    if constexpr (kCtas > 1) WaitForCluster();  // long before keys come
    FewWorker<kCtas>(args, shared).Run(pieces);
  }
}

template <int kCtas>
LaunchShape PrepareFew(int32_t num_workers) {
  constexpr int kBytes = static_cast<int>(sizeof(SharedFew<kCtas>));
  Check(cudaFuncSetAttribute(MlaFew<kCtas>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MlaFew: shared memory");
  return {.grid = dim3(static_cast<unsigned>(num_workers * kCtas)),
          .block = dim3((kWorkers + kProducers) * kWarp),
          .shared_bytes = static_cast<size_t>(kBytes),
          .cluster = kCtas};
}

template <int kCtas>
void LaunchFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
               StatusWord status) {
  LaunchAhead(
      "MlaFew", MlaFew<kCtas>, PrepareFew<kCtas>(args.plan.work.num_workers), stream,
      FewArgs{KernelArgsOf(args, lists, status), DividerOf(args.store.read_layout().page_size()),
              static_cast<int32_t>(args.plan.work.split.raw())});
}

}  // namespace
}  // namespace mla::few

void LaunchMlaFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                  StatusWord status) {
  using namespace mla::few;
  (args.plan.work.ctas == 1 ? LaunchFew<1> : LaunchFew<kMlaFewCtas>)(args, lists, stream, status);
}

int32_t MostMlaClusters() {
  using namespace mla::few;
  const LaunchShape shape = PrepareFew<kMlaFewCtas>(1);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  Check(cudaOccupancyMaxActiveClusters(&clusters, MlaFew<kMlaFewCtas>, &config),
        "MlaFew: clusters that run at once");
  return clusters;
}

}  // namespace quire::cuda
