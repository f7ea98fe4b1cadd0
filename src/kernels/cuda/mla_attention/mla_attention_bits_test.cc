// What must change no bit of a row: in both kernels, page size, workers, the rest of the batch,
// chunks of queries, capacity and padding; and a tree's row is plain decode over its path.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/mla_attention_cases.h"
#include "testing/active_faults.h"
#include "testing/compare.h"

namespace quire::cuda {
namespace {

using testing::AttentionResult;
using testing::BitMismatch;
using testing::kTree;
using testing::MixedSequences;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::PathOf;
using testing::SequenceCase;

// Every test runs for both kernels.
class CudaMlaBitsTest : public ::testing::TestWithParam<MlaKernel> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
  static AttentionResult Attend(const PagedBatch& batch, int32_t num_workers = 3,
                                const StepCapacity* capacity = nullptr, bool exact = true) {
    return RunMlaOnDevice(batch, {.kernel = GetParam(),
                                  .num_workers = num_workers,
                                  .exact = exact,
                                  .capacity = capacity,
                                  .faults = testing::ActiveFaults()});
  }
  static AttentionResult AttendInTilesOf(int64_t tokens, const PagedBatch& batch) {
    return RunMlaOnDevice(batch, {.kernel = GetParam(),
                                  .tile_tokens = TokenCount(tokens),
                                  .faults = testing::ActiveFaults()});
  }
  static void ExpectTreeRowsEqualDecode(int64_t committed, const std::vector<int32_t>& parents,
                                        int page_size, int32_t num_heads);
};

INSTANTIATE_TEST_SUITE_P(Kernels, CudaMlaBitsTest,
                         ::testing::Values(MlaKernel::kPlain, MlaKernel::kTensorCore),
                         [](const auto& test) {
                           return test.param == MlaKernel::kPlain ? "Plain" : "TensorCore";
                         });

TEST_P(CudaMlaBitsTest, PageSizesChangeNoBit) {
  for (KvFormat format : {KvFormat::kLatentBf16, KvFormat::kLatentF32, KvFormat::kLatentFp8}) {
    if (GetParam() == MlaKernel::kTensorCore && format == KvFormat::kLatentF32) continue;
    for (int32_t num_heads : {4, 16}) {
      const PagedBatch one(MixedSequences(),
                           {.page_size = PageSize(1), .format = format, .num_heads = num_heads});
      const AttentionResult expected = Attend(one);
      const AttentionResult loose = Attend(one, 40, nullptr, /*exact=*/false);
      for (int page_size : {2, 3, 8, 16, 32, 48, 61, 64, 96, 128, 256}) {
        const PagedBatch batch(MixedSequences(), {.page_size = PageSize(page_size),
                                                  .format = format,
                                                  .num_heads = num_heads,
                                                  .page_seed = 77});
        EXPECT_EQ(BitMismatch(Attend(batch), expected), "")
            << "attention at page size " << page_size << " differs from page size 1 ("
            << KvFormatName(format) << ")";
        EXPECT_EQ(BitMismatch(Attend(batch, 40, nullptr, /*exact=*/false), loose), "")
            << "page size " << page_size << ", not exact (" << KvFormatName(format) << ")";
        // 16 rows at most.
        EXPECT_EQ(BitMismatch(AttendInTilesOf(16 / num_heads, batch), expected), "")
            << "page size " << page_size << ", small tiles (" << KvFormatName(format) << ")";
      }
    }
  }
}

TEST_P(CudaMlaBitsTest, WorkersChangeNoBit) {
  for (int32_t num_heads : {16, 128, 160}) {
    const PagedBatch batch(MixedSequences(), {.num_heads = num_heads});
    const AttentionResult expected = Attend(batch, 1);
    for (int workers : {2, 3, 7, 32, 132}) {
      EXPECT_EQ(BitMismatch(Attend(batch, workers), expected), "")
          << num_heads << " heads, " << workers << " workers";
    }
  }
}

// One worker folds splits as it goes; many leave one partial a split, up to 141 of them here, for the merge. Queries
// of the last two sequences reach different splits.
TEST_P(CudaMlaBitsTest, ManyPartialsChangeNoBit) {
  const std::vector<SequenceCase> seqs = {
      {1, 9000, {}, 3}, {1, 1000, {}, 4}, {2, 2500, {}, 5}, {5, 4162, {}, 6}, {6, 1604, kTree, 7}};
  const KvDims dims = GetParam() == MlaKernel::kPlain ? KvDims{21, 5} : KvDims{512, 64};
  for (const int32_t num_heads : {3, 16, 20}) {
    const PagedBatch batch(seqs, {.dims = dims, .num_heads = num_heads});
    for (const bool bf16_out : {false, true}) {
      const auto attend = [&](int32_t num_workers) {
        return RunMlaOnDevice(batch, {.kernel = GetParam(),
                                      .num_workers = num_workers,
                                      .split = TokenCount(64),
                                      .bf16_out = bf16_out,
                                      .faults = testing::ActiveFaults()});
      };
      const AttentionResult expected = attend(1);
      for (const int32_t workers : {5, 40, 132}) {
        EXPECT_EQ(BitMismatch(attend(workers), expected), "")
            << num_heads << " heads, " << workers << " workers" << (bf16_out ? ", bf16" : "");
      }
    }
  }
}

// Queries alone in their tiles, or with others: the same sums.
TEST_P(CudaMlaBitsTest, WorkForDecodingChangesNoBit) {
  for (KvFormat format : {KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
    for (int32_t num_heads : {4, 16, 20, 128}) {
      const PagedBatch batch(MixedSequences(), {.format = format, .num_heads = num_heads});
      const AttentionResult decode =
          RunMlaOnDevice(batch, {.kernel = GetParam(), .num_workers = 9, .step = MlaStep::kDecode});
      EXPECT_EQ(BitMismatch(decode, Attend(batch)), "")
          << num_heads << " heads, " << KvFormatName(format);
    }
  }
}

// Codes are made f16 in other places by other kernels, and where scales are small by another way.
TEST_P(CudaMlaBitsTest, SizesOfFp8RowsAreTheSameInTilesOfAnySize) {
  for (const float size : {0x1p-20f, 0x1p-8f, 0x1p9f}) {
    const PagedBatch batch(
        MixedSequences(),
        {.format = KvFormat::kLatentFp8, .num_heads = 8, .q_size = 1 / size, .row_size = size});
    const AttentionResult expected = Attend(batch);
    for (const int64_t tokens : {1, 2}) {
      EXPECT_EQ(BitMismatch(AttendInTilesOf(tokens, batch), expected), "")
          << "rows of " << size << ", tiles of " << tokens;
    }
  }
}

// Tiles of one token have CTAs that convert keys for each other, tiles of two have none: 200 heads are four CTAs, and
// rows of 2^-20 have small scales.
TEST(CudaMlaPairsTest, CtasThatConvertForEachOtherChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const auto expect_same = [](int page_size, int32_t num_heads, float row_size, int32_t workers) {
    const PagedBatch batch(MixedSequences(), {.page_size = PageSize(page_size),
                                              .format = KvFormat::kLatentFp8,
                                              .num_heads = num_heads,
                                              .q_size = 1 / row_size,
                                              .row_size = row_size});
    const auto attend = [&](int64_t tokens) {
      return RunMlaOnDevice(batch, {.kernel = MlaKernel::kTensorCore,
                                    .num_workers = workers,
                                    .repeats = 2,
                                    .tile_tokens = TokenCount(tokens),
                                    .faults = testing::ActiveFaults()});
    };
    EXPECT_EQ(BitMismatch(attend(1), attend(2)), "")
        << num_heads << " heads, pages of " << page_size << ", rows of " << row_size;
  };
  expect_same(64, 128, 1.0f, 3);
  expect_same(61, 128, 0x1p-20f, 40);
  expect_same(1, 65, 1.0f, 2);
  expect_same(16, 200, 1.0f, 7);
}

TEST_P(CudaMlaBitsTest, RepeatsChangeNoBit) {
  const PagedBatch batch(MixedSequences(), {.num_heads = 8});
  const AttentionResult expected = Attend(batch, 5);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(BitMismatch(Attend(batch, 5), expected), "");
}

// Alone a row may be in another place of its tile than in the batch: other warps, the same sums.
TEST_P(CudaMlaBitsTest, TheRestOfTheBatchChangesNoBit) {
  const std::vector<SequenceCase> seqs = MixedSequences();
  const PagedBatch whole(seqs, {.num_heads = 6});
  const AttentionResult together = Attend(whole, 4);
  std::vector<size_t> order(seqs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(11));
  std::vector<SequenceCase> mixed;
  std::vector<int64_t> first_token(seqs.size());
  int64_t next = 0;
  for (size_t i : order) {
    mixed.push_back(seqs[i]);
    first_token[i] = next;
    next += seqs[i].q_len;
  }
  const PagedBatch shuffled(mixed, {.num_heads = 6, .page_seed = 5});
  const AttentionResult elsewhere = Attend(shuffled, 4);
  int64_t token = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    const AttentionResult expected = Tokens(together, whole.shape(), token, seqs[i].q_len);
    const PagedBatch alone({seqs[i]}, {.num_heads = 6, .page_seed = 9});
    EXPECT_EQ(BitMismatch(Attend(alone, 2), expected), "") << "alone, seed " << seqs[i].seed;
    EXPECT_EQ(
        BitMismatch(Tokens(elsewhere, whole.shape(), first_token[i], seqs[i].q_len), expected), "")
        << "shuffled, seed " << seqs[i].seed;
    token += seqs[i].q_len;
  }
}

// Chunks of one query are tiles of 1 to 20 rows, those of many are full ones.
TEST_P(CudaMlaBitsTest, ChunkingTheQueriesChangesNoBit) {
  const int64_t length = 1100;
  const KvDims dims = GetParam() == MlaKernel::kPlain ? KvDims{64, 16} : KvDims{512, 64};
  for (int32_t num_heads : {2, 5, 16, 20}) {
    const PagedBatchShape shape{.dims = dims, .num_heads = num_heads};
    const PagedBatch whole({{length, length, {}, 3}}, shape);
    const AttentionResult expected = Attend(whole, 5);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{1000, 100}, std::vector<int64_t>{1, 63, 64, 65, 831, 76}}) {
      int64_t begin = 0;
      for (int64_t chunk : chunks) {
        const PagedBatch part({{chunk, begin + chunk, {}, 3}}, shape);
        EXPECT_EQ(BitMismatch(Attend(part, 3), Tokens(expected, shape, begin, chunk)), "")
            << num_heads << " heads, chunk of " << chunk << " at " << begin;
        begin += chunk;
      }
      ASSERT_EQ(begin, length);
    }
  }
}

