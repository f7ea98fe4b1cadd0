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
      tree_(std::make_unique<PrefixTree>(limits.page_size)),
      is_provisional_(static_cast<size_t>(limits.pool_pages.raw())) {
  Require(
      pool_.num_pages() >= limits.page_size.PagesFor(limits.context),
      "KV cache: expected room for one sequence of the context length, {} tokens, got {} pages of "
      "{}; a larger cache will do, or a shorter context",
      limits.context, pool_.num_pages(), limits.page_size.raw());
}

bool PagePolicy::Admit(std::string_view salt, std::span<const int32_t> tokens, bool may_match,
                       int64_t num_running, SequencePages& pages) {
  const TokenCount length(tokens.size());
  PrefixMatch match;
  if (prefix_cache_ == PrefixCache::kOn && may_match) match = Match(salt, tokens);
  if (Take(match, length, num_running, pages)) return true;
  // A page that is to be copied from cannot be evicted, and may be the one that is missing.
  if (!match.partial || num_running > 0) return false;
  match.length -= match.partial->count;
  match.partial.reset();
  return Take(match, length, num_running, pages);
}

PrefixMatch PagePolicy::Match(std::string_view salt, std::span<const int32_t> tokens) {
  return tree_->Match(salt, tokens, draft_layer());
}

PageCount PagePolicy::num_matching(std::string_view salt, std::span<const int32_t> tokens) const {
  if (prefix_cache_ == PrefixCache::kOff) return PageCount(0);
  return limits_.page_size.FullPages(tree_->MatchLength(salt, tokens, draft_layer()));
}

// Copies are done before anything is written, so a page of this step is shared whole or not at all.
bool PagePolicy::Rematch(std::string_view salt, std::span<const int32_t> tokens,
                         SequencePages& pages) {
  if (prefix_cache_ == PrefixCache::kOff || pages.matched_at == num_publications_) return false;
  PrefixMatch match = Match(salt, tokens);
  if (match.partial && is_provisional_[static_cast<size_t>(match.partial->page.page().raw())]) {
    match.length -= match.partial->count;
    match.partial.reset();
  }
  pages.matched_at = num_publications_;
  if (match.length <= pages.computed) return false;
  Assign(match, pages.list.length(), pages);
  return true;
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
  Assign(match, length, pages);
  return true;
}

// What the sequence had before goes back first: with a longer match it needs no more than that.
void PagePolicy::Assign(PrefixMatch& match, TokenCount length, SequencePages& pages) {
  pages.matched = PageCount(match.pages.size());
  pages.matched_at = num_publications_;
  pages.list = PageList(limits_.page_size, std::move(match.pages));
  const ExtendRequest request{.list = &pages.list, .new_length = length};
  QUIRE_CHECK(Extend({&request, 1}), "pages for {} tokens could not be had", length);
  pages.computed = match.length;
  pages.kept = PageCount(0);
  pages.to_copy = std::move(match.partial);
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

void PagePolicy::BeginStep() {
  for (const PageId page : provisional_) is_provisional_[static_cast<size_t>(page.raw())] = false;
  provisional_.clear();
}

// A draft layer's row of the last token is not there yet: it is written with the token behind it.
void PagePolicy::PublishChunk(std::string_view salt, std::span<const int32_t> tokens,
                              const SequencePages& pages) {
  if (prefix_cache_ == PrefixCache::kOff) return;
  if (limits_.has_draft_rows) tokens = tokens.first(tokens.size() - 1);
  if (tree_->Publish(salt, tokens, pages.list) == PageCount(0)) return;
  ++num_publications_;
  const auto first = static_cast<size_t>(limits_.page_size.FullPages(pages.computed).raw());
  const auto end =
      static_cast<size_t>(limits_.page_size.FullPages(TokenCount(tokens.size())).raw());
  for (const PageId page : pages.list.PageIds().subspan(first, end - first)) {
    provisional_.push_back(page);
    is_provisional_[static_cast<size_t>(page.raw())] = true;
  }
}

void PagePolicy::PublishPrompt(std::string_view salt, std::span<const int32_t> prompt,
                               const PageList& list) {
  if (prefix_cache_ == PrefixCache::kOff) return;
  if (tree_->Publish(salt, prompt, list) > PageCount(0)) ++num_publications_;
}

void PagePolicy::GiveBack(std::string_view salt, std::span<const int32_t> tokens,
                          SequencePages& pages) {
  const bool complete = !pages.to_copy;  // otherwise its last page has yet to be copied
  const bool is_sound = pages.is_sound;
  const PageCount matched = pages.matched;
  const TokenCount computed = pages.computed;
  PageList list = std::exchange(pages, SequencePages(limits_.page_size)).list;
  if (prefix_cache_ == PrefixCache::kOff) return;
  if (!is_sound) {
    tree_->Withdraw(salt, tokens, list, matched);
    return;
  }
  if (!complete || computed == TokenCount(0)) return;
  list.Truncate(computed);
  const auto count = static_cast<size_t>(computed.raw());
  if (tree_->PublishFinished(salt, tokens.first(count), std::move(list)) > PageCount(0)) {
    ++num_publications_;
  }
}

void PagePolicy::EmptyCache() { tree_ = std::make_unique<PrefixTree>(limits_.page_size); }

void PagePolicy::CheckInvariants() const {
  pool_.CheckInvariants();
  tree_->CheckInvariants();
}

}  // namespace quire
