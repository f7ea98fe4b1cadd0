#include "engine/page_policy.h"

#include <utility>

#include "base/error.h"

namespace quire {

StepPageCopy SequencePages::Copy() const {
  const PageCount index = list.page_size().FullPages(computed);
  const PageCopy copy = to_copy->CopyTo(list.PageIds()[static_cast<size_t>(index.raw())]);
  return {.from = copy.from, .to = copy.to, .count = static_cast<int32_t>(copy.count.raw())};
}

PagePolicy::PagePolicy(const RunnerLimits& limits, PrefixCache prefix_cache)
    : limits_(limits),
      prefix_cache_(prefix_cache),
      pool_(limits.pool_pages - PageCount(1), limits.page_size),
      tree_(std::make_unique<PrefixTree>(limits.page_size)) {
  Require(pool_.num_pages() >= limits.page_size.PagesFor(limits.context),
          "scheduler: pages: expected at least {} for a sequence of the context length {}, got {}",
          limits.page_size.PagesFor(limits.context), limits.context, pool_.num_pages());
}

bool PagePolicy::Admit(std::string_view salt, std::span<const int32_t> tokens, bool may_match,
                       int64_t num_running, SequencePages& pages) {
  const TokenCount length(tokens.size());
  PrefixMatch match;
  if (prefix_cache_ == PrefixCache::kOn && may_match) {
    const DraftLayer draft = limits_.has_draft_rows ? DraftLayer::kPresent : DraftLayer::kAbsent;
    match = tree_->Match(salt, tokens, draft);
  }
  if (Take(match, length, num_running, pages)) return true;
  // A page that is to be copied from cannot be evicted, and may be the one that is missing.
  if (!match.partial || num_running > 0) return false;
  match.length -= match.partial->count;
  match.partial.reset();
  return Take(match, length, num_running, pages);
}

// The full pages are shared, the last one is to be copied.
bool PagePolicy::AdmitFork(const SequencePages& parent, TokenCount prompt, int64_t num_running,
                           SequencePages& pages) {
  const PageCount full = limits_.page_size.FullPages(prompt);
  PrefixMatch match{.length = prompt, .pages = {}, .partial = {}};
  for (PageCount i{0}; i < full; i += PageCount(1)) match.pages.push_back(parent.list.SharePage(i));
  const TokenCount rest = prompt - limits_.page_size.TokensIn(full);
  if (rest > TokenCount(0)) {
    match.partial = PartialPage{.page = parent.list.SharePage(full), .count = rest};
  }
  return Take(match, prompt, num_running, pages);
}

// Takes what was matched and the pages it lacks, or nothing if there are too few even with all that can
// be evicted. That is found out first: a large request that waits for pages must not empty the cache
// over and over.
bool PagePolicy::Take(PrefixMatch& match, TokenCount length, int64_t num_running,
                      SequencePages& pages) {
  const PageCount need = limits_.page_size.PagesFor(length) - PageCount(match.pages.size());
  // Everyone who runs can grow by a page: otherwise the newcomer would be preempted at once.
  const PageCount room = need + PageCount(num_running);
  if (room > pool_.num_free()) {
    const PageCount missing = room - pool_.num_free();
    if (tree_->CountEvictable(missing) < missing) return false;
  }
  pages.list = PageList(limits_.page_size, std::move(match.pages));
  const ExtendRequest request{.list = &pages.list, .new_length = length};
  QUIRE_CHECK(Extend({&request, 1}), "{} pages could not be had", need);
  pages.computed = match.length;
  pages.kept = PageCount(0);
  pages.to_copy = std::move(match.partial);
  return true;
}

bool PagePolicy::Extend(std::span<const ExtendRequest> requests) {
  const PageCount need = NewPagesFor(requests);
  if (need > pool_.num_free()) num_evicted_ += tree_->Evict(need - pool_.num_free()).raw();
  return ExtendLists(pool_, requests).has_value();
}

bool PagePolicy::ExtendOrPreempt(PageList& list, TokenCount length,
                                 const std::function<bool()>& preempt) {
  const ExtendRequest request{.list = &list, .new_length = Max(list.length(), length)};
  while (!Extend({&request, 1})) {
    if (!preempt()) return false;
  }
  return true;
}

// Slots of the last page stay: others may hold it by now, and then the list could not have them again.
void PagePolicy::DropSpare(TokenCount length, SequencePages& pages) {
  const PageCount needed = limits_.page_size.PagesFor(length);
  if (PageCount(pages.list.PageIds().size()) <= needed) return;
  pages.list.Truncate(limits_.page_size.TokensIn(needed));
  pages.kept = Min(pages.kept, needed);
}

void PagePolicy::PublishPrompt(std::string_view salt, std::span<const int32_t> prompt,
                               const PageList& list) {
  if (prefix_cache_ == PrefixCache::kOn) tree_->Publish(salt, prompt, list);
}

void PagePolicy::GiveBack(std::string_view salt, std::span<const int32_t> tokens,
                          SequencePages& pages) {
  const bool complete = !pages.to_copy;  // otherwise its last page has yet to be copied
  const TokenCount computed = pages.computed;
  PageList list = std::exchange(pages, SequencePages(limits_.page_size)).list;
  if (prefix_cache_ == PrefixCache::kOff || !complete || computed == TokenCount(0)) return;
  list.Truncate(computed);
  tree_->PublishFinished(salt, tokens.first(static_cast<size_t>(computed.raw())), std::move(list));
}

void PagePolicy::EmptyCache() { tree_ = std::make_unique<PrefixTree>(limits_.page_size); }

void PagePolicy::CheckInvariants() const {
  pool_.CheckInvariants();
  tree_->CheckInvariants();
}

}  // namespace quire
