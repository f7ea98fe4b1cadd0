#include "runner/bucket.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

TEST(BucketTest, EagerHasTheOneLargestStep) {
  const auto buckets = MakeBuckets(StepMode::kEager, 6, TokenCount(100));
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0], (BucketSize{.num_seqs = 6, .num_tokens = TokenCount(100)}));
}

TEST(BucketTest, EveryStepWithinTheLimitsHasABucketAndNoSmallerOneWouldDo) {
  for (const int32_t max_seqs : {1, 2, 6, 16, 37}) {
    // A row more than sequences is no decode bucket, though it has as many tokens as rows.
    for (const int64_t max_tokens :
         {int64_t{max_seqs}, int64_t{max_seqs} + 1, int64_t{40}, int64_t{100}}) {
      if (max_tokens < max_seqs) continue;
      const auto buckets = MakeBuckets(StepMode::kGraph, max_seqs, TokenCount(max_tokens));
      for (int32_t seqs = 1; seqs <= max_seqs; ++seqs) {
        for (int64_t tokens = seqs; tokens <= max_tokens; ++tokens) {
          const BucketSize& bucket =
              buckets[ChooseBucket(buckets, {seqs, TokenCount(tokens), TokenCount(tokens)})];
          const bool decode = tokens == seqs;
          ASSERT_GE(bucket.num_tokens, TokenCount(tokens));
          // Padding tokens need a row of their own, or a row each.
          const TokenCount padding = bucket.num_tokens - TokenCount(tokens);
          if (decode) {
            ASSERT_TRUE(bucket.is_decode);
            ASSERT_EQ(TokenCount(bucket.num_seqs), bucket.num_tokens);
          } else if (padding > TokenCount(0)) {
            ASSERT_GT(bucket.num_seqs, seqs);
          }
          if (tokens >= 4) {
            ASSERT_LT(bucket.num_tokens, TokenCount(2 * tokens));
          }
        }
      }
    }
  }
}

TEST(BucketTest, DecodeRowsGrowAsListed) {
  const auto buckets = MakeBuckets(StepMode::kGraph, 30, TokenCount(64));
  std::vector<int32_t> rows;
  for (const BucketSize& bucket : buckets) {
    if (bucket.is_decode) rows.push_back(bucket.num_seqs);
  }
  EXPECT_EQ(rows, (std::vector<int32_t>{1, 2, 4, 8, 12, 16, 24, 30}));
}

TEST(BucketTest, MixedTokensGrowAsListedAndAreNeverPaddedByMuch) {
  const auto buckets = MakeBuckets(StepMode::kGraph, 64, TokenCount(2048));
  std::vector<int64_t> sizes;
  for (const BucketSize& bucket : buckets) {
    if (!bucket.is_decode) sizes.push_back(bucket.num_tokens.raw());
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 8, 16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1024,
                                         1280, 1536, 1792, 2048}));
  EXPECT_LT(MakeBuckets(StepMode::kGraph, 64, TokenCount(1 << 20)).size(), 150u);
  // 63 sequences that decode beside a prompt of 1024 tokens.
  EXPECT_EQ(buckets[ChooseBucket(buckets, {64, TokenCount(1087), TokenCount(1087)})].num_tokens,
            TokenCount(1280));
}

// Neither the larger of the ranks' own buckets nor that of their largest numbers would do.
TEST(BucketTest, RanksThatStepTogetherChooseTheSmallestBucketWithRoomForEach) {
  const auto buckets = MakeBuckets(StepMode::kGraph, 64, TokenCount(2048));  // 11 and 17
  const auto common = [&](const std::vector<StepSize>& steps) {
    std::vector<uint32_t> all(RefusalWords(buckets.size()));
    for (const StepSize& step : steps) {
      std::vector<uint32_t> own(all.size());
      Refuse(buckets, step, own);
      for (size_t i = 0; i < own.size(); ++i) all[i] |= own[i];
    }
    return buckets[FirstWithRoom(buckets, all)];
  };
  const auto step = [](int32_t seqs, int64_t tokens) {
    return StepSize{seqs, TokenCount(tokens), TokenCount(tokens)};
  };
  const BucketSize mixed{.num_seqs = 65, .num_tokens = TokenCount(16)};
  EXPECT_EQ(common({step(12, 12), step(1, 4)}), mixed);
  EXPECT_EQ(common({step(12, 12), step(1, 12)}), mixed);
  EXPECT_EQ(common({step(3, 3), step(0, 0), step(5, 5)}).num_tokens, TokenCount(8));
  EXPECT_TRUE(common({step(3, 3), step(0, 0), step(5, 5)}).is_decode);
  EXPECT_EQ(common({step(0, 0)}).num_tokens, TokenCount(1));
  EXPECT_EQ(common({step(64, 64), step(1, 2048)}).num_tokens, TokenCount(2048));
}

TEST(BucketTest, StepsOfPromptsThatExpandHaveBucketsOfTheirOwn) {
  const auto buckets = MakeBuckets(StepMode::kGraph, 100, TokenCount(2048), /*expands=*/true);
  const auto chosen = [&](int32_t seqs, int64_t tokens, int64_t latent) {
    return buckets[ChooseBucket(buckets, {seqs, TokenCount(tokens), TokenCount(latent)})];
  };
  EXPECT_EQ(
      chosen(9, 1000, 8),
      (BucketSize{.num_seqs = 101, .num_tokens = TokenCount(1024), .num_latent = TokenCount(128)}));
  EXPECT_TRUE(chosen(101, 1228, 128).expands());
  // More of them than such a bucket computes in latent form; nothing but those; too small a step.
  EXPECT_FALSE(chosen(101, 1229, 129).expands());
  EXPECT_FALSE(chosen(2, 1000, 1000).expands());
  EXPECT_FALSE(chosen(2, 300, 1).expands());
  EXPECT_FALSE(chosen(64, 64, 64).expands());
  for (const BucketSize& bucket : MakeBuckets(StepMode::kGraph, 100, TokenCount(2048))) {
    EXPECT_FALSE(bucket.expands());
  }
}

}  // namespace
}  // namespace quire
