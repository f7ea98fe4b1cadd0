#include "attn/plan.h"

#include <iterator>

#include "attn/checks.h"
#include "base/error.h"

namespace quire {

void RequireOnDevice(const Sequences& plan) {
  Require(plan.memory == MemorySide::kDevice,
          "plan: expected one in device memory, got one in the host's");
}

void Plan::CheckInvariants() const {
  CheckRows();
  CheckTiles();
  CheckSchedule();
  CheckArrived();
}

void Plan::CheckRows() const {
  for (int32_t b = 0; b < num_seqs; ++b) {
    const PageCount used = page_size.PagesFor(kv_len[Index(b)]);
    if (used == PageCount(0)) continue;
    const int32_t row = row_of[Index(b)];
    QUIRE_CHECK(
        row >= 0 && used <= row_width && (row_width * (row + 1)).raw() <= std::ssize(page_rows),
        "sequence {}: {} pages in row {}", b, used, row);
    for (int64_t j = 0; j < used.raw(); ++j) {
      const PageId page = Row(b)[j];
      QUIRE_CHECK(page > kScratchPage && PageCount(page.raw()) < pool_pages,
                  "sequence {}: page {} of {}: {}", b, j, used, page);
    }
  }
}

void Plan::CheckTiles() const {
  size_t next = 0;
  for (int32_t b = 0; b < num_seqs; ++b) {
    const TokenCount begin = q_offset[Index(b)], end = q_offset[Index(b) + 1];
    const int64_t count = NumQueryTiles(end - begin, work);
    for (int64_t i = 0; i < count; ++i, ++next) {
      const TokenCount first = begin + work.query_tile * DealtTile(i, count, work);
      const TokenCount last = Min(first + work.query_tile, end);
      QUIRE_CHECK(next < tiles.size(), "{} tiles, none at query {}", tiles.size(), first);
      const QueryTile& tile = tiles[next];
      QUIRE_CHECK(tile.seq == b && tile.q_begin == first, "tile at query {}, expected {}",
                  tile.q_begin, first);
      QUIRE_CHECK(TokenCount(tile.q_count) == last - first, "tile at query {} has {}, expected {}",
                  first, tile.q_count, last - first);
      TokenCount seen{0};
      for (TokenCount q = first; q < last; q += TokenCount(1)) seen = Max(seen, Visible(b, q));
      QUIRE_CHECK(tile.kv_end == work.KeysRead(seen),
                  "pieces of the tile at query {} end at {}, its queries see {}", first,
                  tile.kv_end, seen);
    }
  }
  QUIRE_CHECK(next == tiles.size() && q_offset[Index(num_seqs)] == num_query_tokens,
              "{} tiles of {} queries, expected {} of {}", tiles.size(), q_offset[Index(num_seqs)],
              next, num_query_tokens);
}

// Of the tile that worker `first` is the first to begin within, counted one by one.
int32_t Plan::ExpectedPartials(size_t first) const {
  const int32_t tile = workers[first].tile;
  const int32_t num_splits = NumSplits(tiles[Index(tile)].kv_end, work);
  if (work.exact) return 1 + num_splits - workers[first].split;
  int32_t pieces = 1;
  for (size_t w = first; workers[w].tile == tile; ++w) {
    const int32_t end = workers[w + 1].tile == tile ? workers[w + 1].split : num_splits;
    if (end > workers[w].split) ++pieces;
  }
  return pieces;
}

void Plan::CheckSchedule() const {
  QUIRE_CHECK(workers.front() == WorkerStart{}, "the first worker starts late");
  QUIRE_CHECK(workers.back().tile == static_cast<int32_t>(tiles.size()) &&
              workers.back().split == 0);
  int32_t partials = 0;
  int32_t merged = 0;
  size_t merge = 0;
  for (size_t w = 0; w + 1 < workers.size(); ++w) {
    const WorkerStart& begin = workers[w];
    const WorkerStart& end = workers[w + 1];
    QUIRE_CHECK(begin.tile < end.tile || (begin.tile == end.tile && begin.split <= end.split),
                "worker {} starts after worker {}", w, w + 1);
    QUIRE_CHECK(begin.first_partial == partials, "worker {}: partial {}, expected {}", w,
                begin.first_partial, partials);
    partials += NumPartials(begin, end, tiles.data(), work);
    if (!IsFirstCut(end, begin)) continue;
    QUIRE_CHECK(merge < merges.size(), "tile {} is cut but not merged", end.tile);
    const Merge& m = merges[merge++];
    const int32_t expected = ExpectedPartials(w + 1);
    QUIRE_CHECK(m.tile == end.tile && m.first_partial == merged && m.num_partials == expected,
                "merge of tile {}: tile {} partials {}+{}, expected {}+{}", end.tile, m.tile,
                m.first_partial, m.num_partials, merged, expected);
    merged += expected;
  }
  QUIRE_CHECK(partials == num_partials && merged == num_partials && merge == merges.size(),
              "{} partials, {} merged, {} counted", num_partials, merged, partials);
}

void Plan::CheckArrived() const {
  const int64_t expected = work.NumArrivals();
  QUIRE_CHECK(std::ssize(arrived) == expected && merges.size() <= Index(work.num_workers),
              "{} counts of {} merges, expected {}", arrived.size(), merges.size(), expected);
  for (const int32_t count : arrived) QUIRE_CHECK(count == 0, "{} have arrived", count);
}

}  // namespace quire