TEST_P(CudaMlaBitsTest, FixedCapacityAndPaddedRowsChangeNoBit) {
  const std::vector<SequenceCase> seqs = MixedSequences();
  for (int page_size : {1, 64}) {
    const PagedBatchShape shape{.page_size = PageSize(page_size), .num_heads = 4};
    const PagedBatch eager(seqs, shape);
    const AttentionResult expected = Attend(eager);
    std::vector<SequenceCase> padded = seqs;
    while (padded.size() < 16) padded.push_back({1, 0, {}, 99});
    const PagedBatch bucket(padded, shape);
    const StepCapacity capacity{.num_seqs = 16,
                                .query_tokens = TokenCount(200),
                                .context = TokenCount(5000),
                                .tree_nodes = TokenCount(70),
                                .page_size = PageSize(page_size),
                                .pool_pages = bucket.pool_pages()};
    const AttentionResult result = Attend(bucket, 3, &capacity);
    EXPECT_EQ(BitMismatch(Tokens(result, shape, 0, eager.num_tokens()), expected), "")
        << "page size " << page_size;
    const AttentionResult padding = Tokens(result, shape, eager.num_tokens(), 6);
    EXPECT_EQ(padding.out, std::vector<float>(padding.out.size(), 0.0f));
    EXPECT_EQ(padding.lse,
              std::vector<float>(padding.lse.size(), -std::numeric_limits<float>::infinity()));
  }
}

