// The plan, element by element: a pure function per output entry, for host loops and device maps.
//
// A plan is a few short scans (over sequences, tiles -> cost, workers -> partials) and these functions
// between them; attn/plan_build.h is the loop over them, on the host and on a device.
#ifndef QUIRE_ATTN_PLAN_ELEMENTS_H_
#define QUIRE_ATTN_PLAN_ELEMENTS_H_

#include <bit>
#include <cstdint>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/host_device.h"
#include "base/maths.h"
#include "base/units.h"

namespace quire {

// Query tokens of one sequence that pass over the keys together.
struct QueryTile {
  int32_t seq = 0;
  int32_t q_count = 0;
  TokenCount q_begin;  // first query token, counted over the whole step
  TokenCount kv_end;   // of what its queries see, so many keys are read (WorkShape::KeysRead)

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
// first holds every split up to the first cut, already folded; the others hold one split each, or,
// where work is not exact, those of one worker.
struct Merge {
  int32_t tile = 0;
  int32_t first_partial = 0;
  int32_t num_partials = 0;

  friend bool operator==(const Merge&, const Merge&) = default;
};

// How much of a plan's arrays a step uses: they lie in the plan's own memory, so that one recorded
// launch serves every step.
struct SequenceCounts {
  int32_t num_seqs = 0;
  int32_t num_query_tokens = 0;

  friend bool operator==(const SequenceCounts&, const SequenceCounts&) = default;
};
struct ScheduleCounts {
  int32_t num_tiles = 0;
  int32_t num_merges = 0;
  int32_t num_partials = 0;

  friend bool operator==(const ScheduleCounts&, const ScheduleCounts&) = default;
};

// ---- Trees ----
//
// A query's mask has a bit for every node on its path: its own and its ancestors'. Nodes ascend with
// depth.

// Writes the mask of `node`, `words` words. A parent that is not before its node ends the path (the
// host refuses such trees; a device must not follow them); false if there was one.
QUIRE_HD inline bool WriteTreeMask(const int32_t* parents, int64_t node, uint64_t* mask,
                                   int32_t words) {
  for (int32_t word = 0; word < words; ++word) mask[word] = 0;
  while (node >= 0) {
    mask[node / 64] |= uint64_t{1} << (node % 64);
    const int64_t parent = parents[node];
    if (parent < kTreeRoot || parent >= node) return false;
    node = parent;
  }
  return true;
}

QUIRE_HD inline int32_t CountBits(uint64_t word) {
#ifdef __CUDA_ARCH__
  return __popcll(word);
#else
  return std::popcount(word);
#endif
}

// Nodes on the path.
QUIRE_HD inline int64_t PathDepth(const uint64_t* mask, int32_t words) {
  int64_t nodes = 0;
  for (int32_t word = 0; word < words; ++word) nodes += CountBits(mask[word]);
  return nodes;
}

// The n-th node of the path, counted from 0; n < PathDepth().
QUIRE_HD inline int64_t PathNode(const uint64_t* mask, int32_t words, int64_t n) {
  for (int32_t word = 0; word < words; ++word) {
    uint64_t bits = mask[word];
    const int32_t here = CountBits(bits);
    if (n >= here) {
      n -= here;
      continue;
    }
    for (; n > 0; --n) bits &= bits - 1;
    return int64_t{word} * 64 + CountBits((bits & (~bits + 1)) - 1);  // zeros below the lowest bit
  }
  return 0;
}

// ---- What queries see ----

// Keys that query j of a causal sequence sees: all up to and including its own.
QUIRE_HD constexpr TokenCount CausalVisible(TokenCount q_len, TokenCount kv_len, TokenCount j) {
  return Max(TokenCount(0), kv_len - q_len + j + TokenCount(1));
}

// A sequence's part in a step, in numbers.
struct SequenceLengths {
  TokenCount q_begin;  // its first query, counted over the step
  TokenCount q_len;
  TokenCount kv_len;
  TokenCount committed;  // kv_len where there is no tree

