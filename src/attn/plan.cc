#include "attn/plan.h"

#include <algorithm>
#include <cstddef>

#include "attn/checks.h"
#include "attn/page_ranges.h"
#include "base/error.h"
#include "base/maths.h"

namespace quire {
namespace {

// What SGLang's planner did before #25556: it counted the keys in pages, with a granularity of
// max(128, page size) tokens, and handed the number to a kernel that reads tokens.
TokenCount CountedInPages(TokenCount kv_end, PageSize page_size) {
  const int64_t granularity = std::max<int64_t>(128, page_size.raw());
  const int64_t blocks = CeilDiv(kv_end.raw(), granularity) * (granularity / page_size.raw());
  return Min(kv_end, TokenCount(blocks));
}

// How many entries the arrays of a PlanStorage have.
struct StorageEntries {
  StorageEntries(const StepCapacity& capacity, const WorkShape& shape) {
    Validate(capacity);
    Validate(shape);
    seqs = Index(capacity.num_seqs);
    page_table = Index(PageTableEntries(capacity));
    tree_masks = Index(TreeMaskEntries(capacity));
    tiles = Index(MaxQueryTiles(capacity, shape));
    workers = Index(shape.num_workers);
  }

  size_t seqs;
  size_t page_table;
  size_t tree_masks;
  size_t tiles;
  size_t workers;
};

}  // namespace

ByteOffset PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape) {
  const StorageEntries n(capacity, shape);
  constexpr size_t kArrays = 10;
  return ByteOffset(n.page_table * sizeof(PageId) + n.seqs * sizeof(int64_t) +
                    (3 * n.seqs + 1) * sizeof(TokenCount) + n.tree_masks * sizeof(uint64_t) +
                    n.tiles * sizeof(QueryTile) + (n.tiles + 1) * sizeof(int64_t) +
                    (n.workers + 1) * sizeof(WorkerStart) + n.workers * sizeof(Merge) +
                    kArrays * alignof(std::max_align_t));
}

TokenCount Plan::Visible(int32_t seq, TokenCount query) const {
  const uint64_t* mask = tree_masks.data() + query.raw() * mask_words;
  return VisibleKeys(Lengths(seq), query - q_offset[Index(seq)], mask, mask_words);
}

TokenCount Plan::KeyPosition(int32_t seq, TokenCount query, TokenCount p) const {
  const uint64_t* mask = tree_masks.data() + query.raw() * mask_words;
  return PositionOfKey(committed[Index(seq)], p, mask, mask_words);
}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape,
                         std::pmr::memory_resource* memory)
    : capacity_(capacity),
      shape_(shape),
      page_table_(memory),
      filled_pages_(memory),
      kv_len_(memory),
      committed_(memory),
      q_offset_(memory),
      tree_masks_(memory),
      tiles_(memory),
      cost_before_(memory),
      workers_(memory),
      merges_(memory) {
  const StorageEntries entries(capacity, shape);
  page_table_.resize(entries.page_table, kScratchPage);
  filled_pages_.resize(entries.seqs, 0);
  kv_len_.resize(entries.seqs);
  committed_.resize(entries.seqs);
  q_offset_.resize(entries.seqs + 1);
  tree_masks_.resize(entries.tree_masks);
  tiles_.resize(entries.tiles);
  cost_before_.resize(entries.tiles + 1);
  workers_.resize(entries.workers + 1);
  merges_.resize(entries.workers);
  plan_.page_size = capacity.page_size;
  plan_.pool_pages = capacity.pool_pages;
  plan_.work = shape;
  plan_.table_width = PageTableWidth(capacity);
  plan_.mask_words = TreeMaskWords(capacity);
  plan_.page_table = page_table_;
}

const Plan& PlanStorage::Make(std::span<const SequenceStep> seqs, Executor& executor,
                              Faults faults) {
  Check(seqs, executor);
  plan_.num_seqs = static_cast<int32_t>(seqs.size());
  FillPageTable(seqs, executor, faults);
  q_offset_[0] = TokenCount(0);
  for (size_t b = 0; b < seqs.size(); ++b) {
    kv_len_[b] = seqs[b].kv_len;
    committed_[b] = seqs[b].committed();
    q_offset_[b + 1] = q_offset_[b] + seqs[b].q_len;
    FillTreeMasks(seqs[b], q_offset_[b]);
  }
  plan_.kv_len = std::span(kv_len_).first(seqs.size());
  plan_.committed = std::span(committed_).first(seqs.size());
  plan_.q_offset = std::span(q_offset_).first(seqs.size() + 1);
  plan_.num_query_tokens = q_offset_[seqs.size()];
  plan_.tree_masks = tree_masks_;
  FillTiles(seqs, faults);
  FillSchedule();
  return plan_;
}

void PlanStorage::Check(std::span<const SequenceStep> seqs, Executor& executor) const {
  CheckPlanLengths(seqs, capacity_);
  CheckPages("plan", seqs, capacity_, executor);
}

