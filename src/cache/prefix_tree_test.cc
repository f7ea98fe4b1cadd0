#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"
#include "cache/test_leases.h"
#include "testing/error_message.h"
#include "testing/sanitized_share.h"

namespace quire {
namespace {

using testing::ErrorMessage;

using TokenList = std::vector<int32_t>;
using Pages = std::vector<int32_t>;

TokenList Prefix(const TokenList& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

// A pool and a tree of page size 4, and sequences without a scheduler.
class PrefixTreeTest : public ::testing::Test {
 protected:
  static constexpr PageSize kPageSize{4};

  PageList ListOf(size_t num_tokens) {
    PageList list(kPageSize);
    const ExtendRequest request{&list, TokenCount(num_tokens)};
    EXPECT_TRUE(ExtendLists(pool_, {&request, 1}).has_value());
    return list;
  }

  PageCount Finish(const TokenList& tokens, std::string_view salt = "") {
    const PageCount added = tree_.PublishFinished(salt, tokens, ListOf(tokens.size()));
    tree_.CheckInvariants();
    return added;
  }

  PrefixMatch Match(const TokenList& tokens, std::string_view salt = "",
                    DraftLayer draft = DraftLayer::kAbsent) {
    PrefixMatch match = tree_.Match(salt, tokens, draft);
    tree_.CheckInvariants();
    return match;
  }

  PagePool pool_{PageCount(32), kPageSize};
  PrefixTree tree_{kPageSize};
};

TEST_F(PrefixTreeTest, AnEmptyTreeMatchesNothing) {
  const PrefixMatch match = Match({1, 2, 3});
  EXPECT_EQ(match.length, TokenCount(0));
  EXPECT_TRUE(match.pages.empty());
  EXPECT_FALSE(match.partial.has_value());
}

TEST_F(PrefixTreeTest, FullPagesAreSharedWithTheTree) {
  EXPECT_EQ(Finish({1, 2, 3, 4, 5, 6, 7, 8}), PageCount(2));
  const PrefixMatch match = Match({1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(match.length, TokenCount(8));
  EXPECT_EQ(Ids(match.pages), (Pages{1, 2}));
  EXPECT_FALSE(match.partial.has_value());
  EXPECT_EQ(pool_.refcount(PageId(1)), 2);
}

TEST_F(PrefixTreeTest, AMatchThatEndsInAPublishedTailIsCopied) {
  Finish({1, 2, 3, 4, 5, 6});
  const PrefixMatch match = Match({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(match.length, TokenCount(6));
  EXPECT_EQ(Ids(match.pages), (Pages{1}));
  ASSERT_TRUE(match.partial.has_value());
  EXPECT_EQ(match.partial->CopyTo(PageId(9)),
            (PageCopy{.from = PageId(2), .to = PageId(9), .count = TokenCount(2)}));
  std::vector<Slot> from, to;
  match.partial->CopyTo(PageId(9)).AppendSlots(PageSize(4), from, to);
  EXPECT_EQ(from, (std::vector<Slot>{Slot(8), Slot(9)}));
  EXPECT_EQ(to, (std::vector<Slot>{Slot(36), Slot(37)}));
}

TEST_F(PrefixTreeTest, AMatchThatPartsInsideAFullPageIsCopied) {
  Finish({1, 2, 3, 4, 5, 6, 7, 8});
  const PrefixMatch match = Match({1, 2, 3, 4, 5, 6, 7, 99, 100});
  EXPECT_EQ(match.length, TokenCount(7));
  EXPECT_EQ(Ids(match.pages), (Pages{1}));
  ASSERT_TRUE(match.partial.has_value());
  EXPECT_EQ(match.partial->CopyTo(PageId(9)),
            (PageCopy{.from = PageId(2), .to = PageId(9), .count = TokenCount(3)}));
}

TEST_F(PrefixTreeTest, AtLeastOneTokenIsLeftToCompute) {
  const TokenList tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  Finish(tokens);
  EXPECT_EQ(Match({1}).length, TokenCount(0));
  EXPECT_EQ(Match({1, 2}).length, TokenCount(1));
  EXPECT_EQ(Match(Prefix(tokens, 5)).length, TokenCount(4));
  const PrefixMatch match = Match(tokens);
  EXPECT_EQ(match.length, TokenCount(7));
  EXPECT_EQ(Ids(match.pages), (Pages{1}));
  ASSERT_TRUE(match.partial.has_value());
  EXPECT_EQ(match.partial->count, TokenCount(3));
}

TEST_F(PrefixTreeTest, WithADraftLayerAMatchOfNTokensCountsAsOneLess) {
  const TokenList tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  Finish(tokens);
  const auto length = [&](const TokenList& query) {
    return Match(query, "", DraftLayer::kPresent).length;
  };
  EXPECT_EQ(length({9}), TokenCount(0));
  EXPECT_EQ(length({1, 9}), TokenCount(0));
  EXPECT_EQ(length({1, 2, 3, 4, 5, 9}), TokenCount(4));
  EXPECT_EQ(length({1, 2, 3, 4, 9}), TokenCount(3));
  // The whole prompt is there: the token that does not count is the one left to compute.
  EXPECT_EQ(length(tokens), TokenCount(7));
  EXPECT_EQ(length({1, 2, 3, 4, 5, 6, 7, 8, 9}), TokenCount(7));
}

TEST_F(PrefixTreeTest, EqualTokensUnderDifferentSaltsDoNotMatch) {
  Finish({1, 2, 3, 4, 5}, "alice");
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6}, "bob").length, TokenCount(0));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6}, "").length, TokenCount(0));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6}, "alice").length, TokenCount(5));
  Finish({1, 2, 3, 4, 7}, "bob");
  EXPECT_EQ(tree_.num_pages(), PageCount(4));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6}, "bob").length, TokenCount(4));
}

