// The cases of choosing keys, for every backend's test.
#ifndef QUIRE_KERNELS_SELECT_KEYS_CASES_H_
#define QUIRE_KERNELS_SELECT_KEYS_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "kernels/cpu/store.h"
#include "kernels/mla_attention_cases.h"
#include "kernels/select_keys.h"
#include "testing/paged_batch.h"
#include "testing/sparse_batch.h"
#include "testing/sparse_reference.h"

namespace quire::testing {

// What a backend chooses: [tokens, top_k].
using SelectFn = std::function<std::vector<int32_t>(const PagedBatch&, const SelectRun&)>;

inline constexpr float kScoreNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kScoreInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kScoreDenormal = std::numeric_limits<float>::denorm_min();

inline PagedBatchShape IndexKeys(KvFormat format, int page_size, int32_t num_heads = 4,
                                 int32_t head_dim = 32) {
  return {.page_size = PageSize(page_size),
          .format = format,
          .dims = {head_dim, 0},
          .num_heads = num_heads};
}

inline std::vector<int32_t> ChosenRow(const std::vector<int32_t>& chosen, int64_t token,
                                      int32_t top_k) {
  return {chosen.begin() + token * top_k, chosen.begin() + (token + 1) * top_k};
}

// ---- The order ----

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

  void ExpectReferenceChoice(const SelectRun& run, const SelectFn& select) const {
    const std::vector<double> scores(scores_.begin(), scores_.end());
    EXPECT_EQ(select(batch_, run), ReferenceChoice(scores, IndexShapeOf(batch_, run)))
        << "top_k " << run.top_k << ", " << run.num_workers << " workers";
  }

 private:
  static constexpr float kQ[8] = {1, 0, 0, 0, -1, 0, 0, 0};
  static constexpr float kGates[2] = {1, -1};
  std::vector<float> scores_;
  PagedBatch batch_;
};

inline void ExpectTieStormsInOrder(const SelectFn& select) {
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
      scores_by([](int64_t p) { return static_cast<float>(p * 37 % 5 - 2) * kScoreDenormal; }),
      scores_by([](int64_t p) { return p % 3 == 0 ? kScoreNaN : static_cast<float>(p % 5); }),
      scores_by([](int64_t) { return kScoreNaN; }),
      scores_by([](int64_t p) { return p % 4 == 0 ? 3e38f : -3e38f; }),
      scores_by([](int64_t p) { return static_cast<float>(-p); }),
      scores_by([](int64_t p) { return static_cast<float>(p); }),
  };
  for (const std::vector<float>& scores : storms) {
    const GivenScores given(scores);
    for (const int32_t top_k : {1, 2, 63, 64, 65, 300, 699}) {
      for (const int32_t workers : {1, 2, 7}) {
        given.ExpectReferenceChoice({.top_k = top_k, .num_workers = workers}, select);
      }
    }
  }
}

// More keys than there is room for, in orders that fill it seldom, often and always.
inline void ExpectTheBestOfManyKeys(const SelectFn& select) {
  constexpr int64_t kKeys = 30000;
  std::mt19937 random(1);
  std::vector<float> drawn, rising, equal(kKeys, 1.0f);
  for (int64_t p = 0; p < kKeys; ++p) {
    drawn.push_back(std::normal_distribution<float>()(random));
    rising.push_back(static_cast<float>(p / 3));
  }
  for (const std::vector<float>& scores : {drawn, rising, equal}) {
    const GivenScores given(scores);
    for (const int32_t top_k : {5, 2048, 7000}) {
      for (const int32_t workers : {1, 40}) {
        given.ExpectReferenceChoice({.top_k = top_k, .num_workers = workers}, select);
      }
    }
  }
}

inline void ExpectEndsChosen(const SelectFn& select) {
  std::vector<float> scores(200, 5.0f);
  for (const size_t p : {0, 1, 2, 197, 198, 199}) scores[p] = -4.0f;
  scores[198] = kScoreNaN;
  const GivenScores given(scores);
  for (const int32_t init : {0, 1, 3}) {
    for (const int32_t local : {0, 1, 3}) {
      for (const int32_t top_k : {6, 20, 199}) {
        given.ExpectReferenceChoice(
            {.top_k = top_k, .init_tokens = init, .local_tokens = local, .num_workers = 3}, select);
      }
    }
  }
}

