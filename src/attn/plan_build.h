// Making a plan from a packed step: by the threads of one CTA, or by one thread of the host.
//
// The element functions of attn/plan_elements.h with scans between them: BuildSequences, then
// BuildSchedule for every kernel that cuts work its own way. What this costs a device is the wait from
// one part to the next, so the parts hand on what they can in memory of the CTA's own (PlanNear), and
// each waits for device memory at most once. A Block is the CTA:
//   thread(), threads()            who this is, of how many
//   Sync()                         all threads arrive; what they wrote before, all see after
//   Any(bool)                      the same, and whether any thread said true
//   Scan(value, before, total)     arrays of sums: of the threads before this one, and of all. All
//                                  threads arrive, but what they wrote may be seen only after a Sync
// The host's is OneThread, the device's is in attn/cuda/block.cuh, and tests have one of std::threads,
// so that a race between the threads of a CTA shows on a host. Loops around Sync, Any and Scan run
// equally often in all threads.
//
// OnFault is called as on_fault(StepFault, index). What the host packs has no fault; a block of
// memory that something else has written over gives an empty plan, never a wild write.
#ifndef QUIRE_ATTN_PLAN_BUILD_H_
#define QUIRE_ATTN_PLAN_BUILD_H_

#include <cstddef>
#include <cstdint>

#include "attn/capacity.h"
#include "attn/plan_elements.h"
#include "attn/step_pack.h"
#include "base/faults.h"
#include "base/host_device.h"
#include "base/maths.h"
#include "base/units.h"

namespace quire {

enum class StepFault {
  kCapacity,  // more than a buffer was sized for; index: the sequence
  kPage,      // a page that the pool does not have, or that the row does not list; likewise
  kTree,      // a parent that is not before its node; likewise
};

// Sums over the sequences before one: what exports need besides the plan.
struct SequenceOffsets {
  int64_t kv = 0;         // tokens
  int64_t committed = 0;  // tokens
  int32_t running = 0;    // sequences that are not padding: kv_len > 0

  friend bool operator==(const SequenceOffsets&, const SequenceOffsets&) = default;
};

// Pages and positions in 32-bit numbers, up to kMaxRowTokens: kernels divide in every thread. A shift
// where the page size is a power of two, as it nearly always is.
struct PageDivider {
  int32_t page_size = 1;
  int32_t shift = 0;  // -1: not a power of two

  // The page of a position; also the pages that so many tokens fill.
  QUIRE_HD int32_t PageOf(int32_t position) const {
    return shift >= 0 ? position >> shift : position / page_size;
  }
  QUIRE_HD int32_t PagesFor(int32_t tokens) const { return PageOf(tokens + page_size - 1); }
};
PageDivider DividerOf(PageSize page_size);

// What bounds every access of the sequences' part, from a capacity.
struct PlanBounds {
  int32_t num_seqs = 0;
  int32_t query_tokens = 0;
  int32_t kv_tokens = 0;  // of one row
  int32_t tree_nodes = 0;
  int32_t mask_words = 0;
  int32_t num_words = 0;  // of the packed step
  int32_t new_pages = 0;  // likewise
  int32_t page_rows = 0;
  int32_t row_width = 0;
  int32_t pool_pages = 0;
  PageDivider pages;
};

// What kernels beside the plan's own may read of a step.
struct StepView {
  PackedStep step;
  const SequenceOffsets* offsets = nullptr;  // [num_seqs + 1], the totals past the last sequence
  PlanBounds bounds;
};

struct SequencesBuild {
  PackedStep step;
  PlanBounds bounds;

  PageId* page_rows = nullptr;  // [page_rows, row_width]
  SequenceCounts* counts = nullptr;
  int32_t* row_of = nullptr;           // [num_seqs]
  TokenCount* kv_len = nullptr;        // [num_seqs]
  TokenCount* committed = nullptr;     // [num_seqs]
  TokenCount* q_offset = nullptr;      // [num_seqs + 1]
  SequenceOffsets* offsets = nullptr;  // [num_seqs + 1]
  uint64_t* tree_masks = nullptr;      // [query_tokens, mask_words]
};

struct ScheduleBuild {
  WorkShape work;
  int32_t max_tiles = 0;
  int32_t max_partials = 0;

