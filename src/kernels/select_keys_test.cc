#include "kernels/select_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/cpu/select_keys.h"
#include "kernels/cpu/store.h"
#include "kernels/mla_attention_cases.h"
#include "testing/error_message.h"
#include "testing/paged_batch.h"
#include "testing/sparse_batch.h"
#include "testing/sparse_reference.h"

namespace quire {
namespace {

using testing::IndexShapeOf;
using testing::kTree;
using testing::MixedSequences;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::PathOf;
using testing::ReferenceChoice;
using testing::ReferenceScores;
using testing::RunSelect;
using testing::SelectRun;
using testing::SequenceCase;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

size_t Index(int64_t i) { return static_cast<size_t>(i); }

PagedBatchShape IndexKeys(KvFormat format, int page_size, int32_t num_heads = 4,
                          int32_t head_dim = 32) {
  return {.page_size = PageSize(page_size),
          .format = format,
          .dims = {head_dim, 0},
          .num_heads = num_heads};
}

std::vector<int32_t> Row(const std::vector<int32_t>& chosen, int64_t token, int32_t top_k) {
  return {chosen.begin() + token * top_k, chosen.begin() + (token + 1) * top_k};
}

// ---- The order ----

TEST(SelectKeysTest, RanksOrderScoresThenPositions) {
  const float ascending[] = {kNaN, -kInfinity, -2.0f, -1.0f, -kDenormal,
                             0.0f, kDenormal,  1.0f,  2.0f,  kInfinity};
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
  EXPECT_EQ(RankOf(-kNaN, 7), RankOf(kNaN, 7));
  EXPECT_GT(RankOfForced(3), RankOfForced(4));
}

// One key for every score: with queries e and -e of gates 1 and -1, a key v * e scores relu(v) -
// relu(-v) = v, exactly.
class GivenScores {
 public:
  explicit GivenScores(std::vector<float> scores, int page_size = 16)
      : scores_(std::move(scores)),
        batch_({{1, std::ssize(scores_), {}, 3}},
               IndexKeys(KvFormat::kIndexKeyF32, page_size, 2, 4)) {
    SerialExecutor executor;
    for (size_t p = 0; p < scores_.size(); ++p) {
      const float key[4] = {scores_[p], 0, 0, 0};
      const Slot slot = batch_.SlotAt(0, static_cast<int64_t>(p));
      cpu::StoreWrite(
          {.store = batch_.store(), .slots = {&slot, 1}, .latent = ConstTensorView(key, {1, 4})},
          executor);
    }
    std::ranges::copy(kQ, const_cast<float*>(batch_.q().data()));
    std::ranges::copy(kGates, const_cast<float*>(batch_.gates().data()));
  }

  void ExpectReferenceChoice(const SelectRun& run, Executor& executor) const {
    const std::vector<double> scores(scores_.begin(), scores_.end());
    EXPECT_EQ(RunSelect(batch_, run, executor), ReferenceChoice(scores, IndexShapeOf(batch_, run)))
        << "top_k " << run.top_k << ", " << run.num_workers << " workers";
  }