// ---- Scores ----

// What the queries of a batch choose, and how far from the reference's scores that may be.
inline void ExpectNearReference(const PagedBatch& batch, const SelectRun& run,
                                const std::vector<ReferenceScores>& reference,
                                const std::vector<int32_t>& chosen) {
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<int32_t> row = ChosenRow(chosen, static_cast<int64_t>(t), run.top_k);
    EXPECT_EQ(ChoiceMismatch(row, reference[t], IndexShapeOf(batch, run)), "") << "token " << t;
  }
}

inline void ExpectReferenceChoices(const SelectFn& select) {
  for (const KvFormat format : {KvFormat::kIndexKeyF32, KvFormat::kIndexKeyBf16,
                                KvFormat::kIndexKeyFp8, KvFormat::kIndexKeyFp8Preshuffled}) {
    for (const auto& [heads, dim] : {std::pair{1, 16}, {3, 48}, {16, 32}, {64, 128}}) {
      SCOPED_TRACE(std::string(KvFormatName(format)) + ", heads " + std::to_string(heads));
      const std::vector<SequenceCase> seqs =
          heads < 64 ? MixedSequences() : std::vector<SequenceCase>{{3, 260, {}, 4}};
      const PagedBatch batch(seqs, IndexKeys(format, 32, heads, dim));
      const SelectRun run{.top_k = 50, .scale = 0.3f, .num_workers = 3};
      ExpectNearReference(batch, run,
                          ReferenceIndexScores(batch.seqs(), batch.Rows(), batch.q(), batch.gates(),
                                               IndexShapeOf(batch, run), run.scale),
                          select(batch, run));
    }
  }
}

// Of one format: pages, and tiles of keys, change no choice.
inline void ExpectPagesChangeNothing(const SelectFn& select, KvFormat format, int32_t num_heads,
                                     int32_t head_dim) {
  const SelectRun run{.top_k = 70, .num_workers = 2};
  const auto choose = [&](KvFormat of, int page_size, uint64_t page_seed) {
    PagedBatchShape shape = IndexKeys(of, page_size, num_heads, head_dim);
    shape.page_seed = page_seed;
    return select(PagedBatch(MixedSequences(), shape), run);
  };
  const std::vector<int32_t> expected = choose(format, 1, 1);
  for (const int page_size : {16, 61, 64, 128}) {
    EXPECT_EQ(choose(format, page_size, 5), expected) << KvFormatName(format) << ", " << page_size;
    if (format == KvFormat::kIndexKeyFp8 && page_size % 16 == 0) {
      EXPECT_EQ(choose(KvFormat::kIndexKeyFp8Preshuffled, page_size, 9), expected) << page_size;
    }
  }
}

// Workers, tiles of queries, and the sequences beside one change no choice.
inline void ExpectWorkersChangeNothing(const SelectFn& select, const PagedBatchShape& shape) {
  const PagedBatch whole(MixedSequences(), shape);
  constexpr int32_t kTopK = 90;
  const std::vector<int32_t> expected = select(whole, {.top_k = kTopK});
  for (const int32_t workers : {1, 2, 3, 5, 16, 61}) {
    for (const int64_t query_tile : {1, 3, 64}) {
      EXPECT_EQ(select(whole, {.top_k = kTopK, .num_workers = workers, .query_tile = query_tile}),
                expected)
          << workers << " workers, tiles of " << query_tile;
    }
  }
  int64_t first = 0;
  for (const SequenceCase& c : MixedSequences()) {
    const std::vector<int32_t> own(expected.begin() + first * kTopK,
                                   expected.begin() + (first + c.q_len) * kTopK);
    EXPECT_EQ(select(PagedBatch({c}, shape), {.top_k = kTopK, .num_workers = 4}), own)
        << "sequence of seed " << c.seed;
    first += c.q_len;
  }
}

inline void ExpectChunksChangeNothing(const SelectFn& select, const PagedBatchShape& shape) {
  const SelectRun run{.top_k = 20, .num_workers = 2};
  const std::vector<int32_t> at_once = select(PagedBatch({{100, 100, {}, 3}}, shape), run);
  int64_t done = 0;
  for (const int64_t chunk : {1, 30, 49, 20}) {
    done += chunk;
    const std::vector<int32_t> part = select(PagedBatch({{chunk, done, {}, 3}}, shape), run);
    EXPECT_EQ(part, std::vector<int32_t>(at_once.begin() + (done - chunk) * run.top_k,
                                         at_once.begin() + done * run.top_k));
  }
}

