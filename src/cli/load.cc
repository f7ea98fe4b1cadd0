#include "cli/load.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/colour.h"
#include "cli/progress.h"
#include "runner/memory_plan.h"

namespace quire::cli {

void SayOnStderr(const std::string& text) { fmt::print(stderr, "{}\n", text); }

LoadEvents PrintLoading(LoadMessages messages, const SayLine& say) {
  LoadEvents events;
  events.warning = [say](const std::string& text) { say(Yellow("warning:") + " " + text); };
  if (messages == LoadMessages::kHidden) return events;
  const auto bar = std::make_shared<std::optional<LoadingBar>>();
  events.planned = [bar, say](const MemoryPlan& plan) {
    std::string table = ToTable(plan);
    if (table.ends_with('\n')) table.pop_back();
    say(table);
    bar->emplace(plan.weights, plan.num_ranks);
  };
  events.loaded = [bar](ByteOffset loaded) { (*bar)->Update(loaded); };
  events.ready = [bar, say] { say((*bar)->Finish()); };
  events.measured = [say](std::string table) {
    if (table.ends_with('\n')) table.pop_back();
    say(table);
  };
  return events;
}

PagePool MakePagePool(const RunnerLimits& limits) {
  return PagePool(limits.pool_pages - PageCount(1), limits.page_size);  // less the scratch page
}

std::vector<PageList> TakeSequences(PagePool& pool, int64_t count, TokenCount length) {
  std::vector<PageList> lists;
  for (int64_t i = 0; i < count; ++i) lists.emplace_back(pool.page_size());
  std::vector<ExtendRequest> requests;
  for (PageList& list : lists) requests.push_back({.list = &list, .new_length = length});
  if (!ExtendLists(pool, requests)) {
    throw Error(ErrorCode::kCapacityExceeded,
                "KV cache: {} sequences of {} tokens need {} pages of {} tokens, there are {}; "
                "--max-total-tokens sets how many",
                count, length, NewPagesFor(requests), pool.page_size(), pool.num_pages());
  }
  return lists;
}

}  // namespace quire::cli
