#include "testing/invariants/trial.h"

#include <algorithm>

#include "base/maths.h"
#include "base/units.h"

namespace quire::testing {

std::vector<int32_t> Trial::PaddedRow(int64_t b, int64_t width, int32_t fill) const {
  std::vector<int32_t> row(Index(width), fill);
  const int64_t pages = b < num_rows() ? CeilDiv(KvLen(b), page()) : 0;
  for (int64_t j = 0; j < pages; ++j) row[Index(j)] = batch.seqs[Index(b)].pages[Index(j)].raw();
  return row;
}

std::vector<SequenceStep> Trial::CommittedSteps() const {
  std::vector<SequenceStep> steps = batch.seqs;
  for (size_t b = 0; b < steps.size(); ++b) {
    if (steps[b].tree_parents.empty()) steps[b].kv_len = TokenCount(batch.committed[b]);
  }
  return steps;
}

LongestRow LongestOf(const Trial& trial) {
  const auto longest = std::max_element(
      trial.batch.seqs.begin(), trial.batch.seqs.end(),
      [](const SequenceStep& a, const SequenceStep& b) { return a.kv_len < b.kv_len; });
  return {.seq = *longest,
          .capacity = CapacityOf({&*longest, 1}, trial.config.page_size, trial.bucket.pool_pages)};
}

}  // namespace quire::testing
