// What must not change a bit of a model's answers: page size, chunks, the other sequences of a
// step, padding to buckets, threads, which pages a sequence has.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runner/runner_cases.h"
#include "runner/test_models.h"
#include "testing/sanitized_share.h"
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

class RunnerInvariants : public ::testing::TestWithParam<ModelCase> {
 protected:
  RunnerOptions Options() const {
    return {.page_size = PageSize(16),
            .context = TokenCount(256),
            .max_seqs = 6,
            .max_step_tokens = TokenCount(160),
            .kv_format = GetParam().kv_format,
            .index_type = GetParam().index_type};
  }
  std::unique_ptr<CpuRunner> Make(const RunnerOptions& options) const {
    return MakeRunner(GetParam().Folder(), options, GetParam().weights);
  }
};

TEST_P(RunnerInvariants, PageSizesAndChunksChangeNoBit) {
  JobReport first;
  for (const int32_t page_size : testing::SampledOf<int32_t>({1, 16, 61, 64, 128})) {
    RunnerOptions options = Options();
    options.page_size = PageSize(page_size);
    const auto runner = Make(options);
    for (const int64_t chunk : {kWholePrompt, int64_t{1}, int64_t{7}, int64_t{64}}) {
      const Job job = MakeJob(*runner, 1, 140, chunk);
      const JobReport report = RunJob(*runner, job, static_cast<uint64_t>(page_size));
      const int64_t chunks = report.num_steps - job.num_output;
      EXPECT_EQ(chunks, chunk == kWholePrompt ? 1 : (139 + chunk - 1) / chunk);
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
    return std::vector<const void*>{bucket.host.tokens.data(),     bucket.host.slots.data(),
                                    bucket.host.logit_rows.data(), bucket.device.bytes.data(),
                                    bucket.forward.hidden.data(),  bucket.forward.kv.data(),
                                    bucket.forward.shared.data()};
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

TEST_P(RunnerInvariants, StepsThatAlternateBetweenBucketsChangeNoBit) {
  ExpectAlternatingBucketsChangeNoBit(Options(),
                                      [&](const RunnerOptions& options) { return Make(options); });
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
    jobs.push_back(MakeJob(*runner, 30, 40, kWholePrompt));  // one prompt for all
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

// ---- Trees ----

// The tokens from the root to a node, the node's own last.
std::vector<int32_t> PathTo(std::span<const int32_t> parents, std::span<const int32_t> tokens,
                            int32_t node) {
  std::vector<int32_t> path;
  for (; node >= 0; node = parents[static_cast<size_t>(node)]) {
    path.insert(path.begin(), tokens[static_cast<size_t>(node)]);
  }
  return path;
}

// What plain steps say of the tokens behind `prompt`: what follows each of them, by greedy choice and
// as the score of the next one.
struct PathReport {
  JobReport next, scores;
};

class TreeInvariants : public RunnerInvariants {
 protected:
  static constexpr int64_t kPrompt = 61;

  RunnerOptions TreeOptions(int32_t page_size, StepMode mode) const {
    RunnerOptions options = Options();
    options.page_size = PageSize(page_size);
    options.tree_nodes = TokenCount(12);
    options.mode = mode;
    return options;
  }

  // Pages of one sequence of the full context.
  static std::vector<PageId> Pages(const Runner& runner, int64_t which) {
    const RunnerLimits& limits = runner.limits();
    const int64_t count = limits.page_size.PagesFor(limits.context + limits.max_tree_nodes).raw();
    std::vector<PageId> pages;
    for (int64_t i = count; i > 0; --i) pages.emplace_back(which * count + i);
    return pages;
  }

  static void Copy(const StepToken& token, JobReport& to) {
    to.tokens.push_back({token.chosen, {token.top.begin(), token.top.end()}});
  }

  // One plain step over all of `tokens`; the reports are of the last path.size() of them.
  static PathReport RunPlain(Runner& runner, std::span<const int32_t> prompt,
                             std::span<const int32_t> path, const std::vector<PageId>& pages) {
    std::vector<int32_t> tokens(prompt.begin(), prompt.end());
    PathReport report;
    for (size_t i = 0; i < path.size(); ++i) {
      tokens.push_back(path[i]);
      StepSequence seq{.tokens = tokens,
                       .pages = pages,
                       .want = Want::kNextToken,
                       .sampling = {.temperature = 0, .top_logprobs = 5}};
      Copy(runner.Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens[0], report.next);
      seq.want = Want::kScores;
      seq.next_token = i + 1 < path.size() ? path[i + 1] : kNoToken;
      Copy(runner.Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens.back(),
           report.scores);
    }
    return report;
  }

  static JobReport Only(const JobReport& report, size_t i) {
    JobReport only;
    only.tokens.push_back(report.tokens[i]);
    return only;
  }
};

TEST_P(TreeInvariants, ANodeSaysWhatPlainStepsOverItsPathSay) {
  // Two roots; branches that part at different depths; a leaf before the others go on.
  const std::vector<int32_t> parents = {-1, 0, 0, 1, -1, 2, 4, 5, 3, 0};
  for (const int32_t page_size : testing::SampledOf<int32_t>({1, 16, 64})) {
    for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
      const auto runner = Make(TreeOptions(page_size, mode));
      const int64_t vocab_size = runner->limits().vocab_size;
      const std::vector<int32_t> prompt = RandomTokens(kPrompt, vocab_size, 1);
      const std::vector<int32_t> nodes = RandomTokens(std::ssize(parents), vocab_size, 2);
      const std::vector<PageId> pages = Pages(*runner, 0), other = Pages(*runner, 1);
      const StepSequence prefill{.id = 1, .tokens = prompt, .pages = pages};
      runner->Step({.sequences = {&prefill, 1}});
      // The first six nodes, then the others behind them, each time beside a plain sequence.
      JobReport next, scores, beside;
      for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 6}, {6, nodes.size()}}) {
        StepSequence seqs[2] = {{.id = 2,
                                 .tokens = std::span(prompt).first(9),
                                 .pages = other,
                                 .want = Want::kNextToken,
                                 .sampling = {.temperature = 0, .top_logprobs = 5}},
                                {.id = 1,
                                 .tokens = std::span(nodes).subspan(begin, end - begin),
                                 .position = TokenCount(prompt.size() + begin),
                                 .pages = pages,
                                 .kept_pages = PageCount(pages.size()),
                                 .tree_parents = std::span(parents).first(end),
                                 .lookahead = TokenCount(2),
                                 .want = Want::kNextToken,
                                 .sampling = {.temperature = 0, .top_logprobs = 5}}};
        const StepResult& drawn = runner->Step({.sequences = seqs});
        ASSERT_EQ(drawn.sequences[1].answers.size(), 1u);
        ASSERT_EQ(drawn.sequences[1].answers[0].tokens.size(), end - begin);
        for (const StepToken& token : drawn.sequences[1].answers[0].tokens) Copy(token, next);
        Copy(drawn.sequences[0].answers[0].tokens[0], beside);
        seqs[1].want = Want::kScores;
        const StepResult& scored = runner->Step({.sequences = seqs});
        for (const StepToken& token : scored.sequences[1].answers[0].tokens) {
          Copy(token, scores);
        }
      }
      for (size_t node = 0; node < nodes.size(); ++node) {
        // Down to the first child, which the node's score is of, if that was given with it.
        std::vector<int32_t> path = PathTo(parents, nodes, static_cast<int32_t>(node));
        const size_t depth = path.size();
        const size_t end = node < 6 ? 6 : nodes.size();
        const auto child = std::find(parents.begin(), parents.begin() + static_cast<long>(end),
                                     static_cast<int32_t>(node)) -
                           parents.begin();
        if (child < static_cast<long>(end)) path.push_back(nodes[static_cast<size_t>(child)]);
        const PathReport plain = RunPlain(*runner, prompt, path, other);
        EXPECT_EQ(Difference(Only(next, node), Only(plain.next, depth - 1)), "")
            << "node " << node << ", page size " << page_size;
        EXPECT_EQ(Difference(Only(scores, node), Only(plain.scores, depth - 1)), "")
            << "node " << node << ", page size " << page_size;
      }
      const PathReport plain =
          RunPlain(*runner, std::span(prompt).first(8), std::span(prompt).subspan(8, 1), other);
      EXPECT_EQ(Difference(Only(beside, 0), plain.next), "");
      EXPECT_EQ(Difference(Only(beside, 1), plain.next), "");
    }
  }
}

