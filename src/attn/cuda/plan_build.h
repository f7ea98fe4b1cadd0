// Making a plan from a packed step, all but its page table, by the threads of one CTA.
//
// The element functions of attn/plan_elements.h with three scans between them. A Block is the CTA:
//   thread(), threads()            who this is, of how many
//   Sync()                         all threads arrive; what they wrote before, all see after
//   Any(bool)                      the same, and whether any thread said true
//   Scan(value, before, total)     arrays of sums: of the threads before this one, and of all
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

// Whether a row of the step keeps within every bound. Its pages are checked where they are read.
QUIRE_HD inline bool WithinBounds(const PackedSequence& seq, const PlanBounds& bounds) {
  if (seq.q_len < 0 || seq.q_len > bounds.query_tokens) return false;
  if (seq.kv_len < 0 || seq.kv_len > bounds.kv_tokens) return false;
  if (seq.num_nodes < 0 || seq.num_nodes > bounds.tree_nodes) return false;
  if (seq.num_nodes > seq.kv_len) return false;
  if (seq.num_nodes > 0 && seq.num_nodes < seq.q_len) return false;
  if (seq.parents_begin < 0 || seq.parents_begin > bounds.num_words - seq.num_nodes) return false;
  if (seq.row == kNoRow) return seq.kv_len == 0 && seq.num_new == 0;
  if (seq.row < 0 || seq.row >= bounds.page_rows) return false;
  if (seq.first_new < 0 || seq.num_new < 0) return false;
  if (seq.first_new > bounds.row_width - seq.num_new) return false;
  if (seq.new_begin < 0 || seq.new_begin > bounds.num_words - seq.num_new) return false;
  return bounds.pages.PagesFor(seq.kv_len) <= seq.first_new + seq.num_new;
}

// The step's sequences; 0, reported, if one of them or all together are out of bounds.
template <class Block, class OnFault>
QUIRE_HD int32_t CheckedSequences(const PlanBuild& build, Block& block, const OnFault& on_fault) {
  const PlanBounds& bounds = build.bounds;
  const int32_t num_seqs = build.step.header->num_seqs;
  if (num_seqs < 0 || num_seqs > bounds.num_seqs) {  // the same for all threads
    if (block.thread() == 0) on_fault(StepFault::kCapacity, num_seqs);
    return 0;
  }
  int64_t query_tokens = 0, tiles = 0;
  bool is_bad = false;
  for (int32_t first = 0; first < num_seqs; first += block.threads()) {
    const int32_t b = first + block.thread();
    int64_t value[2] = {0, 0};
    if (b < num_seqs) {
      const PackedSequence& seq = build.step.seqs[b];
      if (WithinBounds(seq, bounds)) {
        value[0] = seq.q_len;
        value[1] = NumQueryTiles(TokenCount(seq.q_len), build.work);
      } else {
        is_bad = true;
        on_fault(StepFault::kCapacity, b);
      }
    }
    int64_t before[2], total[2];
    block.Scan(value, before, total);
    query_tokens += total[0];
    tiles += total[1];
  }
  if (block.Any(is_bad)) return 0;
  if (query_tokens > bounds.query_tokens || tiles > bounds.tiles) {
    if (block.thread() == 0) on_fault(StepFault::kCapacity, num_seqs);
    return 0;
  }
  return num_seqs;
}

// What the sequences come to.
struct SequenceTotals {
  int32_t num_seqs = 0;
  int64_t query_tokens = 0;
  SequenceOffsets sums;
};

