#include "testing/invariants/sparse_checks.h"

#include <algorithm>
#include <string>

#include "kernels/select_keys.h"
#include "testing/compare.h"
#include "testing/paged_batch.h"
#include "testing/sparse_batch.h"
#include "testing/sparse_reference.h"

namespace quire::testing {
namespace {

// References take a product for every query, key and value.
constexpr int64_t kMostReferenceKeys = 400;
// Choosing everything takes a list as long as the longest row.
constexpr int64_t kMostKeys = 3000;

std::vector<SequenceCase> CasesOf(const Trial& trial) {
  std::vector<SequenceCase> cases;
  for (int64_t b = 0; b < std::min<int64_t>(trial.batch.num_real, 3); ++b) {
    const SequenceStep& seq = trial.batch.seqs[Index(b)];
    cases.push_back({.q_len = std::min<int64_t>(seq.q_len.raw(), 12),
                     .kv_len = seq.kv_len.raw(),
                     .parents = trial.batch.parents[Index(b)],
                     .seed = trial.config.seed + Index(b)});
  }
  return cases;
}

int64_t LongestOf(const std::vector<SequenceCase>& cases) {
  return std::ranges::max(cases, {}, &SequenceCase::kv_len).kv_len;
}

SelectRun DrawIndexer(const Trial& trial) {
  SelectRun run{.top_k = ToInt32(trial.random.Pick({1, 3, 17, 64, 100})),
                .scale = 0.25f,
                .num_workers = trial.config.work.num_workers,
                .query_tile = trial.random.Pick({1, 4, 64})};
  if (trial.random.OneIn(3)) {
    run.init_tokens = ToInt32(trial.random.Between(0, run.top_k));
    run.local_tokens = ToInt32(trial.random.Between(0, run.top_k - run.init_tokens));
  }
  return run;
}

// Formats, and pages and layouts that must not matter.
PagedBatchShape DrawIndexKeys(const Trial& trial) {
  constexpr KvFormat kFormats[] = {KvFormat::kIndexKeyF32, KvFormat::kIndexKeyBf16,
                                   KvFormat::kIndexKeyFp8};
  return {.page_size = trial.config.page_size,
          .format = kFormats[trial.random.Between(0, 2)],
          .dims = {.latent_dim = ToInt32(trial.random.Pick({16, 32})), .rope_dim = 0},
          .num_heads = ToInt32(trial.random.Pick({1, 3, 16, 17})),
          .page_seed = trial.config.seed};
}

// What queries choose, at this page size and at 1.
std::vector<int32_t> CheckChoice(const Trial& trial, const std::vector<SequenceCase>& cases,
                                 const SelectRun& run) {
  PagedBatchShape shape = DrawIndexKeys(trial);
  const PagedBatch batch(cases, shape);
  const std::vector<int32_t> chosen = RunSelect(batch, run, trial.executor);
  if (shape.format == KvFormat::kIndexKeyFp8 && trial.page() % kPreshuffleTile == 0) {
    shape.format = KvFormat::kIndexKeyFp8Preshuffled;
    EXPECT_EQ(RunSelect(PagedBatch(cases, shape), run, trial.executor), chosen) << "preshuffled";
    shape.format = KvFormat::kIndexKeyFp8;
    trial.facts.set(kSparsePreshuffled);
  }
  shape.page_size = PageSize(1);
  SelectRun alone = run;
  alone.num_workers = 1;
  alone.query_tile = 1;
  EXPECT_EQ(RunSelect(PagedBatch(cases, shape), alone, trial.executor), chosen) << "page size 1";
  if (LongestOf(cases) > run.top_k) trial.facts.set(kSparseChoice);
  if (LongestOf(cases) > kMostReferenceKeys) return chosen;

  const IndexShape index = IndexShapeOf(batch, run);
  const std::vector<ReferenceScores> reference =
      ReferenceIndexScores(batch.seqs(), batch.Rows(), batch.q(), batch.gates(), index, run.scale);
  for (size_t t = 0; t < reference.size(); ++t) {
    const auto row = std::span(chosen).subspan(t * Index(run.top_k), Index(run.top_k));
    EXPECT_EQ(ChoiceMismatch(row, reference[t], index), "") << "query " << t;
  }
  return chosen;
}

// Every query's own keys, all of them.
std::vector<int32_t> ChooseAll(const PagedBatch& batch, int32_t top_k) {
  std::vector<int32_t> chosen;
  for (const SequenceStep& seq : batch.seqs()) {
    for (int64_t j = 0; j < seq.q_len.raw(); ++j) {
      const auto visible = static_cast<int32_t>(VisiblePositions(seq, j).size());
      for (int32_t p = 0; p < top_k; ++p) chosen.push_back(p < visible ? p : -1);
    }
  }
  return chosen;
}

void ExpectSameBits(const AttentionResult& actual, const AttentionResult& expected,
                    const char* what) {
  EXPECT_EQ(BitMismatch(actual.out, expected.out), "") << what;
  EXPECT_EQ(BitMismatch(actual.lse, expected.lse), "") << what;
}

void CheckAttentionOver(const Trial& trial, const std::vector<SequenceCase>& cases,
                        const std::vector<int32_t>& chosen, int32_t top_k) {
  PagedBatchShape shape{.page_size = trial.config.page_size,
                        .format = KvFormat::kLatentFp8,
                        .dims = {.latent_dim = 32, .rope_dim = 8},
                        .num_heads = ToInt32(trial.random.Pick({1, 2, 20})),
                        .page_seed = trial.config.seed};
  const PagedBatch batch(cases, shape);
  const int32_t workers = trial.config.work.num_workers;
  const AttentionResult sparse = RunSparse(batch, chosen, top_k, workers, trial.executor);
  const auto everything = ToInt32(std::max<int64_t>(1, LongestOf(cases)));
  if (everything <= kMostKeys) {
    ExpectSameBits(
        RunSparse(batch, ChooseAll(batch, everything), everything, workers, trial.executor),
        RunMla(batch, {.num_workers = workers}, trial.executor), "a choice of everything");
    trial.facts.set(kSparseEverything);
  }
  shape.page_size = PageSize(1);
  ExpectSameBits(RunSparse(PagedBatch(cases, shape), chosen, top_k, 1, trial.executor), sparse,
                 "page size 1");
}

}  // namespace

void CheckSparseAttention(const Trial& trial) {
  const std::vector<SequenceCase> cases = CasesOf(trial);
  const SelectRun run = DrawIndexer(trial);
  const std::vector<int32_t> chosen = CheckChoice(trial, cases, run);
  QUIRE_RETURN_IF_FAILED();
  CheckAttentionOver(trial, cases, chosen, run.top_k);
}

}  // namespace quire::testing
