// What must not change a bit of a model's answers on the device: page size and which pages a sequence
// has, ever; in deterministic mode chunks and the other sequences of a step, either. And what the
// answers are: those of transformers and of the CPU, as far as bf16 goes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/cuda/cuda.h"
#include "io/json.h"
#include "model/config.h"
#include "runner/cpu_runner.h"
#include "runner/cuda/test_runner.h"
#include "runner/draft_cases.h"
#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/step_jobs.h"

namespace quire::cuda {
namespace {

using testing::Difference;
using testing::Job;
using testing::JobReport;
using testing::RandomTokens;
using testing::RunJob;
using testing::RunJobs;
using testing::Weights;

class CudaInvariants : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
  static RunnerOptions Options() {
    return {.page_size = PageSize(16),
            .context = TokenCount(256),
            .max_seqs = 6,
            .max_step_tokens = TokenCount(160),
            .kv_format = GetParam().kv_format,
            .index_type = GetParam().index_type,
            .mode = StepMode::kGraph,
            .num_threads = 4};
  }
  static std::unique_ptr<CudaRunner> Make(const RunnerOptions& options) {
    return MakeDeviceRunner(GetParam().Folder(), options, GetParam().weights);
  }
};

TEST_P(CudaInvariants, PageSizesChangeNoBit) {
  JobReport first;
  for (const int32_t page_size : {1, 16, 61, 64, 128}) {
    RunnerOptions options = Options();
    options.page_size = PageSize(page_size);
    const auto runner = Make(options);
    const Job job = MakeJob(*runner, 1, 140, 64);
    const JobReport report = RunJob(*runner, job, static_cast<uint64_t>(page_size));
    if (first.tokens.empty()) first = report;
    EXPECT_EQ(Difference(report, first), "") << "page size " << page_size;
  }
}

TEST_P(CudaInvariants, InDeterministicModeChunksAndOtherSequencesChangeNoBit) {
  RunnerOptions options = Options();
  options.deterministic = true;
  const auto runner = Make(options);
  JobReport first;
  for (const int64_t chunk : {kWholePrompt, int64_t{1}, int64_t{7}, int64_t{64}}) {
    const JobReport report = RunJob(*runner, MakeJob(*runner, 1, 140, chunk));
    if (first.tokens.empty()) first = report;
    EXPECT_EQ(Difference(report, first), "") << "chunk " << chunk;
  }
  std::vector<Job> jobs;
  std::vector<JobReport> alone;
  for (uint64_t i = 0; i < 6; ++i) {
    jobs.push_back(MakeJob(*runner, 10 + i, 3 + 23 * static_cast<int64_t>(i), 11));
    jobs.back().first_step = static_cast<int64_t>(i) * 2;
    alone.push_back(RunJob(*runner, jobs.back()));
  }
  const std::vector<JobReport> together = RunJobs(*runner, jobs, 7);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(Difference(together[i], alone[i]), "") << "sequence " << i;
  }
}

TEST_P(CudaInvariants, StepsThatAlternateBetweenBucketsChangeNoBit) {
  RunnerOptions deterministic = Options();
  deterministic.deterministic = true;
  ExpectAlternatingBucketsChangeNoBit(deterministic, Make);
}

TEST_P(CudaInvariants, InDeterministicModeSixtyThreeOthersChangeNoBit) {
  RunnerOptions options = Options();
  options.deterministic = true;
  options.max_seqs = 64;
  options.max_step_tokens = TokenCount(256);
  const auto runner = Make(options);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 64; ++i) {
    jobs.push_back(MakeJob(*runner, 100 + i, 3 + static_cast<int64_t>(i * 7 % 40), 11));
  }
  const std::vector<JobReport> together = RunJobs(*runner, jobs, 7);
  for (const size_t i : {0, 21, 63}) {
    EXPECT_EQ(Difference(together[i], RunJob(*runner, jobs[i])), "") << "sequence " << i;
  }
}

// Long enough for attention to be summed in several splits.
TEST(CudaLongSequences, InDeterministicModeChunksAndOtherSequencesChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const KvFormat format : {KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
    SCOPED_TRACE(KvFormatName(format));
    const auto runner = MakeDeviceRunner(kTestData / "dummy" / "true_geometry",
                                         {.context = TokenCount(2600),
                                          .max_seqs = 3,
                                          .max_step_tokens = TokenCount(2560),
                                          .kv_format = format,
                                          .mode = StepMode::kGraph,
                                          .deterministic = true,
                                          .num_threads = 4},
                                         Weights::kDummy);
    std::vector<Job> jobs;
    for (const int64_t length : {2500, 2040, 1030}) {
      jobs.push_back(
          {.prompt = RandomTokens(length, runner->limits().vocab_size, 1), .num_output = 12});
    }
    std::vector<JobReport> alone;
    for (const Job& job : jobs) alone.push_back(RunJob(*runner, job));
    for (const int64_t chunk : {64, 333, 853}) {
      SCOPED_TRACE(chunk);
      for (Job& job : jobs) job.chunk = chunk;
      EXPECT_EQ(Difference(RunJob(*runner, jobs[0]), alone[0]), "");
      const std::vector<JobReport> together = RunJobs(*runner, jobs, 7);
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(Difference(together[i], alone[i]), "") << "sequence " << i;
      }
    }
  }
}