template <class Block>
QUIRE_HD SequenceTotals WriteLengths(const PlanBuild& build, int32_t num_seqs, Block& block) {
  constexpr int kQ = 0, kTiles = 1, kKv = 2, kCommitted = 3, kRunning = 4;
  int64_t carry[5] = {0, 0, 0, 0, 0};
  const int32_t num_rows = build.bounds.num_seqs;
  for (int32_t first = 0; first < num_rows; first += block.threads()) {
    const int32_t b = first + block.thread();
    int64_t value[5] = {0, 0, 0, 0, 0}, before[5], total[5];
    if (b < num_seqs) {
      const PackedSequence& seq = build.step.seqs[b];
      value[kQ] = seq.q_len;
      value[kTiles] = NumQueryTiles(TokenCount(seq.q_len), build.work);
      value[kKv] = seq.kv_len;
      value[kCommitted] = seq.kv_len - seq.num_nodes;
      value[kRunning] = seq.kv_len > 0 ? 1 : 0;
    }
    block.Scan(value, before, total);
    if (b < num_rows) {
      build.kv_len[b] = TokenCount(value[kKv]);
      build.committed[b] = TokenCount(value[kCommitted]);
      build.q_offset[b] = TokenCount(carry[kQ] + before[kQ]);
      build.offsets[b] = {.kv = carry[kKv] + before[kKv],
                          .committed = carry[kCommitted] + before[kCommitted],
                          .tiles = static_cast<int32_t>(carry[kTiles] + before[kTiles]),
                          .running = static_cast<int32_t>(carry[kRunning] + before[kRunning])};
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
    build.q_offset[num_rows] = TokenCount(totals.query_tokens);
    build.offsets[num_rows] = totals.sums;
  }
  return totals;
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
QUIRE_HD void WriteTreeMasks(const PlanBuild& build, const SequenceTotals& totals, Block& block,
                             const OnFault& on_fault) {
  const int32_t words = build.bounds.mask_words;
  for (int64_t i = block.thread(); i < totals.query_tokens; i += block.threads()) {
    const int32_t b =
        SequenceOf(i, totals.num_seqs, [&](int32_t seq) { return build.q_offset[seq].raw(); });
    const PackedSequence& seq = build.step.seqs[b];
    if (seq.num_nodes == 0) continue;
    const int64_t node = seq.num_nodes - seq.q_len + (i - build.q_offset[b].raw());
    if (!WriteTreeMask(build.step.words + seq.parents_begin, node, build.tree_masks + i * words,
                       words)) {
      on_fault(StepFault::kTree, b);
    }
  }
}

template <class Block>
QUIRE_HD void WriteTiles(const PlanBuild& build, const SequenceTotals& totals, Block& block) {
  const int32_t num_tiles = totals.sums.tiles;
  int64_t carry = 0;
  if (block.thread() == 0) build.cost_before[0] = 0;
  for (int32_t first = 0; first < num_tiles; first += block.threads()) {
    const int32_t t = first + block.thread();
    int64_t cost[1] = {0}, before[1], total[1];
    if (t < num_tiles) {
      const int32_t b =
          SequenceOf(t, totals.num_seqs, [&](int32_t seq) { return build.offsets[seq].tiles; });
      const SequenceLengths lengths{.q_begin = build.q_offset[b],
                                    .q_len = build.q_offset[b + 1] - build.q_offset[b],
                                    .kv_len = build.kv_len[b],
                                    .committed = build.committed[b]};
      const QueryTile tile = TileAt(b, lengths, t - build.offsets[b].tiles, build.tree_masks,
                                    build.bounds.mask_words, build.work);
      build.tiles[t] = tile;
      cost[0] = TileCost(tile);
    }
    block.Scan(cost, before, total);
    if (t < num_tiles) build.cost_before[t + 1] = carry + before[0] + cost[0];
    carry += total[0];
  }
}

struct ScheduleTotals {
  int32_t num_partials = 0;
  int32_t num_merges = 0;
};

template <class Block>
QUIRE_HD ScheduleTotals WriteSchedule(const PlanBuild& build, int32_t num_tiles, Block& block) {
  const int32_t num_workers = build.work.num_workers;
  for (int32_t w = block.thread(); w <= num_workers; w += block.threads()) {
    build.workers[w] = WorkerStartAt(w, build.tiles, build.cost_before, num_tiles, build.work);
  }
  block.Sync();  // a worker's partials depend on where the next one begins
  ScheduleTotals totals;
  for (int32_t first = 0; first < num_workers; first += block.threads()) {
    const int32_t w = first + block.thread();
    // Without first_partial, which others of these threads may be writing.
    WorkerStart end{};
    int64_t value[2] = {0, 0}, before[2], total[2];
    if (w < num_workers) {
      const WorkerStart begin{.tile = build.workers[w].tile, .split = build.workers[w].split};
      end = {.tile = build.workers[w + 1].tile, .split = build.workers[w + 1].split};
      value[0] = NumPartials(begin, end, build.tiles, build.work);
      value[1] = IsFirstCut(end, begin) ? 1 : 0;
    }
    block.Scan(value, before, total);
    if (w < num_workers) {
      end.first_partial = totals.num_partials + static_cast<int32_t>(before[0] + value[0]);
      build.workers[w + 1].first_partial = end.first_partial;
      if (value[1] != 0) {
        build.merges[totals.num_merges + before[1]] = MergeAt(end, build.tiles, build.work);
      }
    }
    totals.num_partials += static_cast<int32_t>(total[0]);
    totals.num_merges += static_cast<int32_t>(total[1]);
  }
  return totals;
}

// Everything of the plan but its page table.
template <class Block, class OnFault>
QUIRE_HD void BuildPlan(const PlanBuild& build, Block& block, const OnFault& on_fault) {
  const int32_t num_seqs = CheckedSequences(build, block, on_fault);
  const SequenceTotals totals = WriteLengths(build, num_seqs, block);
  block.Sync();                                   // lengths and offsets are all there
  if (totals.sums.kv != totals.sums.committed) {  // there are trees; the same for all threads
    WriteTreeMasks(build, totals, block, on_fault);
    block.Sync();  // a tile needs the masks of all its queries
  }
  WriteTiles(build, totals, block);
  block.Sync();  // workers search all costs
  const ScheduleTotals schedule = WriteSchedule(build, totals.sums.tiles, block);
  if (block.thread() != 0) return;
  // MaxPartials bounds every schedule; whoever sizes by something else is told.
  if (schedule.num_partials > build.bounds.partials) on_fault(StepFault::kCapacity, num_seqs);
  *build.counts = {.num_seqs = num_seqs,
                   .num_query_tokens = static_cast<int32_t>(totals.query_tokens),
                   .num_tiles = totals.sums.tiles,
                   .num_merges = schedule.num_merges,
                   .num_partials = schedule.num_partials};
}

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_PLAN_BUILD_H_