TEST_P(TreeInvariants, SamplesOfANodeAreThoseOfItsPosition) {
  const auto runner = Make(TreeOptions(16, StepMode::kEager));
  const int64_t vocab_size = runner->limits().vocab_size;
  const std::vector<int32_t> prompt = RandomTokens(kPrompt, vocab_size, 1);
  const std::vector<int32_t> nodes = RandomTokens(3, vocab_size, 2);
  const std::vector<int32_t> parents = {-1, 0, 0};
  const std::vector<PageId> pages = Pages(*runner, 0);
  const StepSequence prefill{.tokens = prompt, .pages = pages};
  runner->Step({.sequences = {&prefill, 1}});
  const SamplingParams sampling{.temperature = 2.0f, .seed = 4};
  const StepSequence tree{.tokens = nodes,
                          .position = TokenCount(prompt.size()),
                          .pages = pages,
                          .tree_parents = parents,
                          .want = Want::kNextToken,
                          .sampling = sampling,
                          .num_samples = 2,
                          .first_sample = 5};
  const StepSequenceResult& result = runner->Step({.sequences = {&tree, 1}}).sequences[0];
  std::vector<std::vector<int32_t>> drawn;  // [samples][nodes]
  for (const StepAnswer& answer : result.answers) {
    drawn.emplace_back();
    for (const StepToken& token : answer.tokens) drawn.back().push_back(token.chosen.token);
  }
  ASSERT_EQ(drawn.size(), 2u);
  ASSERT_EQ(drawn[0].size(), 3u);
  for (int32_t node = 0; node < 3; ++node) {
    std::vector<int32_t> tokens = prompt;
    for (const int32_t token : PathTo(parents, nodes, node)) tokens.push_back(token);
    const StepSequence plain{.tokens = tokens,
                             .pages = pages,
                             .want = Want::kNextToken,
                             .sampling = sampling,
                             .num_samples = 2,
                             .first_sample = 5};
    const StepSequenceResult& one = runner->Step({.sequences = {&plain, 1}}).sequences[0];
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(drawn[i][static_cast<size_t>(node)], one.answers[i].tokens[0].chosen.token);
    }
  }
}

