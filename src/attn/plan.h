// The plan of a step: everything the attention kernels of every layer need to know of the batch.
//
// A step has Sequences, and for every kernel that cuts work its own way a Schedule; a Plan is the two
// that one kernel reads. All are plain data, in the memory of the host or of a device, and kernels take
// them by value. Making them is pure: the same sequences and shapes give the same plan, on the host and
// on a device by the same code (attn/plan_build.h). They are made once per step, and const from then
// on. Order of summation (exact mode, docs/numerics.md): keys in tiles of kKeyTile at absolute
// positions; tiles folded into splits that begin at multiples of WorkShape::split; splits folded in
// ascending order. How splits are dealt to workers changes no bit.
//
// Numbers and sizes of spans are the step's own where a plan lies on the host. In a device's memory
// they are those of its capacity, for grids, and the counts say how much of them the step at hand uses:
// they are to be read when the kernel runs.
#ifndef QUIRE_ATTN_PLAN_H_
#define QUIRE_ATTN_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "attn/capacity.h"
#include "attn/plan_elements.h"
#include "base/host_device.h"
#include "base/units.h"
#include "device/arena.h"

namespace quire {

// What a step's sequences are: lengths, trees, and where their pages are.
struct Sequences {
  MemorySide memory = MemorySide::kHost;
  PageSize page_size{1};
  PageCount pool_pages;
  int32_t num_seqs = 0;
  TokenCount num_query_tokens;
  const SequenceCounts* seq_counts = nullptr;

  // One table for all plans of a runner. What is behind a sequence's pages is anybody's.
  PageCount row_width;
  std::span<const PageId> page_rows;      // [page rows, row_width]
  std::span<const int32_t> row_of;        // [num_seqs]; a padded row's says nothing
  std::span<const TokenCount> kv_len;     // [num_seqs]
  std::span<const TokenCount> committed;  // [num_seqs], kv_len where there is no tree
  std::span<const TokenCount> q_offset;   // [num_seqs + 1]

  int32_t mask_words = 0;
  std::span<const uint64_t> tree_masks;  // [num_query_tokens, mask_words]: bit i = sees node i

  QUIRE_HD TokenCount QLen(int32_t seq) const {
    return q_offset[static_cast<size_t>(seq) + 1] - q_offset[static_cast<size_t>(seq)];
  }
  QUIRE_HD bool IsTree(int32_t seq) const {
    return committed[static_cast<size_t>(seq)] != kv_len[static_cast<size_t>(seq)];
  }
  QUIRE_HD SequenceLengths Lengths(int32_t seq) const {
    return {.q_begin = q_offset[static_cast<size_t>(seq)],
            .q_len = QLen(seq),
            .kv_len = kv_len[static_cast<size_t>(seq)],
            .committed = committed[static_cast<size_t>(seq)]};
  }
  // The query's mask_words words; written for trees only.
  QUIRE_HD const uint64_t* TreeMask(TokenCount query) const {
    return tree_masks.data() + query.raw() * mask_words;
  }
  // The sequence's pages, PagesFor(kv_len) of them.
  QUIRE_HD const PageId* Row(int32_t seq) const { return RowAt(row_of[static_cast<size_t>(seq)]); }
  // Row `row` of the table.
  QUIRE_HD const PageId* RowAt(int32_t row) const {
    return page_rows.data() + (row_width * row).raw();
  }
  // The slot of the token at `position` of the row; position < kv_len.
  QUIRE_HD Slot SlotAt(int32_t seq, TokenCount position) const {
    return SlotOfPosition(Row(seq), page_size, position);
  }
  // Keys that query token `query` (counted over the step) of `seq` sees.
  QUIRE_HD TokenCount Visible(int32_t seq, TokenCount query) const {
    return VisibleKeys(Lengths(seq), query - q_offset[static_cast<size_t>(seq)], TreeMask(query),
                       mask_words);
  }
  // The row position of the p-th key in the order in which `query` sums its keys; p < Visible().
  // The identity below committed; from there on the p-th node of the query's path.
  QUIRE_HD TokenCount KeyPosition(int32_t seq, TokenCount query, TokenCount p) const {
    return PositionOfKey(committed[static_cast<size_t>(seq)], p, TreeMask(query), mask_words);
  }
};

// Throws Error(kInvalidArgument) for sequences in host memory.
void RequireOnDevice(const Sequences& plan);

// How one kernel's work over the sequences is cut, and dealt to its workers.
struct Schedule {
  WorkShape work;
  std::span<const QueryTile> tiles;
  std::span<const WorkerStart> workers;  // [work.num_workers + 1]
  std::span<const Merge> merges;
  // [num_workers, work.ctas], of a merge and a CTA's share of it, where workers are several CTAs: kernels count there
  // who has stored a partial, and whoever is last folds and leaves 0. Nothing else of a plan is written.
  std::span<int32_t> arrived;
  int32_t num_partials = 0;
  const ScheduleCounts* counts = nullptr;
};

// A step's sequences, and the schedule of the kernel that reads this.
struct Plan : Sequences, Schedule {
  // Of a plan in host memory. Throws InternalError unless:
  // 1. Sequences have rows of the table, and pages of the pool as far as their keys reach.
  // 2. Tiles partition the query tokens, in order or as the work shape deals them out, and each ends where its queries'
  //    sight ends, or what the work shape has them read of it.
  // 3. Worker starts ascend from the first split of the first tile to the end.
  // 4. Partials are numbered 0..num_partials - 1 in (tile, split) order.
  // 5. Merges are exactly the cut tiles; their partials are disjoint and complete.
  // 6. Where workers are several CTAs every merge has its counts, and nobody has arrived.
  void CheckInvariants() const;

 private:
  void CheckRows() const;      // 1
  void CheckTiles() const;     // 2
  void CheckSchedule() const;  // 3, 4, 5
  void CheckArrived() const;   // 6
  int32_t ExpectedPartials(size_t first) const;
};
static_assert(std::is_trivially_copyable_v<Plan>, "kernels take it by value");

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_H_