// Only entries that change hands are written: a row's pages, and zeros over what an earlier plan
// left behind them. So the cost follows the pages in use, not the table's width.
void PlanStorage::FillPageTable(std::span<const SequenceStep> seqs, Executor& executor,
                                Faults faults) {
  const int64_t width = plan_.table_width.raw();
  for (int64_t b = 0; b < capacity_.num_seqs; ++b) {
    const int64_t pages = b < static_cast<int64_t>(seqs.size())
                              ? capacity_.page_size.PagesFor(seqs[Index(b)].kv_len).raw()
                              : 0;
    PageId* row = page_table_.data() + b * width;
    if (pages < filled_pages_[Index(b)]) {
      std::fill(row + pages, row + filled_pages_[Index(b)], kScratchPage);
    }
    filled_pages_[Index(b)] = pages;
  }
  ForEachPageRange({.seqs = seqs, .page_size = capacity_.page_size, .faults = faults}, executor,
                   [&](int32_t b, PageCount begin, PageCount end) {
                     const PageId* pages = seqs[Index(b)].pages.data();
                     std::copy(pages + begin.raw(), pages + end.raw(),
                               page_table_.data() + b * width + begin.raw());
                   });
}

void PlanStorage::FillTreeMasks(const SequenceStep& seq, TokenCount q_begin) {
  if (seq.tree_parents.empty()) return;
  const int64_t first_node = (seq.num_nodes() - seq.q_len).raw();
  for (int64_t j = 0; j < seq.q_len.raw(); ++j) {
    uint64_t* mask = tree_masks_.data() + (q_begin.raw() + j) * plan_.mask_words;
    WriteTreeMask(seq.tree_parents.data(), first_node + j, mask, plan_.mask_words);
  }
}

void PlanStorage::FillTiles(std::span<const SequenceStep> seqs, Faults faults) {
  size_t tile = 0;
  cost_before_[0] = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const SequenceLengths lengths = plan_.Lengths(static_cast<int32_t>(b));
    for (int64_t i = 0; i < NumQueryTiles(lengths.q_len, shape_); ++i, ++tile) {
      tiles_[tile] =
          TileAt(static_cast<int32_t>(b), lengths, i, tree_masks_.data(), plan_.mask_words, shape_);
      if (faults.Has(Fault::kTilesCountedInPages) && lengths.q_len > TokenCount(1)) {
        tiles_[tile].kv_end = CountedInPages(tiles_[tile].kv_end, capacity_.page_size);
      }
      cost_before_[tile + 1] = cost_before_[tile] + TileCost(tiles_[tile]);
    }
  }
  plan_.tiles = std::span(tiles_).first(tile);
}

void PlanStorage::FillSchedule() {
  const int32_t num_tiles = static_cast<int32_t>(plan_.tiles.size());
  for (int32_t w = 0; w <= shape_.num_workers; ++w) {
    workers_[Index(w)] = WorkerStartAt(w, tiles_.data(), cost_before_.data(), num_tiles, shape_);
  }
  for (size_t w = 0; w < Index(shape_.num_workers); ++w) {
    workers_[w + 1].first_partial =
        workers_[w].first_partial +
        NumPartials(workers_[w], workers_[w + 1], tiles_.data(), shape_);
  }
  size_t num_merges = 0;
  for (int32_t w = 1; w <= shape_.num_workers; ++w) {
    if (!IsFirstCut(workers_[Index(w)], workers_[Index(w) - 1])) continue;
    merges_[num_merges++] = MergeAt(w, workers_.data(), tiles_.data(), shape_);
  }
  plan_.workers = workers_;
  plan_.merges = std::span(merges_).first(num_merges);
  plan_.num_partials = workers_.back().first_partial;
}

void Plan::CheckInvariants() const {
  CheckRows();
  CheckTiles();
  CheckSchedule();
}

void Plan::CheckRows() const {
  const int64_t num_rows =
      table_width == PageCount(0) ? 0 : std::ssize(page_table) / table_width.raw();
  for (int32_t b = 0; b < num_rows; ++b) {
    const PageCount used = b < num_seqs ? page_size.PagesFor(kv_len[Index(b)]) : PageCount(0);
    for (PageCount j{0}; j < table_width; j += PageCount(1)) {
      const PageId page = Row(b)[Index(j.raw())];
      QUIRE_CHECK(j < used ? page > kScratchPage && PageCount(page.raw()) < pool_pages
                           : page == kScratchPage,
                  "row {} entry {} of {} used: page {}", b, j, used, page);
    }
  }
}

void Plan::CheckTiles() const {
  TokenCount next_query{0};
  for (const QueryTile& tile : tiles) {
    QUIRE_CHECK(tile.q_begin == next_query && tile.q_count >= 1, "tile at query {}, expected {}",
                tile.q_begin, next_query);
    next_query += TokenCount(tile.q_count);
    QUIRE_CHECK(next_query <= q_offset[Index(tile.seq) + 1], "tile of sequence {} ends at {}",
                tile.seq, next_query);
    TokenCount seen{0};
    for (TokenCount q = tile.q_begin; q < next_query; q += TokenCount(1)) {
      seen = Max(seen, Visible(tile.seq, q));
    }
    QUIRE_CHECK(tile.kv_end == seen, "pieces of the tile at query {} end at {}, its queries see {}",
                tile.q_begin, tile.kv_end, seen);
  }
  QUIRE_CHECK(next_query == num_query_tokens, "tiles end at query {} of {}", next_query,
              num_query_tokens);
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

}  // namespace quire
