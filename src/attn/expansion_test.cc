#include "attn/expansion.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ErrorMessage;

struct Cut {
  std::vector<ExpansionCounts> counts = std::vector<ExpansionCounts>(1);
  std::vector<ExpandedTile> tiles = std::vector<ExpandedTile>(16);
  std::vector<ExpandedBlock> blocks = std::vector<ExpandedBlock>(4);

  explicit Cut(const std::vector<SequenceStep>& seqs) {
    CutExpansion(seqs, {.counts = counts, .tiles = tiles, .blocks = blocks});
    tiles.resize(static_cast<size_t>(counts[0].num_tiles));
    blocks.resize(static_cast<size_t>(counts[0].row_offsets[1] / kExpandedBlock.raw()));
  }
};

SequenceStep Step(int64_t q_len, int64_t kv_len, bool expanded) {
  return {.q_len = TokenCount(q_len), .kv_len = TokenCount(kv_len), .expanded = expanded};
}

TEST(ExpansionTest, EverySequenceHasItsKeysInBlocksAndItsQueriesInTiles) {
  // A decoding sequence, a chunk behind 100 keys, a short prompt, and padding.
  const Cut cut({Step(1, 500, false), Step(200, 300, true), Step(20, 20, true), Step(7, 0, true)});
  EXPECT_EQ(cut.counts[0].row_offsets[0], 0);
  EXPECT_EQ(cut.blocks, (std::vector<ExpandedBlock>{{.seq = 1, .position = 0, .count = 128},
                                                    {.seq = 1, .position = 128, .count = 128},
                                                    {.seq = 1, .position = 256, .count = 44},
                                                    {.seq = 2, .position = 0, .count = 20}}));
  // Of a sequence those that see most first; the padding's queries see nothing, and are written all the
  // same.
  const std::vector<ExpandedTile> expected = {
      {.q_begin = 129, .q_count = 72, .visible = 229, .first_tile = 0, .num_tiles = 2},
      {.q_begin = 1, .q_count = 128, .visible = 101, .first_tile = 0, .num_tiles = 2},
      {.q_begin = 201,
       .q_count = 20,
       .visible = 1,
       .first_row = 384,
       .first_tile = 2,
       .num_tiles = 1},
      {.q_begin = 221,
       .q_count = 7,
       .visible = -6,
       .first_row = 512,
       .first_tile = 3,
       .num_tiles = 1}};
  EXPECT_EQ(cut.tiles, expected);
}

TEST(ExpansionTest, WhatIsNotExpandedIsNotThere) {
  const Cut cut({Step(1, 500, false), Step(200, 300, false)});
  EXPECT_TRUE(cut.tiles.empty());
  EXPECT_TRUE(cut.blocks.empty());
}

TEST(ExpansionTest, MoreThanThereIsRoomForAndTreesAreRefused) {
  EXPECT_EQ(ErrorMessage([] { Cut({Step(1, 513, true)}); }),
            "expanded sequences: more than 4 blocks");
  SequenceStep tree = Step(1, 2, true);
  const int32_t parents[] = {kTreeRoot};
  tree.tree_parents = parents;
  EXPECT_EQ(ErrorMessage([&] { Cut({tree}); }), "sequence 0: a tree; expected a causal sequence");
}

}  // namespace
}  // namespace quire
