#include "cache/page_list.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ErrorMessage;

std::optional<PageCount> Extend(PagePool& pool, std::initializer_list<ExtendRequest> requests) {
  return ExtendLists(pool, {requests.begin(), requests.size()});
}

std::vector<int64_t> SlotsFrom(const PageList& list, int64_t begin) {
  std::vector<Slot> slots;
  list.AppendSlots(TokenCount(begin), slots);
  std::vector<int64_t> raw;
  raw.reserve(slots.size());
  for (Slot slot : slots) raw.push_back(slot.raw());
  return raw;
}

std::vector<int32_t> Ids(const PageList& list) {
  std::vector<int32_t> ids;
  ids.reserve(list.PageIds().size());
  for (PageId page : list.PageIds()) ids.push_back(page.raw());
  return ids;
}

using Slots = std::vector<int64_t>;
using Pages = std::vector<int32_t>;

// A worked example at page size 4: two sequences extend, then decode twice.
TEST(PageListTest, TheWorkedExampleHolds) {
  PagePool pool(PageCount(16), PageSize(4));
  PageList a(pool.page_size());
  PageList b(pool.page_size());

  EXPECT_EQ(Extend(pool, {{&a, TokenCount(6)}, {&b, TokenCount(3)}}), PageCount(3));
  EXPECT_EQ(SlotsFrom(a, 0), (Slots{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(SlotsFrom(b, 0), (Slots{12, 13, 14}));
  {
    PageList head(pool.page_size());
    ASSERT_TRUE(Extend(pool, {{&head, TokenCount(12)}}).has_value());
    EXPECT_EQ(Ids(head), (Pages{4, 5, 6}));
  }
  EXPECT_EQ(Extend(pool, {{&a, TokenCount(7)}, {&b, TokenCount(4)}}), PageCount(0));
  EXPECT_EQ(SlotsFrom(a, 6), (Slots{10}));
  EXPECT_EQ(SlotsFrom(b, 3), (Slots{15}));

  EXPECT_EQ(Extend(pool, {{&a, TokenCount(8)}, {&b, TokenCount(5)}}), PageCount(1));
  EXPECT_EQ(SlotsFrom(a, 7), (Slots{11}));
  EXPECT_EQ(SlotsFrom(b, 4), (Slots{16}));

  EXPECT_EQ(Ids(a), (Pages{1, 2}));
  EXPECT_EQ(Ids(b), (Pages{3, 4}));
  EXPECT_EQ(SlotsFrom(a, 0), (Slots{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(SlotsFrom(b, 0), (Slots{12, 13, 14, 15, 16}));
}

TEST(PageListTest, TooFewFreePagesExtendNoList) {
  PagePool pool(PageCount(4), PageSize(4));
  PageList a(pool.page_size());
  PageList b(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&a, TokenCount(3)}}).has_value());

  EXPECT_EQ(Extend(pool, {{&a, TokenCount(8)}, {&b, TokenCount(9)}}), std::nullopt);
  EXPECT_EQ(a.length(), TokenCount(3));
  EXPECT_EQ(Ids(a), (Pages{1}));
  EXPECT_EQ(b.length(), TokenCount(0));
  EXPECT_EQ(pool.num_free(), PageCount(3));

  EXPECT_EQ(Extend(pool, {{&a, TokenCount(8)}, {&b, TokenCount(8)}}), PageCount(3));
  EXPECT_EQ(Ids(a), (Pages{1, 2}));
  EXPECT_EQ(Ids(b), (Pages{3, 4}));
}

TEST(PageListTest, NewPagesForCountsWhatAnExtensionTakes) {
  PagePool pool(PageCount(8), PageSize(4));
  PageList a(pool.page_size());
  PageList b(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&a, TokenCount(4)}, {&b, TokenCount(2)}}).has_value());
  const std::vector<ExtendRequest> requests = {{&a, TokenCount(5)}, {&b, TokenCount(4)}};
  EXPECT_EQ(NewPagesFor(requests), PageCount(1));
  EXPECT_EQ(ExtendLists(pool, requests), PageCount(1));
}

