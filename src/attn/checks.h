// Checks of a step's sequences that all its consumers make (the plan, and in interop the exporters and
// the prefill plan), before they write anything. For those two folders alone.
//
// Every check throws an Error whose message begins with the name of the consumer or of its buffer
// and says what was expected and what came.
#ifndef QUIRE_ATTN_CHECKS_H_
#define QUIRE_ATTN_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/executor.h"
#include "base/units.h"

namespace quire {

inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

inline size_t Index(int64_t i) { return static_cast<size_t>(i); }
// Throws Error(kOverflow) where plain numbers would wrap.
inline int64_t Product(int64_t a, int64_t b) { return (TokenCount(a) * b).raw(); }

// Throws Error(kOverflow) naming the buffer and `what` of it unless the value fits int32.
void RequireInt32(const char* buffer, const char* what, int64_t value);
// Throws Error(kInvalidArgument) if a span of `actual` entries is shorter than its sizing function
// says.
void RequireEntries(const char* buffer, size_t actual, int64_t sized);

// At most capacity.num_seqs sequences, or Error(kCapacityExceeded).
void CheckNumSeqs(const char* consumer, std::span<const SequenceStep> seqs,
                  const StepCapacity& capacity);

// No length is negative and no tree is longer than its row, or Error(kInvalidArgument).
void CheckLengths(const char* consumer, std::span<const SequenceStep> seqs);

// Everything a plan asks of lengths and trees, but not of pages: the two above, trees whose parents
// come before their children, and no more than the capacity.
void CheckPlanLengths(std::span<const SequenceStep> seqs, const StepCapacity& capacity);

// These pages of sequence `b` lie in the pool, or Error(kInvalidArgument).
void CheckPageIds(const char* consumer, int64_t b, std::span<const PageId> pages,
                  PageCount pool_pages);

// How many pages of each row a consumer reads, and what for.
struct PageNeed {
  const char* consumer;
  const char* reach;  // "kv_len", or what lies behind it
  FunctionRef<PageCount(int64_t row)> pages_of_row;
};

// Every row lists the pages it needs, and those lie in the pool, or Error(kInvalidArgument).
void CheckPages(const PageNeed& need, std::span<const SequenceStep> seqs,
                const StepCapacity& capacity, Executor& executor);
// The same where a row needs the pages of its kv_len.
void CheckPages(const char* consumer, std::span<const SequenceStep> seqs,
                const StepCapacity& capacity, Executor& executor);

}  // namespace quire

#endif  // QUIRE_ATTN_CHECKS_H_
