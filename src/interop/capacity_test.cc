#include "interop/capacity.h"

#include <gtest/gtest.h>

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