// Nobody says which sequence is which, so that every step brings all pages again.
class Anonymous : public Runner {
 public:
  explicit Anonymous(Runner& runner) : runner_(runner) {}
  const RunnerLimits& limits() const override { return runner_.limits(); }
  void Submit(const StepBatch& batch) override {
    seqs_.assign(batch.sequences.begin(), batch.sequences.end());
    for (StepSequence& seq : seqs_) {
      seq.id = 0;
      seq.kept_pages = PageCount(0);
    }
    runner_.Submit({.copies = batch.copies, .sequences = seqs_});
  }
  const StepResult& Collect() override { return runner_.Collect(); }

 private:
  Runner& runner_;
  std::vector<StepSequence> seqs_;
};

TEST(CudaRunnerPages, MorePagesThanOneStepBringsChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  RunnerOptions options{.page_size = PageSize(1),
                        .context = TokenCount(4000),
                        .max_seqs = 2,
                        .max_step_tokens = TokenCount(512),
                        .mode = StepMode::kGraph,
                        .num_threads = 4};
  const auto runner =
      MakeDeviceRunner(kTestData / "dummy" / "true_geometry", options, Weights::kDummy);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 2; ++i) {
    jobs.push_back({.prompt = RandomTokens(2500, runner->limits().vocab_size, i),
                    .chunk = 256,
                    .num_output = 4});
  }
  ASSERT_GT(2 * 2500, kNewPages.raw());
  const std::vector<JobReport> known = RunJobs(*runner, jobs);
  Anonymous anonymous(*runner);
  const std::vector<JobReport> unknown = RunJobs(anonymous, jobs, 5);
  for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(Difference(unknown[i], known[i]), "");
}

// ---- Parity ----

struct Errors {
  double rms = 0;     // without near ties
  double median = 0;  // of all, absolute
};

// In bf16 nobody has the log-probabilities of float32. expected.json says how far off transformers
// itself is, when it must choose the experts that float32 chooses, and where those choices are so
// close that another order of roundings makes another: a log-probability jumps there, whoever
// computes it, so only the median counts such places. Elsewhere our roundings, which are others but
// no more, may cost twice what those of transformers do.
//
// Three times, if experts are chosen before the last layer: what another choice there leaves in the
// cache, later positions read. Mistakes cost more: docs/numerics.md.
Errors Slack(const ModelConfig& config) {
  const auto last = config.layers.end() - 1;
  const double slack = std::find(config.layers.begin(), last, LayerKind::kMoe) == last ? 2 : 3;
  // Of a sparse model's rows nearly all have a close choice of keys in some layer, which rows behind
  // them read: rows of bf16 in the cache alone are twice the yardstick away on the CPU. The median, which
  // one lost key multiplies by ten, says what is computed.
  return {.rms = config.indexer ? 5 : slack, .median = slack};
}

Errors MeasureErrors(const JobReport& report, const std::vector<double>& expected,
                     const std::vector<size_t>& near_ties) {
  double squares = 0;
  std::vector<double> all;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = report.tokens[i].chosen.logprob - expected[i];
    all.push_back(std::abs(error));
    if (!std::ranges::binary_search(near_ties, i)) squares += error * error;
  }
  std::ranges::sort(all);
  return {.rms = std::sqrt(squares / static_cast<double>(expected.size() - near_ties.size())),
          .median = all[all.size() / 2]};
}