TEST_F(PrefixTreeTest, PagesTheTreeAlreadyHasAreGivenBack) {
  Finish({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(Finish({1, 2, 3, 4, 5, 6, 7, 8, 9}), PageCount(1));
  EXPECT_EQ(Finish({1, 2, 3, 4, 5, 6}), PageCount(0));
  EXPECT_EQ(tree_.num_pages(), PageCount(3));
  EXPECT_EQ(tree_.num_tokens(), TokenCount(9));
  EXPECT_EQ(pool_.num_used(), PageCount(3));
  EXPECT_EQ(Ids(Match({1, 2, 3, 4, 5, 6, 7, 8, 9}).pages), (Pages{1, 2}));
}

TEST_F(PrefixTreeTest, ALongerPageReplacesTheTailItContinues) {
  Finish({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Finish({1, 2, 3, 4, 5, 6, 7}), PageCount(1));
  EXPECT_EQ(tree_.num_pages(), PageCount(2));
  EXPECT_EQ(pool_.num_used(), PageCount(2));
  EXPECT_EQ(Finish({1, 2, 3, 4, 5, 6, 7, 8, 9}), PageCount(2));
  EXPECT_EQ(pool_.num_used(), PageCount(3));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}).length, TokenCount(9));
}

TEST_F(PrefixTreeTest, ALongerFirstPageReplacesATailThatIsAllOfItsSalt) {
  Finish({1, 2}, "alice");
  EXPECT_EQ(Finish({1, 2, 3, 4, 5}, "alice"), PageCount(2));
  EXPECT_EQ(pool_.num_used(), PageCount(2));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6}, "alice").length, TokenCount(5));
}

TEST_F(PrefixTreeTest, ATailThatIsBeingCopiedFromOutlivesItsReplacement) {
  Finish({1, 2, 3});
  std::optional<PrefixMatch> match = Match({1, 2, 3, 9});
  ASSERT_TRUE(match->partial.has_value());
  const PageId source = match->partial->page.page();
  Finish({1, 2, 3, 4, 5});
  EXPECT_EQ(pool_.refcount(source), 1);
  match.reset();
  EXPECT_EQ(pool_.refcount(source), 0);
}

TEST_F(PrefixTreeTest, SequencesThatPartInsideAPageEachHaveAPageThere) {
  Finish({1, 2, 3, 4, 5, 6, 7, 8});    // pages 1, 2
  Finish({1, 2, 3, 4, 5, 6, 70, 80});  // keeps only its second page
  Finish({1, 2, 3, 4, 5, 60});
  EXPECT_EQ(tree_.num_pages(), PageCount(4));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 7, 8, 9}).length, TokenCount(8));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 70, 80, 9}).length, TokenCount(8));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 60, 9}).length, TokenCount(6));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 9}).length, TokenCount(6));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 9}).length, TokenCount(5));
}