std::string CaseName(const ::testing::TestParamInfo<ModelCase>& info) {
  return std::string(info.param.name) + "_" + KvFormatName(info.param.kv_format);
}

INSTANTIATE_TEST_SUITE_P(Models, RunnerInvariants, ::testing::ValuesIn(kModelCases), CaseName);
INSTANTIATE_TEST_SUITE_P(Models, TreeInvariants, ::testing::ValuesIn(kModelCases), CaseName);
INSTANTIATE_TEST_SUITE_P(SparseModels, RunnerInvariants, ::testing::ValuesIn(kSparseModelCases),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(SparseModels, TreeInvariants, ::testing::ValuesIn(kSparseModelCases),
                         CaseName);

// ---- Sparse attention ----

RunnerOptions SparseOptions() {
  return {.page_size = PageSize(16),
          .context = TokenCount(256),
          .max_seqs = 2,
          .max_step_tokens = TokenCount(160)};
}

JobReport RunSparseJob(const RunnerOptions& options) {
  const auto runner = MakeRunner(kSparse, options, Weights::kDummy);
  return RunJob(*runner, MakeJob(*runner, 1, 140, 50));
}

TEST(SparseRunner, LayoutsOfIndexKeysChangeNoBit) {
  RunnerOptions options = SparseOptions();
  const JobReport plain = RunSparseJob(options);
  options.index_layout = IndexKeyLayout::kPreshuffled;
  for (const int32_t page_size : {16, 64, 128}) {
    options.page_size = PageSize(page_size);
    EXPECT_EQ(Difference(RunSparseJob(options), plain), "") << page_size;
  }
}

TEST(SparseRunner, AChoiceOfEverythingHasTheBitsOfDenseAttention) {
  // The same weights without an indexer: dummies depend on their names alone.
  const ModelConfig sparse = ReadModelConfig(kSparse);
  ModelConfig dense = sparse;
  dense.indexer = {};
  ModelConfig wide = sparse;
  wide.indexer->top_k = 256;
  const auto run = [](const ModelConfig& config) {
    const RunnerOptions options = SparseOptions();
    const auto weights = MakeDummyWeights(config);
    CpuRunner runner(config, *weights, options, MakeMemoryPlan(config, *weights, options));
    return RunJob(runner, MakeJob(runner, 1, 140, 50));
  };
  const JobReport expected = run(dense);
  EXPECT_EQ(Difference(run(wide), expected), "");
  EXPECT_NE(Difference(run(sparse), expected), "");
}

TEST(SparseRunner, ANarrowerChoiceIsThatOfAModelMadeForIt) {
  ModelConfig narrow = ReadModelConfig(kSparse);
  narrow.indexer->top_k = 24;
  RunnerOptions options = SparseOptions();
  const auto weights = MakeDummyWeights(narrow);
  CpuRunner made(narrow, *weights, options, MakeMemoryPlan(narrow, *weights, options));
  const JobReport expected = RunJob(made, MakeJob(made, 1, 140, 50));
  options.index_top_k = 24;
  EXPECT_EQ(Difference(RunSparseJob(options), expected), "");
}

}  // namespace
}  // namespace quire
