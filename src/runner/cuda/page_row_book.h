// Which row of pages on the device belongs to which sequence, and what is in it.
//
// A sequence keeps its row from step to step, so that a step brings only the pages that are new. What
// a row holds is compared, never assumed: a sequence may lose its pages and get others. No CUDA in
// here.
#ifndef QUIRE_RUNNER_CUDA_PAGE_ROW_BOOK_H_
#define QUIRE_RUNNER_CUDA_PAGE_ROW_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/cuda/step_pack.h"
#include "attn/sequence_step.h"
#include "base/units.h"

namespace quire::cuda {

class PageRowBook {
 public:
  // For rows of up to `width` pages. Nothing is taken from the heap later.
  PageRowBook(int32_t num_rows, PageCount width);

  // Gives every sequence of a step a row: the one that it had, or the one that was not used for the
  // longest time. ids[i] is that of seqs[i], 0 if unknown; there are no more sequences than rows.
  // uses[i] says which row, and how many of seqs[i].pages it holds already.
  void Assign(std::span<const uint64_t> ids, std::span<const SequenceStep> seqs,
              std::span<RowUse> uses);

  // The row holds these pages now, of which it had the first `unchanged`.
  void Set(int32_t row, PageCount unchanged, std::span<const PageId> pages);

  // What rows hold is unknown: nothing of it will be taken for unchanged.
  void ForgetPages();

 private:
  PageCount UnchangedPages(int32_t row, std::span<const PageId> pages) const;
  int32_t LongestUnused() const;

  std::vector<uint64_t> ids_;               // [rows]; 0: nobody's
  std::vector<int64_t> used_in_;            // [rows] the last step
  std::vector<std::vector<PageId>> pages_;  // [rows]
  int64_t num_steps_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_PAGE_ROW_BOOK_H_
