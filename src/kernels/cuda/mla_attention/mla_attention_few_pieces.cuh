// What the kernel for few rows has in shared memory, and the pieces of its workers.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_PIECES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_PIECES_CUH_

#include "attn/plan_build.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda::mla::few {

inline constexpr int kWorkers = 8, kProducers = 4;  // warps
inline constexpr int32_t kStageKeys = 32;
inline constexpr uint32_t kRowBytes = 2 * (512 + 64);
// Rows that follow each other begin 16 bytes further in the banks, so that eight of them are read at once.
inline constexpr uint32_t kRowPitch = kRowBytes + 16;
// Of a worker: products of 16 values for scores, and columns of values.
inline constexpr int kQuarters = 4, kQuarterSteps = (512 + 64) / 16 / kQuarters;
inline constexpr int kColumns = 512 / kWorkers;

inline constexpr int kRows = kMlaFewRows;

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

}  // namespace quire::cuda::mla::few

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_PIECES_CUH_