TEST_F(PrefixTreeTest, ARunningSequencePublishesFullPagesOnly) {
  const TokenList tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  PageList list = ListOf(12);
  EXPECT_EQ(tree_.Publish("", Prefix(tokens, 6), list), PageCount(1));
  EXPECT_EQ(tree_.Publish("", Prefix(tokens, 3), list), PageCount(0));
  EXPECT_EQ(tree_.Publish("", tokens, list), PageCount(1));
  tree_.CheckInvariants();
  EXPECT_EQ(Match(tokens).length, TokenCount(8));
  EXPECT_EQ(pool_.refcount(list.PageIds()[1]), 2);
  EXPECT_EQ(pool_.refcount(list.PageIds()[2]), 1);
  EXPECT_EQ(tree_.PublishFinished("", tokens, std::move(list)), PageCount(1));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).length, TokenCount(10));
  EXPECT_EQ(pool_.refcount(PageId(3)), 1);
}

TEST_F(PrefixTreeTest, EvictionTakesSinglePagesFromTheLeastRecentlyUsedEnd) {
  Finish({1, 2, 3, 4, 10, 11, 12, 13, 14});  // 3 pages
  Finish({1, 2, 3, 4, 20, 21});              // 1 more
  Finish({30, 31});                          // 1 more
  Match({1, 2, 3, 4, 20, 21, 22});
  const auto length = [&](const TokenList& tokens) { return Match(tokens).length; };

  EXPECT_EQ(tree_.Evict(PageCount(1)), PageCount(1));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.num_pages(), PageCount(4));
  EXPECT_EQ(tree_.num_tokens(), TokenCount(12));
  EXPECT_EQ(tree_.Evict(PageCount(2)), PageCount(2));  // the rest of the first, then the third
  EXPECT_EQ(length({30, 31, 32}), TokenCount(0));
  EXPECT_EQ(length({1, 2, 3, 4, 10, 11}), TokenCount(4));
  EXPECT_EQ(length({1, 2, 3, 4, 20, 21, 22}), TokenCount(6));
  EXPECT_EQ(tree_.Evict(PageCount(9)), PageCount(2));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.num_pages(), PageCount(0));
  EXPECT_EQ(pool_.num_used(), PageCount(0));
}

TEST_F(PrefixTreeTest, AMatchUsesOnlyThePagesItCovers) {
  Finish({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  Finish({20, 21, 22, 23});
  Match({1, 2, 3, 4, 5, 99, 100});  // pages 1 and 2 of the first
  EXPECT_EQ(tree_.Evict(PageCount(1)), PageCount(1));
  EXPECT_EQ(Match({20, 21, 22, 23, 24}).length, TokenCount(4));
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}).length, TokenCount(8));
}

