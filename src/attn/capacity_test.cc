#include "attn/capacity.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(CapacityTest, EveryBufferIsSizedInTheUnitItIsWrittenIn) {
  EXPECT_EQ(PageTableWidth(kCapacity), PageCount(17));  // 1070 tokens at 64
  EXPECT_EQ(PageTableEntries(kCapacity), 4 * 17);
  EXPECT_EQ(TreeMaskWords(kCapacity), 2);
  EXPECT_EQ(TreeMaskEntries(kCapacity), 10 * 2);
}

TEST(CapacityTest, TheLeastCapacityOfABatchHoldsEachOfItsMaxima) {
  const std::vector<int32_t> parents = {-1, 0, 0};
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(1), .kv_len = TokenCount(90)},
      {.q_len = TokenCount(3), .kv_len = TokenCount(50), .tree_parents = parents}};
  const StepCapacity capacity = CapacityOf(seqs, PageSize(16), PageCount(9));
  EXPECT_EQ(ToString(capacity),
            "num_seqs 2, query_tokens 4, context 90, tree_nodes 3, page_size 16, pool_pages 9");
}

TEST(CapacityTest, QueryTilesAreBoundedByRoundingUpOncePerSequence) {
  const WorkShape work{.query_tile = TokenCount(4), .num_workers = 3};
  EXPECT_EQ(MaxQueryTiles(kCapacity, work), 3 + 4);
  EXPECT_EQ(MaxSplits(kCapacity, work), 2);
  EXPECT_EQ(MaxPartials(kCapacity, work), 2 * 2);
}

TEST(CapacityTest, AFactorThatCannotBeIsNamed) {
  StepCapacity capacity = kCapacity;
  capacity.context = TokenCount(-5);
  EXPECT_EQ(ErrorMessage([&] { Validate(capacity); }), "capacity.context: expected >= 0, got -5");
  EXPECT_EQ(ErrorMessage([] { Validate(WorkShape{.split = TokenCount(100)}); }),
            "work.split: expected a positive multiple of 64, got 100");
  EXPECT_EQ(ErrorMessage([] { Validate(WorkShape{.tile_cost = 0}); }),
            "work.tile_cost: expected >= 1, got 0");
  EXPECT_EQ(ErrorMessage([] { Validate(WorkShape{.cut_cost = -1}); }),
            "work.cut_cost: expected >= 0, got -1");
  EXPECT_EQ(ErrorMessage([] { Validate(WorkShape{.num_workers = 3, .enough_workers = 4}); }),
            "work.enough_workers: expected 0..3, got 4");
  EXPECT_EQ(ErrorMessage([] { Validate(WorkShape{.ctas = 0}); }),
            "work.ctas: expected >= 1, got 0");
}

TEST(CapacityTest, ASizeThatOverflowsIsRefusedAndNotWrapped) {
  StepCapacity capacity = kCapacity;
  capacity.query_tokens = TokenCount(int64_t{1} << 62);
  EXPECT_EQ(ErrorMessage([&] { (void)TreeMaskEntries(capacity); }),
            "TokenCount: 4611686018427387904 * 2 does not fit");
}

}  // namespace
}  // namespace quire
