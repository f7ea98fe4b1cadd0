#include "interop/capacity.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "attn/plan_storage.h"
#include "interop/export.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ErrorMessage;

const StepCapacity kCapacity{.num_seqs = 4,
                             .query_tokens = TokenCount(10),
                             .context = TokenCount(1000),
                             .tree_nodes = TokenCount(70),
                             .page_size = PageSize(64),
                             .pool_pages = PageCount(100)};

TEST(ExportCapacityTest, EveryBufferIsSizedInTheUnitItIsWrittenIn) {
  EXPECT_EQ(FlatIndexEntries(kCapacity), TokenCount(4 * 1070));
  EXPECT_EQ(DraftRowEntries(kCapacity, {.branches = 8, .steps = 5}), TokenCount(4 * 8 * 1005));
}

TEST(ExportCapacityTest, DraftReserveReachesTheLastBranchWhereverThePrefixEnds) {
  for (int page_size : {1, 2, 3, 16, 61, 64, 256}) {
    for (const DraftShape shape : {DraftShape{1, 5}, DraftShape{2, 3}, DraftShape{8, 70}}) {
      TokenCount most{0};
      for (int64_t committed = 1000; committed < 1000 + page_size; ++committed) {
        const TokenCount start =
            DraftStart(TokenCount(committed), shape.branches - 1, shape, PageSize(page_size));
        most = Max(most, start + TokenCount(shape.steps) - TokenCount(committed));
      }
      EXPECT_EQ(DraftReserve(PageSize(page_size), shape), most) << page_size;
    }
  }
}

// Pages once a sequence, and a plan of a level and of the tree, where rows of every branch and step repeat the prefix.
TEST(ExportCapacityTest, DraftsOfManyBranchesNeedTheirPagesOnce) {
  constexpr int32_t kSeqs = 128;
  const DraftShape shape{.branches = 8, .steps = 5};
  const int64_t nodes = int64_t{shape.branches} * shape.steps;
  const WorkShape work{.query_tile = TokenCount(4), .split = TokenCount(64), .num_workers = 132};
  for (const int page_size : {64, 1}) {
    StepCapacity level{.num_seqs = kSeqs,
                       .query_tokens = TokenCount(kSeqs * shape.branches),
                       .context = TokenCount(163840),
                       .tree_nodes = TokenCount(nodes),
                       .page_size = PageSize(page_size),
                       .pool_pages = PageCount(1)};
    level.pool_pages += PageTableWidth(level) * kSeqs;
    StepCapacity tree = level;
    tree.query_tokens = TokenCount(kSeqs * nodes);
    const int64_t pages = PageTableEntries(level) * int64_t{sizeof(PageId)};
    const int64_t ours =
        pages + PlanStorageBytes(level, work).raw() + PlanStorageBytes(tree, work).raw();
    const int64_t rows =
        DraftRowEntries(level, shape).raw() * shape.steps * int64_t{sizeof(int32_t)};
    RecordProperty("bytes_page_size_" + std::to_string(page_size), std::to_string(ours));
    std::printf("page size %d: %.2f MB, of them %.2f of page rows; rows of branches %.2f GB\n",
                page_size, static_cast<double>(ours) * 1e-6, static_cast<double>(pages) * 1e-6,
                static_cast<double>(rows) * 1e-9);
    EXPECT_GT(rows, 3'350'000'000);
    EXPECT_LT(ours, page_size == 64 ? 4'000'000 : rows / 30);
  }
}

TEST(ExportCapacityTest, AFactorThatCannotBeIsNamed) {
  EXPECT_EQ(ErrorMessage([] { Validate(DraftShape{.branches = 0}); }),
            "draft.branches: expected >= 1, got 0");
}

TEST(ExportCapacityTest, ASizeThatOverflowsIsRefusedAndNotWrapped) {
  StepCapacity capacity = kCapacity;
  capacity.context = TokenCount(int64_t{1} << 61);
  EXPECT_EQ(ErrorMessage([&] { (void)FlatIndexEntries(capacity); }),
            "TokenCount: 2305843009213694022 * 4 does not fit");
}

}  // namespace
}  // namespace quire
