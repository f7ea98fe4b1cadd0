// What must not change a bit of a model's answers: page size, chunks, the other sequences of a
// step, padding to buckets, threads, which pages a sequence has.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::Difference;
using testing::Job;
using testing::JobReport;
using testing::MakeRunner;
using testing::RandomTokens;
using testing::RunJob;
using testing::RunJobs;
using testing::Weights;

struct ModelCase {
  const char* name;
  Weights weights;
  KvFormat kv_format;
};

std::filesystem::path Folder(const ModelCase& model) {
  const std::filesystem::path root(QUIRE_RUNNER_TESTDATA);
  return root / (model.weights == Weights::kDummy ? "dummy" : "hf") / model.name;
}

// Experts in groups; latent rows of the true size, over which attention runs in tiles and splits; fp8
// rows; LongRoPE.
const ModelCase kModels[] = {
    {"v3_groups", Weights::kFiles, KvFormat::kLatentF32},
    {"true_geometry", Weights::kDummy, KvFormat::kLatentBf16},
    {"true_geometry", Weights::kDummy, KvFormat::kLatentFp8},
    {"minicpm3", Weights::kFiles, KvFormat::kLatentBf16},
};

class RunnerInvariants : public ::testing::TestWithParam<ModelCase> {
 protected:
  RunnerOptions Options() const {
    return {.page_size = PageSize(16),
            .context = TokenCount(256),
            .max_seqs = 6,
            .max_step_tokens = TokenCount(160),
            .kv_format = GetParam().kv_format};
  }
  std::unique_ptr<CpuRunner> Make(const RunnerOptions& options) const {
    return MakeRunner(Folder(GetParam()), options, GetParam().weights);
  }
  static Job MakeJob(const Runner& runner, uint64_t seed, int64_t length, int64_t chunk) {
    return {.prompt = RandomTokens(length, runner.limits().vocab_size, seed),
            .chunk = chunk,
            .num_output = 8};
  }
  static constexpr int64_t kAll = 1 << 20;
};

TEST_P(RunnerInvariants, PageSizesAndChunksChangeNoBit) {
  JobReport first;
  for (const int32_t page_size : {1, 16, 64, 128}) {
    RunnerOptions options = Options();
    options.page_size = PageSize(page_size);
    const auto runner = Make(options);
    for (const int64_t chunk : {kAll, int64_t{1}, int64_t{7}, int64_t{64}}) {
      const Job job = MakeJob(*runner, 1, 140, chunk);
      const JobReport report = RunJob(*runner, job, static_cast<uint64_t>(page_size));
      const int64_t chunks = report.num_steps - job.num_output;
      EXPECT_EQ(chunks, chunk == kAll ? 1 : (139 + chunk - 1) / chunk);
      if (first.tokens.empty()) first = report;
      EXPECT_EQ(Difference(report, first), "") << "page size " << page_size << " chunk " << chunk;
    }
  }
}

TEST_P(RunnerInvariants, OtherSequencesAndThreadsChangeNoBit) {
  std::vector<Job> jobs;
  std::vector<JobReport> alone;
  for (const int32_t num_threads : {1, 2}) {
    RunnerOptions options = Options();
    options.num_threads = num_threads;
    const auto runner = Make(options);
    if (jobs.empty()) {
      for (uint64_t i = 0; i < 6; ++i) {
        jobs.push_back(MakeJob(*runner, 10 + i, 3 + 23 * static_cast<int64_t>(i), 11));
        jobs.back().first_step = static_cast<int64_t>(i) * 2;
        alone.push_back(RunJob(*runner, jobs.back()));
      }
    }
    bool mixed = false;  // a step with a chunk and a single token
    const auto observe = [&] {
      const StepStats& stats = runner->last_step();
      mixed = mixed || stats.logit_rows > 11;
    };
    const std::vector<JobReport> together = RunJobs(*runner, jobs, 7, observe);
    EXPECT_TRUE(mixed);
    for (size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_EQ(Difference(together[i], alone[i]), "")
          << "sequence " << i << ", " << num_threads << " threads";
    }
  }
}

