// How a kernel walks its part of a Schedule: the pieces of a worker, on the host and on a device.
#ifndef QUIRE_ATTN_WORK_H_
#define QUIRE_ATTN_WORK_H_

#include <cstddef>
#include <cstdint>

#include "attn/capacity.h"
#include "attn/plan.h"
#include "attn/plan_elements.h"
#include "base/host_device.h"

namespace quire {

// The splits of a query tile that one worker runs.
struct Piece {
  QueryTile tile;
  int32_t first = 0, last = 0;  // splits
  int32_t num_splits = 0;       // of the whole tile
  int64_t partial = 0;          // number of the first partial this piece writes, if it writes any

  // Splits that are summed as one.
  QUIRE_HD int32_t Step(const WorkShape& work) const { return work.exact ? 1 : last - first; }
};

// Calls fn(piece) for every piece of `worker`.
template <class Fn>
QUIRE_HD void ForEachPiece(const Schedule& schedule, int32_t worker, Fn fn) {
  const WorkerStart begin = schedule.workers[static_cast<size_t>(worker)];
  const WorkerStart end = schedule.workers[static_cast<size_t>(worker) + 1];
  const int32_t num_tiles = schedule.counts->num_tiles;
  int64_t next_partial = begin.first_partial;
  for (int32_t i = begin.tile; i <= end.tile && i < num_tiles; ++i) {
    Piece piece{.tile = schedule.tiles[static_cast<size_t>(i)]};
    piece.num_splits = NumSplits(piece.tile.kv_end, schedule.work);
    piece.first = i == begin.tile ? begin.split : 0;
    piece.last = i == end.tile ? end.split : piece.num_splits;
    piece.partial = next_partial;
    if (piece.first >= piece.last) continue;
    fn(piece);
    if (piece.first > 0) {
      next_partial += schedule.work.exact ? piece.last - piece.first : 1;
    } else if (piece.last < piece.num_splits) {
      next_partial += 1;
    }
  }
}

}  // namespace quire

#endif  // QUIRE_ATTN_WORK_H_
