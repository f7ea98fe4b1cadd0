// One batch under test, and what the checks of it share.
#ifndef QUIRE_TESTING_INVARIANTS_TRIAL_H_
#define QUIRE_TESTING_INVARIANTS_TRIAL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/executor.h"
#include "testing/invariants/random_config.h"
#include "testing/invariants/serving.h"
#include "testing/red_zone.h"

namespace quire::testing {

// A helper that used ASSERT has returned early: so does its caller.
#define QUIRE_RETURN_IF_FAILED() \
  if (::testing::Test::HasFailure()) return

// Calls fn, which must throw Error(code).
template <class Fn>
void ExpectRefused(const char* what, ErrorCode code, Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << what << ": " << error.what();
    return;
  }
  ADD_FAILURE() << what << ": expected an Error(" << ErrorCodeName(code) << ")";
}

struct Trial {
  const RandomConfig& config;
  const Batch& batch;
  StepCapacity eager;   // the batch's own
  StepCapacity bucket;  // the configuration's
  Executor& executor;
  Facts& facts;
  Random& random;

  int64_t page() const { return config.page_size.raw(); }
  int64_t num_rows() const { return std::ssize(batch.seqs); }
  int64_t KvLen(int64_t b) const { return batch.seqs[Index(b)].kv_len.raw(); }
  // The pages that hold row b, then `fill` up to `width`. Rows behind the batch are empty.
  std::vector<int32_t> PaddedRow(int64_t b, int64_t width, int32_t fill) const;
  // The sequences before they draft: committed tokens, or a tree behind them that does not count.
  std::vector<SequenceStep> CommittedSteps() const;
};

// The longest row of the batch alone: its buffers have no entry to spare.
struct LongestRow {
  SequenceStep seq;
  StepCapacity capacity;
};
LongestRow LongestOf(const Trial& trial);

// Entries begin .. begin + count.
template <class T>
std::vector<T> Values(RedZone<T>& zone, int64_t begin, int64_t count) {
  const auto part = zone.span().subspan(Index(begin), Index(count));
  return {part.begin(), part.end()};
}

// Nothing from entry `begin` on.
template <class T>
void ExpectUnwritten(RedZone<T>& zone, int64_t begin) {
  T untouched;
  std::memset(&untouched, RedZone<T>::kFill, sizeof(T));
  const auto rest = zone.span().subspan(Index(begin));
  EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [&](T entry) { return entry == untouched; }))
      << "written past the last entry";
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_TRIAL_H_
