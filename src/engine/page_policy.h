// Which sequence gets which pages, and at whose cost.
//
// Cached pages are kept as long as nobody needs them: they are evicted, the longest unused first, when
// too few are free, and only when that helps. A newcomer is let in if it and everybody who runs can go
// on; a sequence that runs and finds no page even so has others preempted, whom the scheduler names.
// What a sequence has computed goes to the prefix tree when it gives its pages back.
//
// Prompts that begin alike and come together compute what they share once. Full pages of a chunk are in
// the tree as soon as the chunk is part of a step, for those behind it in the step and for those who are
// admitted while it runs. Until the step has ended they are provisional: nothing is copied from them, and
// if their sequence turns out to have a fault, they are withdrawn, and who has them begins anew.
//
// Token ids and page numbers only. One thread at a time uses a policy.
#ifndef QUIRE_ENGINE_PAGE_POLICY_H_
#define QUIRE_ENGINE_PAGE_POLICY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "step/step.h"

namespace quire {

enum class PrefixCache { kOn, kOff };

// The pages of one sequence that runs.
struct SequencePages {
  explicit SequencePages(PageSize page_size) : list(page_size) {}

  // The copy that is to be done before the sequence's next step.
  StepPageCopy Copy() const;

  PageList list;
  TokenCount computed;                 // tokens whose rows are in the cache
  PageCount matched{0};                // of the list, found in the tree
  int64_t matched_at = 0;              // publications before they were
  PageCount kept{0};                   // of the list, known to the runner from the last step
  bool is_sound = true;                // otherwise nothing that was computed can be trusted
  std::optional<PartialPage> to_copy;  // into the list's page that `computed` ends in
};

class PagePolicy {
 public:
  // Throws Error(kInvalidArgument) unless there are pages for one sequence of the context length.
  PagePolicy(const RunnerLimits& limits, PrefixCache prefix_cache);

  // ---- Getting pages ----

  // Takes pages for all `tokens`, those found in the cache among them if `may_match`, beside
  // num_running sequences. False, and no change, if there are too few.
  bool Admit(std::string_view salt, std::span<const int32_t> tokens, bool may_match,
             int64_t num_running, SequencePages& pages);
  // The same for a sequence that begins with the first `prompt` tokens of another one's.
  bool AdmitFork(const SequencePages& parent, TokenCount prompt, int64_t num_running,
                 SequencePages& pages);

  // Before the first step of a sequence that Admit gave pages to: matches again, if more has been published
  // since. Where that finds more, takes it, and gives back pages instead; whether it did.
  bool Rematch(std::string_view salt, std::span<const int32_t> tokens, SequencePages& pages);

  // Makes the lists as long as is asked, evicting cached pages if need be. False if that is not
  // enough; then no list has changed.
  bool Extend(std::span<const ExtendRequest> requests);
  // Makes room for `length` tokens. preempt() takes the pages of the youngest sequence and returns
  // whether that was another one; false once it was not.
  bool ExtendOrPreempt(PageList& list, TokenCount length, const std::function<bool()>& preempt);
  // Gives back the pages that hold none of the first `length` tokens' slots.
  void DropSpare(TokenCount length, SequencePages& pages);

  // ---- Giving them back ----

  // A step begins: what was published before it is no longer provisional.
  void BeginStep();
  // Caches the full pages of `tokens`, which with this step have all been computed.
  void PublishChunk(std::string_view salt, std::span<const int32_t> tokens,
                    const SequencePages& pages);
  // Caches the full pages of a prompt that was computed just now.
  void PublishPrompt(std::string_view salt, std::span<const int32_t> prompt, const PageList& list);
  // Takes all pages of a sequence; what it has computed, the first of `tokens`, stays in the tree until
  // the pages are needed. Of one that is not sound nothing is added, and what the tree has of it is
  // withdrawn.
  void GiveBack(std::string_view salt, std::span<const int32_t> tokens, SequencePages& pages);
  // Nothing that is cached can be trusted any more.
  void EmptyCache();

  // ---- For someone who looks on ----

  // Full pages of `tokens` that are cached.
  PageCount num_matching(std::string_view salt, std::span<const int32_t> tokens) const;
  PageCount num_pages() const { return pool_.num_pages(); }
  PageCount num_free() const { return pool_.num_free(); }
  PageCount num_cached() const { return tree_->num_pages(); }
  int64_t num_evicted() const { return num_evicted_; }
  int32_t num_leases(PageId page) const { return pool_.refcount(page); }
  // Throws InternalError unless pool and tree are as they should be. Walks all pages and tokens.
  void CheckInvariants() const;

 private:
  DraftLayer draft_layer() const {
    return limits_.has_draft_rows ? DraftLayer::kPresent : DraftLayer::kAbsent;
  }
  PrefixMatch Match(std::string_view salt, std::span<const int32_t> tokens);
  bool Take(PrefixMatch& match, TokenCount length, int64_t num_running, SequencePages& pages);
  void Assign(PrefixMatch& match, TokenCount length, SequencePages& pages);

  const RunnerLimits limits_;
  const PrefixCache prefix_cache_;
  PagePool pool_;
  std::unique_ptr<PrefixTree> tree_;
  int64_t num_evicted_ = 0;
  int64_t num_publications_ = 0;      // of at least one page
  std::vector<PageId> provisional_;   // of the step at hand
  std::vector<bool> is_provisional_;  // [pool_pages]
};

}  // namespace quire

#endif  // QUIRE_ENGINE_PAGE_POLICY_H_
