// The plan of a step: everything the attention kernels of every layer need to know of the batch.
//
// Making one is pure: the same sequences and shapes give the same plan. It is made once per step, and
// const from then on. Order of summation (exact mode, docs/numerics.md): keys in tiles of kKeyTile
// at absolute positions; tiles folded into splits that begin at multiples of WorkShape::split;
// splits folded in ascending order. How splits are dealt to workers changes no bit.
#ifndef QUIRE_ATTN_PLAN_H_
#define QUIRE_ATTN_PLAN_H_

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/plan_elements.h"
#include "attn/sequence_step.h"
#include "base/executor.h"
#include "base/faults.h"
#include "base/units.h"

namespace quire {

// Views into a PlanStorage; valid until its next Make.
//
// Or into a cuda::PlanStorage (attn/cuda/plan.h): then the spans hold addresses of device memory
// and the numbers are those of its capacity; `counts`, in device memory too, says how much of it
// the step at hand uses.
struct Plan {
  PageSize page_size{1};
  PageCount pool_pages;
  WorkShape work;
  int32_t num_seqs = 0;
  TokenCount num_query_tokens;

  PageCount table_width;
  std::span<const PageId> page_table;     // [capacity rows, table_width], 0 past a row's pages
  std::span<const TokenCount> kv_len;     // [num_seqs]
  std::span<const TokenCount> committed;  // [num_seqs], kv_len where there is no tree
  std::span<const TokenCount> q_offset;   // [num_seqs + 1]

  int32_t mask_words = 0;
  std::span<const uint64_t> tree_masks;  // [num_query_tokens, mask_words]: bit i = sees node i

  std::span<const QueryTile> tiles;
  std::span<const WorkerStart> workers;  // [work.num_workers + 1]
  std::span<const Merge> merges;
  int32_t num_partials = 0;
  const PlanCounts* counts = nullptr;  // of a plan in device memory only

  TokenCount QLen(int32_t seq) const {
    return q_offset[static_cast<size_t>(seq) + 1] - q_offset[static_cast<size_t>(seq)];
  }
  bool IsTree(int32_t seq) const {
    return committed[static_cast<size_t>(seq)] != kv_len[static_cast<size_t>(seq)];
  }
  SequenceLengths Lengths(int32_t seq) const {
    return {.q_begin = q_offset[static_cast<size_t>(seq)],
            .q_len = QLen(seq),
            .kv_len = kv_len[static_cast<size_t>(seq)],
            .committed = committed[static_cast<size_t>(seq)]};
  }
  std::span<const uint64_t> TreeMask(TokenCount query) const {
    return tree_masks.subspan(static_cast<size_t>(query.raw() * mask_words),
                              static_cast<size_t>(mask_words));
  }
  std::span<const PageId> Row(int32_t seq) const {
    return page_table.subspan(static_cast<size_t>((table_width * seq).raw()),
                              static_cast<size_t>(table_width.raw()));
  }
  // The slot of the token at `position` of the row; position < kv_len.
  Slot SlotAt(int32_t seq, TokenCount position) const {
    return SlotOfPosition(Row(seq).data(), page_size, position);
  }
  // Keys that query token `query` (counted over the step) of `seq` sees.
  TokenCount Visible(int32_t seq, TokenCount query) const;
  // The row position of the p-th key in the order in which `query` sums its keys; p < Visible().
  // The identity below committed; from there on the p-th node of the query's path.
  TokenCount KeyPosition(int32_t seq, TokenCount query, TokenCount p) const;

  // Throws InternalError unless:
  // 1. Rows hold pages of the pool, then zeros; rows past num_seqs hold zeros.
  // 2. Tiles partition the query tokens in order, and each ends where its queries' sight ends.
  // 3. Worker starts ascend from the first split of the first tile to the end.
  // 4. Partials are numbered 0..num_partials - 1 in (tile, split) order.
  // 5. Merges are exactly the cut tiles; their partials are disjoint and complete.
  void CheckInvariants() const;

 private:
  void CheckRows() const;      // 1
  void CheckTiles() const;     // 2
  void CheckSchedule() const;  // 3, 4, 5
  int32_t ExpectedPartials(size_t first) const;
};

// What a PlanStorage takes, at most: its arrays, each with the gap that aligns it.
ByteOffset PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape);

// The memory of plans, sized once from a capacity. Making a plan allocates nothing.
class PlanStorage {
 public:
  // Takes PlanStorageBytes(capacity, shape) from `memory`. Throws Error(kInvalidArgument) if a
  // factor is out of range.
  PlanStorage(const StepCapacity& capacity, const WorkShape& shape,
              std::pmr::memory_resource* memory = std::pmr::get_default_resource());
  PlanStorage(PlanStorage&&) = default;  // not copied: plans view this storage's memory
  PlanStorage& operator=(PlanStorage&&) = default;

  const StepCapacity& capacity() const { return capacity_; }
  const WorkShape& work() const { return shape_; }

  // Throws Error(kInvalidArgument) for lengths, pages or trees that cannot be and
  // Error(kCapacityExceeded) for more than the capacity; the last plan is then still whole.
  const Plan& Make(std::span<const SequenceStep> seqs, Executor& executor, Faults faults = {});

 private:
  void Check(std::span<const SequenceStep> seqs, Executor& executor) const;
  void FillPageTable(std::span<const SequenceStep> seqs, Executor& executor, Faults faults);
  void FillTreeMasks(const SequenceStep& seq, TokenCount q_begin);
  void FillTiles(std::span<const SequenceStep> seqs, Faults faults);
  void FillSchedule();

  StepCapacity capacity_;
  WorkShape shape_;
  Plan plan_;

  std::pmr::vector<PageId> page_table_;
  std::pmr::vector<int64_t> filled_pages_;  // entries of each row that may be non-zero
  std::pmr::vector<TokenCount> kv_len_, committed_, q_offset_;
  std::pmr::vector<uint64_t> tree_masks_;
  std::pmr::vector<QueryTile> tiles_;
  std::pmr::vector<int64_t> cost_before_;
  std::pmr::vector<WorkerStart> workers_;
  std::pmr::vector<Merge> merges_;
};

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_H_
