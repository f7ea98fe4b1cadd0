// How large the arrays for other engines' kernels are (interop/export.h): one sizing function for each,
// of the step's capacity. As in attn/capacity.h, a buffer is allocated and its writer bounded by the
// same function, and every function is monotone in every factor.
#ifndef QUIRE_INTEROP_CAPACITY_H_
#define QUIRE_INTEROP_CAPACITY_H_

#include <cstdint>

#include "attn/capacity.h"
#include "base/faults.h"
#include "base/units.h"

namespace quire {

// Row offsets of a flat form: [num_seqs + 1].
int64_t IndptrEntries(const StepCapacity& capacity);

// Flat token indices: one entry per key. Written: the sum of kv_len.
TokenCount FlatIndexEntries(const StepCapacity& capacity, Faults faults = {});

// Flat page indices: one entry per page. Written: the sum of PagesFor(kv_len).
PageCount FlatPageEntries(const StepCapacity& capacity);

// How wide a kernel wants its padded block table, and which page sizes it can take.
enum class BlockTableRule {
  kCeil,           // any page size: as many pages as hold the tokens
  kFlashMlaEager,  // 64: as many as hold the tokens
  kFlashMlaGraph,  // 64: (tokens + 64) / 64, rounded down
  kCutlassEager,   // 128: as many as hold the tokens
  kCutlassGraph,   // 128: (tokens + 128) / 128, rounded down
  kTrtllm,         // 32 or 64: rounded up to lcm(128 / page size, 4096 / page size)
};
const char* BlockTableRuleName(BlockTableRule rule);

// The width of a table whose longest row holds `tokens`. Throws Error(kInvalidArgument) naming the
// rule and its page sizes if the kernel cannot take this one.
PageCount BlockTableWidth(BlockTableRule rule, PageSize page_size, TokenCount tokens);
// The same for KvTokens(): a row at the context limit has room for its draft tokens too.
PageCount BlockTableWidth(BlockTableRule rule, const StepCapacity& capacity);
int64_t BlockTableEntries(BlockTableRule rule, const StepCapacity& capacity);  // [num_seqs, width]

// The page table of unified attention. Its own buffer, never a part of the flat one.
PageCount UnifiedPageTableWidth(const StepCapacity& capacity);
int64_t UnifiedPageTableEntries(const StepCapacity& capacity);  // [num_seqs, width]

// One step's row of draft indices: every branch repeats its sequence's prefix and adds its drafts.
// Written at step i: branches * (sum of committed + num_seqs * (i + 1)).
struct DraftShape {
  int32_t branches = 1;
  int32_t steps = 1;
};
void Validate(const DraftShape& shape);
TokenCount DraftRowEntries(const StepCapacity& capacity, const DraftShape& shape,
                           Faults faults = {});
int64_t DraftIndptrEntries(const StepCapacity& capacity, const DraftShape& shape);  // of one step
int64_t DraftSlotEntries(const StepCapacity& capacity,
                         const DraftShape& shape);  // [num_seqs, branches, steps]
// Tokens that a page list must reach beyond the committed ones before drafting in this form,
// wherever they end in their page. Our own trees need branches * steps.
TokenCount DraftReserve(PageSize page_size, const DraftShape& shape);

// The two tables of paged drafting: the full pages of the prefix, once per sequence, and the pages
// from there to the newest draft, once per branch.
PageCount DraftPrefixWidth(const StepCapacity& capacity);
int64_t DraftPrefixEntries(const StepCapacity& capacity);  // [num_seqs, width]
PageCount DraftBranchWidth(const StepCapacity& capacity, const DraftShape& shape);
int64_t DraftBranchEntries(const StepCapacity& capacity,
                           const DraftShape& shape);  // one step's [num_seqs * branches, width]

}  // namespace quire

#endif  // QUIRE_INTEROP_CAPACITY_H_
