#include "attn/checks.h"

#include <algorithm>
#include <iterator>

#include "attn/page_ranges.h"
#include "base/error.h"

namespace quire {
namespace {

void CheckTree(size_t b, const SequenceStep& seq) {
  if (seq.tree_parents.empty()) return;
  Require(seq.num_nodes() >= seq.q_len,
          "plan: sequence {}: tree nodes: expected at least q_len {}, got {}", b, seq.q_len,
          seq.num_nodes());
  for (size_t i = 0; i < seq.tree_parents.size(); ++i) {
    const int32_t parent = seq.tree_parents[i];
    Require(parent >= kTreeRoot && parent < static_cast<int32_t>(i),
            "plan: sequence {}: tree_parents[{}]: expected {}..{}, got {}", b, i, kTreeRoot,
            static_cast<int64_t>(i) - 1, parent);
  }
}

}  // namespace

void RequireInt32(const char* buffer, const char* what, int64_t value) {
  if (value > kMaxInt32) {
    throw Error(ErrorCode::kOverflow, "{}: {} {} does not fit int32", buffer, what, value);
  }
}

void RequireEntries(const char* buffer, size_t actual, int64_t sized) {
  Require(static_cast<int64_t>(actual) >= sized, "{}: expected a span of {} entries, got {}",
          buffer, sized, actual);
}

void CheckNumSeqs(const char* consumer, std::span<const SequenceStep> seqs,
                  const StepCapacity& capacity) {
  if (std::ssize(seqs) > capacity.num_seqs) {
    ThrowCapacity(consumer, std::ssize(seqs), "num_seqs", capacity.num_seqs,
                  fmt::format("num_seqs ({})", ToString(capacity)));
  }
}

void CheckLengths(const char* consumer, std::span<const SequenceStep> seqs) {
  for (size_t b = 0; b < seqs.size(); ++b) {
    const SequenceStep& seq = seqs[b];
    Require(seq.q_len >= TokenCount(0), "{}: sequence {}: q_len: expected >= 0, got {}", consumer,
            b, seq.q_len);
    Require(seq.kv_len >= TokenCount(0), "{}: sequence {}: kv_len: expected >= 0, got {}", consumer,
            b, seq.kv_len);
    Require(seq.num_nodes() <= seq.kv_len,
            "{}: sequence {}: tree nodes: expected at most kv_len {}, got {}", consumer, b,
            seq.kv_len, seq.num_nodes());
  }
}

void CheckPlanLengths(std::span<const SequenceStep> seqs, const StepCapacity& capacity) {
  CheckNumSeqs("plan", seqs, capacity);
  CheckLengths("plan", seqs);
  TokenCount query_tokens{0};
  for (size_t b = 0; b < seqs.size(); ++b) {
    const SequenceStep& seq = seqs[b];
    CheckTree(b, seq);
    if (seq.kv_len > capacity.KvTokens()) {
      ThrowCapacity("plan.page_table", seq.kv_len.raw(), fmt::format("kv_len of sequence {}", b),
                    capacity.KvTokens().raw(), "context + tree_nodes (" + ToString(capacity) + ")");
    }
    if (seq.num_nodes() > capacity.tree_nodes) {
      ThrowCapacity("plan.tree_masks", seq.num_nodes().raw(),
                    fmt::format("tree nodes of sequence {}", b), capacity.tree_nodes.raw(),
                    "tree_nodes (" + ToString(capacity) + ")");
    }
    query_tokens += seq.q_len;
  }
  if (query_tokens > capacity.query_tokens) {
    ThrowCapacity("plan.query_tokens", query_tokens.raw(),
                  fmt::format("sum of q_len over {} sequences", seqs.size()),
                  capacity.query_tokens.raw(), "query_tokens (" + ToString(capacity) + ")");
  }
}

void CheckPageIds(const char* consumer, int64_t b, std::span<const PageId> pages,
                  PageCount pool_pages) {
  if (pages.empty()) return;
  // Both bounds in one plain loop, which compilers turn into vector code.
  int32_t low = pages[0].raw(), high = low;
  for (PageId page : pages) {
    low = std::min(low, page.raw());
    high = std::max(high, page.raw());
  }
  Require(low > kScratchPage.raw() && PageCount(high) < pool_pages,
          "{}: sequence {}: page ids: expected 1..{} (a pool of {} pages), got {}", consumer, b,
          pool_pages.raw() - 1, pool_pages, low <= kScratchPage.raw() ? low : high);
}

void CheckPages(const PageNeed& need, std::span<const SequenceStep> seqs,
                const StepCapacity& capacity, Executor& executor) {
  PageGrid grid{.num_rows = std::ssize(seqs)};
  for (int64_t b = 0; b < std::ssize(seqs); ++b) {
    const SequenceStep& seq = seqs[Index(b)];
    const PageCount pages = need.pages_of_row(b);
    Require(PageCount(seq.pages.size()) >= pages,
            "{}: sequence {}: pages: expected {} ({} {}, page_size {}), got {}", need.consumer, b,
            pages, need.reach, seq.kv_len, capacity.page_size, seq.pages.size());
    grid.longest_row = Max(grid.longest_row, pages);
  }
  ForEachPageRange(
      grid, need.pages_of_row, executor, [&](int64_t b, PageCount begin, PageCount end) {
        const auto pages =
            seqs[Index(b)].pages.subspan(Index(begin.raw()), Index((end - begin).raw()));
        CheckPageIds(need.consumer, b, pages, capacity.pool_pages);
      });
}

void CheckPages(const char* consumer, std::span<const SequenceStep> seqs,
                const StepCapacity& capacity, Executor& executor) {
  const auto pages_of_row = [&](int64_t b) {
    return capacity.page_size.PagesFor(seqs[Index(b)].kv_len);
  };
  CheckPages({.consumer = consumer, .reach = "kv_len", .pages_of_row = pages_of_row}, seqs,
             capacity, executor);
}

}  // namespace quire
