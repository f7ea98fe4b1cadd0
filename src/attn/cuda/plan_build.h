// Making a plan from a packed step, all but its page table, by the threads of one CTA.
//
// The element functions of attn/plan_elements.h with three scans between them. What a step of this
// costs is the wait from one part to the next, so the parts hand on what they can in memory of the
// CTA's own (PlanNear), and each waits for device memory at most once. A Block is the CTA:
//   thread(), threads()            who this is, of how many
//   Sync()                         all threads arrive; what they wrote before, all see after
//   Any(bool)                      the same, and whether any thread said true
//   Scan(value, before, total)     arrays of sums: of the threads before this one, and of all. All
//                                  threads arrive, but what they wrote may be seen only after a Sync
// plan.cu has the device's, the tests one of std::threads, so that every line below runs on a host.
// Loops around Sync, Any and Scan run equally often in all threads.
//
// OnFault is called as on_fault(StepFault, index). What the host packs has no fault; a block of
// memory that something else has written over gives an empty plan, never a wild write.
#ifndef QUIRE_ATTN_CUDA_PLAN_BUILD_H_
#define QUIRE_ATTN_CUDA_PLAN_BUILD_H_

#include <cstdint>

#include "attn/capacity.h"
#include "attn/cuda/step_pack.h"
#include "attn/plan_elements.h"
#include "base/host_device.h"
#include "base/units.h"

namespace quire::cuda {

enum class StepFault {
  kCapacity,  // more than a buffer was sized for; index: the sequence
  kPage,      // a page that the pool does not have, or that the row does not list; likewise
  kTree,      // a parent that is not before its node; likewise
};

// Sums over the sequences before one: what exports need besides the plan.
struct SequenceOffsets {
  int64_t kv = 0;         // tokens
  int64_t committed = 0;  // tokens
  int32_t tiles = 0;
  int32_t running = 0;  // sequences that are not padding: kv_len > 0

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

// What bounds every access, from a capacity.
struct PlanBounds {
  int32_t num_seqs = 0;
  int32_t query_tokens = 0;
  int32_t kv_tokens = 0;  // of one row
  int32_t tree_nodes = 0;
  int32_t mask_words = 0;
  int32_t tiles = 0;
  int32_t partials = 0;
  int32_t num_words = 0;    // of the packed step
  int32_t page_rows = 0;    // of PageRows
  int32_t row_width = 0;    // likewise
  int32_t table_width = 0;  // of the plan
  int32_t pool_pages = 0;
  PageDivider pages;
};

// What kernels beside the plan's own may read of a step: addresses in device memory.
struct StepView {
  PackedStep step;
  const SequenceOffsets* offsets = nullptr;  // [num_seqs + 1], the totals past the last sequence
  const PageId* rows = nullptr;              // [page_rows, row_width]
  PlanBounds bounds;
};

struct PlanBuild {
  PackedStep step;
  PlanBounds bounds;
  WorkShape work;

  PlanCounts* counts = nullptr;
  TokenCount* kv_len = nullptr;        // [num_seqs]
  TokenCount* committed = nullptr;     // [num_seqs]
  TokenCount* q_offset = nullptr;      // [num_seqs + 1]
  SequenceOffsets* offsets = nullptr;  // [num_seqs + 1]
  uint64_t* tree_masks = nullptr;      // [query_tokens, mask_words]
  QueryTile* tiles = nullptr;          // [tiles]
  int64_t* cost_before = nullptr;      // [tiles + 1]
  WorkerStart* workers = nullptr;      // [work.num_workers + 1]
  Merge* merges = nullptr;             // [work.num_workers]
};

// Memory that the threads of the CTA share and nobody else sees.
struct PlanNear {
  static constexpr int32_t kSeqs = 256;
  static constexpr int32_t kTiles = 512;
  static constexpr int32_t kWorkers = 320;  // two for each of H200's 132 multiprocessors, and more