TEST_F(PrefixTreeTest, PagesInUseAndThoseBeforeThemAreNotEvicted) {
  Finish({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  std::optional<PrefixMatch> match = Match({1, 2, 3, 4, 5, 6, 7, 8, 99});
  Finish({20, 21});
  EXPECT_EQ(tree_.CountEvictable(tree_.num_pages()), PageCount(2));
  EXPECT_EQ(tree_.Evict(PageCount(9)), PageCount(2));
  tree_.CheckInvariants();
  EXPECT_EQ(tree_.num_pages(), PageCount(2));
  match.reset();
  EXPECT_EQ(tree_.CountEvictable(tree_.num_pages()), PageCount(2));
  EXPECT_EQ(tree_.Evict(PageCount(9)), PageCount(2));
  EXPECT_EQ(pool_.num_used(), PageCount(0));
}

TEST_F(PrefixTreeTest, APageBeingCopiedFromIsNotEvicted) {
  Finish({1, 2, 3});
  const PrefixMatch match = Match({1, 2, 9});
  EXPECT_EQ(tree_.Evict(PageCount(1)), PageCount(0));
  EXPECT_EQ(tree_.CountEvictable(tree_.num_pages()), PageCount(0));
}

TEST_F(PrefixTreeTest, ThePagesOfTwoSequencesWithTheSameStartStayWhileEitherRuns) {
  const TokenList tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  PageList first = ListOf(8);
  PageList second = ListOf(8);
  EXPECT_EQ(tree_.Publish("", Prefix(tokens, 4), first), PageCount(1));
  EXPECT_EQ(tree_.Publish("", tokens, second), PageCount(1));  // behind the other's first page
  first.Truncate(TokenCount(0));
  EXPECT_EQ(tree_.Evict(PageCount(9)), PageCount(0));
  second.Truncate(TokenCount(0));
  EXPECT_EQ(tree_.Evict(PageCount(9)), PageCount(2));
  EXPECT_EQ(pool_.num_used(), PageCount(0));
}

TEST_F(PrefixTreeTest, WhatIsWithdrawnIsFoundNoMore) {
  Finish({1, 2, 3, 4});
  const TokenList tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  PrefixMatch match = Match(tokens);
  PageList list(kPageSize, std::move(match.pages));
  const ExtendRequest request{&list, TokenCount(12)};
  ASSERT_TRUE(ExtendLists(pool_, {&request, 1}).has_value());
  EXPECT_EQ(tree_.Publish("", tokens, list), PageCount(2));
  Finish({1, 2, 3, 4, 5, 6, 7, 8, 20, 21});
  const PrefixMatch other = Match({1, 2, 3, 4, 5, 6, 7, 8, 99});
  EXPECT_EQ(tree_.Withdraw("", tokens, list, PageCount(1)), PageCount(3));
  tree_.CheckInvariants();
  EXPECT_EQ(Match(tokens).length, TokenCount(4));  // which it had not published
  EXPECT_EQ(tree_.Withdraw("", tokens, list, PageCount(1)), PageCount(0));
  list.Truncate(TokenCount(0));
  EXPECT_EQ(pool_.num_used(), PageCount(2));  // the other has its own
}

TEST_F(PrefixTreeTest, CountersTellMatchesHitsAndTokens) {
  Finish({1, 2, 3, 4, 5});
  Match({1, 2, 3, 9});
  Match({8, 9});
  tree_.Evict(PageCount(1));
  EXPECT_EQ(tree_.counters().num_matches, 2);
  EXPECT_EQ(tree_.counters().num_hits, 1);
  EXPECT_EQ(tree_.counters().queried_tokens, TokenCount(6));
  EXPECT_EQ(tree_.counters().matched_tokens, TokenCount(3));
  EXPECT_EQ(tree_.counters().evicted_pages, PageCount(1));
}

TEST_F(PrefixTreeTest, ImpossibleArgumentsAreRefused) {
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { Match({}); }),
            "tokens: expected at least one to match, got none");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { tree_.Evict(PageCount(-1)); }),
            "wanted pages: expected 0 or more, got -1");
  const TokenList tokens = {1, 2, 3};
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kInvalidArgument, [&] { tree_.Publish("", tokens, ListOf(2)); }),
      "page list: expected room for the 3 tokens to publish, got 2");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] { tree_.PublishFinished("", tokens, PageList(PageSize(8))); }),
            "page list: expected the tree's page_size 4, got 8");
  EXPECT_EQ(tree_.num_pages(), PageCount(0));
}

// Long runs and long chains of nodes: neither recursion nor quadratic time would end well here.
TEST(PrefixTreeScaleTest, ALongSequenceOfSingleTokenPagesIsCachedMatchedAndEvicted) {
  constexpr int64_t kLength = 100'000;
  constexpr int64_t kChain = 1'000;
  PagePool pool(PageCount(kLength), PageSize(1));
  PrefixTree tree(pool.page_size());
  TokenList tokens(kLength);
  std::iota(tokens.begin(), tokens.end(), 0);
  PageList list(pool.page_size());
  const ExtendRequest request{&list, TokenCount(kLength)};
  ASSERT_TRUE(ExtendLists(pool, {&request, 1}).has_value());
  EXPECT_EQ(tree.PublishFinished("", tokens, std::move(list)), PageCount(kLength));
  EXPECT_EQ(tree.Match("", tokens, DraftLayer::kAbsent).length, TokenCount(kLength - 1));
  for (int64_t length = kChain; length > 1; --length) {
    const std::span<const int32_t> query = std::span(tokens).first(length);
    ASSERT_EQ(tree.Match("", query, DraftLayer::kAbsent).length, TokenCount(length - 1));
  }
  tree.CheckInvariants();
  EXPECT_EQ(tree.CountEvictable(tree.num_pages()), PageCount(kLength));
  const PageCount counted = tree.counters().counted_pages;
  EXPECT_EQ(tree.CountEvictable(PageCount(5)), PageCount(5));
  EXPECT_EQ(tree.counters().counted_pages - counted, PageCount(5));
  EXPECT_EQ(tree.Evict(PageCount(kLength - 10)), PageCount(kLength - 10));
  EXPECT_EQ(tree.Match("", tokens, DraftLayer::kAbsent).length, TokenCount(10));
  tree.CheckInvariants();
}