std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kTestData / "hf")) {
    if (!entry.is_directory()) continue;
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

class CudaHfTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaHfTest, LogProbabilitiesAreThoseOfTransformersWithinBf16) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const std::filesystem::path folder = kTestData / "hf" / GetParam();
  const Json json = ReadJsonFile(folder / "expected.json");
  const auto expected = json.at("logprobs").get<std::vector<double>>();
  const Json& bf16 = json.at("bf16");
  const auto near_ties = bf16.at("near_ties").get<std::vector<size_t>>();
  const ModelConfig config = ReadModelConfig(folder);
  // Keys are chosen in every layer of a sparse model: fewer rows have no close choice.
  ASSERT_GE(expected.size(), near_ties.size() + (config.indexer ? 8 : 16))
      << "too few choices are sure";
  const Errors slack = Slack(config);
  const Errors most{.rms = slack.rms * bf16.at("rms_error").get<double>(),
                    .median = slack.median * bf16.at("median_error").get<double>()};
  for (const KvFormat format : {KvFormat::kLatentF32, KvFormat::kLatentBf16}) {
    const auto runner = MakeDeviceRunner(folder, {.page_size = PageSize(16),
                                                  .max_seqs = 1,
                                                  .max_step_tokens = TokenCount(64),
                                                  .kv_format = format,
                                                  .index_type = IndexKeyType::kF32,
                                                  .num_threads = 4});
    const JobReport report =
        RunJob(*runner, {.prompt = json.at("tokens").get<std::vector<int32_t>>(), .chunk = 13});
    ASSERT_EQ(report.tokens.size(), expected.size());
    const Errors errors = MeasureErrors(report, expected, near_ties);
    RecordProperty(KvFormatName(format), fmt::format("rms {} of {}, median {} of {}", errors.rms,
                                                     most.rms, errors.median, most.median));
    EXPECT_LT(errors.rms, most.rms) << KvFormatName(format);
    EXPECT_LT(errors.median, most.median) << KvFormatName(format);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaHfTest, ::testing::ValuesIn(Fixtures()),
                         [](const auto& name) { return name.param; });

// Whether the device chose the CPU's token at a place, with about its log-probability.
bool IsTheCpus(const testing::TokenReport& found, const testing::TokenReport& expected) {
  return found.top[0].token == expected.top[0].token &&
         std::abs(found.top[0].logprob - expected.top[0].logprob) < 0.05;
}

// Where the device chose another token than the CPU, the CPU is unsure of its own; or an expert's choice
// is a near tie, so that other sums on the same device (`other`) give the CPU's token and probability.
void ExpectTheCpusChoices(const std::vector<JobReport>& expected,
                          const std::vector<JobReport>& found,
                          const std::vector<JobReport>& other) {
  int64_t places = 0, misses = 0, flips = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].tokens.size(), expected[i].tokens.size());
    ASSERT_EQ(other[i].tokens.size(), expected[i].tokens.size());
    for (size_t t = 0; t < expected[i].tokens.size(); ++t) {
      const auto& top = expected[i].tokens[t].top;
      ++places;
      if (found[i].tokens[t].top[0].token == top[0].token) continue;
      ++misses;
      if (top[0].logprob - top[1].logprob < 0.05) continue;
      ++flips;
      EXPECT_TRUE(IsTheCpus(other[i].tokens[t], expected[i].tokens[t]))
          << "job " << i << " at " << t << ", gap " << top[0].logprob - top[1].logprob;
    }
  }
  ASSERT_GT(places, 1600);
  EXPECT_LE(misses, places / 200);
  EXPECT_LE(flips, places / 800);
}

// On what the bundled model says itself, so that most places are as sure as those of real text.
TEST(CudaParity, TheMostLikelyTokensAreTheCpusButForNearTies) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const std::filesystem::path folder(QUIRE_BUNDLED_MODEL);
  const RunnerOptions options{.context = TokenCount(256),
                              .max_seqs = 8,
                              .max_step_tokens = TokenCount(512),
                              .num_threads = 8};
  const auto cpu = testing::MakeRunner(folder, options);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 8; ++i) {
    jobs.push_back({.prompt = RandomTokens(8, cpu->limits().vocab_size, i), .num_output = 200});
    jobs.back().sampling = {.temperature = 1, .seed = i};
  }
  const std::vector<JobReport> said = RunJobs(*cpu, jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].prompt.insert(jobs[i].prompt.end(), said[i].output.begin(), said[i].output.end());
    jobs[i].num_output = 0;
    jobs[i].sampling = {.temperature = 0, .top_logprobs = 2};
  }
  const std::vector<JobReport> expected = RunJobs(*cpu, jobs);
  RunnerOptions exact_options = options;
  exact_options.deterministic = true;
  const std::vector<JobReport> fast = RunJobs(*MakeDeviceRunner(folder, options), jobs);
  const std::vector<JobReport> exact = RunJobs(*MakeDeviceRunner(folder, exact_options), jobs);
  ExpectTheCpusChoices(expected, fast, exact);
  ExpectTheCpusChoices(expected, exact, fast);
}

// Drafts for what the bundled model says itself, of chains, behind every fourth token.
std::vector<SeenDraft> DraftAll(std::unique_ptr<MeteredRunner> target, const TreeShape& shape,
                                const std::vector<std::vector<int32_t>>& texts) {
  std::vector<SeenDraft> seen, drafts;
  const auto runner = MakeDrafting(std::move(target), shape, seen);
  for (const std::vector<int32_t>& text : texts) {
    for (size_t size = 12; size <= text.size(); size += 4) {
      drafts.push_back(DraftAnew(*runner, {text.begin(), text.begin() + size}, seen));
    }
  }
  return drafts;
}