 private:
  static constexpr float kQ[8] = {1, 0, 0, 0, -1, 0, 0, 0};
  static constexpr float kGates[2] = {1, -1};
  std::vector<float> scores_;
  PagedBatch batch_;
};

TEST(SelectKeysTest, TieStormsAreChosenInTheStatedOrder) {
  ThreadPool pool(2);
  constexpr int64_t kKeys = 700;
  const auto scores_by = [&](auto score) {
    std::vector<float> scores;
    for (int64_t p = 0; p < kKeys; ++p) scores.push_back(score(p));
    return scores;
  };
  const std::vector<float> storms[] = {
      scores_by([](int64_t) { return 1.0f; }),
      scores_by([](int64_t p) { return static_cast<float>(p / 64 % 3); }),
      scores_by([](int64_t p) { return static_cast<float>(p / 7 * 5 % 11) - 5.0f; }),
      scores_by([](int64_t p) { return p % 2 == 0 ? 0.0f : -0.0f; }),
      scores_by([](int64_t p) { return static_cast<float>(p * 37 % 5 - 2) * kDenormal; }),
      scores_by([](int64_t p) { return p % 3 == 0 ? kNaN : static_cast<float>(p % 5); }),
      scores_by([](int64_t) { return kNaN; }),
      scores_by([](int64_t p) { return p % 4 == 0 ? 3e38f : -3e38f; }),
      scores_by([](int64_t p) { return static_cast<float>(-p); }),
      scores_by([](int64_t p) { return static_cast<float>(p); }),
  };
  for (const std::vector<float>& scores : storms) {
    const GivenScores given(scores);
    for (const int32_t top_k : {1, 2, 63, 64, 65, 300, 699}) {
      for (const int32_t workers : {1, 2, 7}) {
        given.ExpectReferenceChoice({.top_k = top_k, .num_workers = workers}, pool);
      }
    }
  }
}

TEST(SelectKeysTest, TheFirstAndLastKeysAreChosenWhateverTheyScore) {
  SerialExecutor executor;
  std::vector<float> scores(200, 5.0f);
  for (const size_t p : {0, 1, 2, 197, 198, 199}) scores[p] = -4.0f;
  scores[198] = kNaN;
  const GivenScores given(scores);
  for (const int32_t init : {0, 1, 3}) {
    for (const int32_t local : {0, 1, 3}) {
      for (const int32_t top_k : {6, 20, 199}) {
        given.ExpectReferenceChoice(
            {.top_k = top_k, .init_tokens = init, .local_tokens = local, .num_workers = 3},
            executor);
      }
    }
  }
}

// ---- Scores ----

void ExpectNearReference(const PagedBatch& batch, const SelectRun& run,
                         const std::vector<int32_t>& chosen) {
  const IndexShape shape = IndexShapeOf(batch, run);
  const std::vector<ReferenceScores> reference = testing::ReferenceIndexScores(
      batch.seqs(), batch.Rows(), batch.q(), batch.gates(), shape, run.scale);
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<int32_t> row = Row(chosen, static_cast<int64_t>(t), run.top_k);
    EXPECT_EQ(testing::ChoiceMismatch(row, reference[t], shape), "") << "token " << t;
  }
}

TEST(SelectKeysTest, ChoosesWhatTheReferenceScoresHighest) {
  ThreadPool pool(2);
  for (const KvFormat format : {KvFormat::kIndexKeyF32, KvFormat::kIndexKeyBf16,
                                KvFormat::kIndexKeyFp8, KvFormat::kIndexKeyFp8Preshuffled}) {
    for (const auto& [heads, dim] : {std::pair{1, 16}, {3, 48}, {16, 32}, {64, 128}}) {
      SCOPED_TRACE(std::string(KvFormatName(format)) + ", heads " + std::to_string(heads));
      const std::vector<SequenceCase> seqs =
          heads < 64 ? MixedSequences() : std::vector<SequenceCase>{{3, 260, {}, 4}};
      const PagedBatch batch(seqs, IndexKeys(format, 32, heads, dim));
      const SelectRun run{.top_k = 50, .scale = 0.3f, .num_workers = 3};
      ExpectNearReference(batch, run, RunSelect(batch, run, pool));
    }
  }
}

TEST(SelectKeysTest, PageSizesAndLayoutsChangeNoChoice) {
  SerialExecutor executor;
  const SelectRun run{.top_k = 70};
  const auto choose = [&](KvFormat format, int page_size, uint64_t page_seed) {
    PagedBatchShape shape = IndexKeys(format, page_size);
    shape.page_seed = page_seed;
    return RunSelect(PagedBatch(MixedSequences(), shape), run, executor);
  };
  for (const KvFormat format :
       {KvFormat::kIndexKeyF32, KvFormat::kIndexKeyBf16, KvFormat::kIndexKeyFp8}) {
    const std::vector<int32_t> expected = choose(format, 1, 1);
    for (const int page_size : {16, 61, 64, 128}) {
      EXPECT_EQ(choose(format, page_size, 5), expected)
          << KvFormatName(format) << ", " << page_size;
      if (format == KvFormat::kIndexKeyFp8 && page_size % 16 == 0) {
        EXPECT_EQ(choose(KvFormat::kIndexKeyFp8Preshuffled, page_size, 9), expected) << page_size;
      }
    }
  }
}

TEST(SelectKeysTest, ThreadsWorkersTilesAndNeighboursChangeNoChoice) {
  SerialExecutor serial;
  ThreadPool pool(3);
  const PagedBatchShape shape = IndexKeys(KvFormat::kIndexKeyFp8, 64);
  const PagedBatch whole(MixedSequences(), shape);
  constexpr int32_t kTopK = 90;
  const std::vector<int32_t> expected = RunSelect(whole, {.top_k = kTopK}, serial);
  for (const int32_t workers : {1, 2, 3, 5, 16, 61}) {
    for (const int64_t query_tile : {1, 3, 64}) {
      EXPECT_EQ(RunSelect(whole, {.top_k = kTopK, .num_workers = workers, .query_tile = query_tile},
                          pool),
                expected)
          << workers << " workers, tiles of " << query_tile;
    }
  }
  int64_t first = 0;
  for (const SequenceCase& c : MixedSequences()) {
    const std::vector<int32_t> own(expected.begin() + first * kTopK,
                                   expected.begin() + (first + c.q_len) * kTopK);
    EXPECT_EQ(RunSelect(PagedBatch({c}, shape), {.top_k = kTopK, .num_workers = 4}, pool), own)
        << "sequence of seed " << c.seed;
    first += c.q_len;
  }
}

TEST(SelectKeysTest, ChunkingTheQueriesChangesNoChoice) {
  SerialExecutor executor;
  const PagedBatchShape shape = IndexKeys(KvFormat::kIndexKeyBf16, 16);
  const SelectRun run{.top_k = 20, .num_workers = 2};
  const std::vector<int32_t> at_once =
      RunSelect(PagedBatch({{100, 100, {}, 3}}, shape), run, executor);
  int64_t done = 0;
  for (const int64_t chunk : {1, 30, 49, 20}) {
    done += chunk;
    const std::vector<int32_t> part =
        RunSelect(PagedBatch({{chunk, done, {}, 3}}, shape), run, executor);
    EXPECT_EQ(part, std::vector<int32_t>(at_once.begin() + (done - chunk) * run.top_k,
                                         at_once.begin() + done * run.top_k));
  }
}

// ---- What is not seen ----

// Overwrites the key at a position of the batch's first sequence.
void SetKey(const PagedBatch& batch, int64_t position, float value) {
  SerialExecutor executor;
  const int32_t dim = batch.shape().dims.latent_dim;
  const std::vector<float> key(Index(dim), value);
  const Slot slot = batch.SlotAt(0, position);
  cpu::StoreWrite({.store = batch.store(),
                   .slots = {&slot, 1},
                   .latent = ConstTensorView(key.data(), {1, dim})},
                  executor);
}

TEST(SelectKeysTest, KeysBehindAQuerysEndAreNeverRead) {
  SerialExecutor executor;
  const SelectRun run{.top_k = 30, .num_workers = 2};
  for (const float value : {kNaN, kInfinity, 1e30f}) {
    const PagedBatch batch({{8, 108, {}, 3}}, IndexKeys(KvFormat::kIndexKeyF32, 64));
    const std::vector<int32_t> expected = RunSelect(batch, run, executor);
    for (int64_t behind = 107; behind > 100; --behind) {
      SetKey(batch, behind, value);
      const std::vector<int32_t> chosen = RunSelect(batch, run, executor);
      for (int64_t t = 0; t < behind - 100; ++t) {
        EXPECT_EQ(Row(chosen, t, run.top_k), Row(expected, t, run.top_k)) << behind << ", " << t;
      }
    }
  }
}

TEST(SelectKeysTest, AQueryThatSeesNoMoreThanTopKGetsAllKeysWithoutScores) {
  SerialExecutor executor;
  const PagedBatch batch({{4, 10, {}, 3}, {2, 1, {}, 4}, {6, 8, kTree, 5}},
                         IndexKeys(KvFormat::kIndexKeyF32, 16));
  const std::vector<int32_t> chosen = RunSelect(batch, {.top_k = 10, .num_workers = 3}, executor);
  const int64_t visible[] = {7, 8, 9, 10, 0, 1, 3, 4, 4, 5, 5, 6};
  for (size_t t = 0; t < std::size(visible); ++t) {
    std::vector<int32_t> all;
    for (int32_t p = 0; p < 10; ++p) all.push_back(p < visible[t] ? p : -1);
    EXPECT_EQ(Row(chosen, static_cast<int64_t>(t), 10), all) << t;
  }
}

TEST(SelectKeysTest, ATreeRowChoosesAsPlainDecodeOverItsPath) {
  SerialExecutor executor;
  std::vector<int32_t> comb = {-1};
  for (int32_t i = 1; i < 24; ++i) comb.push_back(i % 2 == 1 ? i - 1 : std::max(0, i - 2));
  for (const int page_size : {1, 16, 61, 64}) {
    const PagedBatchShape shape = IndexKeys(KvFormat::kIndexKeyFp8, page_size);
    for (const std::vector<int32_t>& parents : {kTree, comb}) {
      for (const int64_t committed : {0, 1, 60, 64, 100}) {
        const auto nodes = std::ssize(parents);
        const SelectRun run{.top_k = 7, .init_tokens = 1, .local_tokens = 2, .num_workers = 2};
        const std::vector<int32_t> verified =
            RunSelect(PagedBatch({{nodes, committed + nodes, parents, 3}}, shape), run, executor);
        for (int64_t node = 0; node < nodes; ++node) {
          const std::vector<int64_t> path = PathOf(parents, node);
          SequenceCase plain{.q_len = 1, .kv_len = committed + std::ssize(path), .seed = 3};
          for (int64_t p = 0; p < committed; ++p) plain.contents.push_back(p);
          for (const int64_t i : path) plain.contents.push_back(committed + i);
          EXPECT_EQ(RunSelect(PagedBatch({plain}, shape), run, executor),
                    Row(verified, node, run.top_k))
              << "committed " << committed << ", node " << node;
        }
      }
    }
  }
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
  EXPECT_EQ(refusal(batch, {.top_k = 3, .scale = kNaN}),
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
