// What the host sends to the device for one step: lengths, trees, and the pages that are new.
//
// Page lists stay on the device. A sequence holds a row of PageRows while it runs; a step names the
// rows of its sequences and brings only the pages that a row does not have yet. No CUDA in here: the
// host fills a block of memory, and another block of the same form lies on the device.
#ifndef QUIRE_ATTN_CUDA_STEP_PACK_H_
#define QUIRE_ATTN_CUDA_STEP_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/units.h"

namespace quire::cuda {

// A padded row holds no pages, and so no row of PageRows.
inline constexpr int32_t kNoRow = -1;

// The most tokens of a row: positions, and a few thousand added to one, fit int32.
inline constexpr TokenCount kMaxRowTokens{int64_t{1} << 30};

// ---- The block ----

// Both are aligned so that a kernel's thread has all of a row by three 16-byte loads.
struct alignas(16) PackedHeader {
  int32_t num_seqs = 0;
  int32_t num_words = 0;
};

// One row of the step.
struct alignas(16) PackedSequence {
  int32_t row = kNoRow;  // of PageRows
  int32_t q_len = 0;
  int32_t kv_len = 0;
  int32_t num_nodes = 0;
  int32_t parents_begin = 0;  // in words: num_nodes parents
  // Pages [first_new, first_new + num_new) of the row are new: the step brings them. The list ends
  // with them.
  int32_t first_new = 0;
  int32_t num_new = 0;
  int32_t new_begin = 0;  // in words: num_new page ids
  // Entries [fill_begin, fill_end) of the plan's own table row are to be written: the others are
  // what they must be already. fill_begin <= first_new.
  int32_t fill_begin = 0;
  int32_t fill_end = 0;

  friend bool operator==(const PackedSequence&, const PackedSequence&) = default;
};

// The parts of a block, on either side.
struct PackedStep {
  PackedHeader* header = nullptr;
  PackedSequence* seqs = nullptr;  // [capacity.num_seqs], those past num_seqs as well
  int32_t* words = nullptr;        // [num_words] parents and page ids
};

// How large a block is: with room for the trees of every sequence and `new_pages` pages in all. Where
// more are new at once (long prompts found in the prefix tree), steps that compute nothing bring them
// before: sequences of q_len 0 and kv_len 0 with a row and the first part of their pages.
int64_t PackedWords(const StepCapacity& capacity, PageCount new_pages);
ByteOffset PackedStepBytes(const StepCapacity& capacity, PageCount new_pages);
// The parts of a block that begins at `block`, a multiple of 16.
PackedStep PackedAt(std::byte* block, const StepCapacity& capacity);

// ---- The rows ----

// The host's knowledge of the page lists on the device: how long each is, and whether one that was
// read before can have changed. Used by every plan of a runner.
class PageRows {
 public:
  // `pages`: [num_rows, width], of the device; never touched here. Throws Error(kInvalidArgument) if
  // that is too short.
  PageRows(int32_t num_rows, PageCount width, std::span<PageId> pages);

  static int64_t Entries(int32_t num_rows, PageCount width) { return (width * num_rows).raw(); }

  int32_t num_rows() const { return static_cast<int32_t>(rows_.size()); }
  PageCount width() const { return width_; }
  PageId* pages() const { return pages_.data(); }

  // Pages that the row holds.
  PageCount held(int32_t row) const { return rows_[static_cast<size_t>(row)].held; }
  // Grows whenever pages that the row held were dropped or replaced.
  int64_t rewrites(int32_t row) const { return rows_[static_cast<size_t>(row)].rewrites; }

  // From now on the row holds `count` pages, of which it had the first `unchanged`.
  void Set(int32_t row, PageCount unchanged, PageCount count);

 private:
  struct Row {
    PageCount held;
    int64_t rewrites = 0;
  };
  PageCount width_;
  std::span<PageId> pages_;
  std::vector<Row> rows_;
};

// ---- Packing ----

// Where a sequence's pages are.
struct RowUse {
  int32_t row = kNoRow;
  PageCount unchanged{0};  // the row holds this many of the sequence's pages already
};

class StepPacker {
 public:
  // `block` has PackedStepBytes(capacity, new_pages) bytes that the host can write. `rows` outlives
  // this. Throws Error(kInvalidArgument) if a row of pages cannot hold a row of the plan, and
  // Error(kOverflow) for a capacity whose counts do not fit int32.
  StepPacker(const StepCapacity& capacity, PageCount new_pages, PageRows& rows,
             std::span<std::byte> block);

  // Fills the block; the device has it when as many bytes of it as this returns are copied there.
  // uses[b] is for seqs[b]. Throws as quire::PlanStorage::Make, and Error(kInvalidArgument) for a row
  // that is not there, is named twice or does not hold what it should, and Error(kCapacityExceeded)
  // for more than new_pages new pages; then nothing has changed.
  ByteOffset Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses);

 private:
  // What the plan's page table row holds: the first `filled` pages of `row` as it was then.
  struct TableRow {
    int32_t row = kNoRow;
    int64_t rewrites = 0;
    PageCount filled;
  };

  void Check(std::span<const SequenceStep> seqs, std::span<const RowUse> uses);
  void CheckUse(size_t b, const SequenceStep& seq, const RowUse& use);
  int32_t AddWords(std::span<const int32_t> words);
  PackedSequence PackOne(const SequenceStep& seq, const RowUse& use, TableRow& table);

  StepCapacity capacity_;
  PageCount new_pages_;
  PageRows& rows_;
  PackedStep packed_;
  std::vector<TableRow> table_;    // [capacity.num_seqs]
  std::vector<int64_t> named_in_;  // [page rows] the last Pack that named the row
  int64_t num_packs_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_STEP_PACK_H_
