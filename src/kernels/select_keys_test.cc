#include "kernels/select_keys.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/cpu/select_keys.h"
#include "kernels/select_keys_cases.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::IndexKeys;
using testing::kScoreDenormal;
using testing::kScoreInfinity;
using testing::kScoreNaN;
using testing::PagedBatch;
using testing::RunSelect;
using testing::SelectRun;

std::vector<int32_t> SelectOnHost(const PagedBatch& batch, const SelectRun& run) {
  ThreadPool pool(3);
  return RunSelect(batch, run, pool);
}

TEST(SelectKeysTest, RanksOrderScoresThenPositions) {
  const float ascending[] = {kScoreNaN, -kScoreInfinity, -2.0f, -1.0f, -kScoreDenormal,
                             0.0f,      kScoreDenormal,  1.0f,  2.0f,  kScoreInfinity};
  for (size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_LT(RankOf(ascending[i - 1], 3), RankOf(ascending[i], 5)) << i;
    EXPECT_LT(RankOf(ascending[i - 1], 5), RankOf(ascending[i], 3)) << i;
  }
  for (const float score : ascending) {
    EXPECT_GT(RankOf(score, 3), RankOf(score, 4));
    EXPECT_GT(RankOfForced(1 << 30), RankOf(score, 0));
    EXPECT_EQ(PositionOfRank(RankOf(score, 123456789)), 123456789);
    EXPECT_GT(RankOf(score, (int64_t{1} << 31) - 1), 0u);
  }
  EXPECT_EQ(RankOf(-0.0f, 7), RankOf(0.0f, 7));
  EXPECT_EQ(RankOf(-kScoreNaN, 7), RankOf(kScoreNaN, 7));
  EXPECT_GT(RankOfForced(3), RankOfForced(4));
}

TEST(SelectKeysTest, TieStormsAreChosenInTheStatedOrder) {
  testing::ExpectTieStormsInOrder(SelectOnHost);
}
TEST(SelectKeysTest, TheBestOfManyKeysAreChosen) { testing::ExpectTheBestOfManyKeys(SelectOnHost); }
TEST(SelectKeysTest, TheFirstAndLastKeysAreChosenWhateverTheyScore) {
  testing::ExpectEndsChosen(SelectOnHost);
}
TEST(SelectKeysTest, ChoosesWhatTheReferenceScoresHighest) {
  testing::ExpectReferenceChoices(SelectOnHost);
}
TEST(SelectKeysTest, PageSizesAndLayoutsChangeNoChoice) {
  for (const KvFormat format :
       {KvFormat::kIndexKeyF32, KvFormat::kIndexKeyBf16, KvFormat::kIndexKeyFp8}) {
    testing::ExpectPagesChangeNothing(SelectOnHost, format, 4, 32);
  }
}
TEST(SelectKeysTest, ThreadsWorkersTilesAndNeighboursChangeNoChoice) {
  testing::ExpectWorkersChangeNothing(SelectOnHost, IndexKeys(KvFormat::kIndexKeyFp8, 64));
}
TEST(SelectKeysTest, ChunkingTheQueriesChangesNoChoice) {
  testing::ExpectChunksChangeNothing(SelectOnHost, IndexKeys(KvFormat::kIndexKeyBf16, 16));
}
TEST(SelectKeysTest, KeysBehindAQuerysEndAreNeverRead) {
  testing::ExpectNothingBehindTheEndIsRead(SelectOnHost);
}
TEST(SelectKeysTest, AQueryThatSeesNoMoreThanTopKGetsAllKeysWithoutScores) {
  testing::ExpectAllOfFewKeys(SelectOnHost);
}
TEST(SelectKeysTest, ATreeRowChoosesAsPlainDecodeOverItsPath) {
  testing::ExpectTreesChooseAsTheirPaths(SelectOnHost, KvFormat::kIndexKeyFp8, 4, 32);
}

// ---- Arguments ----

TEST(SelectKeysTest, ShapesThatCannotBeAreRefusedByName) {
  SerialExecutor executor;
  const PagedBatch batch({{1, 9, {}, 3}}, IndexKeys(KvFormat::kIndexKeyF32, 16));
  const auto refusal = [&](const PagedBatch& of, const SelectRun& run) {
    return testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                 [&] { (void)RunSelect(of, run, executor); });
  };
  EXPECT_EQ(refusal(batch, {.top_k = 0}), "index.top_k: expected >= 1, got 0");
  EXPECT_EQ(refusal(batch, {.top_k = 3, .init_tokens = 2, .local_tokens = 2}),
            "index.init_tokens + index.local_tokens: expected 0..3 (top_k), got 2 + 2");
  EXPECT_EQ(refusal(batch, {.top_k = 3, .scale = kScoreNaN}),
            "scale: expected a finite number, got nan");
  EXPECT_EQ(refusal(batch, {.top_k = 3, .query_tile = 65}),
            "work.query_tile: expected at most 64, got 65");
  const PagedBatch latent({{1, 9, {}, 3}}, {.dims = {32, 0}, .num_heads = 4});
  EXPECT_EQ(refusal(latent, {.top_k = 3}),
            "store: expected a format of index keys, got latent_bf16");
}

TEST(SelectKeysTest, TheWorkspaceKnowsNothingOfTheContext) {
  const IndexShape v32{.num_heads = 64, .head_dim = 128, .top_k = 2048};
  const WorkShape work{.query_tile = TokenCount(1), .num_workers = 16};
  // Ranks, partials, queries and a tile of keys and of scores: a sequence of any length has as many.
  EXPECT_LT(cpu::SelectKeysWorkspace(work, v32), ByteOffset(16 * (160 << 10)));
}

}  // namespace
}  // namespace quire
