// What the tests of the CPU's runner and of the device's share: models, jobs, and what must hold of both.
#ifndef QUIRE_RUNNER_RUNNER_CASES_H_
#define QUIRE_RUNNER_RUNNER_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attn/kv_layout.h"
#include "base/units.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"
#include "step/step.h"
#include "testing/step_jobs.h"

namespace quire {

// ---- Models and jobs ----

struct ModelCase {
  const char* name;
  testing::Weights weights;
  KvFormat kv_format;
  IndexKeyType index_type = IndexKeyType::kAuto;  // of a sparse model

  std::filesystem::path Folder() const {
    const std::filesystem::path root(QUIRE_RUNNER_TESTDATA);
    return root / (weights == testing::Weights::kDummy ? "dummy" : "hf") / name;
  }
};

// Experts in groups, which a device attends to by its plain kernel; latent rows of the true size, over
// which attention runs in tiles and splits, and on a device by tensor cores; fp8 rows; LongRoPE; fp8 weights.
inline const ModelCase kModelCases[] = {
    {"v3_groups", testing::Weights::kFiles, KvFormat::kLatentF32},
    {"true_geometry", testing::Weights::kDummy, KvFormat::kLatentBf16},
    {"true_geometry", testing::Weights::kDummy, KvFormat::kLatentFp8},
    {"minicpm3", testing::Weights::kFiles, KvFormat::kLatentBf16},
    {"v3_fp8", testing::Weights::kFiles, KvFormat::kLatentBf16},
};

// Sparse attention, of which queries here see 40 keys or 20 of up to 256: fp8 keys of the true size;
// bf16 keys and layers that share, spelled as transformers 5 does; f32 keys under YaRN.
inline const ModelCase kSparseModelCases[] = {
    {"sparse", testing::Weights::kDummy, KvFormat::kLatentBf16},
    {"glm_dsa_types", testing::Weights::kFiles, KvFormat::kLatentFp8, IndexKeyType::kBf16},
    {"v32", testing::Weights::kFiles, KvFormat::kLatentF32, IndexKeyType::kF32},
};

// The chunk of a prompt that is given at once.
inline constexpr int64_t kWholePrompt = 1 << 20;

inline testing::Job MakeJob(const Runner& runner, uint64_t seed, int64_t length, int64_t chunk) {
  return {.prompt = testing::RandomTokens(length, runner.limits().vocab_size, seed),
          .chunk = chunk,
          .num_output = 8};
}

// Pages 1 .. count.
inline std::vector<PageId> FirstPages(int64_t count) {
  std::vector<PageId> pages;
  for (int64_t i = 1; i <= count; ++i) pages.emplace_back(i);
  return pages;
}

// ---- What must hold ----

using MakeModelRunner = std::function<std::unique_ptr<ModelRunner>(const RunnerOptions&)>;

// Every second step has a chunk of a sequence that comes and goes, so steps alternate between a
// bucket of one token and one of many, which share the rows of pages: bits are those of a sequence
// that runs alone, in eager steps.
inline void ExpectAlternatingBucketsChangeNoBit(RunnerOptions options,
                                                const MakeModelRunner& make) {
  options.page_size = PageSize(1);
  std::vector<testing::Job> jobs;
  testing::JobReport alone;
  {
    options.mode = StepMode::kEager;
    const auto runner = make(options);
    jobs.push_back(MakeJob(*runner, 40, 2, kWholePrompt));
    jobs[0].num_output = 24;
    for (int64_t i = 0; i < 10; ++i) {
      jobs.push_back(MakeJob(*runner, 41 + static_cast<uint64_t>(i), 20 + i, kWholePrompt));
      jobs.back().num_output = 0;
      jobs.back().first_step = 2 + 2 * i;
    }
    alone = testing::RunJob(*runner, jobs[0]);
  }
  options.mode = StepMode::kGraph;
  const auto runner = make(options);
  std::vector<size_t> buckets;
  const auto observe = [&] { buckets.push_back(runner->last_step().bucket); };
  const std::vector<testing::JobReport> together = testing::RunJobs(*runner, jobs, 3, observe);
  int64_t changes = 0;
  for (size_t i = 1; i < buckets.size(); ++i) changes += buckets[i] != buckets[i - 1] ? 1 : 0;
  EXPECT_GE(changes, 20);
  EXPECT_EQ(testing::Difference(together[0], alone), "");
}

// Of three sequences the middle one has `faulty_id`, whose embedding is NaN: it names itself and has no
// answer, the others keep their bits, and so does a sequence on the pages that held NaN.
inline void ExpectARowWithNaNNamesItself(ModelRunner& runner, int32_t faulty_id) {
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  const std::vector<PageId> pages = FirstPages(3);
  for (const Want want : {Want::kNextToken, Want::kScores}) {
    std::vector<StepSequence> seqs;
    for (size_t i = 0; i < 3; ++i) {
      seqs.push_back({.tokens = std::span(tokens).subspan(2 * i, 2),
                      .pages = std::span(pages).subspan(i, 1),
                      .want = want,
                      .sampling = {.temperature = 0}});
    }
    using Said = std::vector<std::pair<int32_t, float>>;
    const auto said_of = [](const StepSequenceResult& result) {
      EXPECT_EQ(result.fault, RowFault::kNone);
      Said said;
      for (const StepToken& each : result.answers[0].tokens) {
        said.emplace_back(each.chosen.token, each.chosen.logprob);
      }
      return said;
    };
    const auto run = [&](int32_t token) -> const StepResult& {
      tokens[2] = token;
      return runner.Step({.sequences = seqs});
    };
    const StepResult& well = run(3);
    const Said expected[] = {said_of(well.sequences[0]), said_of(well.sequences[1]),
                             said_of(well.sequences[2])};
    const StepResult& ill = run(faulty_id);
    EXPECT_EQ(ill.sequences[1].fault, RowFault::kLogitsNotFinite);
    EXPECT_TRUE(ill.sequences[1].answers.empty());
    EXPECT_EQ(said_of(ill.sequences[0]), expected[0]);
    EXPECT_EQ(said_of(ill.sequences[2]), expected[2]);
    const StepResult& again = run(3);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(said_of(again.sequences[i]), expected[i]);
  }
}

// Masks are read by Collect: what is written while a step runs counts, of each sequence its own, for all
// its samples; and one without a mask draws what it draws alone.
inline void ExpectMasksAreReadByCollect(Runner& runner) {
  const int64_t vocab_size = runner.limits().vocab_size;
  const std::vector<int32_t> tokens = testing::RandomTokens(20, vocab_size, 2);
  const std::vector<PageId> pages = FirstPages(6);
  std::vector<uint32_t> masks[2];
  for (std::vector<uint32_t>& mask : masks) mask.resize(static_cast<size_t>(MaskWords(vocab_size)));
  StepSequence seqs[3];
  for (size_t i = 0; i < 3; ++i) {
    seqs[i] = {.id = i + 1,
               .tokens = tokens,
               .pages = std::span(pages).subspan(2 * i, 2),
               .want = Want::kNextToken,
               .sampling = {.temperature = 2.0f, .seed = i}};
  }
  const int32_t alone =
      runner.Step({.sequences = {&seqs[1], 1}}).sequences[0].answers[0].tokens[0].chosen.token;
  seqs[0].mask = masks[0];
  seqs[0].num_samples = 2;
  seqs[2].mask = masks[1];
  for (const int32_t token : {0, 33, static_cast<int32_t>(vocab_size) - 1}) {
    const int32_t other = 1;
    runner.Submit({.sequences = seqs});
    for (std::vector<uint32_t>& mask : masks) std::ranges::fill(mask, 0u);
    masks[0][static_cast<size_t>(token / 32)] = 1u << (token % 32);
    masks[1][static_cast<size_t>(other / 32)] = 1u << (other % 32);
    const StepResult& result = runner.Collect();
    ASSERT_EQ(result.sequences[0].answers.size(), 2u);
    for (const StepAnswer& answer : result.sequences[0].answers) {
      EXPECT_EQ(answer.tokens[0].chosen.token, token);
    }
    EXPECT_EQ(result.sequences[1].answers[0].tokens[0].chosen.token, alone);
    EXPECT_EQ(result.sequences[2].answers[0].tokens[0].chosen.token, other);
  }
  // One that leaves nothing is its sequence's fault alone.
  runner.Submit({.sequences = seqs});
  std::ranges::fill(masks[0], 0u);
  const StepResult& result = runner.Collect();
  EXPECT_EQ(result.sequences[0].fault, RowFault::kLogitsNotFinite);
  EXPECT_EQ(result.sequences[1].answers[0].tokens[0].chosen.token, alone);
}

}  // namespace quire

#endif  // QUIRE_RUNNER_RUNNER_CASES_H_
