#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "cache/test_leases.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ErrorMessage;

TEST(PagePoolTest, PagesAreHandedOutInAscendingOrderFromOne) {
  PagePool pool(PageCount(5), PageSize(4));
  const std::vector<PageLease> first = *pool.Allocate(PageCount(2));
  const std::vector<PageLease> second = *pool.Allocate(PageCount(3));
  EXPECT_EQ(Ids(first), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Ids(second), (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(pool.num_free(), PageCount(0));
  EXPECT_EQ(pool.num_used(), PageCount(5));
  pool.CheckInvariants();
}

TEST(PagePoolTest, ThePageGivenBackLastIsHandedOutFirst) {
  for (int page_size : {1, 4}) {
    PagePool pool(PageCount(5), PageSize(page_size));
    std::vector<PageLease> leases = *pool.Allocate(PageCount(3));
    leases.erase(leases.begin() + 2);
    leases.erase(leases.begin());
    EXPECT_EQ(Ids(*pool.Allocate(PageCount(3))), (std::vector<int32_t>{1, 3, 4}));
  }
}

TEST(PagePoolTest, TooFewFreePagesGiveNulloptAndChangeNothing) {
  PagePool pool(PageCount(3), PageSize(4));
  const std::vector<PageLease> held = *pool.Allocate(PageCount(1));
  EXPECT_FALSE(pool.Allocate(PageCount(3)).has_value());
  EXPECT_EQ(pool.num_free(), PageCount(2));
  pool.CheckInvariants();
  EXPECT_EQ(Ids(*pool.Allocate(PageCount(2))), (std::vector<int32_t>{2, 3}));
}

TEST(PagePoolTest, AskingForNoPagesSucceedsWhenNoneIsFree) {
  PagePool pool(PageCount(1), PageSize(4));
  const std::vector<PageLease> held = *pool.Allocate(PageCount(1));
  EXPECT_TRUE(pool.Allocate(PageCount(0))->empty());
}

TEST(PagePoolTest, ASharedPageIsFreeWhenItsLastLeaseIsGone) {
  PagePool pool(PageCount(2), PageSize(4));
  std::optional<PageLease> first = std::move(pool.Allocate(PageCount(1))->front());
  EXPECT_FALSE(first->IsShared());
  std::optional<PageLease> second = first->Share();
  EXPECT_EQ(second->page(), PageId(1));
  EXPECT_TRUE(first->IsShared());
  EXPECT_EQ(pool.refcount(PageId(1)), 2);
  first.reset();
  EXPECT_FALSE(second->IsShared());
  EXPECT_EQ(pool.num_used(), PageCount(1));
  second.reset();
  EXPECT_EQ(pool.refcount(PageId(1)), 0);
  EXPECT_EQ(pool.num_used(), PageCount(0));
  pool.CheckInvariants();
}

TEST(PagePoolTest, AssigningToALeaseGivesItsPageBack) {
  PagePool pool(PageCount(2), PageSize(4));
  std::vector<PageLease> leases = *pool.Allocate(PageCount(2));
  leases[0] = std::move(leases[1]);
  EXPECT_EQ(leases[0].page(), PageId(2));
  EXPECT_EQ(pool.refcount(PageId(1)), 0);
  EXPECT_EQ(pool.refcount(PageId(2)), 1);
  pool.CheckInvariants();
}

TEST(PagePoolTest, ALeaseMovedFromCannotBeShared) {
  PagePool pool(PageCount(2), PageSize(4));
  PageLease lease = std::move(pool.Allocate(PageCount(1))->front());
  const PageLease other = std::move(lease);
  EXPECT_THROW((void)lease.Share(), InternalError);     // NOLINT(bugprone-use-after-move)
  EXPECT_THROW((void)lease.IsShared(), InternalError);  // NOLINT(bugprone-use-after-move)
}

TEST(PagePoolTest, ALeaseMayOutliveItsPool) {
  auto pool = std::make_unique<PagePool>(PageCount(2), PageSize(4));
  std::optional<PageLease> late = std::move(pool->Allocate(PageCount(1))->front());
  pool.reset();
  EXPECT_EQ(late->Share().page(), PageId(1));
  late.reset();
}

TEST(PagePoolTest, APageThePoolDoesNotHandOutIsRefused) {
  const PagePool pool(PageCount(7), PageSize(4));
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)pool.refcount(kScratchPage); }),
            "page id: expected 1..7 (page 0 is the scratch page), got 0");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)pool.refcount(PageId(8)); }),
            "page id: expected 1..7 (page 0 is the scratch page), got 8");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)pool.refcount(PageId(-1)); }),
            "page id: expected 1..7 (page 0 is the scratch page), got -1");
}

TEST(PagePoolTest, ImpossibleCountsAreRefused) {
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [] { PagePool(PageCount(0), PageSize(4)); }),
            "num_pages: expected 1..2147483647 pages in a pool, got 0");
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [] { PagePool(PageCount(int64_t{1} << 31), PageSize(4)); }),
            "num_pages: expected 1..2147483647 pages in a pool, got 2147483648");
  PagePool pool(PageCount(1), PageSize(4));
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)pool.Allocate(PageCount(-1)); }),
            "page count: expected 0 or more pages, got -1");
}

// The model is the free list as a plain sequence, and each page's number of leases.
TEST(PagePoolTest, RandomUseAgreesWithAPlainFreeList) {
  constexpr int kNumPages = 9;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return random() % n; };
    PagePool pool(PageCount(kNumPages), PageSize(16));
    std::deque<int32_t> free;
    for (int32_t page = 1; page <= kNumPages; ++page) free.push_back(page);
    std::vector<int> counts(kNumPages + 1, 0);
    std::vector<PageLease> leases;

    for (int step = 0; step < 500; ++step) {
      const size_t choice = below(3);
      if (choice == 0) {
        const size_t wanted = below(4);
        auto pages = pool.Allocate(PageCount(wanted));
        ASSERT_EQ(pages.has_value(), wanted <= free.size());
        if (!pages.has_value()) continue;
        for (PageLease& page : *pages) {
          ASSERT_EQ(page.page(), PageId(free.front()));
          free.pop_front();
          counts[page.page().raw()] = 1;
          leases.push_back(std::move(page));
        }
      } else if (!leases.empty() && choice == 1) {
        leases.push_back(leases[below(leases.size())].Share());
        ++counts[leases.back().page().raw()];
      } else if (!leases.empty()) {
        std::swap(leases[below(leases.size())], leases.back());
        const int32_t page = leases.back().page().raw();
        leases.pop_back();
        if (--counts[page] == 0) free.push_front(page);
      }
      pool.CheckInvariants();
      ASSERT_EQ(pool.num_free(), PageCount(free.size()));
      for (int32_t page = 1; page <= kNumPages; ++page) {
        ASSERT_EQ(pool.refcount(PageId(page)), counts[page]);
      }
    }
  }
}

}  // namespace
}  // namespace quire
