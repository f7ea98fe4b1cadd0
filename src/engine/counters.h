// What a scheduler counts, and what runs in it now: for metrics, and for someone who looks on.
#ifndef QUIRE_ENGINE_COUNTERS_H_
#define QUIRE_ENGINE_COUNTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "engine/request.h"

namespace quire {

// Everything one would graph. Counts since the start, but for the last block.
struct SchedulerCounters {
  static constexpr size_t kDraftDepths = 16;

  int64_t requests_added = 0;
  int64_t requests_refused = 0;
  int64_t answers_finished = 0;  // by any reason
  int64_t steps = 0;
  int64_t mixed_steps = 0;     // with prefill and decode in one
  int64_t prompt_tokens = 0;   // of admitted requests
  int64_t cached_tokens = 0;   // of those, found in the cache or computed with another
  int64_t prefill_tokens = 0;  // computed in chunks, after preemption once more
  int64_t output_tokens = 0;
  int64_t drafts = 0;           // steps of a sequence with tokens that were guessed
  int64_t draft_tokens = 0;     // that were
  int64_t accepted_tokens = 0;  // of those, right
  // Drafts that were right for so many tokens, and one more, by their number; not of deeper ones.
  std::array<int64_t, kDraftDepths> accepted_at = {};
  int64_t preemptions = 0;
  int64_t page_copies = 0;
  int64_t evicted_pages = 0;
  // Now:
  int64_t waiting = 0;
  int64_t running = 0;
  int64_t pages_free = 0;
  int64_t pages_cached = 0;  // held by the tree, and perhaps by sequences too
  int64_t pages_total = 0;

  SchedulerCounters& operator+=(const SchedulerCounters& more);
};

// What runs now, and who holds the pages: for someone who looks on.
struct SchedulerSnapshot {
  struct Running {
    RequestId request = 0;
    int32_t sample = 0;
    TokenCount prompt_tokens;
    TokenCount computed_tokens;  // of prompt and output; those from the cache count
    int64_t output_tokens = 0;
    PageCount pages;  // shared ones too
  };
  std::vector<Running> running;  // in the order of admission
  // Together all pages of the pool.
  PageCount pages_free;
  PageCount pages_cached;  // held by the prefix tree alone
  PageCount pages_in_use;  // by running sequences
  SchedulerCounters counters;

  SchedulerSnapshot& operator+=(const SchedulerSnapshot& more);
};

}  // namespace quire

#endif  // QUIRE_ENGINE_COUNTERS_H_