TEST(PageListTest, TruncateGivesBackThePagesThatHoldNoTokens) {
  PagePool pool(PageCount(4), PageSize(4));
  PageList list(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&list, TokenCount(14)}}).has_value());
  list.Truncate(TokenCount(5));
  list.CheckInvariants();
  EXPECT_EQ(Ids(list), (Pages{1, 2}));
  EXPECT_EQ(pool.num_free(), PageCount(2));
  ASSERT_TRUE(Extend(pool, {{&list, TokenCount(9)}}).has_value());
  EXPECT_EQ(Ids(list), (Pages{1, 2, 3}));
  list.Truncate(TokenCount(0));
  EXPECT_EQ(pool.num_free(), PageCount(4));
}

TEST(PageListTest, TokensAfterSharedFullPagesBeginInAPageOfTheirOwn) {
  PagePool pool(PageCount(4), PageSize(4));
  PageList first(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&first, TokenCount(8)}}).has_value());
  std::vector<PageLease> shared;
  shared.push_back(first.SharePage(PageCount(0)));
  shared.push_back(first.SharePage(PageCount(1)));

  PageList second(pool.page_size(), std::move(shared));
  EXPECT_EQ(second.length(), TokenCount(8));
  ASSERT_TRUE(Extend(pool, {{&second, TokenCount(9)}}).has_value());
  second.CheckInvariants();
  EXPECT_EQ(Ids(second), (Pages{1, 2, 3}));
  EXPECT_EQ(pool.refcount(PageId(2)), 2);
  EXPECT_EQ(pool.refcount(PageId(3)), 1);
}

TEST(PageListTest, APartlyFilledPageThatIsSharedIsNotWrittenTo) {
  PagePool pool(PageCount(4), PageSize(4));
  PageList other(pool.page_size());
  PageList list(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&list, TokenCount(6)}}).has_value());
  std::optional<PageLease> shared = list.SharePage(PageCount(1));

  EXPECT_THROW((void)Extend(pool, {{&other, TokenCount(1)}, {&list, TokenCount(7)}}),
               InternalError);
  EXPECT_EQ(other.length(), TokenCount(0));
  EXPECT_EQ(list.length(), TokenCount(6));
  EXPECT_EQ(pool.num_free(), PageCount(2));
  // Standing still writes nothing.
  EXPECT_EQ(Extend(pool, {{&list, TokenCount(6)}}), PageCount(0));
  shared.reset();
  EXPECT_EQ(Extend(pool, {{&list, TokenCount(7)}}), PageCount(0));
}

TEST(PageListTest, AListMovedFromHasNoTokens) {
  PagePool pool(PageCount(4), PageSize(4));
  PageList list(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&list, TokenCount(6)}}).has_value());
  PageList target(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&target, TokenCount(1)}}).has_value());
  target = std::move(list);
  list.CheckInvariants();  // NOLINT(bugprone-use-after-move)
  target.CheckInvariants();
  EXPECT_EQ(list.length(), TokenCount(0));
  EXPECT_EQ(Ids(target), (Pages{1, 2}));
  EXPECT_EQ(pool.num_free(), PageCount(2));
}

TEST(PageListTest, ImpossibleArgumentsAreRefused) {
  PagePool pool(PageCount(4), PageSize(4));
  PageList list(pool.page_size());
  ASSERT_TRUE(Extend(pool, {{&list, TokenCount(5)}}).has_value());
  std::vector<Slot> slots;
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)list.SlotAt(TokenCount(5)); }),
            "position: expected 0 or more and less than the list's 5 tokens, got 5");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)list.SlotAt(TokenCount(-1)); }),
            "position: expected 0 or more and less than the list's 5 tokens, got -1");
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kInvalidArgument, [&] { list.AppendSlots(TokenCount(6), slots); }),
      "first position: expected 0..5 (the list's tokens), got 6");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { list.Truncate(TokenCount(6)); }),
            "new length: expected 0..5 (the list's tokens), got 6");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)list.SharePage(PageCount(2)); }),
            "page index: expected 0 or more and less than the list's 2 pages, got 2");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] {
                           (void)Extend(pool, {{&list, TokenCount(4)}});
                         }),
            "new length: expected 5 or more (the list's tokens), got 4");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] {
                           (void)Extend(pool, {{&list, TokenCount(6)}, {&list, TokenCount(7)}});
                         }),
            "extend requests: expected each page list once, got one twice among 2");
  PageList other(PageSize(8));
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] {
                           (void)Extend(pool, {{&other, TokenCount(4)}});
                         }),
            "page list: expected the pool's page_size 4, got 8");
}