// What a tree should hold, page by page: each cached page with all tokens up to its end.
class PageModel {
 public:
  struct Page {
    std::string salt;
    TokenList path;
    int64_t last_used;
  };
  struct Found {
    Pages pages;  // that cover the match
    size_t length = 0;
  };

  explicit PageModel(size_t page_size) : page_size_(page_size) {}

  const std::map<int32_t, Page>& pages() const { return pages_; }

  size_t NumTokens() const {
    size_t total = 0;
    for (const auto& [id, page] : pages_) total += page.path.size() - Start(page);
    return total;
  }

  // No use of pages, no walk: the longest common prefix with anything cached.
  size_t LongestCommonPrefix(const std::string& salt, const TokenList& tokens) const {
    size_t longest = 0;
    for (const auto& [id, page] : pages_) {
      if (page.salt == salt) longest = std::max(longest, Common(page.path, tokens, 0));
    }
    return longest;
  }

  Found Find(const std::string& salt, const TokenList& tokens) const {
    Found found;
    while (found.length == found.pages.size() * page_size_) {
      const std::optional<int32_t> page = Closest(salt, tokens, found.length);
      if (!page.has_value()) break;
      found.pages.push_back(*page);
      found.length += Common(pages_.at(*page).path, tokens, found.length);
    }
    return found;
  }

  void Use(const Pages& pages, size_t count) {
    ++clock_;
    for (size_t i = 0; i < count; ++i) pages_.at(pages[i]).last_used = clock_;
  }

  void Publish(const std::string& salt, const TokenList& tokens, const PageList& list) {
    const Found found = Find(salt, tokens);
    const bool all_there = found.length == tokens.size();
    const size_t kept = all_there ? found.pages.size() : found.length / page_size_;
    Use(found.pages, kept);
    if (all_there) return;
    for (size_t i = kept; i * page_size_ < tokens.size(); ++i) {
      Page page{salt, Prefix(tokens, std::min(tokens.size(), (i + 1) * page_size_)), clock_};
      std::erase_if(pages_, [&](const auto& old) {
        return old.second.salt == salt && Start(old.second) == Start(page) &&
               Continues(page.path, old.second.path);
      });
      pages_.emplace(list.PageIds()[i].raw(), std::move(page));
    }
  }

  size_t Evict(size_t wanted, const std::map<int32_t, int>& holders) {
    size_t freed = 0;
    while (freed < wanted) {
      auto oldest = pages_.end();
      for (auto page = pages_.begin(); page != pages_.end(); ++page) {
        if (holders.contains(page->first) || HasChild(page->second)) continue;
        if (oldest == pages_.end() || page->second.last_used < oldest->second.last_used) {
          oldest = page;
        }
      }
      if (oldest == pages_.end()) break;
      pages_.erase(oldest);
      ++freed;
    }
    return freed;
  }

  // From the first page of `list` that is cached on, and that is not before number `first`.
  size_t Withdraw(const PageList& list, size_t first) {
    for (const PageId id : list.PageIds().subspan(first)) {
      const auto page = pages_.find(id.raw());
      if (page == pages_.end()) continue;
      const Page cut = page->second;
      return std::erase_if(pages_, [&](const auto& each) {
        return each.second.salt == cut.salt && Continues(each.second.path, cut.path);
      });
    }
    return 0;
  }

 private:
  static size_t Common(const TokenList& a, const TokenList& b, size_t from) {
    size_t end = from;
    while (end < a.size() && end < b.size() && a[end] == b[end]) ++end;
    return end - from;
  }
  static bool Continues(const TokenList& path, const TokenList& start) {
    return path.size() >= start.size() && Common(path, start, 0) == start.size();
  }

  // The position of the first token in the page.
  size_t Start(const Page& page) const { return (page.path.size() - 1) / page_size_ * page_size_; }

