// A plan as kernels take it: addresses and numbers, by value.
//
// Its functions are Plan's own, and answer the same (attn/plan.h). They run on the host too, over a
// plan in host memory: so the tests compare them without a device.
#ifndef QUIRE_ATTN_CUDA_PLAN_VIEW_CUH_
#define QUIRE_ATTN_CUDA_PLAN_VIEW_CUH_

#include <cstdint>
#include <type_traits>

#include "attn/plan.h"
#include "attn/plan_elements.h"
#include "base/host_device.h"
#include "base/units.h"

namespace quire::cuda {

struct PlanView {
  PageSize page_size{1};
  PageCount pool_pages;
  WorkShape work;
  // How much of the arrays the step uses: to be read when the kernel runs. A CTA past it returns.
  const PlanCounts* counts = nullptr;

  PageCount table_width;
  const PageId* page_table = nullptr;     // [capacity rows, table_width], 0 past a row's pages
  const TokenCount* kv_len = nullptr;     // [capacity rows], 0 past num_seqs
  const TokenCount* committed = nullptr;  // [capacity rows], kv_len where there is no tree
  const TokenCount* q_offset = nullptr;   // [capacity rows + 1], the total past num_seqs

  int32_t mask_words = 0;
  const uint64_t* tree_masks = nullptr;  // [query tokens, mask_words]; written for trees only

  const QueryTile* tiles = nullptr;      // [num_tiles]
  const WorkerStart* workers = nullptr;  // [work.num_workers + 1]
  const Merge* merges = nullptr;         // [num_merges]

  // Of the capacity, for grids: what counts hold is at most this.
  int32_t max_seqs = 0;
  int32_t max_query_tokens = 0;
  int32_t max_tiles = 0;
  int32_t max_merges = 0;
  int32_t max_partials = 0;

  QUIRE_HD TokenCount QLen(int32_t seq) const { return q_offset[seq + 1] - q_offset[seq]; }
  QUIRE_HD bool IsTree(int32_t seq) const { return committed[seq] != kv_len[seq]; }
  QUIRE_HD SequenceLengths Lengths(int32_t seq) const {
    return {.q_begin = q_offset[seq],
            .q_len = QLen(seq),
            .kv_len = kv_len[seq],
            .committed = committed[seq]};
  }
  QUIRE_HD const uint64_t* TreeMask(TokenCount query) const {
    return tree_masks + query.raw() * mask_words;
  }
  // The sequence's table_width pages.
  QUIRE_HD const PageId* Row(int32_t seq) const { return page_table + (table_width * seq).raw(); }
  QUIRE_HD Slot SlotAt(int32_t seq, TokenCount position) const {
    return SlotOfPosition(Row(seq), page_size, position);
  }
  QUIRE_HD TokenCount Visible(int32_t seq, TokenCount query) const {
    return VisibleKeys(Lengths(seq), query - q_offset[seq], TreeMask(query), mask_words);
  }
  QUIRE_HD TokenCount KeyPosition(int32_t seq, TokenCount query, TokenCount p) const {
    return PositionOfKey(committed[seq], p, TreeMask(query), mask_words);
  }
};
static_assert(std::is_trivially_copyable_v<PlanView>);

// The view of a plan in device memory, for a kernel's arguments. Throws Error(kInvalidArgument) for
// one in host memory, which has no counts there.
PlanView ViewOf(const Plan& plan);  // in plan_arrays.cc: nvcc cannot compile its message

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_PLAN_VIEW_CUH_
