// How steps are cut for attention's kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "attn/work.h"
#include "base/maths.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"

namespace quire::cuda {
namespace {

TEST(CudaMlaWorkShapeTest, TilesFillCtasAndWorkersTheDevice) {
  const auto shape = [](int32_t num_heads, MlaStep step, bool exact = true) {
    return MlaWorkShape({.num_heads = num_heads}, {.num_sms = 132}, step, exact);
  };
  // 64 rows are a CTA's, of one multiprocessor.
  EXPECT_EQ(shape(16, MlaStep::kAny).query_tile, TokenCount(4));
  EXPECT_EQ(shape(16, MlaStep::kAny).num_workers, 132);
  EXPECT_EQ(shape(20, MlaStep::kAny).query_tile, TokenCount(3));
  EXPECT_EQ(shape(128, MlaStep::kAny).query_tile, TokenCount(1));
  EXPECT_EQ(shape(128, MlaStep::kAny).num_workers, 66);
  EXPECT_EQ(shape(160, MlaStep::kAny).num_workers, 44);
  EXPECT_EQ(shape(16, MlaStep::kDecode).query_tile, TokenCount(1));
  EXPECT_EQ(shape(16, MlaStep::kDecode).num_workers, 132);
  EXPECT_EQ(shape(128, MlaStep::kDecode).num_workers, 66);
  // Beginning and ending a tile of 64 rows takes as long as several tiles of keys.
  EXPECT_GT(shape(16, MlaStep::kAny).tile_cost, 1);
  EXPECT_GT(shape(128, MlaStep::kDecode).tile_cost, 1);
  EXPECT_EQ(shape(16, MlaStep::kDecode).tile_cost, 1);
  // Where no tile of a prompt is cut, long and short ones take turns.
  EXPECT_TRUE(shape(16, MlaStep::kAny).from_both_ends);
  EXPECT_TRUE(shape(128, MlaStep::kAny).from_both_ends);
  EXPECT_FALSE(shape(16, MlaStep::kAny, false).from_both_ends);
  EXPECT_FALSE(shape(16, MlaStep::kDecode).from_both_ends);
  EXPECT_FALSE(shape(16, MlaStep::kDecode, false).from_both_ends);
  // Few rows are apart, and never more tokens in a tile than there are.
  const auto tile_of = [](int32_t num_heads, int64_t most_tokens, bool exact) {
    return MlaWorkShape({.num_heads = num_heads}, {.num_sms = 132}, MlaStep::kAny, exact,
                        TokenCount(most_tokens))
        .query_tile;
  };
  EXPECT_EQ(tile_of(8, 4, false), TokenCount(1));
  EXPECT_EQ(tile_of(8, 4, true), TokenCount(4));
  EXPECT_EQ(tile_of(8, 6, false), TokenCount(6));
  EXPECT_EQ(tile_of(16, 3, false), TokenCount(3));
}

TEST(CudaMlaWorkShapeTest, WorkersOfFewTokensAreClusters) {
  const auto shape = [](int32_t num_heads, int64_t most_tokens, bool exact, KvFormat format,
                        int32_t num_clusters) {
    return MlaWorkShape({.num_heads = num_heads}, {.num_sms = 132, .num_clusters = num_clusters},
                        MlaStep::kDecode, exact, TokenCount(most_tokens), format);
  };
  constexpr KvFormat kBf16 = KvFormat::kLatentBf16;
  for (const int32_t fit : {15, 16, 13}) {
    const WorkShape few = shape(16, 8, false, kBf16, fit);
    EXPECT_EQ(few.ctas, kMlaFewCtas);
    EXPECT_EQ(few.num_workers, fit);
  }
  // A short sequence is cut for more clusters than one where there are not tokens enough for them.
  for (const auto& [tokens, split] : {std::pair{1, 256}, {4, 256}, {5, 512}, {8, 512}}) {
    EXPECT_EQ(shape(16, tokens, false, kBf16, 15).split, TokenCount(split)) << tokens << " tokens";
  }
  // In exact mode splits are what they are, and workers are CTAs of clusters.
  const WorkShape exact = shape(16, 8, true, kBf16, 15);
  EXPECT_EQ(exact.ctas, kMlaFewCtas);
  EXPECT_EQ(exact.num_workers, 15 * kMlaFewCtas);
  EXPECT_EQ(exact.split, TokenCount(1024));
  EXPECT_EQ(shape(20, 8, true, kBf16, 15).ctas, kMlaFewCtas);
  EXPECT_EQ(shape(20, 8, true, kBf16, 15).num_workers, 7 * kMlaFewCtas);  // of two clusters
  // The kernels for all else have a CTA of their own for every worker, and so have these where few clusters fit.
  for (const WorkShape& other :
       {shape(16, 9, false, kBf16, 15), shape(17, 8, false, kBf16, 15),
        shape(16, 9, true, kBf16, 15), shape(33, 8, true, kBf16, 15),
        shape(16, 8, true, KvFormat::kLatentFp8, 15), shape(16, 8, true, kBf16, 12),
        shape(16, 8, false, KvFormat::kLatentFp8, 15), shape(16, 8, false, kBf16, 12),
        shape(16, 8, false, kBf16, 0)}) {
    EXPECT_EQ(other.ctas, 1);
    EXPECT_EQ(other.num_workers, 132);
    EXPECT_EQ(other.split, other.exact ? TokenCount(1024) : TokenCount(64));
  }
}

// Where memory bounds a kernel some of its workers keep memory as busy as all.
TEST(CudaMlaWorkShapeTest, FewerWorkersThanAllAreEnoughForFewRowsOfBf16) {
  const auto enough = [](int32_t num_heads, MlaStep step, KvFormat format, int64_t most_tokens = 64,
                         bool exact = false) {
    return MlaWorkShape({.num_heads = num_heads}, {.num_sms = 132, .num_clusters = 15}, step, exact,
                        TokenCount(most_tokens), format)
        .enough_workers;
  };
  constexpr KvFormat kBf16 = KvFormat::kLatentBf16;
  EXPECT_EQ(enough(16, MlaStep::kDecode, kBf16), 80);
  EXPECT_EQ(enough(8, MlaStep::kDecode, kBf16, 64, true), 80);
  EXPECT_EQ(enough(16, MlaStep::kDecode, KvFormat::kLatentFp8), 0);
  EXPECT_EQ(enough(20, MlaStep::kDecode, kBf16), 0);  // tiles of 64 rows
  EXPECT_EQ(enough(16, MlaStep::kAny, kBf16), 0);
  for (bool exact : {false, true}) {
    EXPECT_EQ(enough(16, MlaStep::kDecode, kBf16, 8, exact), 0) << "clusters";
  }
  EXPECT_EQ(SparseWorkShape({.num_heads = 16}, 2048, 132, false).enough_workers, 0);
}

// How many workers of each cluster have pieces in exact mode: a cluster shares what one alone has.
std::vector<int32_t> WorkersWithPieces(int32_t num_heads, int32_t num_clusters,
                                       const std::vector<int64_t>& lengths) {
  constexpr PageSize kPages(64);
  int64_t num_pages = 0;
  for (const int64_t length : lengths) {
    num_pages = std::max(num_pages, kPages.PagesFor(TokenCount(length)).raw());
  }
  std::vector<PageId> pages;  // all have the same
  for (int32_t page = 1; page <= num_pages; ++page) pages.push_back(PageId(page));
  std::vector<SequenceStep> seqs;
  for (const int64_t length : lengths) {
    const PageCount own = kPages.PagesFor(TokenCount(length));
    seqs.push_back({.q_len = TokenCount(1),
                    .kv_len = TokenCount(length),
                    .pages = std::span(pages).first(static_cast<size_t>(own.raw()))});
  }
  // More heads than a cluster has rows are two clusters, which go the same ways.
  const int32_t side_by_side = CeilDiv(num_heads, kMlaFewRows);
  const WorkShape work = MlaWorkShape({.num_heads = num_heads},
                                      {.num_sms = 132, .num_clusters = num_clusters * side_by_side},
                                      MlaStep::kDecode, /*exact=*/true, TokenCount(8));
  PlanStorage storage(CapacityOf(seqs, kPages, PageCount(num_pages + 1)), work);
  SerialExecutor executor;
  const Plan& plan = storage.Make(seqs, executor);
  std::vector<int32_t> with_pieces(static_cast<size_t>(num_clusters));
  std::vector<int32_t> seen;
  for (int32_t cluster = 0; cluster < num_clusters; ++cluster) {
    for (int32_t cta = 0; cta < kMlaFewCtas; ++cta) {
      const int32_t worker = MlaExactWorker(cluster, cta, work.num_workers);
      seen.push_back(worker);
      bool has_piece = false;
      ForEachPiece(plan, worker, [&](const Piece&) { has_piece = true; });
      with_pieces[static_cast<size_t>(cluster)] += has_piece ? 1 : 0;
    }
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()) - seen.begin(), work.num_workers);
  return with_pieces;
}

TEST(CudaMlaWorkShapeTest, AsManySplitsAsClustersAreSharedAndMoreAreNot) {
  for (const auto& [heads, clusters] : {std::pair{16, 13}, {16, 15}, {16, 16}, {20, 7}, {32, 8}}) {
    const auto workers_with_pieces = [&](const std::vector<int64_t>& lengths) {
      return WorkersWithPieces(heads, clusters, lengths);
    };
    std::vector<std::vector<int64_t>> few = {
        std::vector<int64_t>(7, 1), std::vector<int64_t>(7, 150), std::vector<int64_t>(7, 1024)};
    if (clusters >= 8) {
      few.insert(few.end(), {std::vector<int64_t>(8, 1),
                             std::vector<int64_t>(8, 150),
                             std::vector<int64_t>(8, 1024),
                             {1024, 1, 3000, 0}});
    }
    for (int64_t splits = 1; splits <= clusters; ++splits) few.push_back({1024 * splits});
    for (const std::vector<int64_t>& lengths : few) {
      for (const int32_t workers : workers_with_pieces(lengths)) {
        EXPECT_LE(workers, 1) << heads << " heads, " << clusters << " clusters, " << lengths.size()
                              << " sequences, " << lengths[0] << " keys";
      }
    }
    for (const int32_t workers : workers_with_pieces({131072, 64, 1})) {
      EXPECT_EQ(workers, kMlaFewCtas) << heads << " heads, " << clusters << " clusters";
    }
  }
}

// What MlaWorkShape is told on this device, and what it makes of it.
TEST(CudaMlaWorkShapeTest, ClustersThatTheDeviceRunsAtOnceFitIt) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MlaRoom room = QueryMlaRoom();
  EXPECT_EQ(room.num_sms, QueryDevice().num_sms);
  EXPECT_GE(room.num_clusters, 0);
  EXPECT_LE(room.num_clusters * kMlaFewCtas, room.num_sms);
}

}  // namespace
}  // namespace quire::cuda