// A naive allocator: a free list of pages, and for each sequence the slot of every token.
class SlotOracle {
 public:
  SlotOracle(int64_t num_pages, int64_t page_size, size_t num_seqs)
      : page_size_(page_size), rows_(num_seqs) {
    for (int64_t page = 1; page <= num_pages; ++page) free_.push_back(page);
  }

  const Slots& row(size_t seq) const { return rows_[seq]; }
  size_t num_free() const { return free_.size(); }

  bool Extend(const std::vector<std::pair<size_t, size_t>>& new_lengths) {
    size_t needed = 0;
    for (const auto& [seq, length] : new_lengths) needed += PagesFor(length) - Pages(seq);
    if (needed > free_.size()) return false;
    for (const auto& [seq, length] : new_lengths) {
      while (rows_[seq].size() < length) Append(rows_[seq]);
    }
    return true;
  }

  void Truncate(size_t seq, size_t length) {
    Slots& row = rows_[seq];
    while (row.size() > length) {
      if (row.back() % page_size_ == 0) free_.push_front(row.back() / page_size_);
      row.pop_back();
    }
  }

 private:
  size_t PagesFor(size_t length) const { return (length + page_size_ - 1) / page_size_; }
  size_t Pages(size_t seq) const { return PagesFor(rows_[seq].size()); }

  void Append(Slots& row) {
    if (row.size() % page_size_ != 0) {
      row.push_back(row.back() + 1);
    } else {
      row.push_back(free_.front() * page_size_);
      free_.pop_front();
    }
  }

  int64_t page_size_;
  std::deque<int64_t> free_;
  std::vector<Slots> rows_;
};

TEST(PageListTest, RandomUseAgreesWithATableOfSlots) {
  constexpr size_t kNumSeqs = 4;
  constexpr PageCount kNumPages(12);
  for (int page_size : {1, 2, 3, 16, 64}) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(::testing::Message() << "page_size " << page_size << " seed " << seed);
      std::mt19937 random(seed);
      const auto below = [&](size_t n) { return random() % n; };
      PagePool pool(kNumPages, PageSize(page_size));
      SlotOracle oracle(kNumPages.raw(), page_size, kNumSeqs);
      std::vector<PageList> lists;
      for (size_t seq = 0; seq < kNumSeqs; ++seq) lists.emplace_back(pool.page_size());

      for (int step = 0; step < 200; ++step) {
        if (below(3) == 0) {
          const size_t seq = below(kNumSeqs);
          const size_t length = below(oracle.row(seq).size() + 1);
          lists[seq].Truncate(TokenCount(length));
          oracle.Truncate(seq, length);
        } else {
          std::vector<ExtendRequest> requests;
          std::vector<std::pair<size_t, size_t>> new_lengths;
          for (size_t seq = 0; seq < kNumSeqs; ++seq) {
            if (below(2) == 0) continue;
            const size_t length = oracle.row(seq).size() + below(2 * page_size + 1);
            requests.push_back({&lists[seq], TokenCount(length)});
            new_lengths.emplace_back(seq, length);
          }
          const bool extended = oracle.Extend(new_lengths);
          ASSERT_EQ(ExtendLists(pool, requests).has_value(), extended);
        }
        pool.CheckInvariants();
        ASSERT_EQ(pool.num_free(), PageCount(oracle.num_free()));
        for (size_t seq = 0; seq < kNumSeqs; ++seq) {
          lists[seq].CheckInvariants();
          ASSERT_EQ(SlotsFrom(lists[seq], 0), oracle.row(seq));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