  ScheduleCounts* counts = nullptr;
  int32_t* first_tile = nullptr;   // [num_seqs]
  QueryTile* tiles = nullptr;      // [max_tiles]
  int64_t* cost_before = nullptr;  // [max_tiles + 1]
  WorkerStart* workers = nullptr;  // [work.num_workers + 1]
  Merge* merges = nullptr;         // [work.num_workers]
  int32_t* arrived = nullptr;      // [num_arrived]
  int32_t num_arrived = 0;
  PageSize page_size{1};  // read by a fault alone, like the faults
  Faults faults = {};
};

// A Block of one thread.
struct OneThread {
  int32_t thread() const { return 0; }
  int32_t threads() const { return 1; }
  void Sync() const {}
  bool Any(bool value) const { return value; }
  template <size_t N>
  void Scan(const int64_t (&value)[N], int64_t (&before)[N], int64_t (&total)[N]) const {
    for (size_t i = 0; i < N; ++i) {
      before[i] = 0;
      total[i] = value[i];
    }
  }
};

// ---- Memory near the threads ----

// Memory that the threads of a CTA share and nobody else sees. One thread needs none.
struct PlanNear {
  static constexpr int32_t kSeqs = 256;
  static constexpr int32_t kTiles = 512;
  static constexpr int32_t kWorkers = 320;  // two for each of H200's 132 multiprocessors, and more