TEST_P(RunnerInvariants, GraphStepsEqualEagerStepsWithPaddingAndPoison) {
  std::vector<Job> jobs;
  std::vector<JobReport> eager;
  {
    const auto runner = Make(Options());
    for (uint64_t i = 0; i < 5; ++i) {
      jobs.push_back(MakeJob(*runner, 20 + i, 9 + 30 * static_cast<int64_t>(i), 17));
      jobs.back().first_step = static_cast<int64_t>(i);
      jobs.back().num_output = 4 + 5 * static_cast<int64_t>(i);
    }
    eager = RunJobs(*runner, jobs);
  }
  RunnerOptions options = Options();
  options.mode = StepMode::kGraph;
  options.checks = StepChecks::kPoison;
  const auto runner = Make(options);
  const auto addresses = [&](const Bucket& bucket) {
    return std::vector<const void*>{bucket.inputs.tokens.data(), bucket.inputs.slots.data(),
                                    bucket.inputs.seqs.data(),   bucket.forward.hidden.data(),
                                    bucket.forward.kv.data(),    bucket.scratch.attention.data(),
                                    bucket.plans.get()};
  };
  std::vector<std::vector<const void*>> before;
  for (const Bucket& bucket : runner->buckets()) before.push_back(addresses(bucket));
  std::set<size_t> buckets;
  int64_t padded_rows = 0;
  int64_t padded_tokens = 0;
  const std::vector<JobReport> graph = RunJobs(*runner, jobs, 3, [&] {
    const StepStats& stats = runner->last_step();
    buckets.insert(stats.bucket);
    padded_rows += stats.padded_rows;
    padded_tokens += stats.padded_tokens.raw();
    EXPECT_EQ(addresses(runner->buckets()[stats.bucket]), before[stats.bucket]);
  });
  EXPECT_GT(buckets.size(), 3u);
  EXPECT_GT(padded_rows, 0);
  EXPECT_GT(padded_tokens, 0);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(Difference(graph[i], eager[i]), "") << "sequence " << i;
  }
}

TEST_P(RunnerInvariants, TheLastTokenOfTheContextIsReachedInEveryMode) {
  JobReport first;
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = Options();
    options.context = TokenCount(101);
    options.page_size = PageSize(61);
    options.mode = mode;
    const auto runner = Make(options);
    Job job = MakeJob(*runner, 3, 99, 50);
    job.num_output = 3;  // the last one is drawn at position 101, behind the last computed token
    const JobReport report = RunJob(*runner, job);
    if (first.tokens.empty()) first = report;
    EXPECT_EQ(Difference(report, first), "");
  }
}

TEST_P(RunnerInvariants, SamplesDependOnSeedAndPositionAlone) {
  const auto runner = Make(Options());
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back(MakeJob(*runner, 30, 40, kAll));  // one prompt for all
    jobs.back().sampling = {.temperature = 1.5f, .top_p = 0.95f, .seed = 5};
    jobs.back().sample = static_cast<int32_t>(i);
    jobs.back().first_step = static_cast<int64_t>(i);
    jobs.back().num_output = 16;
  }
  const std::vector<JobReport> together = RunJobs(*runner, jobs);
  std::set<std::vector<int32_t>> outputs;
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(Difference(RunJob(*runner, jobs[i], 9), together[i]), "") << "sample " << i;
    outputs.insert(together[i].output);
  }
  EXPECT_GT(outputs.size(), 1u);
}

std::string CaseName(const ::testing::TestParamInfo<ModelCase>& info) {
  return std::string(info.param.name) + "_" + KvFormatName(info.param.kv_format);
}

INSTANTIATE_TEST_SUITE_P(Models, RunnerInvariants, ::testing::ValuesIn(kModels), CaseName);

}  // namespace
}  // namespace quire