void CudaMlaBitsTest::ExpectTreeRowsEqualDecode(int64_t committed,
                                                const std::vector<int32_t>& parents, int page_size,
                                                int32_t num_heads) {
  SCOPED_TRACE("committed " + std::to_string(committed) + ", page size " +
               std::to_string(page_size));
  const int64_t nodes = static_cast<int64_t>(parents.size());
  const PagedBatchShape shape{.page_size = PageSize(page_size), .num_heads = num_heads};
  const PagedBatch tree({{nodes, committed + nodes, parents, 3}}, shape);
  const AttentionResult verified = Attend(tree, 3);
  // Every node's path as a sequence of its own, all in one batch.
  std::vector<SequenceCase> plain;
  for (int64_t node = 0; node < nodes; ++node) {
    const std::vector<int64_t> path = PathOf(parents, node);
    plain.push_back({.q_len = 1, .kv_len = committed + std::ssize(path), .seed = 3});
    for (int64_t p = 0; p < committed; ++p) plain.back().contents.push_back(p);
    for (int64_t i : path) plain.back().contents.push_back(committed + i);
  }
  const PagedBatch decode(plain, shape);
  EXPECT_EQ(BitMismatch(verified, Attend(decode, 2)), "");
}

TEST_P(CudaMlaBitsTest, ATreeRowEqualsPlainDecodeOverItsPath) {
  std::vector<int32_t> comb = {-1};  // a spine with a leaf at every joint
  for (int32_t i = 1; i < 24; ++i) comb.push_back(i % 2 == 1 ? i - 1 : std::max(0, i - 2));
  for (int page_size : {1, 61, 64}) {
    for (int64_t committed : {0, 1, 63, 64, 100}) {
      ExpectTreeRowsEqualDecode(committed, kTree, page_size, 16);
    }
  }
  ExpectTreeRowsEqualDecode(60, comb, 16, 4);     // paths cross a tile
  ExpectTreeRowsEqualDecode(1020, comb, 64, 16);  // and a split
  ExpectTreeRowsEqualDecode(1024, comb, 3, 4);    // which begins just where the tree does
  std::vector<int32_t> wide;                      // three words of mask
  for (int32_t i = 0; i < 150; ++i) {
    wide.push_back(i % 7 == 0 ? kTreeRoot : std::max(0, i - 1 - (i * 37) % 10));
  }
  ExpectTreeRowsEqualDecode(1000, wide, 61, 2);
}

