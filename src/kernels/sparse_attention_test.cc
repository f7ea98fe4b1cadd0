#include "kernels/sparse_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/cpu/store.h"
#include "kernels/mla_attention_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/paged_batch.h"
#include "testing/sanitized_share.h"
#include "testing/sparse_batch.h"
#include "testing/sparse_reference.h"

namespace quire {
namespace {

using testing::AttentionCase;
using testing::AttentionResult;
using testing::BitMismatch;
using testing::kAttentionCases;
using testing::kScale;
using testing::kTree;
using testing::MixedSequences;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::RunSparse;
using testing::SequenceCase;

// For every query token up to top_k of the keys that it sees, drawn at random, ascending.
std::vector<int32_t> DrawChoices(const PagedBatch& batch, int32_t top_k, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> chosen;
  for (const SequenceStep& seq : batch.seqs()) {
    for (int64_t j = 0; j < seq.q_len.raw(); ++j) {
      const int64_t visible = std::ssize(testing::VisiblePositions(seq, j));
      std::vector<int32_t> row(static_cast<size_t>(visible));
      std::iota(row.begin(), row.end(), 0);
      std::shuffle(row.begin(), row.end(), random);
      if (visible > top_k) row.resize(static_cast<size_t>(top_k));
      std::sort(row.begin(), row.end());
      row.resize(static_cast<size_t>(top_k), -1);
      chosen.insert(chosen.end(), row.begin(), row.end());
    }
  }
  return chosen;
}

TEST(SparseAttentionTest, IsNearTheReference) {
  ThreadPool executor(2);
  for (const AttentionCase& c : kAttentionCases) {
    for (int page_size : testing::SampledOf(c.page_sizes)) {
      SCOPED_TRACE(std::string(c.name) + ", page size " + std::to_string(page_size));
      const PagedBatch batch(c.seqs, {.page_size = PageSize(page_size),
                                      .format = c.format,
                                      .dims = c.dims,
                                      .num_heads = c.num_heads});
      constexpr int32_t kTopK = 70;
      const std::vector<int32_t> chosen = DrawChoices(batch, kTopK);
      const testing::ReferenceAttention reference = testing::ReferenceSparseMla(
          batch.seqs(), batch.Rows(), batch.q(), c.num_heads, c.dims, kScale, chosen, kTopK);
      const AttentionResult result = RunSparse(batch, chosen, kTopK, 3, executor);
      EXPECT_EQ(testing::Mismatch(result.out, reference.out, reference.out_bound), "");
      EXPECT_EQ(testing::Mismatch(result.lse, reference.lse, reference.lse_bound), "");
    }
  }
}

TEST(SparseAttentionTest, AChoiceOfEverythingHasTheBitsOfDenseAttention) {
  ThreadPool executor(2);
  for (const KvFormat format :
       {KvFormat::kLatentF32, KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
    for (const int32_t heads : {4, 16, 128}) {
      const std::vector<SequenceCase> seqs =
          heads < 128 ? MixedSequences() : std::vector<SequenceCase>{{2, 2049, {}, 8}};
      const PagedBatch batch(
          seqs,
          {.page_size = PageSize(16), .format = format, .dims = {128, 16}, .num_heads = heads});
      const AttentionResult dense = testing::RunMla(batch, {.num_workers = 3}, executor);
      constexpr int32_t kTopK = 2049;
      EXPECT_EQ(BitMismatch(RunSparse(batch, DrawChoices(batch, kTopK), kTopK, 2, executor), dense),
                "")
          << KvFormatName(format) << ", " << heads << " heads";
    }
  }
}

TEST(SparseAttentionTest, PageSizesWorkersAndNeighboursChangeNoBit) {
  const PagedBatchShape shape{.page_size = PageSize(64), .dims = {128, 16}, .num_heads = 20};
  const PagedBatch whole(MixedSequences(), shape);
  constexpr int32_t kTopK = 130;
  const std::vector<int32_t> chosen = DrawChoices(whole, kTopK);
  SerialExecutor serial;
  const AttentionResult expected = RunSparse(whole, chosen, kTopK, 1, serial);
  ThreadPool pool(3);
  for (int page_size : {1, 16, 61, 128}) {
    PagedBatchShape other = shape;
    other.page_size = PageSize(page_size);
    other.page_seed = 7;
    EXPECT_EQ(BitMismatch(RunSparse(PagedBatch(MixedSequences(), other), chosen, kTopK, 5, pool),
                          expected),
              "")
        << page_size;
  }
  // Every sequence alone.
  int64_t first = 0;
  for (const SequenceCase& c : MixedSequences()) {
    const std::vector<int32_t> own(chosen.begin() + first * kTopK,
                                   chosen.begin() + (first + c.q_len) * kTopK);
    const AttentionResult alone = RunSparse(PagedBatch({c}, shape), own, kTopK, 4, pool);
    const int64_t values = int64_t{shape.num_heads} * shape.dims.latent_dim;
    EXPECT_EQ(testing::BitMismatch(alone.out, std::span(expected.out)
                                                  .subspan(static_cast<size_t>(first * values),
                                                           static_cast<size_t>(c.q_len * values))),
              "")
        << "sequence of seed " << c.seed;
    first += c.q_len;
  }
}

TEST(SparseAttentionTest, KeysThatAreNotChosenAreNeverRead) {
  SerialExecutor executor;
  const PagedBatchShape shape{.format = KvFormat::kLatentF32, .dims = {32, 8}, .num_heads = 4};
  const PagedBatch batch({{1, 300, {}, 3}}, shape);
  constexpr int32_t kTopK = 50;
  const std::vector<int32_t> chosen = DrawChoices(batch, kTopK);
  const AttentionResult expected = RunSparse(batch, chosen, kTopK, 1, executor);
  const std::vector<float> poison(40, std::numeric_limits<float>::quiet_NaN());
  for (int32_t p = 0; p < 300; ++p) {
    if (std::ranges::find(chosen, p) != chosen.end()) continue;
    const Slot slot = batch.SlotAt(0, p);
    cpu::StoreWrite({.store = batch.store(),
                     .slots = {&slot, 1},
                     .latent = ConstTensorView(poison.data(), {1, 32}),
                     .rope = ConstTensorView(poison.data() + 32, {1, 8})},
                    executor);
  }
  EXPECT_EQ(BitMismatch(RunSparse(batch, chosen, kTopK, 1, executor), expected), "");
}

TEST(SparseAttentionTest, WhereNothingIsChosenThereAreZerosAndMinusInfinity) {
  SerialExecutor executor;
  const PagedBatch batch({{2, 9, {}, 3}}, {.dims = {32, 8}, .num_heads = 3});
  const AttentionResult result = RunSparse(batch, std::vector<int32_t>(8, -1), 4, 1, executor);
  EXPECT_EQ(result.out, std::vector<float>(2 * 3 * 32, 0.0f));
  EXPECT_EQ(result.lse, std::vector<float>(6, -std::numeric_limits<float>::infinity()));
}

TEST(SparseAttentionTest, PositionsThatAQueryDoesNotSeeOrThatDoNotAscendAreRefused) {
  SerialExecutor executor;
  const PagedBatch batch({{2, 9, {}, 3}, {6, 70, kTree, 5}}, {.dims = {32, 8}, .num_heads = 3});
  const auto refusal = [&](int64_t token, std::vector<int32_t> row) {
    std::vector<int32_t> chosen(8 * 3, -1);
    std::ranges::copy(row, chosen.begin() + token * 3);
    return testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                 [&] { (void)RunSparse(batch, chosen, 3, 1, executor); });
  };
  EXPECT_EQ(refusal(0, {0, 8}), "chosen[0, 1]: expected a position above 0 and below 8, got 8");
  EXPECT_EQ(refusal(1, {3, 3}), "chosen[1, 1]: expected a position above 3 and below 9, got 3");
  EXPECT_EQ(refusal(1, {-2}), "chosen[1, 0]: expected a position above -1 and below 9, got -2");
  // Node 1 of the tree sees 64 committed keys, the root and itself, whatever stands behind them.
  EXPECT_EQ(refusal(3, {66}), "chosen[3, 0]: expected a position above -1 and below 66, got 66");
}

TEST(SparseAttentionTest, ArgumentsThatDoNotFitAreRefusedByName) {
  SerialExecutor executor;
  const PagedBatch batch({{2, 9, {}, 3}}, {.dims = {32, 8}, .num_heads = 3});
  const auto refusal = [&](size_t entries, int32_t top_k) {
    const std::vector<int32_t> chosen(entries, -1);
    return testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                 [&] { (void)RunSparse(batch, chosen, top_k, 1, executor); });
  };
  EXPECT_EQ(refusal(7, 4), "chosen: expected 8 entries, 4 for each of 2 tokens, got 7");
  EXPECT_EQ(refusal(0, 0), "top_k: expected >= 1, got 0");
  const PagedBatch index_keys({{1, 9, {}, 3}},
                              {.format = KvFormat::kIndexKeyBf16, .dims = {32, 0}, .num_heads = 3});
  EXPECT_EQ(testing::ErrorMessage(
                ErrorCode::kInvalidArgument,
                [&] { (void)RunSparse(index_keys, std::vector<int32_t>(4, -1), 4, 1, executor); }),
            "store: expected a latent format, got index_key_bf16");
}

}  // namespace
}  // namespace quire
