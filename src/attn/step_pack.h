// A step as a block of memory: lengths, trees, rows, and the pages that are new.
//
// A sequence holds a row of a table of pages while it runs; a step names the rows of its sequences and
// brings only the pages that a row does not have yet. The host fills a block, and makes the plan of it
// (attn/plan_build.h), or has it copied to a device that does.
#ifndef QUIRE_ATTN_STEP_PACK_H_
#define QUIRE_ATTN_STEP_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/host_device.h"
#include "base/units.h"

namespace quire {

// A padded row holds no pages, and so no row of PageRows.
inline constexpr int32_t kNoRow = -1;

// The most tokens of a row: positions, and a few thousand added to one, fit int32.
inline constexpr TokenCount kMaxRowTokens{int64_t{1} << 30};

// ---- The rows ----

// The memory of the page lists of all sequences that run, of the host or of a device. Which row is
// whose is not known here.
struct PageRows {
  int32_t num_rows = 0;
  PageCount width;
  std::span<PageId> pages = {};  // [num_rows, width]

  static int64_t Entries(int32_t num_rows, PageCount width) { return (width * num_rows).raw(); }
};

// Where a sequence's pages are.
struct RowUse {
  int32_t row = kNoRow;
  PageCount unchanged{0};  // the row holds this many of the sequence's pages already
};

// ---- The block ----

// Both are aligned so that a kernel's thread has all of a row by 16-byte loads.
struct alignas(16) PackedHeader {
  int32_t num_seqs = 0;
  int32_t num_words = 0;
  int32_t new_begin = 0;  // in words: num_new new pages
  int32_t num_new = 0;
};

// One row of the step.
struct alignas(16) PackedSequence {
  int32_t row = kNoRow;  // of PageRows
  int32_t q_len = 0;
  int32_t kv_len = 0;
  int32_t num_nodes = 0;
  int32_t parents_begin = 0;  // in words: num_nodes parents
  int32_t num_pages = 0;      // that the row lists, with those that the step brings
  int32_t is_expanded = 0;    // 1: no schedule of latent form has its queries

  friend bool operator==(const PackedSequence&, const PackedSequence&) = default;
};

// Page `index` of the sequence's row is `page` from now on.
struct NewPage {
  int32_t seq = 0;
  int32_t index = 0;
  int32_t page = 0;

  friend bool operator==(const NewPage&, const NewPage&) = default;
};
inline constexpr int32_t kNewPageWords = 3;

QUIRE_HD inline NewPage NewPageAt(const int32_t* words, int32_t i) {
  const int32_t* at = words + int64_t{kNewPageWords} * i;
  return {.seq = at[0], .index = at[1], .page = at[2]};
}

// The parts of a block, on either side.
struct PackedStep {
  PackedHeader* header = nullptr;
  PackedSequence* seqs = nullptr;  // [capacity.num_seqs], those past num_seqs as well
  int32_t* words = nullptr;        // [num_words] parents, then new pages
};

// How large a block is: with room for the trees of every sequence and `new_pages` pages in all. Where
// more are new at once (long prompts found in the prefix tree), steps that compute nothing bring them
// before: sequences of q_len 0 and kv_len 0 with a row and the first part of their pages.
int64_t PackedWords(const StepCapacity& capacity, PageCount new_pages);
ByteOffset PackedStepBytes(const StepCapacity& capacity, PageCount new_pages);
// The parts of a block that begins at `block`, a multiple of 16.
PackedStep PackedAt(std::byte* block, const StepCapacity& capacity);

// ---- Packing ----

class StepPacker {
 public:
  // `block` has PackedStepBytes(capacity, new_pages) bytes that the host can write. Throws
  // Error(kInvalidArgument) if a row of pages cannot hold a row of the plan, or the rows are not as
  // long as they say, and Error(kOverflow) for a capacity whose counts do not fit int32.
  StepPacker(const StepCapacity& capacity, PageCount new_pages, const PageRows& rows,
             std::span<std::byte> block);

  // Fills the block; a device has it when as many bytes of it as this returns are copied there.
  // uses[b] is for seqs[b]; of its pages only those that are new are looked at. Throws
  // Error(kInvalidArgument) for lengths, pages, trees or rows that cannot be, and
  // Error(kCapacityExceeded) for more than the capacity, or more than new_pages new pages; then
  // nothing has changed.
  ByteOffset Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses);

  // Throws as Pack does, but does not count new pages.
  void Check(std::span<const SequenceStep> seqs, std::span<const RowUse> uses);

 private:
  void CheckUse(size_t b, const SequenceStep& seq, const RowUse& use);
  void CheckNewPages(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) const;
  PackedSequence PackOne(const SequenceStep& seq, const RowUse& use);
  void PackNewPages(size_t b, const SequenceStep& seq, const RowUse& use);

  StepCapacity capacity_;
  PageCount new_pages_;
  int32_t num_rows_;
  PageCount row_width_;
  PackedStep packed_;
  std::vector<int64_t> named_in_;  // [page rows] the last Check that named the row
  int64_t num_checks_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ATTN_STEP_PACK_H_