// A state, a token or a position that is one off would leave few of them.
TEST(CudaParity, DraftsAreTheCpusButForNearTies) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const std::filesystem::path folder(QUIRE_BUNDLED_MODEL);
  const TreeShape shape{.steps = 3, .nodes = 4};
  RunnerOptions options{.context = TokenCount(256),
                        .max_seqs = 8,
                        .max_step_tokens = TokenCount(512),
                        .mode = StepMode::kGraph,
                        .num_threads = 8};
  const auto cpu = testing::MakeRunner(folder, options);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 8; ++i) {
    jobs.push_back({.prompt = RandomTokens(8, cpu->limits().vocab_size, i), .num_output = 100});
    jobs.back().sampling = {.temperature = 1, .seed = i};
  }
  std::vector<std::vector<int32_t>> texts;
  for (const JobReport& said : RunJobs(*cpu, jobs)) {
    texts.push_back(jobs[texts.size()].prompt);
    texts.back().insert(texts.back().end(), said.output.begin(), said.output.end());
  }
  options = LayerTargetOptions(options, shape);
  const std::vector<SeenDraft> expected =
      DraftAll(testing::MakeRunner(folder, options), shape, texts);
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic;
    const std::vector<SeenDraft> found = DraftAll(MakeDeviceRunner(folder, options), shape, texts);
    ASSERT_EQ(found.size(), expected.size());
    int64_t same = 0;
    for (size_t i = 0; i < found.size(); ++i) same += found[i].tokens == expected[i].tokens ? 1 : 0;
    RecordProperty(deterministic ? "deterministic" : "fast",
                   fmt::format("{} of {} drafts", same, expected.size()));
    EXPECT_GT(same, std::ssize(expected) * 9 / 10) << (deterministic ? "deterministic" : "fast");
  }
}

std::string CaseName(const ::testing::TestParamInfo<ModelCase>& info) {
  return std::string(info.param.name) + "_" + KvFormatName(info.param.kv_format);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaInvariants, ::testing::ValuesIn(kModelCases), CaseName);
INSTANTIATE_TEST_SUITE_P(SparseModels, CudaInvariants, ::testing::ValuesIn(kSparseModelCases),
                         CaseName);

// ---- Sparse attention ----

RunnerOptions SparseOptions() {
  return {.page_size = PageSize(16),
          .context = TokenCount(256),
          .max_seqs = 2,
          .max_step_tokens = TokenCount(160),
          .mode = StepMode::kGraph,
          .deterministic = true,
          .num_threads = 4};
}

JobReport RunSparseJob(const ModelConfig& config, const RunnerOptions& options) {
  const std::unique_ptr<WeightSource> weights = MakeDummyWeights(config);
  const auto runner = MakeDeviceRunner(config, *weights, options);
  return RunJob(*runner, MakeJob(*runner, 1, 140, 50));
}

TEST(CudaSparseRunner, LayoutsOfIndexKeysChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const ModelConfig config = ReadModelConfig(kSparse);
  for (const bool deterministic : {false, true}) {
    RunnerOptions options = SparseOptions();
    options.deterministic = deterministic;
    const JobReport plain = RunSparseJob(config, options);
    options.index_layout = IndexKeyLayout::kPreshuffled;
    for (const int32_t page_size : {16, 64, 128}) {
      options.page_size = PageSize(page_size);
      EXPECT_EQ(Difference(RunSparseJob(config, options), plain), "")
          << page_size << (deterministic ? ", deterministic" : "");
    }
  }
}

TEST(CudaSparseRunner, AChoiceOfEverythingHasTheBitsOfDenseAttention) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  // The same weights without an indexer: dummies depend on their names alone.
  const ModelConfig sparse = ReadModelConfig(kSparse);
  ModelConfig dense = sparse;
  dense.indexer = {};
  ModelConfig wide = sparse;
  wide.indexer->top_k = 256;
  const JobReport expected = RunSparseJob(dense, SparseOptions());
  EXPECT_EQ(Difference(RunSparseJob(wide, SparseOptions()), expected), "");
  EXPECT_NE(Difference(RunSparseJob(sparse, SparseOptions()), expected), "");
}

TEST(CudaSparseRunner, EagerStepsAndGraphsHaveTheSameBits) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const ModelConfig config = ReadModelConfig(kSparse);
  for (const bool deterministic : {false, true}) {
    RunnerOptions options = SparseOptions();
    options.deterministic = deterministic;
    const JobReport graph = RunSparseJob(config, options);
    options.mode = StepMode::kEager;
    EXPECT_EQ(Difference(RunSparseJob(config, options), graph), "")
        << (deterministic ? "deterministic" : "");
  }
}

}  // namespace
}  // namespace quire::cuda
