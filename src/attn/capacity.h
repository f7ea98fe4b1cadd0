// One capacity for a step, and one sizing function per buffer.
//
// A buffer is allocated with its sizing function and its writer is bounded by the same function, in
// eager mode (capacity of the batch at hand), in graph mode (capacity of the bucket) and in tests.
// Every function is monotone in every factor, so what fits a bucket fits a larger one.
#ifndef QUIRE_ATTN_CAPACITY_H_
#define QUIRE_ATTN_CAPACITY_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "attn/sequence_step.h"
#include "base/host_device.h"
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
  // What a tile costs beside its keys, in key tiles: its place to find, queries to read, results to write. At
  // least 1, so that empty rows cost something too.
  int32_t tile_cost = 1;
  // What it costs that a tile is cut, in key tiles: another start, and partials to write and fold.
  int32_t cut_cost = 4;
  // Workers that read keys as fast as all do, where memory bounds the kernel: whole tiles of fewer than all are read sooner,
  // down to so many. 0: all are needed.
  int32_t enough_workers = 0;
  // Tiles that are alike and fewer than workers are cut into equal parts, a worker for each, if that leaves
  // few workers idle: for a kernel that is slow to begin with another tile.
  bool even = false;
  // A sequence's tiles are dealt out from its end and its beginning in turn. Of a prompt those see many keys and few;
  // where no tile is cut, workers' shares are more alike so.
  bool from_both_ends = false;
  // CTAs of a cluster, if the kernel has such: a worker, whose pieces they share; in exact mode a worker each. They change
  // nothing of how work is cut.
  int32_t ctas = 1;
  // Of a kernel that does not read all keys that queries see: none of tiles that see no more than
  // `unread`, and of the others so many at most.
  TokenCount unread{0};
  TokenCount most_keys{std::numeric_limits<int64_t>::max()};

  // CTAs that count what their worker has stored of a merge.
  QUIRE_HD constexpr int64_t NumArrivals() const {
    return ctas > 1 && !exact ? int64_t{num_workers} * ctas : 0;
  }
  QUIRE_HD constexpr TokenCount KeysRead(TokenCount seen) const {
    return seen <= unread ? TokenCount(0) : Min(seen, most_keys);
  }
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

// Throws Error(kCapacityExceeded): "<buffer>: need N = <factors>, capacity M = <factors>".
[[noreturn]] void ThrowCapacity(const char* buffer, int64_t need, const std::string& need_factors,
                                int64_t capacity, const std::string& capacity_factors);

}  // namespace quire

#endif  // QUIRE_ATTN_CAPACITY_H_