// ---- What is not seen ----

// Overwrites the key at a position of the batch's first sequence.
inline void SetKey(const PagedBatch& batch, int64_t position, const std::vector<float>& key) {
  SerialExecutor executor;
  const Slot slot = batch.SlotAt(0, position);
  cpu::StoreWrite({.store = batch.store(),
                   .slots = {&slot, 1},
                   .latent = ConstTensorView(key.data(), {1, std::ssize(key)})},
                  executor);
}
// All of its values.
inline void SetKey(const PagedBatch& batch, int64_t position, float value) {
  const auto dim = static_cast<size_t>(batch.shape().dims.latent_dim);
  SetKey(batch, position, std::vector<float>(dim, value));
}

inline void ExpectNothingBehindTheEndIsRead(const SelectFn& select) {
  const SelectRun run{.top_k = 30, .num_workers = 2};
  for (const float value : {kScoreNaN, kScoreInfinity, 1e30f}) {
    const PagedBatch batch({{8, 108, {}, 3}}, IndexKeys(KvFormat::kIndexKeyF32, 64));
    const std::vector<int32_t> expected = select(batch, run);
    for (int64_t behind = 107; behind > 100; --behind) {
      SetKey(batch, behind, value);
      const std::vector<int32_t> chosen = select(batch, run);
      for (int64_t t = 0; t < behind - 100; ++t) {
        EXPECT_EQ(ChosenRow(chosen, t, run.top_k), ChosenRow(expected, t, run.top_k))
            << behind << ", " << t;
      }
    }
  }
}

inline void ExpectAllOfFewKeys(const SelectFn& select) {
  const PagedBatch batch({{4, 10, {}, 3}, {2, 1, {}, 4}, {6, 8, kTree, 5}},
                         IndexKeys(KvFormat::kIndexKeyF32, 16));
  const std::vector<int32_t> chosen = select(batch, {.top_k = 10, .num_workers = 3});
  const int64_t visible[] = {7, 8, 9, 10, 0, 1, 3, 4, 4, 5, 5, 6};
  for (size_t t = 0; t < std::size(visible); ++t) {
    std::vector<int32_t> all;
    for (int32_t p = 0; p < 10; ++p) all.push_back(p < visible[t] ? p : -1);
    EXPECT_EQ(ChosenRow(chosen, static_cast<int64_t>(t), 10), all) << t;
  }
}

inline void ExpectTreesChooseAsTheirPaths(const SelectFn& select, KvFormat format,
                                          int32_t num_heads, int32_t head_dim) {
  std::vector<int32_t> comb = {-1};
  for (int32_t i = 1; i < 24; ++i) comb.push_back(i % 2 == 1 ? i - 1 : std::max(0, i - 2));
  for (const int page_size : {1, 16, 61, 64}) {
    const PagedBatchShape shape = IndexKeys(format, page_size, num_heads, head_dim);
    for (const std::vector<int32_t>& parents : {kTree, comb}) {
      for (const int64_t committed : {0, 1, 60, 64, 100}) {
        const auto nodes = std::ssize(parents);
        const SelectRun run{.top_k = 7, .init_tokens = 1, .local_tokens = 2, .num_workers = 2};
        const std::vector<int32_t> verified =
            select(PagedBatch({{nodes, committed + nodes, parents, 3}}, shape), run);
        for (int64_t node = 0; node < nodes; ++node) {
          const std::vector<int64_t> path = PathOf(parents, node);
          SequenceCase plain{.q_len = 1, .kv_len = committed + std::ssize(path), .seed = 3};
          for (int64_t p = 0; p < committed; ++p) plain.contents.push_back(p);
          for (const int64_t i : path) plain.contents.push_back(committed + i);
          EXPECT_EQ(select(PagedBatch({plain}, shape), run), ChosenRow(verified, node, run.top_k))
              << "committed " << committed << ", node " << node;
        }
      }
    }
  }
}

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_SELECT_KEYS_CASES_H_
