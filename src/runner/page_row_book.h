// Which row of pages belongs to which sequence, and what is in it.
//
// A sequence keeps its row from step to step, so that a step brings only the pages that are new: those
// behind its kept_pages. Nothing here looks at the others.
#ifndef QUIRE_RUNNER_PAGE_ROW_BOOK_H_
#define QUIRE_RUNNER_PAGE_ROW_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/sequence_step.h"
#include "attn/step_pack.h"
#include "base/units.h"
#include "step/step.h"

namespace quire {

class PageRowBook {
 public:
  // For rows of up to `width` pages. Nothing is taken from the heap later.
  PageRowBook(int32_t num_rows, PageCount width);

  // Gives every sequence of a step a row: the one that it had, or the one that was not used for the
  // longest time. seqs[i] is what batch[i] was packed as; there are no more sequences than rows.
  // uses[i] says which row, and how many of seqs[i].pages it holds already: those that the sequence
  // kept, and the row that was its own has. Where QUIRE_DCHECK checks, throws InternalError if these
  // are others.
  void Assign(std::span<const StepSequence> batch, std::span<const SequenceStep> seqs,
              std::span<RowUse> uses);

  // The row holds these pages now, of which it had the first `unchanged`.
  void Set(int32_t row, PageCount unchanged, std::span<const PageId> pages);

  // What rows hold is unknown: nothing of it will be taken for unchanged.
  void ForgetPages();

 private:
  PageCount UnchangedPages(int32_t row, PageCount kept, std::span<const PageId> pages) const;
  int32_t LongestUnused() const;

  std::vector<uint64_t> ids_;               // [rows]; 0: nobody's
  std::vector<int64_t> used_in_;            // [rows] the last step
  std::vector<std::vector<PageId>> pages_;  // [rows]
  int64_t num_steps_ = 0;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_PAGE_ROW_BOOK_H_
