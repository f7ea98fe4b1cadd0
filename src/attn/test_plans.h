// What tests of plans have in common.
#ifndef QUIRE_ATTN_TEST_PLANS_H_
#define QUIRE_ATTN_TEST_PLANS_H_

#include <cstdint>
#include <vector>

#include "attn/capacity.h"
#include "base/units.h"

namespace quire {

// Pages first, first + 1, ...
inline std::vector<PageId> Pages(int32_t first, int64_t count) {
  std::vector<PageId> pages;
  for (int64_t i = 0; i < count; ++i) pages.push_back(PageId(first + i));
  return pages;
}

// A small plan's.
inline const StepCapacity kPlanCapacity{.num_seqs = 4,
                                        .query_tokens = TokenCount(40),
                                        .context = TokenCount(3000),
                                        .tree_nodes = TokenCount(8),
                                        .page_size = PageSize(16),
                                        .pool_pages = PageCount(1000)};
inline const WorkShape kWork{
    .query_tile = TokenCount(4), .split = TokenCount(1024), .num_workers = 3};

}  // namespace quire

#endif  // QUIRE_ATTN_TEST_PLANS_H_
