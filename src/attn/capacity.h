// One capacity for a step, and one sizing function per buffer.
//
// A buffer is allocated with its sizing function and its writer is bounded by the same function, in
// eager mode (capacity of the batch at hand), in graph mode (capacity of the bucket) and in tests.
// Every function is monotone in every factor, so what fits a bucket fits a larger one.
#ifndef QUIRE_ATTN_CAPACITY_H_
#define QUIRE_ATTN_CAPACITY_H_

#include <cstdint>
#include <span>
#include <string>

#include "attn/sequence_step.h"
#include "base/faults.h"
#include "base/units.h"

namespace quire {

struct StepCapacity {
  int32_t num_seqs = 1;        // rows of the padded bucket; may exceed the running-requests limit
  TokenCount query_tokens{1};  // of all sequences together, padding included
  TokenCount context{1};       // committed tokens of one sequence
  TokenCount tree_nodes{0};    // slots ahead of the committed tokens: max(branches * steps, nodes)
  PageSize page_size{64};
  PageCount pool_pages{1};  // pages of the pool, the scratch page included

  // The most keys one row can hold.
  TokenCount KvTokens() const { return context + tree_nodes; }
};

// How a kernel wants its work cut: the first two are the kernel's constants, the worker count is the
// machine's. In exact mode only the split is part of the order of summation: every split is summed
// by itself. Otherwise a worker sums what it has of a tile as one, which is faster, and bits depend
// on where workers begin, too: on the step's lengths, but not on its pages.
struct WorkShape {
  TokenCount query_tile{1};  // query tokens that share one pass over the keys
  TokenCount split{1024};    // splits begin at multiples of this, a multiple of kKeyTile
  int32_t num_workers = 1;
  bool exact = true;
};

// Keys a kernel handles at once, at absolute positions that are multiples of it. Part of the order
// of summation: changing it changes bits.
inline constexpr TokenCount kKeyTile{64};

// Throws Error(kInvalidArgument) naming the field and its value.
void Validate(const StepCapacity& capacity);
void Validate(const WorkShape& shape);

// "num_seqs 4, query_tokens 4, context 100, tree_nodes 0, page_size 64, pool_pages 9".
std::string ToString(const StepCapacity& capacity);

// The least capacity that holds these sequences: what eager mode uses.
StepCapacity CapacityOf(std::span<const SequenceStep> seqs, PageSize page_size,
                        PageCount pool_pages);

// ---- The plan's own buffers ----

PageCount PageTableWidth(const StepCapacity& capacity);  // entries per row
int64_t PageTableEntries(const StepCapacity& capacity);  // [num_seqs, width]
int32_t TreeMaskWords(const StepCapacity& capacity);     // 64-bit words per query token
int64_t TreeMaskEntries(const StepCapacity& capacity);   // [query_tokens, words]
int64_t MaxQueryTiles(const StepCapacity& capacity, const WorkShape& shape);
int64_t MaxSplits(const StepCapacity& capacity, const WorkShape& shape);    // of one query tile
int64_t MaxPartials(const StepCapacity& capacity, const WorkShape& shape);  // results to merge

// ---- Buffers for other engines' kernels (attn/export.h) ----

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

// Throws Error(kCapacityExceeded): "<buffer>: need N = <factors>, capacity M = <factors>".
[[noreturn]] void ThrowCapacity(const char* buffer, int64_t need, const std::string& need_factors,
                                int64_t capacity, const std::string& capacity_factors);

}  // namespace quire

#endif  // QUIRE_ATTN_CAPACITY_H_