  TokenCount kv_len[kSeqs];
  TokenCount committed[kSeqs];
  TokenCount q_offset[kSeqs + 1];
  int32_t first_tile[kSeqs];
  QueryTile tiles[kTiles];
  int64_t cost_before[kTiles + 1];
  WorkerStart workers[kWorkers + 1];
  Merge merges[kWorkers];
};

// Where threads read what others of them wrote: near copies of the arrays that fit there, and the
// arrays themselves where they do not. What is written goes to both.
struct SequenceReads {
  TokenCount* kv_len = nullptr;
  TokenCount* committed = nullptr;
  TokenCount* q_offset = nullptr;
};
struct ScheduleReads {
  int32_t* first_tile = nullptr;
  QueryTile* tiles = nullptr;
  int64_t* cost_before = nullptr;
  WorkerStart* workers = nullptr;
  Merge* merges = nullptr;
};

QUIRE_HD inline SequenceReads ReadsOf(const SequencesBuild& build, PlanNear* near) {
  const bool fit = near != nullptr && build.bounds.num_seqs <= PlanNear::kSeqs;
  return {.kv_len = fit ? near->kv_len : build.kv_len,
          .committed = fit ? near->committed : build.committed,
          .q_offset = fit ? near->q_offset : build.q_offset};
}
QUIRE_HD inline ScheduleReads ReadsOf(const ScheduleBuild& build, const PlanBounds& bounds,
                                      PlanNear* near) {
  const bool seqs_fit = near != nullptr && bounds.num_seqs <= PlanNear::kSeqs;
  const bool tiles_fit = near != nullptr && build.max_tiles <= PlanNear::kTiles;
  const bool workers_fit = near != nullptr && build.work.num_workers <= PlanNear::kWorkers;
  return {.first_tile = seqs_fit ? near->first_tile : build.first_tile,
          .tiles = tiles_fit ? near->tiles : build.tiles,
          .cost_before = tiles_fit ? near->cost_before : build.cost_before,
          .workers = workers_fit ? near->workers : build.workers,
          .merges = workers_fit ? near->merges : build.merges};
}

// ---- Bounds ----

// Whether 0 <= value <= most, for most >= 0: what is negative becomes a large number.
QUIRE_HD inline bool IsUpTo(int32_t value, int32_t most) {
  return static_cast<uint32_t>(value) <= static_cast<uint32_t>(most);
}
// Whether [begin, begin + count) keeps within [0, size), size >= 0.
QUIRE_HD inline bool KeepsWithin(int32_t begin, int32_t count, int32_t size) {
  const uint32_t room = static_cast<uint32_t>(size) - static_cast<uint32_t>(count);
  bool is_good = IsUpTo(count, size);
  is_good &= static_cast<uint32_t>(begin) <= room;
  return is_good;
}

// Whether a row of the step keeps within every bound. Without branches: all threads do this before
// they can do more.
QUIRE_HD inline bool WithinBounds(const PackedSequence& seq, const PlanBounds& bounds) {
  bool is_row = seq.row >= 0;
  is_row &= seq.row < bounds.page_rows;
  is_row &= IsUpTo(seq.num_pages, bounds.row_width);
  const bool is_length = IsUpTo(seq.kv_len, bounds.kv_tokens);
  is_row &= is_length;
  is_row &= bounds.pages.PagesFor(is_length ? seq.kv_len : 0) <= seq.num_pages;
  bool is_none = seq.row == kNoRow;
  is_none &= (seq.kv_len | seq.num_pages) == 0;
  bool is_good = is_row || is_none;
  is_good &= IsUpTo(seq.q_len, bounds.query_tokens);
  is_good &= IsUpTo(seq.num_nodes, bounds.tree_nodes);
  is_good &= seq.num_nodes <= seq.kv_len;
  is_good &= seq.num_nodes == 0 || seq.num_nodes >= seq.q_len;
  is_good &= KeepsWithin(seq.parents_begin, seq.num_nodes, bounds.num_words);
  return is_good;
}

// ---- Pages ----

// Stores the step's new pages in their rows: what thread `thread` of `threads` does, of all CTAs
// together. A place is named once, and nobody reads what another writes. A page that is not in the pool
// becomes the scratch page; one without a place is dropped.
template <class OnFault>
QUIRE_HD void BringPages(const SequencesBuild& build, int32_t thread, int32_t threads,
                         const OnFault& on_fault) {
  const PlanBounds& bounds = build.bounds;
  const PackedHeader header = *build.step.header;
  const bool is_good =
      IsUpTo(header.num_new, bounds.new_pages) &&
      KeepsWithin(header.new_begin, kNewPageWords * header.num_new, bounds.num_words);
  if (!is_good) {
    if (thread == 0) on_fault(StepFault::kCapacity, header.num_seqs);
    return;
  }
  const int32_t* words = build.step.words + header.new_begin;
  for (int32_t i = thread; i < header.num_new; i += threads) {
    const NewPage page = NewPageAt(words, i);
    const bool is_seq = page.seq >= 0 && page.seq < bounds.num_seqs;
    const int32_t row = is_seq ? build.step.seqs[page.seq].row : kNoRow;
    if (row < 0 || row >= bounds.page_rows || page.index < 0 || page.index >= bounds.row_width) {
      on_fault(StepFault::kCapacity, page.seq);
      continue;
    }
    const bool is_page = page.page > kScratchPage.raw() && page.page < bounds.pool_pages;
    build.page_rows[int64_t{row} * bounds.row_width + page.index] =
        PageId(is_page ? page.page : kScratchPage.raw());
    if (!is_page) on_fault(StepFault::kPage, page.seq);
  }
}

// ---- Sequences ----

// What the sequences come to.
struct SequenceTotals {
  int32_t num_seqs = 0;
  int64_t query_tokens = 0;
  SequenceOffsets sums;
};

// What the plan has of row b of the capacity.
QUIRE_HD inline void WriteSequence(const SequencesBuild& build, const SequenceReads& reads,
                                   int32_t b, int32_t row, TokenCount kv_len, TokenCount committed,
                                   TokenCount q_offset, const SequenceOffsets& offsets) {
  build.row_of[b] = row;
  build.kv_len[b] = reads.kv_len[b] = kv_len;
  build.committed[b] = reads.committed[b] = committed;
  build.q_offset[b] = reads.q_offset[b] = q_offset;
  build.offsets[b] = offsets;
}

// Lengths and offsets, and what they come to. Those of a step that is out of bounds are never used:
// is_bad says for some thread that there is such a sequence, or too many.
template <class Block, class OnFault>
QUIRE_HD SequenceTotals WriteLengths(const SequencesBuild& build, const SequenceReads& reads,
                                     Block& block, const OnFault& on_fault, bool& is_bad) {
  constexpr int kQ = 0, kKv = 1, kCommitted = 2, kRunning = 3;
  int64_t carry[4] = {0, 0, 0, 0};
  int32_t num_seqs = 0;
  const int32_t num_rows = build.bounds.num_seqs;
  for (int32_t first = 0; first < num_rows; first += block.threads()) {
    const int32_t b = first + block.thread();
    int64_t value[4] = {0, 0, 0, 0}, before[4], total[4];
    int32_t row = 0;  // a padded row has none, and any that is there will do
    // Both loads before either is used, for one wait. Rows past num_seqs are there, and may be read.
    PackedSequence seq;
    if (b < num_rows) seq = build.step.seqs[b];
    num_seqs = build.step.header->num_seqs;
    if (b < num_rows && b < num_seqs) {
      if (WithinBounds(seq, build.bounds)) {
        row = seq.row == kNoRow ? 0 : seq.row;
        value[kQ] = seq.q_len;
        value[kKv] = seq.kv_len;
        value[kCommitted] = seq.kv_len - seq.num_nodes;
        value[kRunning] = seq.kv_len > 0 ? 1 : 0;
      } else {
        is_bad = true;
        on_fault(StepFault::kCapacity, b);
      }
    }
    block.Scan(value, before, total);
    if (b < num_rows) {
      WriteSequence(build, reads, b, row, TokenCount(value[kKv]), TokenCount(value[kCommitted]),
                    TokenCount(carry[kQ] + before[kQ]),
                    {.kv = carry[kKv] + before[kKv],
                     .committed = carry[kCommitted] + before[kCommitted],
                     .running = static_cast<int32_t>(carry[kRunning] + before[kRunning])});
    }
    for (int i = 0; i < 4; ++i) carry[i] += total[i];
  }
  const SequenceTotals totals{.num_seqs = num_seqs,
                              .query_tokens = carry[kQ],
                              .sums = {.kv = carry[kKv],
                                       .committed = carry[kCommitted],
                                       .running = static_cast<int32_t>(carry[kRunning])}};
  if (block.thread() == 0) {
    build.q_offset[num_rows] = reads.q_offset[num_rows] = TokenCount(totals.query_tokens);
    build.offsets[num_rows] = totals.sums;
    is_bad |= num_seqs < 0 || num_seqs > num_rows || carry[kQ] > build.bounds.query_tokens;
    if (is_bad) on_fault(StepFault::kCapacity, num_seqs);
  }
  return totals;
}

// The same for a step without sequences, which the plan of one out of bounds is.
template <class Block>
QUIRE_HD SequenceTotals WriteNoLengths(const SequencesBuild& build, const SequenceReads& reads,
                                       Block& block) {
  const int32_t num_rows = build.bounds.num_seqs;
  for (int32_t b = block.thread(); b < num_rows; b += block.threads()) {
    WriteSequence(build, reads, b, 0, TokenCount(0), TokenCount(0), TokenCount(0), {});
  }
  if (block.thread() == 0) {
    build.q_offset[num_rows] = reads.q_offset[num_rows] = TokenCount(0);
    build.offsets[num_rows] = {};
  }
  return {};
}

// The last of `count` sequences that begins at or before i, given where each begins; those that are
// empty begin where the next one does. begin(0) <= i.
template <class Begin>
QUIRE_HD int32_t SequenceOf(int64_t i, int32_t count, Begin begin) {
  int32_t low = 0, high = count - 1;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    if (begin(middle) <= i) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <class Block, class OnFault>
QUIRE_HD void WriteTreeMasks(const SequencesBuild& build, const SequenceReads& reads,
                             const SequenceTotals& totals, Block& block, const OnFault& on_fault) {
  const int32_t words = build.bounds.mask_words;
  for (int64_t i = block.thread(); i < totals.query_tokens; i += block.threads()) {
    const int32_t b =
        SequenceOf(i, totals.num_seqs, [&](int32_t seq) { return reads.q_offset[seq].raw(); });
    const PackedSequence& seq = build.step.seqs[b];
    if (seq.num_nodes == 0) continue;
    const int64_t node = seq.num_nodes - seq.q_len + (i - reads.q_offset[b].raw());
    if (!WriteTreeMask(build.step.words + seq.parents_begin, node, build.tree_masks + i * words,
                       words)) {
      on_fault(StepFault::kTree, b);
    }
  }
}

// Everything of the sequences but their pages. All threads see it after.
template <class Block, class OnFault>
QUIRE_HD SequenceTotals BuildSequences(const SequencesBuild& build, PlanNear* near, Block& block,
                                       const OnFault& on_fault) {
  const SequenceReads reads = ReadsOf(build, near);
  bool is_bad = false;
  SequenceTotals totals = WriteLengths(build, reads, block, on_fault, is_bad);
  if (block.Any(is_bad)) {  // lengths and offsets are all there, or must go
    totals = WriteNoLengths(build, reads, block);
    block.Sync();
  }
  if (totals.sums.kv != totals.sums.committed) {  // there are trees; the same for all threads
    WriteTreeMasks(build, reads, totals, block, on_fault);
    block.Sync();  // a tile needs the masks of all its queries
  }
  if (block.thread() == 0) {
    *build.counts = {.num_seqs = totals.num_seqs,
                     .num_query_tokens = static_cast<int32_t>(totals.query_tokens)};
  }
  return totals;
}

// ---- Schedules ----

// What SGLang's planner did before #25556: it counted the keys in pages, with a granularity of
// max(128, page size) tokens, and handed the number to a kernel that reads tokens.
QUIRE_HD constexpr TokenCount CountedInPages(TokenCount kv_end, PageSize page_size) {
  const int64_t granularity = page_size.raw() > 128 ? page_size.raw() : 128;
  const int64_t blocks = CeilDiv(kv_end.raw(), granularity) * (granularity / page_size.raw());
  return Min(kv_end, TokenCount(blocks));
}

// Where the tiles of each sequence begin; returns how many there are.
template <class Block>
QUIRE_HD int64_t WriteFirstTiles(const SequencesBuild& step, const ScheduleBuild& build,
                                 const SequenceReads& seqs, const ScheduleReads& reads,
                                 Block& block) {
  const int32_t num_rows = step.bounds.num_seqs;
  int64_t carry = 0;
  for (int32_t first = 0; first < num_rows; first += block.threads()) {
    const int32_t b = first + block.thread();
    int64_t value[1] = {0}, before[1], total[1];
    if (b < num_rows && step.step.seqs[b].is_expanded == 0) {
      value[0] = NumQueryTiles(seqs.q_offset[b + 1] - seqs.q_offset[b], build.work);
    }
    block.Scan(value, before, total);
    if (b < num_rows) reads.first_tile[b] = static_cast<int32_t>(carry + before[0]);
    carry += total[0];
  }
  return carry;
}

template <class Block>
QUIRE_HD void WriteTiles(const SequencesBuild& seqs, const ScheduleBuild& build,
                         const SequenceReads& lengths_of, const ScheduleReads& reads,
                         int32_t num_seqs, int32_t num_tiles, Block& block) {
  int64_t carry = 0;
  if (block.thread() == 0) reads.cost_before[0] = 0;
  for (int32_t first = 0; first < num_tiles; first += block.threads()) {
    const int32_t t = first + block.thread();
    int64_t cost[1] = {0}, before[1], total[1];
    if (t < num_tiles) {
      const int32_t b = SequenceOf(t, num_seqs, [&](int32_t seq) { return reads.first_tile[seq]; });
      const SequenceLengths lengths{.q_begin = lengths_of.q_offset[b],
                                    .q_len = lengths_of.q_offset[b + 1] - lengths_of.q_offset[b],
                                    .kv_len = lengths_of.kv_len[b],
                                    .committed = lengths_of.committed[b]};
      QueryTile tile = TileAt(b, lengths, t - reads.first_tile[b], seqs.tree_masks,
                              seqs.bounds.mask_words, build.work);
      if (build.faults.Has(Fault::kTilesCountedInPages) && lengths.q_len > TokenCount(1)) {
        tile.kv_end = CountedInPages(tile.kv_end, build.page_size);
      }
      build.tiles[t] = reads.tiles[t] = tile;
      cost[0] = TileCost(tile, build.work);
    }
    block.Scan(cost, before, total);
    if (t < num_tiles) reads.cost_before[t + 1] = carry + before[0] + cost[0];
    carry += total[0];
  }
}

template <class Block>
QUIRE_HD ScheduleCounts WriteWorkers(const ScheduleBuild& build, const ScheduleReads& reads,
                                     int32_t num_tiles, Block& block) {
  const int32_t num_workers = build.work.num_workers;
  const int64_t total_cost = reads.cost_before[num_tiles];
  bool is_cut = false;
  for (int32_t t = block.thread(); t < num_tiles; t += block.threads()) {
    is_cut |= !IsBetterEqual(reads.tiles[t], total_cost, num_tiles, build.work);
  }
  is_cut = block.Any(is_cut);
  for (int32_t w = block.thread(); w <= num_workers; w += block.threads()) {
    build.workers[w] = reads.workers[w] =
        is_cut ? WorkerStartAt(w, reads.tiles, reads.cost_before, num_tiles, build.work)
               : EqualWorkerStartAt(w, reads.tiles, num_tiles, build.work);
  }
  block.Sync();  // a worker's partials depend on where the next one begins
  ScheduleCounts counts{.num_tiles = num_tiles};
  for (int32_t first = 0; first < num_workers; first += block.threads()) {
    const int32_t w = first + block.thread();
    // Without first_partial, which others of these threads may be writing.
    WorkerStart end{};
    int64_t value[2] = {0, 0}, before[2], total[2];
    if (w < num_workers) {
      const WorkerStart begin{.tile = reads.workers[w].tile, .split = reads.workers[w].split};
      end = {.tile = reads.workers[w + 1].tile, .split = reads.workers[w + 1].split};
      value[0] = NumPartials(begin, end, reads.tiles, build.work);
      value[1] = IsFirstCut(end, begin) ? 1 : 0;
    }
    block.Scan(value, before, total);
    if (w < num_workers) {
      end.first_partial = counts.num_partials + static_cast<int32_t>(before[0] + value[0]);
      build.workers[w + 1].first_partial = end.first_partial;
      reads.workers[w + 1].first_partial = end.first_partial;
      // For now with the worker in place of the number of partials, which are not all counted yet.
      if (value[1] != 0) reads.merges[counts.num_merges + before[1]] = {.num_partials = w + 1};
    }
    counts.num_partials += static_cast<int32_t>(total[0]);
    counts.num_merges += static_cast<int32_t>(total[1]);
  }
  block.Sync();  // all partials are counted
  for (int32_t m = block.thread(); m < counts.num_merges; m += block.threads()) {
    build.merges[m] = MergeAt(reads.merges[m].num_partials, reads.workers, reads.tiles, build.work);
  }
  return counts;
}

// A schedule of the sequences that BuildSequences has made with the same block and memory.
template <class Block, class OnFault>
QUIRE_HD void BuildSchedule(const SequencesBuild& seqs, const ScheduleBuild& build,
                            const SequenceTotals& totals, PlanNear* near, Block& block,
                            const OnFault& on_fault) {
  const SequenceReads lengths = ReadsOf(seqs, near);
  const ScheduleReads reads = ReadsOf(build, seqs.bounds, near);
  for (int32_t i = block.thread(); i < build.num_arrived; i += block.threads()) {
    build.arrived[i] = 0;
  }
  const int64_t wanted = WriteFirstTiles(seqs, build, lengths, reads, block);
  const int32_t num_tiles = wanted <= build.max_tiles ? static_cast<int32_t>(wanted) : 0;
  block.Sync();  // tiles search where sequences begin
  WriteTiles(seqs, build, lengths, reads, totals.num_seqs, num_tiles, block);
  block.Sync();  // workers search all costs
  const ScheduleCounts counts = WriteWorkers(build, reads, num_tiles, block);
  if (block.thread() != 0) return;
  // MaxQueryTiles and MaxPartials bound every schedule; whoever sizes by something else is told.
  if (num_tiles != wanted || counts.num_partials > build.max_partials) {
    on_fault(StepFault::kCapacity, totals.num_seqs);
  }
  *build.counts = counts;
}

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_BUILD_H_