  bool HasChild(const Page& parent) const {
    return std::any_of(pages_.begin(), pages_.end(), [&](const auto& page) {
      return page.second.salt == parent.salt && Start(page.second) == parent.path.size() &&
             Continues(page.second.path, parent.path);
    });
  }

  // The page from position `start` on, behind the pages of tokens[0, start), that shares most
  // tokens with the query; of several the least that is not less than the query, else the greatest.
  std::optional<int32_t> Closest(const std::string& salt, const TokenList& tokens,
                                 size_t start) const {
    const TokenList query = Prefix(tokens, std::min(tokens.size(), start + page_size_));
    std::optional<int32_t> best;
    const auto is_closer = [&](const TokenList& path, const TokenList& than) {
      const size_t common = Common(path, query, start);
      const size_t other = Common(than, query, start);
      if (common != other) return common > other;
      if ((path < query) != (than < query)) return than < query;
      return path < query ? path > than : path < than;
    };
    for (const auto& [id, page] : pages_) {
      const bool candidate =
          page.salt == salt && Start(page) == start && Common(page.path, query, 0) > start;
      if (candidate && (!best.has_value() || is_closer(page.path, pages_.at(*best).path)))
        best = id;
    }
    return best;
  }

  size_t page_size_;
  int64_t clock_ = 0;
  std::map<int32_t, Page> pages_;
};

// A scheduler reduced to its use of pages. Every slot has a row, as the KV stores will, and the row
// of a computed token tells its salt and all tokens up to it: so a row overwritten while it is in
// use is seen.
class Simulation {
 public:
  Simulation(PageSize page_size, PageCount num_pages, uint32_t seed)
      : pool_(num_pages, page_size),
        tree_(page_size),
        model_(page_size.raw()),
        rows_(page_size.TokensIn(num_pages + PageCount(1)).raw(), kGarbage),
        random_(seed) {}

  void Step() {
    switch (Below(10)) {
      case 0:
      case 1:
        return Start();
      case 2:
        return Grow();
      case 3:
        return Reserve();
      case 4:
        return Publish();
      case 5:
        return Finish();
      case 6:
        return Cancel();
      case 7:
        return Evict(PageCount(Below(4)));
      case 8:
        return HoldOrDropMatch();
      case 9:
        return Withdraw();
    }
  }

  void Check() {
    pool_.CheckInvariants();
    tree_.CheckInvariants();
    CheckConservation();
    for (const Sequence& sequence : running_) {
      sequence.list.CheckInvariants();
      CheckRows(sequence.salt, sequence.tokens, sequence.list.PageIds(), sequence.tokens.size());
    }
    EXPECT_EQ(tree_.num_pages(), PageCount(model_.pages().size()));
    EXPECT_EQ(tree_.num_tokens(), TokenCount(model_.NumTokens()));
  }

 private:
  struct Sequence {
    std::string salt;
    TokenList tokens;  // computed; the list may be longer
    PageList list;
  };

  static constexpr uint64_t kGarbage = 0xDEAD;

  size_t Below(size_t n) { return random_() % n; }
  size_t page_size() const { return tree_.page_size().raw(); }

  std::string RandomSalt() { return std::string(Below(4) / 2, 's'); }