// ---- Few rows ----

// By workers that are so many CTAs each.
class CudaMlaFewBitsTest : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
  static AttentionResult Attend(const PagedBatch& batch, int32_t num_workers, int repeats = 1) {
    return RunMlaOnDevice(batch, {.kernel = MlaKernel::kFewRows,
                                  .num_workers = num_workers,
                                  .ctas = GetParam(),
                                  .repeats = repeats,
                                  .exact = false,
                                  .faults = testing::ActiveFaults()});
  }
};

INSTANTIATE_TEST_SUITE_P(Ctas, CudaMlaFewBitsTest, ::testing::Values(1, kMlaFewCtas),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(CudaMlaFewBitsTest, PageSizesChangeNoBit) {
  for (const int32_t workers : {1, 3, 40}) {
    const PagedBatch one(MixedSequences(), {.page_size = PageSize(1), .num_heads = 16});
    const AttentionResult expected = Attend(one, workers);
    for (int page_size : {2, 16, 48, 61, 64, 128}) {
      const PagedBatch batch(MixedSequences(),
                             {.page_size = PageSize(page_size), .num_heads = 16, .page_seed = 77});
      EXPECT_EQ(BitMismatch(Attend(batch, workers), expected), "")
          << "page size " << page_size << ", " << workers << " workers";
    }
  }
}

// What a run leaves in plan and workspace is what the next one needs, and who is last changes nothing.
TEST_P(CudaMlaFewBitsTest, RepeatsChangeNoBit) {
  for (const int32_t workers : {1, 2, 15, 40}) {
    for (const std::vector<SequenceCase>& seqs :
         {MixedSequences(), std::vector<SequenceCase>{{1, 9000, {}, 3}}}) {
      const PagedBatch batch(seqs, {.num_heads = 16});
      const AttentionResult expected = Attend(batch, workers);
      for (int i = 0; i < 5; ++i) {
        ASSERT_EQ(BitMismatch(Attend(batch, workers, /*repeats=*/4), expected), "")
            << workers << " workers";
      }
    }
  }
}

// ---- Few rows in exact mode ----

// Workers are one CTA, or CTAs of clusters that may share splits; of more than 16 heads one CTA of the kernel for 64 rows,
// or CTAs of two clusters. A cluster shares what one of its workers alone has.
AttentionResult AttendExactly(const PagedBatch& batch, int32_t num_workers, int32_t ctas,
                              TokenCount split = TokenCount(1024), int repeats = 1,
                              bool bf16_out = false, int32_t cut_cost = 0) {
  return RunMlaOnDevice(batch, {.kernel = MlaKernel::kTensorCore,
                                .num_workers = num_workers,
                                .ctas = ctas,
                                .repeats = repeats,
                                .tile_tokens = TokenCount(1),
                                .split = split,
                                .cut_cost = cut_cost,
                                .bf16_out = bf16_out,
                                .faults = testing::ActiveFaults()});
}

// One tile, one for some of the CTAs, two for some; a tile that is not full; several splits; trees, whose paths cross
// tiles and splits; rows that see nothing. One cluster shares nothing, of 16 about half share a split, of 40 most.
TEST(CudaMlaFewExactTest, CtasThatShareSplitsHaveTheBitsOfOne) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  std::vector<SequenceCase> lengths;
  for (const int64_t length :
       {1, 63, 64, 65, 448, 512, 513, 576, 960, 1000, 1023, 1024, 1025, 2047, 2560, 3100}) {
    lengths.push_back({1, length, {}, static_cast<uint64_t>(length)});
  }
  for (const std::vector<SequenceCase>& seqs :
       {lengths, MixedSequences(),
        std::vector<SequenceCase>{{1, 9000, {}, 3}, {6, 1030, kTree, 4}}}) {
    for (const int32_t num_heads : {1, 16, 20, 32}) {
      for (const int page_size : {61, 64}) {
        const PagedBatch batch(
            seqs, {.page_size = PageSize(page_size), .num_heads = num_heads, .page_seed = 7});
        const AttentionResult expected = AttendExactly(batch, 3, 1);
        for (const int32_t clusters : {1, 16, 40}) {
          const int32_t workers = clusters * kMlaFewCtas;
          EXPECT_EQ(BitMismatch(AttendExactly(batch, workers, kMlaFewCtas), expected), "")
              << num_heads << " heads, page size " << page_size << ", " << clusters << " clusters";
        }
      }
    }
  }
}