  TokenCount kv_len[kSeqs];
  TokenCount committed[kSeqs];
  TokenCount q_offset[kSeqs + 1];
  SequenceOffsets offsets[kSeqs + 1];
  QueryTile tiles[kTiles];
  int64_t cost_before[kTiles + 1];
  WorkerStart workers[kWorkers + 1];
  Merge merges[kWorkers];
};

// Where the CTA's threads read what others of them wrote: near copies of the arrays that fit there,
// and the arrays themselves where they do not. What is written goes to both.
struct PlanReads {
  TokenCount* kv_len = nullptr;
  TokenCount* committed = nullptr;
  TokenCount* q_offset = nullptr;
  SequenceOffsets* offsets = nullptr;
  QueryTile* tiles = nullptr;
  int64_t* cost_before = nullptr;
  WorkerStart* workers = nullptr;
  Merge* merges = nullptr;
};

QUIRE_HD inline PlanReads ReadsOf(const PlanBuild& build, PlanNear& near) {
  const bool seqs_fit = build.bounds.num_seqs <= PlanNear::kSeqs;
  const bool tiles_fit = build.bounds.tiles <= PlanNear::kTiles;
  const bool workers_fit = build.work.num_workers <= PlanNear::kWorkers;
  return {.kv_len = seqs_fit ? near.kv_len : build.kv_len,
          .committed = seqs_fit ? near.committed : build.committed,
          .q_offset = seqs_fit ? near.q_offset : build.q_offset,
          .offsets = seqs_fit ? near.offsets : build.offsets,
          .tiles = tiles_fit ? near.tiles : build.tiles,
          .cost_before = tiles_fit ? near.cost_before : build.cost_before,
          .workers = workers_fit ? near.workers : build.workers,
          .merges = workers_fit ? near.merges : build.merges};
}

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

// Whether the pages of a row of the step keep within every bound; they themselves are checked where
// they are read. Without branches, like the next one: all threads do this before they can do more.
QUIRE_HD inline bool PagesWithinBounds(const PackedSequence& seq, const PlanBounds& bounds) {
  bool is_row = seq.row >= 0;
  is_row &= seq.row < bounds.page_rows;
  is_row &= KeepsWithin(seq.first_new, seq.num_new, bounds.row_width);
  is_row &= KeepsWithin(seq.new_begin, seq.num_new, bounds.num_words);
  const int32_t listed = is_row ? seq.first_new + seq.num_new : 0;
  const bool is_length = IsUpTo(seq.kv_len, bounds.kv_tokens);
  is_row &= is_length;
  is_row &= bounds.pages.PagesFor(is_length ? seq.kv_len : 0) <= listed;
  bool is_none = seq.row == kNoRow;
  is_none &= (seq.kv_len | seq.first_new | seq.num_new) == 0;
  return is_row || is_none;
}

// Whether all of it does.
QUIRE_HD inline bool WithinBounds(const PackedSequence& seq, const PlanBounds& bounds) {
  bool is_good = PagesWithinBounds(seq, bounds);
  is_good &= IsUpTo(seq.q_len, bounds.query_tokens);
  is_good &= IsUpTo(seq.num_nodes, bounds.tree_nodes);
  is_good &= seq.num_nodes <= seq.kv_len;
  is_good &= seq.num_nodes == 0 || seq.num_nodes >= seq.q_len;
  is_good &= KeepsWithin(seq.parents_begin, seq.num_nodes, bounds.num_words);
  return is_good;
}

// What the sequences come to.
struct SequenceTotals {
  int32_t num_seqs = 0;
  int64_t query_tokens = 0;
  SequenceOffsets sums;
};

// What the plan has of row b of the capacity.
QUIRE_HD inline void WriteSequence(const PlanBuild& build, const PlanReads& reads, int32_t b,
                                   TokenCount kv_len, TokenCount committed, TokenCount q_offset,
                                   const SequenceOffsets& offsets) {
  build.kv_len[b] = reads.kv_len[b] = kv_len;
  build.committed[b] = reads.committed[b] = committed;
  build.q_offset[b] = reads.q_offset[b] = q_offset;
  build.offsets[b] = reads.offsets[b] = offsets;
}

// Lengths and offsets, and what they come to. Those of a step that is out of bounds are never used:
// is_bad says for some thread that there is such a sequence, or too many.
template <class Block, class OnFault>
QUIRE_HD SequenceTotals WriteLengths(const PlanBuild& build, const PlanReads& reads, Block& block,
                                     const OnFault& on_fault, bool& is_bad) {
  constexpr int kQ = 0, kTiles = 1, kKv = 2, kCommitted = 3, kRunning = 4;
  int64_t carry[5] = {0, 0, 0, 0, 0};
  int32_t num_seqs = 0;
  const int32_t num_rows = build.bounds.num_seqs;
  for (int32_t first = 0; first < num_rows; first += block.threads()) {
    const int32_t b = first + block.thread();
    int64_t value[5] = {0, 0, 0, 0, 0}, before[5], total[5];
    // Both loads before either is used, for one wait. Rows past num_seqs are there, and may be read.
    PackedSequence seq;
    if (b < num_rows) seq = build.step.seqs[b];
    num_seqs = build.step.header->num_seqs;
    if (b < num_rows && b < num_seqs) {
      if (WithinBounds(seq, build.bounds)) {
        value[kQ] = seq.q_len;
        value[kTiles] = NumQueryTiles(TokenCount(seq.q_len), build.work);
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
      WriteSequence(build, reads, b, TokenCount(value[kKv]), TokenCount(value[kCommitted]),
                    TokenCount(carry[kQ] + before[kQ]),
                    {.kv = carry[kKv] + before[kKv],
                     .committed = carry[kCommitted] + before[kCommitted],
                     .tiles = static_cast<int32_t>(carry[kTiles] + before[kTiles]),
                     .running = static_cast<int32_t>(carry[kRunning] + before[kRunning])});
    }
    for (int i = 0; i < 5; ++i) carry[i] += total[i];
  }
  const SequenceTotals totals{.num_seqs = num_seqs,
                              .query_tokens = carry[kQ],
                              .sums = {.kv = carry[kKv],
                                       .committed = carry[kCommitted],
                                       .tiles = static_cast<int32_t>(carry[kTiles]),
                                       .running = static_cast<int32_t>(carry[kRunning])}};
  if (block.thread() == 0) {
    build.q_offset[num_rows] = reads.q_offset[num_rows] = TokenCount(totals.query_tokens);
    build.offsets[num_rows] = reads.offsets[num_rows] = totals.sums;
    is_bad |= num_seqs < 0 || num_seqs > num_rows || carry[kQ] > build.bounds.query_tokens ||
              carry[kTiles] > build.bounds.tiles;
    if (is_bad) on_fault(StepFault::kCapacity, num_seqs);
  }
  return totals;
}

// The same for a step without sequences, which the plan of one out of bounds is.
template <class Block>
QUIRE_HD SequenceTotals WriteNoLengths(const PlanBuild& build, const PlanReads& reads,
                                       Block& block) {
  const int32_t num_rows = build.bounds.num_seqs;
  for (int32_t b = block.thread(); b < num_rows; b += block.threads()) {
    WriteSequence(build, reads, b, TokenCount(0), TokenCount(0), TokenCount(0), {});
  }
  if (block.thread() == 0) {
    build.q_offset[num_rows] = reads.q_offset[num_rows] = TokenCount(0);
    build.offsets[num_rows] = reads.offsets[num_rows] = {};
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
QUIRE_HD void WriteTreeMasks(const PlanBuild& build, const PlanReads& reads,
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

template <class Block>
QUIRE_HD void WriteTiles(const PlanBuild& build, const PlanReads& reads,
                         const SequenceTotals& totals, Block& block) {
  const int32_t num_tiles = totals.sums.tiles;
  int64_t carry = 0;
  if (block.thread() == 0) reads.cost_before[0] = 0;
  for (int32_t first = 0; first < num_tiles; first += block.threads()) {
    const int32_t t = first + block.thread();
    int64_t cost[1] = {0}, before[1], total[1];
    if (t < num_tiles) {
      const int32_t b =
          SequenceOf(t, totals.num_seqs, [&](int32_t seq) { return reads.offsets[seq].tiles; });
      const SequenceLengths lengths{.q_begin = reads.q_offset[b],
                                    .q_len = reads.q_offset[b + 1] - reads.q_offset[b],
                                    .kv_len = reads.kv_len[b],
                                    .committed = reads.committed[b]};
      const QueryTile tile = TileAt(b, lengths, t - reads.offsets[b].tiles, build.tree_masks,
                                    build.bounds.mask_words, build.work);
      build.tiles[t] = reads.tiles[t] = tile;
      cost[0] = TileCost(tile);
    }
    block.Scan(cost, before, total);
    if (t < num_tiles) reads.cost_before[t + 1] = carry + before[0] + cost[0];
    carry += total[0];
  }
}

struct ScheduleTotals {
  int32_t num_partials = 0;
  int32_t num_merges = 0;
};

template <class Block>
QUIRE_HD ScheduleTotals WriteSchedule(const PlanBuild& build, const PlanReads& reads,
                                      int32_t num_tiles, Block& block) {
  const int32_t num_workers = build.work.num_workers;
  for (int32_t w = block.thread(); w <= num_workers; w += block.threads()) {
    build.workers[w] = reads.workers[w] =
        WorkerStartAt(w, reads.tiles, reads.cost_before, num_tiles, build.work);
  }
  block.Sync();  // a worker's partials depend on where the next one begins
  ScheduleTotals totals;
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
      end.first_partial = totals.num_partials + static_cast<int32_t>(before[0] + value[0]);
      build.workers[w + 1].first_partial = end.first_partial;
      reads.workers[w + 1].first_partial = end.first_partial;
      // For now with the worker in place of the number of partials, which are not all counted yet.
      if (value[1] != 0) reads.merges[totals.num_merges + before[1]] = {.num_partials = w + 1};
    }
    totals.num_partials += static_cast<int32_t>(total[0]);
    totals.num_merges += static_cast<int32_t>(total[1]);
  }
  block.Sync();  // all partials are counted
  for (int32_t m = block.thread(); m < totals.num_merges; m += block.threads()) {
    build.merges[m] = MergeAt(reads.merges[m].num_partials, reads.workers, reads.tiles, build.work);
  }
  return totals;
}

// Everything of the plan but its page table.
template <class Block, class OnFault>
QUIRE_HD void BuildPlan(const PlanBuild& build, PlanNear& near, Block& block,
                        const OnFault& on_fault) {
  const PlanReads reads = ReadsOf(build, near);
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
  WriteTiles(build, reads, totals, block);
  block.Sync();  // workers search all costs
  const ScheduleTotals schedule = WriteSchedule(build, reads, totals.sums.tiles, block);
  if (block.thread() != 0) return;
  // MaxPartials bounds every schedule; whoever sizes by something else is told.
  if (schedule.num_partials > build.bounds.partials) {
    on_fault(StepFault::kCapacity, totals.num_seqs);
  }
  *build.counts = {.num_seqs = totals.num_seqs,
                   .num_query_tokens = static_cast<int32_t>(totals.query_tokens),
                   .num_tiles = totals.sums.tiles,
                   .num_merges = schedule.num_merges,
                   .num_partials = schedule.num_partials};
}

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_PLAN_BUILD_H_
