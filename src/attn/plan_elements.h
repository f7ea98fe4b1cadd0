// The plan, element by element: a pure function per output entry, for host loops and device maps.
//
// A plan is three short scans (sequences -> query tiles, tiles -> cost, workers -> partials) and
// these functions between them; PlanStorage::Make is the host's loop over them.
#ifndef QUIRE_ATTN_PLAN_ELEMENTS_H_
#define QUIRE_ATTN_PLAN_ELEMENTS_H_

#include <cstdint>

#include "attn/capacity.h"
#include "base/host_device.h"
#include "base/units.h"

namespace quire {

// Query tokens of one sequence that pass over the keys together.
struct QueryTile {
  int32_t seq = 0;
  int32_t q_count = 0;
  TokenCount q_begin;  // first query token, counted over the whole step
  TokenCount kv_end;   // no query of the tile sees a position at or past this

  friend bool operator==(const QueryTile&, const QueryTile&) = default;
};

// Where a worker begins: a split of a query tile. It ends where the next worker begins.
struct WorkerStart {
  int32_t tile = 0;
  int32_t split = 0;
  int32_t first_partial = 0;  // number of partials that workers before this one write

  friend bool operator==(const WorkerStart&, const WorkerStart&) = default;
};

// A query tile whose splits ran on several workers: the partials to fold, in ascending order. The
// first holds every split up to the first cut, already folded; the others hold one split each.
struct Merge {
  int32_t tile = 0;
  int32_t first_partial = 0;
  int32_t num_partials = 0;

  friend bool operator==(const Merge&, const Merge&) = default;
};

// Keys that query j of a causal sequence sees: all up to and including its own.
QUIRE_HD constexpr TokenCount CausalVisible(TokenCount q_len, TokenCount kv_len, TokenCount j) {
  return Max(TokenCount(0), kv_len - q_len + j + TokenCount(1));
}

// Query tiles of a sequence with q_len queries.
QUIRE_HD constexpr int64_t NumQueryTiles(TokenCount q_len, const WorkShape& shape) {
  return CeilDiv(q_len, shape.query_tile);
}

// Splits of a query tile. A tile that sees nothing has one too: the one that writes its zeros.
QUIRE_HD constexpr int32_t NumSplits(TokenCount kv_end, const WorkShape& shape) {
  const int64_t splits = CeilDiv(kv_end, shape.split);
  return static_cast<int32_t>(splits > 0 ? splits : 1);
}

// Cost of a query tile in (query token, key tile) pairs; one more per query token for its share of
// packing and writing, so that empty rows cost something too.
QUIRE_HD constexpr int64_t TileCost(const QueryTile& tile) {
  return int64_t{tile.q_count} * (1 + CeilDiv(tile.kv_end, kKeyTile));
}

// Where worker `worker` begins, given the running cost before each tile (num_tiles + 1 entries):
// at the split boundary nearest to its share of the total. Monotone in `worker`.
QUIRE_HD inline WorkerStart WorkerStartAt(int32_t worker, const QueryTile* tiles,
                                          const int64_t* cost_before, int32_t num_tiles,
                                          const WorkShape& shape) {
  const int64_t total = cost_before[num_tiles];
  // total * worker stays below 2^63: a total of 2^40 would be 10^12 key tiles.
  const int64_t target = total * worker / shape.num_workers;
  if (worker == shape.num_workers || num_tiles == 0) return {.tile = num_tiles};
  int32_t low = 0, high = num_tiles - 1;  // the last tile that begins at or before the target
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    if (cost_before[middle] <= target) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const QueryTile& tile = tiles[low];
  const int64_t split_cost = int64_t{tile.q_count} * (shape.split.raw() / kKeyTile.raw());
  const int64_t split = (target - cost_before[low] + split_cost / 2) / split_cost;
  if (split >= NumSplits(tile.kv_end, shape)) return {.tile = low + 1};
  return {.tile = low, .split = static_cast<int32_t>(split)};
}

// Partials that the worker between `begin` and `end` writes: one per split of a tile that an
// earlier worker began, and one for a tile it begins and leaves unfinished.
QUIRE_HD inline int32_t NumPartials(const WorkerStart& begin, const WorkerStart& end,
                                    const QueryTile* tiles, const WorkShape& shape) {
  int32_t partials = 0;
  if (begin.split > 0) {
    const int32_t tile_end =
        end.tile == begin.tile ? end.split : NumSplits(tiles[begin.tile].kv_end, shape);
    partials += tile_end - begin.split;
  }
  const bool begins_last_tile = end.tile > begin.tile || begin.split == 0;
  if (end.split > 0 && begins_last_tile) partials += 1;
  return partials;
}

// Whether `start` is the first cut of its tile, given the worker start before it.
QUIRE_HD constexpr bool IsFirstCut(const WorkerStart& start, const WorkerStart& before) {
  return start.split > 0 && (before.tile != start.tile || before.split == 0);
}

QUIRE_HD inline Merge MergeAt(const WorkerStart& first_cut, const QueryTile* tiles,
                              const WorkShape& shape) {
  return {.tile = first_cut.tile,
          .first_partial = first_cut.first_partial - 1,
          .num_partials = 1 + NumSplits(tiles[first_cut.tile].kv_end, shape) - first_cut.split};
}

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_ELEMENTS_H_