// Splits of a tile or more. One cluster has all of them, several a CTA, which it folds; of eight each CTA has one or
// several of the smallest, and none or one of the largest; of 80 each shares one at most. What a run leaves is what the
// next one needs.
TEST(CudaMlaFewExactTest, ManySplitsAndRepeatsChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const int32_t num_heads : {16, 20}) {
    const PagedBatch batch({{1, 4000, {}, 3}, {1, 700, {}, 4}, {1, 0, {}, 5}},
                           {.num_heads = num_heads});
    for (const int64_t split : {64, 128, 640, 1024}) {
      for (const bool bf16_out : {false, true}) {
        const AttentionResult expected =
            AttendExactly(batch, 1, 1, TokenCount(split), /*repeats=*/1, bf16_out);
        for (const int32_t clusters : {1, 8, 80}) {
          for (int i = 0; i < 3; ++i) {
            ASSERT_EQ(BitMismatch(AttendExactly(batch, clusters * kMlaFewCtas, kMlaFewCtas,
                                                TokenCount(split), /*repeats=*/3, bf16_out),
                                  expected),
                      "")
                << num_heads << " heads, splits of " << split << ", " << clusters << " clusters";
          }
        }
      }
    }
  }
}

// A long sequence, of which every CTA has splits of its own, and short ones beside it and in between, which a cluster may
// share; trees; a sequence that sees nothing.
TEST(CudaMlaFewExactTest, LongSequencesBesideShortOnesChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const std::vector<SequenceCase> seqs = {{1, 130, {}, 2}, {1, 9000, {}, 3},   {1, 64, {}, 4},
                                          {1, 0, {}, 5},   {6, 200, kTree, 6}, {1, 1500, {}, 7},
                                          {1, 70, {}, 8}};
  for (const int32_t num_heads : {3, 16, 20}) {
    for (const int page_size : {61, 64}) {
      const PagedBatch batch(
          seqs, {.page_size = PageSize(page_size), .num_heads = num_heads, .page_seed = 7});
      for (const int64_t split : {64, 256, 1024}) {
        const AttentionResult expected = AttendExactly(batch, 3, 1, TokenCount(split));
        for (const int32_t clusters : {1, 2, 7, 15, 40}) {
          EXPECT_EQ(BitMismatch(AttendExactly(batch, clusters * kMlaFewCtas, kMlaFewCtas,
                                              TokenCount(split), /*repeats=*/2),
                                expected),
                    "")
              << num_heads << " heads, page size " << page_size << ", splits of " << split << ", "
              << clusters << " clusters";
        }
      }
    }
  }
}

