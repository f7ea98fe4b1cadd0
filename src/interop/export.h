// Arrays for other engines' kernels, derived from the one truth about a row: its length and pages.
//
// Every exporter takes the step's sequences, the capacity its output was sized for, and the output:
// spans of the caller's, at least as long as the sizing functions of attn/capacity.h say. Before it
// writes anything it throws
//   Error(kInvalidArgument)   a negative length, a tree longer than its row, a page list too short,
//                             a page outside the pool, a span shorter than its sizing function
//   Error(kOverflow)          an offset, length or slot that does not fit the kernel's int32
//   Error(kCapacityExceeded)  more than the capacity: the buffer, the need with every factor, and
//                             the capacity with its own
// Tables bound every row by the capacity; flat forms, which have no rows, bound the sum.
// A padded row (kv_len 0) has no keys. Fewer sequences than capacity.num_seqs are padded: offsets
// repeat the total, lengths are 0, table rows hold only the fill value. Nothing is allocated.
#ifndef QUIRE_INTEROP_EXPORT_H_
#define QUIRE_INTEROP_EXPORT_H_

#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/executor.h"
#include "base/faults.h"
#include "base/host_device.h"
#include "base/units.h"
#include "interop/capacity.h"

namespace quire {

// ---- Flat forms (FlashInfer-MLA, aiter, Triton) ----

// kv_indices[kv_indptr[b] + j] is the slot of position j of sequence b: one entry per token at
// every page size. Entries past kv_indptr[num_seqs] are not written.
struct FlatIndices {
  std::span<int32_t> kv_indptr;   // [IndptrEntries] in tokens
  std::span<int32_t> kv_indices;  // [FlatIndexEntries] slots
};
void ExportFlatIndices(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                       const FlatIndices& out, Executor& executor, Faults faults = {});

// The same in pages. The last page of row b holds last_page_len[b] keys, 0 for an empty row.
struct FlatPages {
  std::span<int32_t> kv_indptr;      // [IndptrEntries] in pages
  std::span<int32_t> kv_pages;       // [FlatPageEntries] page ids
  std::span<int32_t> last_page_len;  // [num_seqs]
};
void ExportFlatPages(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                     const FlatPages& out, Executor& executor, Faults faults = {});

// ---- Padded tables ----

// table[b][j] is page j of sequence b, `fill` past its last page: the whole row is written. The
// scratch page is safe to load; FlashMLA and CUTLASS graphs expect 1, eager tables and TRT-LLM -1.
struct BlockTable {
  BlockTableRule rule = BlockTableRule::kCeil;
  int32_t fill = 0;
  std::span<int32_t> table;    // [num_seqs, BlockTableWidth]
  std::span<int32_t> kv_lens;  // [num_seqs]
};
void ExportBlockTable(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                      const BlockTable& out, Executor& executor, Faults faults = {});

// aiter's unified attention reads pages where its other kernels read flat tokens.
struct UnifiedPageTable {
  std::span<int32_t> table;    // [num_seqs, UnifiedPageTableWidth], 0 past a row's pages
  std::span<int32_t> kv_lens;  // [num_seqs]
};
void ExportUnifiedPageTable(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                            const UnifiedPageTable& out, Executor& executor, Faults faults = {});

// ---- Drafting with K branches and S steps (SGLang's EAGLE) ----
//
// The drafts hang behind the committed tokens (a step's own tree nodes do not count), and the page
// list reaches to the last branch's last draft.

// The position of the first draft of `branch`. Every branch owns whole pages from the committed
// tokens' last page boundary on, and begins at the same offset in its first page as the committed
// tokens end at. At page size 1, or with one branch, that is committed + branch * steps.
QUIRE_HD constexpr TokenCount DraftStart(TokenCount committed, int32_t branch,
                                         const DraftShape& shape, PageSize page_size) {
  const TokenCount rest(page_size.OffsetOf(committed));
  const PageCount branch_pages = page_size.PagesFor(rest + TokenCount(shape.steps));
  return committed + page_size.TokensIn(branch_pages) * branch;
}

// Step i's row of branch t of sequence b, number z = b * branches + t: the committed tokens, then
// the branch's first i + 1 drafts.
struct DraftRows {
  DraftShape shape;
  std::span<int32_t> kv_indptr;    // [steps, DraftIndptrEntries]
  std::span<int32_t> kv_indices;   // [steps, DraftRowEntries] slots
  std::span<int64_t> write_slots;  // [num_seqs, branches, steps]; padded rows write to slot 0
};
void ExportDraftRows(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                     const DraftRows& out, Executor& executor, Faults faults = {});

// FA3's page form. Its kernel runs twice and merges by LSE: the queries of all branches over the
// full pages of the prefix, then every branch over the rest of the prefix and its first i + 1
// drafts. The second pass reads the rest from the branch's own first page: before drafting the
// caller copies those rows of every payload there, for all branches but the first, whose page it
// is.
struct DraftTables {
  DraftShape shape;
  int32_t fill = 0;
  std::span<int32_t> prefix_table;  // [num_seqs, DraftPrefixWidth]
  std::span<int32_t> prefix_lens;   // [num_seqs] committed, rounded down to full pages
  std::span<int32_t> branch_table;  // [steps, num_seqs * branches, DraftBranchWidth]
  std::span<int32_t> branch_lens;   // [steps, num_seqs * branches] rest of the prefix + i + 1
};
void ExportDraftTables(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                       const DraftTables& out, Executor& executor, Faults faults = {});

}  // namespace quire

#endif  // QUIRE_INTEROP_EXPORT_H_