  QUIRE_HD constexpr bool is_tree() const { return committed != kv_len; }
};

// Keys that query j of the sequence sees; `mask` is that query's, and read for trees only.
QUIRE_HD inline TokenCount VisibleKeys(const SequenceLengths& seq, TokenCount j,
                                       const uint64_t* mask, int32_t mask_words) {
  if (seq.is_tree()) return seq.committed + TokenCount(PathDepth(mask, mask_words));
  return CausalVisible(seq.q_len, seq.kv_len, j);
}

// The row position of the p-th key that a query sums: the identity below committed, from there on
// the p-th node of its path.
QUIRE_HD inline TokenCount PositionOfKey(TokenCount committed, TokenCount p, const uint64_t* mask,
                                         int32_t mask_words) {
  if (p < committed) return p;
  return committed + TokenCount(PathNode(mask, mask_words, (p - committed).raw()));
}

// The slot of the token at `position` of a row of pages.
QUIRE_HD constexpr Slot SlotOfPosition(const PageId* row, PageSize page_size, TokenCount position) {
  return page_size.SlotOf(row[page_size.FullPages(position).raw()], page_size.OffsetOf(position));
}

// ---- Tiles ----

// Query tiles of a sequence with q_len queries.
QUIRE_HD constexpr int64_t NumQueryTiles(TokenCount q_len, const WorkShape& shape) {
  return CeilDiv(q_len, shape.query_tile);
}

// Which of a sequence's `count` tiles, as its queries follow each other, is dealt out as number i.
QUIRE_HD constexpr int64_t DealtTile(int64_t i, int64_t count, const WorkShape& shape) {
  if (!shape.from_both_ends) return i;
  return i % 2 == 0 ? count - 1 - i / 2 : i / 2;
}

// Query tile i of sequence `seq`, as tiles are dealt out. masks: [queries of the step, mask_words], read for trees only.
QUIRE_HD inline QueryTile TileAt(int32_t seq, const SequenceLengths& lengths, int64_t i,
                                 const uint64_t* masks, int32_t mask_words,
                                 const WorkShape& shape) {
  const int64_t number = DealtTile(i, NumQueryTiles(lengths.q_len, shape), shape);
  const TokenCount first = shape.query_tile * number;
  const TokenCount count = Min(shape.query_tile, lengths.q_len - first);
  QueryTile tile{.seq = seq,
                 .q_count = static_cast<int32_t>(count.raw()),
                 .q_begin = lengths.q_begin + first,
                 .kv_end = TokenCount(0)};
  // A causal query sees no less than the one before it; nodes come in any order of depth.
  for (TokenCount j = lengths.is_tree() ? TokenCount(0) : count - TokenCount(1); j < count;
       j += TokenCount(1)) {
    const uint64_t* mask = masks + (tile.q_begin + j).raw() * mask_words;
    tile.kv_end = Max(tile.kv_end, VisibleKeys(lengths, first + j, mask, mask_words));
  }
  tile.kv_end = shape.KeysRead(tile.kv_end);
  return tile;
}

// Splits of a query tile. A tile that sees nothing has one too: the one that writes its zeros.
QUIRE_HD constexpr int32_t NumSplits(TokenCount kv_end, const WorkShape& shape) {
  const int64_t splits = CeilDiv(kv_end, shape.split);
  return static_cast<int32_t>(splits > 0 ? splits : 1);
}

// Cost of a query tile in (query token, key tile) pairs.
QUIRE_HD constexpr int64_t TileCost(const QueryTile& tile, const WorkShape& shape) {
  return int64_t{tile.q_count} * (shape.tile_cost + CeilDiv(tile.kv_end, kKeyTile));
}

// Parts that every tile is cut into where workers have equally many tiles, or parts of one.
QUIRE_HD constexpr int32_t EqualParts(int32_t num_tiles, const WorkShape& shape) {
  const bool are_cut = shape.even && num_tiles > 0 && num_tiles < shape.num_workers;
  return are_cut ? shape.num_workers / num_tiles : 1;
}

// How many workers' time a worker takes that has one of `num_tiles` whole tiles: idle ones leave it their part of the
// device's memory, as far as it can use it.
QUIRE_HD constexpr int32_t BusyWorkers(int32_t num_tiles, const WorkShape& shape) {
  if (shape.enough_workers == 0 || num_tiles >= shape.num_workers) return shape.num_workers;
  return num_tiles > shape.enough_workers ? num_tiles : shape.enough_workers;
}

// Whether a worker that has equally many tiles as the others, all like this one, takes no longer than one
// with an equal share of the cost and a cut. If that is so of every tile, none is cut; or all are, into
// equal parts.
QUIRE_HD constexpr bool IsBetterEqual(const QueryTile& tile, int64_t total, int32_t num_tiles,
                                      const WorkShape& shape) {
  const int64_t share = total / shape.num_workers;
  const int64_t parts = EqualParts(num_tiles, shape);
  const int64_t whole = CeilDiv(num_tiles, shape.num_workers) * TileCost(tile, shape);
  const int64_t cost =
      CeilDiv(whole * BusyWorkers(num_tiles, shape), parts * int64_t{shape.num_workers});
  // With a worker in 32 idle, the device's memory is as busy.
  const int64_t idle = parts > 1 ? share / 32 : 0;
  return cost <= share + idle + int64_t{shape.cut_cost} * tile.q_count;
}

// Where worker `worker` begins if all have equally many tiles, or parts of one.
QUIRE_HD inline WorkerStart EqualWorkerStartAt(int32_t worker, const QueryTile* tiles,
                                               int32_t num_tiles, const WorkShape& shape) {
  const int32_t parts = EqualParts(num_tiles, shape);
  const int64_t tile = int64_t{worker / parts} * CeilDiv(num_tiles, shape.num_workers);
  if (tile >= num_tiles) return {.tile = num_tiles};
  const int64_t splits = NumSplits(tiles[tile].kv_end, shape);
  return {.tile = static_cast<int32_t>(tile),
          .split = static_cast<int32_t>(splits * (worker % parts) / parts)};
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
// earlier worker began (in all, where work is not exact), and one for a tile it begins and leaves
// unfinished.
QUIRE_HD inline int32_t NumPartials(const WorkerStart& begin, const WorkerStart& end,
                                    const QueryTile* tiles, const WorkShape& shape) {
  int32_t partials = 0;
  if (begin.split > 0) {
    const int32_t tile_end =
        end.tile == begin.tile ? end.split : NumSplits(tiles[begin.tile].kv_end, shape);
    const int32_t splits = tile_end - begin.split;
    partials += shape.exact || splits == 0 ? splits : 1;
  }
  const bool begins_last_tile = end.tile > begin.tile || begin.split == 0;
  if (end.split > 0 && begins_last_tile) partials += 1;
  return partials;
}

// Whether `start` is the first cut of its tile, given the worker start before it.
QUIRE_HD constexpr bool IsFirstCut(const WorkerStart& start, const WorkerStart& before) {
  return start.split > 0 && (before.tile != start.tile || before.split == 0);
}

// The merge of the tile that `workers[first]` is the first to begin within. The partials of all
// workers are counted.
QUIRE_HD inline Merge MergeAt(int32_t first, const WorkerStart* workers, const QueryTile* tiles,
                              const WorkShape& shape) {
  const WorkerStart& cut = workers[first];
  Merge merge{.tile = cut.tile, .first_partial = cut.first_partial - 1};
  if (shape.exact) {
    merge.num_partials = 1 + NumSplits(tiles[cut.tile].kv_end, shape) - cut.split;
    return merge;
  }
  int32_t low = first + 1, high = shape.num_workers;  // the first worker that begins past the tile
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (workers[middle].tile > cut.tile) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  // Who finishes the tile may leave another one unfinished: that partial is not of this tile.
  const int32_t end = workers[low].first_partial - (workers[low].split > 0 ? 1 : 0);
  merge.num_partials = end - merge.first_partial;
  return merge;
}

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_ELEMENTS_H_