// Tiles that are dealt out whole, two a worker: the last of 13 workers is alone in its cluster, which shares two pieces
// of three splits each, one behind the other, and folds them.
TEST(CudaMlaFewExactTest, PiecesThatFollowEachOtherAreShared) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  std::vector<SequenceCase> seqs;
  for (uint64_t i = 0; i < 26; ++i) seqs.push_back({1, 190, {}, i});
  for (const int32_t num_heads : {16, 20}) {
    const PagedBatch batch(seqs, {.num_heads = num_heads});
    const AttentionResult expected = AttendExactly(batch, 1, 1, TokenCount(64));
    EXPECT_EQ(BitMismatch(AttendExactly(batch, 3 * kMlaFewCtas, kMlaFewCtas, TokenCount(64),
                                        /*repeats=*/3, /*bf16_out=*/false, /*cut_cost=*/4),
                          expected),
              "")
        << num_heads << " heads";
  }
}

// Scores whose maximum is raised again and again, or early and never again.
TEST(CudaMlaFewExactTest, MaximaThatRiseChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const float size : {0x1p-6f, 1.0f, 0x1p3f, 0x1p6f}) {
    const PagedBatch batch({{1, 1024, {}, 3}, {1, 2000, {}, 4}}, {.num_heads = 16, .q_size = size});
    const AttentionResult expected = AttendExactly(batch, 4, 1);
    for (const int32_t clusters : {1, 16}) {  // alone, and shared
      EXPECT_EQ(BitMismatch(AttendExactly(batch, clusters * kMlaFewCtas, kMlaFewCtas), expected),
                "")
          << "queries of " << size << ", " << clusters << " clusters";
    }
  }
}

// ---- Behind a kernel that is not done ----

struct AheadCase {
  const char* name;
  MlaDeviceRun run;
};
const MlaDeviceRun kFewAhead = {.kernel = MlaKernel::kFewRows, .num_workers = 3, .exact = false};
const MlaDeviceRun kClustersAhead = {.kernel = MlaKernel::kFewRows,
                                     .num_workers = 3,
                                     .ctas = kMlaFewCtas,
                                     .repeats = 3,
                                     .exact = false};