  // Often a prefix of an earlier prompt, of any length, and some tokens more.
  TokenList RandomPrompt() {
    TokenList tokens;
    if (!prompts_.empty() && Below(5) > 0) {
      tokens = prompts_[Below(prompts_.size())];
      tokens.resize(Below(tokens.size() + 1));
    }
    AppendRandom(tokens, 1 + Below(2 * page_size()));
    if (prompts_.size() < 6) prompts_.push_back(tokens);
    if (Below(8) == 0) prompts_[Below(prompts_.size())] = tokens;
    return tokens;
  }
  void AppendRandom(TokenList& tokens, size_t count) {
    for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(Below(3)));
  }

  static uint64_t RowOf(const std::string& salt, const TokenList& tokens, size_t position) {
    uint64_t row = std::hash<std::string>()(salt);
    for (size_t i = 0; i <= position; ++i) row = (row ^ (tokens[i] + 1)) * 0x100000001b3;
    return row;
  }
  uint64_t& RowAt(PageId page, size_t offset) {
    return rows_[tree_.page_size().SlotOf(page, static_cast<int32_t>(offset)).raw()];
  }

  void CheckRows(const std::string& salt, const TokenList& tokens, std::span<const PageId> pages,
                 size_t count) {
    for (size_t p = 0; p < count; ++p) {
      ASSERT_EQ(RowAt(pages[p / page_size()], p % page_size()), RowOf(salt, tokens, p))
          << "position " << p;
    }
  }

  std::map<int32_t, int> Holders() const {
    std::map<int32_t, int> holders;
    for (const Sequence& sequence : running_) {
      for (PageId page : sequence.list.PageIds()) ++holders[page.raw()];
    }
    for (const PrefixMatch& match : matches_) {
      for (const PageLease& lease : match.pages) ++holders[lease.page().raw()];
      if (match.partial.has_value()) ++holders[match.partial->page.page().raw()];
    }
    return holders;
  }

  // Free, owned and cached pages are all pages, and every lease is accounted for.
  void CheckConservation() {
    std::map<int32_t, int> leases = Holders();
    for (const auto& [id, page] : model_.pages()) ++leases[id];
    EXPECT_FALSE(leases.contains(kScratchPage.raw()));
    EXPECT_EQ(pool_.num_free() + PageCount(leases.size()), pool_.num_pages());
    for (const auto& [id, count] : leases) EXPECT_EQ(pool_.refcount(PageId(id)), count) << id;
  }

  PrefixMatch Match(const std::string& salt, const TokenList& tokens) {
    const bool has_draft = Below(2) == 0;
    const DraftLayer draft = has_draft ? DraftLayer::kPresent : DraftLayer::kAbsent;
    const TokenCount length = tree_.MatchLength(salt, tokens, draft);
    PrefixMatch match = tree_.Match(salt, tokens, draft);
    EXPECT_EQ(match.length, length);

    const size_t common = model_.LongestCommonPrefix(salt, tokens);
    const size_t expected =
        has_draft ? common - std::min<size_t>(common, 1) : std::min(common, tokens.size() - 1);
    EXPECT_EQ(match.length, TokenCount(expected));
    Pages pages = Ids(match.pages);
    EXPECT_EQ(pages.size(), expected / page_size());
    if (match.partial.has_value()) {
      EXPECT_EQ(match.partial->count, TokenCount(expected % page_size()));
      pages.push_back(match.partial->page.page().raw());
    }
    EXPECT_EQ(pages.size(), (expected + page_size() - 1) / page_size());
    const TokenList compared = Prefix(tokens, tokens.size() - (has_draft ? 0 : 1));
    Pages covering = model_.Find(salt, compared).pages;
    covering.resize(pages.size());
    EXPECT_EQ(pages, covering);
    model_.Use(pages, pages.size());

    std::vector<PageId> ids;
    for (int32_t page : pages) ids.emplace_back(page);
    CheckRows(salt, tokens, ids, expected);
    return match;
  }

  void Evict(PageCount wanted) {
    const std::map<int32_t, int> holders = Holders();
    PageModel all_evicted = model_;
    const size_t evictable = all_evicted.Evict(model_.pages().size(), holders);
    EXPECT_EQ(tree_.CountEvictable(tree_.num_pages()), PageCount(evictable));
    for (const size_t at_most : {size_t{0}, size_t{1}, evictable / 2, evictable}) {
      EXPECT_EQ(tree_.CountEvictable(PageCount(at_most)), PageCount(std::min(at_most, evictable)));
    }
    const PageCount free_before = pool_.num_free();
    const PageCount freed = tree_.Evict(wanted);
    EXPECT_EQ(freed, PageCount(model_.Evict(wanted.raw(), holders)));
    EXPECT_EQ(freed, Min(wanted, PageCount(evictable)));
    EXPECT_EQ(pool_.num_free(), free_before + freed);
  }

  // Evicts if it must. False if there are not enough pages even so.
  bool Extend(PageList& list, size_t new_length) {
    const ExtendRequest request{&list, TokenCount(new_length)};
    if (ExtendLists(pool_, {&request, 1}).has_value()) return true;
    Evict(NewPagesFor({&request, 1}) - pool_.num_free());
    return ExtendLists(pool_, {&request, 1}).has_value();
  }

  void Compute(Sequence& sequence, size_t begin) {
    for (size_t p = begin; p < sequence.tokens.size(); ++p) {
      rows_[sequence.list.SlotAt(TokenCount(p)).raw()] = RowOf(sequence.salt, sequence.tokens, p);
    }
  }

  void Start() {
    const std::string salt = RandomSalt();
    const TokenList tokens = RandomPrompt();
    matches_.push_back(Match(salt, tokens));
    PrefixMatch& match = matches_.back();
    const size_t full_pages = match.pages.size();
    running_.push_back({salt, tokens, PageList(tree_.page_size(), std::exchange(match.pages, {}))});
    Sequence& sequence = running_.back();
    if (!Extend(sequence.list, tokens.size())) {
      running_.pop_back();
    } else {
      if (match.partial.has_value()) {
        Copy(match.partial->CopyTo(sequence.list.PageIds()[full_pages]));
      }
      Compute(sequence, match.length.raw());
    }
    matches_.pop_back();
  }

  void Copy(const PageCopy& copy) {
    for (int64_t i = 0; i < copy.count.raw(); ++i) RowAt(copy.to, i) = RowAt(copy.from, i);
  }

  void Grow() {
    if (running_.empty()) return;
    Sequence& sequence = running_[Below(running_.size())];
    const size_t begin = sequence.tokens.size();
    sequence.list.Truncate(TokenCount(begin));
    const size_t count = 1 + Below(page_size() + 1);
    if (!Extend(sequence.list, begin + count)) return;
    AppendRandom(sequence.tokens, count);
    Compute(sequence, begin);
  }

  // Slots ahead for draft tokens, which are written and not accepted.
  void Reserve() {
    if (running_.empty()) return;
    Sequence& sequence = running_[Below(running_.size())];
    const size_t begin = sequence.tokens.size();
    if (!Extend(sequence.list, sequence.list.length().raw() + Below(4))) return;
    std::vector<Slot> slots;
    sequence.list.AppendSlots(TokenCount(begin), slots);
    for (Slot slot : slots) rows_[slot.raw()] = kGarbage;
    if (Below(2) == 0) sequence.list.Truncate(TokenCount(begin));
  }

  void Publish() {
    if (running_.empty()) return;
    const Sequence& sequence = running_[Below(running_.size())];
    const TokenList tokens = Prefix(sequence.tokens, Below(sequence.tokens.size() + 1));
    const TokenList published = Prefix(tokens, tokens.size() / page_size() * page_size());
    if (!published.empty()) model_.Publish(sequence.salt, published, sequence.list);
    tree_.Publish(sequence.salt, tokens, sequence.list);
  }

  Sequence TakeRunning() {
    std::swap(running_[Below(running_.size())], running_.back());
    Sequence sequence = std::move(running_.back());
    running_.pop_back();
    return sequence;
  }

  void Finish() {
    if (running_.empty()) return;
    Sequence sequence = TakeRunning();
    model_.Publish(sequence.salt, sequence.tokens, sequence.list);
    tree_.PublishFinished(sequence.salt, sequence.tokens, std::move(sequence.list));
  }

  void Cancel() {
    if (!running_.empty()) TakeRunning();
  }

  void Withdraw() {
    if (running_.empty()) return;
    const Sequence sequence = TakeRunning();
    const size_t first = Below(sequence.list.PageIds().size() + 1);
    EXPECT_EQ(tree_.Withdraw(sequence.salt, sequence.tokens, sequence.list, PageCount(first)),
              PageCount(model_.Withdraw(sequence.list, first)));
  }

  void HoldOrDropMatch() {
    if (matches_.size() < 2) {
      matches_.push_back(Match(RandomSalt(), RandomPrompt()));
    } else {
      matches_.erase(matches_.begin());
    }
  }

  PagePool pool_;
  PrefixTree tree_;
  PageModel model_;
  std::vector<uint64_t> rows_;  // by slot
  std::mt19937 random_;
  std::vector<TokenList> prompts_;
  std::vector<Sequence> running_;
  std::vector<PrefixMatch> matches_;
};

TEST(PrefixTreeRandomTest, RandomUseAgreesWithAModelOfSinglePages) {
  for (int page_size : {1, 2, 3, 16, 64}) {
    for (uint32_t seed = 0; seed < testing::SampledShare(uint32_t{15}); ++seed) {
      Simulation simulation(PageSize(page_size), PageCount(24), seed);
      for (int step = 0; step < 500; ++step) {
        SCOPED_TRACE(::testing::Message()
                     << "page_size " << page_size << " seed " << seed << " step " << step);
        simulation.Step();
        simulation.Check();
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace quire
