// A plan for aiter's persistent prefill kernel: which worker attends which queries to which keys.
//
// The kernel's key ranges, kv_indptr and the array it dereferences must count the same thing, or it
// reads a fraction of the context and says nothing (sglang #25556). So what they count, the block,
// is a type: the planner makes kv_indptr itself, and a plan in pages is not a plan in tokens.
#ifndef QUIRE_INTEROP_PREFILL_PLAN_H_
#define QUIRE_INTEROP_PREFILL_PLAN_H_

#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/faults.h"
#include "base/units.h"

namespace quire {

// Every token is a block: the kernel reads slots (FlatIndices) or rows gathered in their order.
struct TokenBlocks {
  static TokenCount BlockTokens(PageSize) { return TokenCount(1); }
  static int64_t BlocksFor(PageSize, TokenCount tokens) { return tokens.raw(); }
};

// Every page is a block: the kernel reads page ids (FlatPages), and of a row's last page only the
// keys below kv_lens.
struct PageBlocks {
  static TokenCount BlockTokens(PageSize page_size) { return page_size.tokens(); }
  static int64_t BlocksFor(PageSize page_size, TokenCount tokens) {
    return page_size.PagesFor(tokens).raw();
  }
};

enum class PrefillMask {
  kCausal,  // query j of q_len sees the first kv_len - q_len + j + 1 keys
  kFull,    // every query sees every key
};

struct PrefillShape {
  int32_t num_heads_k = 1;
  int32_t heads_per_key_head = 1;     // query heads that share a key head
  int32_t num_workers = 1;            // compute units
  TokenCount max_q_len{1};            // of one sequence
  TokenCount query_granularity{256};  // queries of one tile
  TokenCount kv_granularity{128};     // keys: tiles are cut at multiples; a multiple of the block
  PrefillMask mask = PrefillMask::kCausal;
};
// Throws Error(kInvalidArgument) naming the field and its value. Granularities are 1..INT32_MAX.
void Validate(const PrefillShape& shape);

// Values of one work_info record, in order.
enum WorkField {
  kWorkSeq,
  kWorkPartialRow,  // first row of the partial result; -1: this piece is the whole tile
  kWorkQueryBegin,  // query tokens, counted over the step
  kWorkQueryEnd,
  kWorkKvBegin,  // blocks, counted like kv_indptr
  kWorkKvEnd,
  kWorkKvOffset,  // keys of the sequence behind this piece; 0 for the last piece of a tile
  kWorkHeads,     // first query head | (last + 1) << 16
  kNumWorkFields,
};

int64_t PrefillQueryTiles(const StepCapacity& capacity, const PrefillShape& shape);
int64_t PrefillWorks(const StepCapacity& capacity, const PrefillShape& shape);
int64_t PrefillPartials(const StepCapacity& capacity, const PrefillShape& shape);
// Rows of the kernel's buffer of partial results; PartialRow values are below this.
int64_t PrefillPartialRows(const StepCapacity& capacity, const PrefillShape& shape);

// Worker w runs works work_indptr[w] .. work_indptr[w + 1]. A tile (query_granularity queries of
// one sequence and one key head) that fits no single worker is cut in pieces, whose results stage
// two merges by LSE: group g writes query tokens reduce_final_map[g] from the rows that
// reduce_partial_map[reduce_indptr[g] .. reduce_indptr[g + 1]] begin, the same for every head.
// Every query tile has a work, one without a visible key too: somebody must write its zeros.
//
// Invariants:
// 1. The pieces of a tile, in order, partition the blocks of [0, visible keys of its last query),
//    rounded up to kv_granularity but not past the sequence's own.
// 2. A tile has either one piece and partial row -1, or a group whose partials are its pieces'.
struct PrefillArrays {
  std::span<int32_t> qo_indptr;         // [num_seqs + 1] query tokens
  std::span<int32_t> kv_indptr;         // [num_seqs + 1] blocks
  std::span<int32_t> kv_lens;           // [num_seqs] tokens
  std::span<int32_t> work_indptr;       // [num_workers + 1]
  std::span<int32_t> work_info;         // [PrefillWorks, kNumWorkFields]; past the last: unwritten
  std::span<int32_t> reduce_indptr;     // [PrefillQueryTiles + 1], the tail holds the total
  std::span<int32_t> reduce_final_map;  // [PrefillQueryTiles, 2] first and last + 1, then 0
  std::span<int32_t> reduce_partial_map;  // [PrefillPartials], then 0
};

template <class Block>
struct PrefillPlan {
  PrefillShape shape;
  PrefillArrays arrays;
};

// Writes the plan of the sequences' q_len and kv_len; their pages are not looked at. Throws as the
// exporters of interop/export.h do, and allocates nothing. Block is TokenBlocks or PageBlocks.
template <class Block>
void PlanPrefill(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                 const PrefillPlan<Block>& out, Faults faults = {});

}  // namespace quire

#endif  // QUIRE_INTEROP_PREFILL_PLAN_H_