MlaDeviceRun ExactlyAhead(int32_t clusters, int64_t split) {
  return {.kernel = MlaKernel::kTensorCore,
          .num_workers = clusters * kMlaFewCtas,
          .ctas = kMlaFewCtas,
          .repeats = clusters,
          .tile_tokens = TokenCount(1),
          .split = TokenCount(split),
          .cut_cost = 0};
}
const AheadCase kAheadCases[] = {{"few", kFewAhead},
                                 {"clusters", kClustersAhead},
                                 {"exact", ExactlyAhead(1, 1024)},
                                 {"exact_shared", ExactlyAhead(3, 1024)},
                                 {"exact_splits", ExactlyAhead(4, 128)},
                                 {"exact_alone", ExactlyAhead(1, 64)}};

// The kernel before writes queries, and keys of the step, when this one has done what it does before its turn. Repeats
// are as many as there are clusters, since on the emulated GPU one of them, another each time, begins that early.
class CudaMlaSmallAheadTest : public ::testing::TestWithParam<AheadCase> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
  static void ExpectSame(const std::vector<SequenceCase>& seqs, int32_t num_heads, int page_size,
                         bool is_behind_late_rows = true) {
    MlaDeviceRun run = GetParam().run;
    if (num_heads > kMlaFewRows) {
      if (run.kernel == MlaKernel::kFewRows) return;
      run.repeats *= 2;  // clusters of rows
    }
    const PagedBatch batch(
        seqs, {.page_size = PageSize(page_size), .num_heads = num_heads, .page_seed = 7});
    const int repeats = std::exchange(run.repeats, 1);
    const AttentionResult expected = RunMlaOnDevice(batch, run);
    run.is_behind_late_rows = is_behind_late_rows;
    run.overlaps = !is_behind_late_rows;
    run.repeats = repeats;
    EXPECT_EQ(BitMismatch(RunMlaOnDevice(batch, run), expected), "")
        << num_heads << " heads, page size " << page_size;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaMlaSmallAheadTest, ::testing::ValuesIn(kAheadCases),
                         [](const auto& test) { return std::string(test.param.name); });

// The newest key begins a page or ends one, begins a tile or ends one, or is the only one.
TEST_P(CudaMlaSmallAheadTest, TheNewestKeyIsReadWhenItIsThere) {
  for (const int64_t length : {1, 64, 577}) ExpectSame({{1, length, {}, 3}}, 16, 64);
  ExpectSame({{1, 129, {}, 3}}, 20, 1);
  ExpectSame({{1, 320, {}, 3}}, 32, 16);
  ExpectSame({{1, 245, {}, 3}}, 7, 61);
}

// Keys of four tokens, in one tile or two; those of a sequence beside; one that sees nothing.
TEST_P(CudaMlaSmallAheadTest, SoAreKeysOfOtherTokensAndSequences) {
  for (const int64_t length : {130, 450}) {
    ExpectSame({{4, length, {}, 3}, {1, 40, {}, 4}, {1, 0, {}, 5}}, 16, 61);
  }
}

// Behind attention that is not done, of which another CTA begins each time: with partials, and without.
TEST_P(CudaMlaSmallAheadTest, AMergeWaitsForItsPartials) {
  for (const int64_t length : {60, 577}) {
    ExpectSame({{1, length, {}, 3}}, 20, 64, /*is_behind_late_rows=*/false);
  }
}

// Nodes of a tree, and how many there are depends on the token.
TEST_P(CudaMlaSmallAheadTest, SoAreNodesOfATree) {
  ExpectSame({{6, 134, kTree, 3}}, 16, 64);
  ExpectSame({{6, 70, kTree, 3}, {1, 200, {}, 4}}, 20, 16);
}

}  // namespace
}  // namespace quire::cuda
