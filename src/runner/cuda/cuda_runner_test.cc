#include "runner/cuda/cuda_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "model/config.h"
#include "model/eagle.h"
#include "runner/cuda/cuda_step_layout.h"
#include "runner/cuda/test_call_count.h"
#include "runner/cuda/test_runner.h"
#include "runner/layer_drafter.h"
#include "runner/plan_parts.h"
#include "runner/runner_cases.h"
#include "runner/speculative_runner.h"
#include "runner/test_models.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/faulty_weights.h"
#include "testing/random_head.h"
#include "testing/step_jobs.h"

namespace quire::cuda {
namespace {

using testing::AllocationCount;
using testing::ErrorMessage;
using testing::RandomTokens;
using testing::Weights;

const RunnerOptions kOptions{.page_size = PageSize(16),
                             .context = TokenCount(256),
                             .max_seqs = 4,
                             .max_step_tokens = TokenCount(160),
                             .num_threads = 4};

std::unique_ptr<CudaRunner> Make(const RunnerOptions& options) {
  return MakeDeviceRunner(kTestData / "dummy" / "true_geometry", options, Weights::kDummy);
}

class CudaRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

// A prefill that is scored in two blocks, and a decode step with everything that sampling knows, and
// page copies.
struct BusySteps {
  explicit BusySteps(const Runner& runner)
      : tokens(RandomTokens(140, runner.limits().vocab_size, 1)) {
    sampling.logit_bias = bias;
    prefill = {.id = 1,
               .tokens = tokens,
               .pages = pages,
               .want = Want::kScores,
               .sampling = {.top_logprobs = 20}};
    decode = {.id = 1,
              .tokens = std::span<const int32_t>(tokens).first(1),
              .position = TokenCount(140),
              .pages = pages,
              .want = Want::kNextToken,
              .sampling = sampling,
              .num_samples = 2,
              .prompt = tokens,
              .output = std::span<const int32_t>(tokens).first(4)};
  }
  BusySteps(const BusySteps&) = delete;
  BusySteps& operator=(const BusySteps&) = delete;

  std::vector<int32_t> tokens;
  std::vector<PageId> pages = FirstPages(10);
  LogitBias bias[1] = {{.token = 3, .bias = 1.0f}};
  SamplingParams sampling{.temperature = 0.8f,
                          .top_k = 20,
                          .top_p = 0.9f,
                          .min_p = 0.01f,
                          .repetition_penalty = 1.1f,
                          .frequency_penalty = 0.1f,
                          .presence_penalty = 0.1f,
                          .top_logprobs = 20};
  StepPageCopy copies[1] = {{.from = PageId(1), .to = PageId(20), .count = 5}};
  StepSequence prefill, decode;
};

TEST_F(CudaRunnerTest, AStepTakesNoMemoryAndWaitsOnce) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    const auto runner = Make(options);
    const BusySteps steps(*runner);
    for (int round = 0; round < 3; ++round) {
      const int64_t heap = AllocationCount();
      const CallCounts before = CallsSoFar();
      runner->Step({.sequences = {&steps.prefill, 1}});
      const CallCounts between = CallsSoFar();
      runner->Step({.copies = steps.copies, .sequences = {&steps.decode, 1}});
      const CallCounts after = CallsSoFar();
      EXPECT_EQ(AllocationCount() - heap, 0) << "round " << round;
      EXPECT_EQ(after.allocations - before.allocations, 0) << "round " << round;
      EXPECT_EQ(between.waits - before.waits, 1) << "round " << round;
      EXPECT_EQ(after.waits - between.waits, 1) << "round " << round;
    }
    EXPECT_GT(CallsSoFar().allocations, 0) << "the hook counts nothing";
  }
}

TEST_F(CudaRunnerTest, MasksAreReadByCollect) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    ExpectMasksAreReadByCollect(*Make(options));
  }
}

TEST_F(CudaRunnerTest, TheDevicesMemoryIsWithinOnePercentOfThePlan) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    options.pool_tokens = TokenCount(1'000'000);
    const auto runner = Make(options);
    const MemoryPlan& plan = runner->memory_plan();
    EXPECT_GT(plan.outside, ByteOffset(0));
    const BusySteps steps(*runner);
    for (int round = 0; round < 3; ++round) {
      runner->Step({.sequences = {&steps.prefill, 1}});
      runner->Step({.copies = steps.copies, .sequences = {&steps.decode, 1}});
    }
    const ByteOffset used = QueryDevice().memory - FreeDeviceMemory();
    EXPECT_NEAR(static_cast<double>(used.raw()) / static_cast<double>(plan.total().raw()), 1.0,
                0.01);
  }
}

TEST_F(CudaRunnerTest, ASparseModelsMemoryIsThePlansAtALongContext) {
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    options.context = TokenCount(65536);
    options.max_step_tokens = TokenCount(2048);
    options.pool_tokens = TokenCount(1'000'000);
    const auto runner = MakeDeviceRunner(kSparse, options, Weights::kDummy);
    const MemoryPlan& plan = runner->memory_plan();
    const int64_t vocab_size = runner->limits().vocab_size;
    // What is below the last tokens of the context need not have been computed: unused rows are zeros.
    constexpr int64_t kChunk = 2048;
    const std::vector<int32_t> tokens = RandomTokens(kChunk, vocab_size, 1);
    const std::vector<PageId> pages = FirstPages(65536 / 16);
    for (const int64_t position : {int64_t{0}, int64_t{65536} - kChunk}) {
      const StepSequence chunk{.tokens = tokens,
                               .position = TokenCount(position),
                               .pages = pages,
                               .want = Want::kNextToken,
                               .sampling = {.temperature = 0}};
      runner->Step({.sequences = {&chunk, 1}});
    }
    const ByteOffset used = QueryDevice().memory - FreeDeviceMemory();
    EXPECT_NEAR(static_cast<double>(used.raw()) / static_cast<double>(plan.total().raw()), 1.0,
                0.01);
  }
}

// One answer that drafts trees, step by step.
struct DraftedAnswer {
  explicit DraftedAnswer(const Runner& runner)
      : text(RandomTokens(20, runner.limits().vocab_size, 3)) {}

  StepSequence Next(const Runner& runner) const {
    const std::span<const int32_t> all = text;
    const bool begins = text.size() == 20;
    return {.id = 1,
            .tokens = begins ? all : all.last(1),
            .position = TokenCount(begins ? 0 : text.size() - 1),
            .pages = pages,
            .lookahead = runner.limits().lookahead,
            .want = Want::kNextToken,
            .sampling = {.temperature = 0},
            .prompt = all.first(20),
            .output = all.subspan(20)};
  }

  std::vector<PageId> pages = FirstPages(10);
  std::vector<int32_t> text;
};

// Whatever it drafts, and however: the passes of the layer, or of a head, follow each other on the device.
class CudaDraftingStepTest : public CudaRunnerTest,
                             public ::testing::WithParamInterface<const char*> {};

TEST_P(CudaDraftingStepTest, TakesNoMemoryWaitsOnceAndHasItsPassesInThePlan) {
  const bool has_head = GetParam() == std::string("eagle3");
  const std::filesystem::path folder = kTestData / "hf" / (has_head ? "v3_groups" : "v3_mtp");
  const TreeShape shape{.steps = 3, .branches = 4, .nodes = 8};
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    options.pool_tokens = TokenCount(1'000'000);
    OpenedHead head;
    if (has_head) {
      head = OpenEagleHead(std::filesystem::path(QUIRE_EAGLE_HEADS) / "eagle3",
                           ReadModelConfig(folder));
      options.head = &head;
    }
    auto target = MakeDeviceRunner(folder, LayerTargetOptions(options, shape));
    const MemoryPlan plan = target->memory_plan();
    auto drafter = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape);
    SpeculativeRunner runner(std::move(target), std::move(drafter), shape.Room());
    DraftedAnswer answer(runner);
    for (int step = 0; step < 10; ++step) {
      const StepSequence seq = answer.Next(runner);
      const int64_t heap = AllocationCount();
      const CallCounts before = CallsSoFar();
      const StepResult& result = runner.Step({.sequences = {&seq, 1}});
      const CallCounts after = CallsSoFar();
      EXPECT_EQ(AllocationCount() - heap, 0) << "step " << step;
      EXPECT_EQ(after.allocations - before.allocations, 0) << "step " << step;
      EXPECT_EQ(after.waits - before.waits, 1) << "step " << step;
      EXPECT_EQ(result.sequences[0].num_drafted, step == 0 ? 0 : shape.nodes - 1);
      for (const StepToken& token : result.sequences[0].answers[0].tokens) {
        answer.text.push_back(token.chosen.token);
      }
    }
    const ByteOffset used = QueryDevice().memory - FreeDeviceMemory();
    EXPECT_NEAR(static_cast<double>(used.raw()) / static_cast<double>(plan.total().raw()), 1.0,
                0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafts, CudaDraftingStepTest, ::testing::Values("layer", "eagle3"),
                         [](const auto& test) { return std::string(test.param); });

// Prompts in chunks and at once, beside an answer: multi-head form gives what latent form does, which
// --deterministic always takes, up to rounding. Without experts: where two of them tie, rounding decides.
// Of a sparse model the chunks that see every key are expanded, and rows that choose are not compared.
TEST_F(CudaRunnerTest, PromptsInMultiHeadFormSayWhatLatentFormSays) {
  ModelConfig dense = ReadModelConfig(kTestData / "dummy" / "true_geometry");
  std::ranges::fill(dense.layers, LayerKind::kDense);
  ModelConfig sparse = ReadModelConfig(kSparse);
  std::ranges::fill(sparse.layers, LayerKind::kDense);
  sparse.indexer->top_k = 1024;
  for (const ModelConfig& config : {dense, sparse}) {
    const size_t see_all = config.indexer ? 1024 : 2048;
    const TokenCount expected_expanded(config.indexer ? 700 + 599 : 1400 + 599);
    for (const KvFormat format : {KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
      for (const int page_size : {1, 61, 64}) {
        SCOPED_TRACE(fmt::format("{}, {}, page size {}", config.indexer ? "sparse" : "dense",
                                 KvFormatName(format), page_size));
        RunnerOptions options{.page_size = PageSize(page_size),
                              .context = TokenCount(2048),
                              .max_seqs = 4,
                              .max_step_tokens = TokenCount(1024),
                              .kv_format = format,
                              .mode = page_size == 64 ? StepMode::kGraph : StepMode::kEager,
                              .num_threads = 4};
        std::vector<testing::JobReport> reports[2];
        for (const bool deterministic : {false, true}) {
          options.deterministic = deterministic;
          const auto source = MakeDummyWeights(config);
          const auto runner = MakeDeviceRunner(config, *source, options);
          std::vector<testing::Job> jobs = {MakeJob(*runner, 1, 5, kWholePrompt),
                                            MakeJob(*runner, 2, 1500, 700),
                                            MakeJob(*runner, 3, 600, kWholePrompt)};
          jobs[0].num_output = 12;
          jobs[1].first_step = 2;
          jobs[2].first_step = 6;
          TokenCount expanded{0};
          reports[deterministic ? 1 : 0] = testing::RunJobs(
              *runner, jobs, 3, [&] { expanded += runner->last_step().expanded_tokens; });
          // The last token of a prompt is a step of its own, and so is what is left of a chunk.
          EXPECT_EQ(expanded, deterministic ? TokenCount(0) : expected_expanded);
        }
        double most = 0;
        for (size_t job = 0; job < 3; ++job) {
          const auto& tokens = reports[0][job].tokens;
          const size_t prompt = job == 0 ? 4 : tokens.size() - 8;  // what is drawn may differ
          for (size_t i = 0; i < std::min(prompt, see_all - 1); ++i) {
            const float expected = reports[1][job].tokens[i].chosen.logprob;
            most = std::max<double>(most, std::abs(tokens[i].chosen.logprob - expected));
          }
        }
        RecordProperty("largest_difference", std::to_string(most));
        EXPECT_LT(most, 0.05);
        EXPECT_GT(most, 0.0) << "the same kernels";
      }
    }
  }
}

constexpr MlaRoom kRoom = {.num_sms = 132, .num_clusters = 15};

// One row of pages per sequence, however many buckets there are.
TEST(CudaStepMemoryTest, AllBucketsShareOneTableOfPages) {
  ModelConfig config = ReadModelConfig(kTestData / "dummy" / "true_geometry");
  config.max_context = 131072;
  RunnerOptions options{.max_seqs = 512, .max_step_tokens = TokenCount(2048)};
  const auto table_bytes = [&](int32_t page_size) {
    options.page_size = PageSize(page_size);
    const RunnerLimits limits = LimitsWithoutPool(config, options);
    Carver device, pinned;
    CudaStepParts parts;
    return LayOutCudaSteps(config, limits, options, kRoom, parts, device, pinned).table_bytes;
  };
  const ByteOffset table = ByteOffset(sizeof(PageId)) * 512 * 131072;  // 0.25 GiB
  EXPECT_GT(table_bytes(1), table);
  EXPECT_LE(table_bytes(1) - table_bytes(64), table);
}

TEST(CudaStepMemoryTest, ChoosingKeysTakesAsMuchForEveryContext) {
  const ModelConfig config = ReadModelConfig(kSparse);
  const auto selection = [&](int64_t context) {
    const RunnerOptions options{.context = TokenCount(context),
                                .max_seqs = 64,
                                .max_step_tokens = TokenCount(2048),
                                .mode = StepMode::kGraph};
    const RunnerLimits limits = LimitsWithoutPool(config, options);
    Carver device, pinned;
    CudaStepParts parts;
    return LayOutCudaSteps(config, limits, options, kRoom, parts, device, pinned).selection_bytes;
  };
  EXPECT_GT(selection(8 << 10), ByteOffset(0));
  EXPECT_EQ(selection(64 << 10), selection(8 << 10));
  EXPECT_EQ(selection(1 << 20), selection(8 << 10));
}

// In every bucket that it drafts in, beside the sparse model's: on the memory that was counted.
TEST(CudaStepMemoryTest, AHeadHasPlansOfItsOwnGeometry) {
  const ModelConfig config = ReadModelConfig(kTestData / "hf" / "glm_dsa");
  const OpenedHead head =
      OpenEagleHead(testing::WriteRandomHead(
                        std::filesystem::path(::testing::TempDir()) / "planned_head", config),
                    config);
  const TreeShape shape{.steps = 3, .branches = 4, .nodes = 8};
  RunnerOptions options = LayerTargetOptions(kOptions, shape);
  options.head = &head;
  RunnerLimits limits = LimitsWithoutPool(config, options);
  limits.pool_pages = PageCount(100);
  Carver device_bytes, pinned_bytes;
  CudaStepParts counted;
  LayOutCudaSteps(config, limits, options, kRoom, counted, device_bytes, pinned_bytes);
  std::vector<std::byte> device_memory(static_cast<size_t>(device_bytes.used().raw()) + 256);
  std::vector<std::byte> pinned_memory(static_cast<size_t>(pinned_bytes.used().raw()) + 256);
  const auto aligned = [](std::vector<std::byte>& memory, ByteOffset bytes) {
    void* at = memory.data();
    size_t room = memory.size();
    return std::span(
        static_cast<std::byte*>(std::align(256, static_cast<size_t>(bytes.raw()), at, room)),
        static_cast<size_t>(bytes.raw()));
  };
  Carver device(aligned(device_memory, device_bytes.used()), MemorySide::kDevice);
  Carver pinned(aligned(pinned_memory, pinned_bytes.used()));
  CudaStepParts parts;
  const StepMemory memory = LayOutCudaSteps(config, limits, options, kRoom, parts, device, pinned);
  EXPECT_EQ(device.used(), device_bytes.used());
  EXPECT_EQ(pinned.used(), pinned_bytes.used());
  EXPECT_EQ(std::ssize(parts.token_ids), head.config->draft_vocab_size);
  ASSERT_EQ(memory.heads.size(), memory.buckets.size());
  const size_t num_buckets = memory.buckets.size();
  for (size_t i = 0; i < num_buckets; ++i) {
    SCOPED_TRACE("bucket " + std::to_string(i));
    const Bucket& bucket = memory.heads[i];
    ASSERT_EQ(bucket.draft_rows > 0, !memory.buckets[i].size.expands());
    if (bucket.draft_rows == 0) continue;
    EXPECT_EQ(bucket.capacity.query_tokens, memory.buckets[i].capacity.query_tokens);
    EXPECT_EQ(bucket.forward.hidden.dim(0), memory.buckets[i].forward.hidden.dim(0));
    EXPECT_EQ(bucket.forward.q.dim(1), 3 * 16);  // heads of the head's own width
    const PlanStorage& plan = *parts.buckets[num_buckets + i].plan;
    // Up to eight queries are tiles of their own. A CTA has 64 rows: 21 queries of three heads, where there are
    // so many.
    const bool are_apart = bucket.size.is_decode || bucket.size.num_tokens <= TokenCount(8);
    EXPECT_EQ(plan.work().query_tile,
              are_apart ? TokenCount(1) : Min(TokenCount(21), bucket.size.num_tokens));
    EXPECT_EQ(plan.work().most_keys, WorkShape().most_keys);
    EXPECT_EQ(plan.selection_plan(), nullptr);
    EXPECT_NE(parts.buckets[i].plan->selection_plan(), nullptr);
  }
}

// The same step for an eager and a graph runner, in every bucket, with rows and tokens of padding
// wherever the bucket has room for some.
TEST_F(CudaRunnerTest, EagerStepsEqualGraphStepsInEveryBucket) {
  for (const bool deterministic : {false, true}) {
    RunnerOptions options = kOptions;
    options.max_seqs = 13;
    options.deterministic = deterministic;
    const auto eager = Make(options);
    options.mode = StepMode::kGraph;
    options.checks = StepChecks::kPoison;
    const auto graph = Make(options);
    const std::vector<int32_t> tokens = RandomTokens(160, eager->limits().vocab_size, 2);
    const std::vector<PageId> pages = FirstPages(13 * 16);
    int32_t fewer_rows = 0;
    TokenCount fewer_tokens{2};  // with one token more: not one for each of two sequences
    for (size_t b = 0; b < graph->buckets().size(); ++b) {
      const BucketSize size = graph->buckets()[b].size;
      const bool decode = size.num_tokens == TokenCount(size.num_seqs);
      // One more than the bucket before takes.
      const int32_t rows = decode ? fewer_rows + 1 : 2;
      const int64_t in_first = decode ? 1 : fewer_tokens.raw();
      std::vector<StepSequence> seqs;
      for (int32_t i = 0; i < rows; ++i) {
        seqs.push_back(
            {.id = static_cast<uint64_t>(i) + 1,
             .tokens = std::span(tokens).first(i == 0 ? static_cast<size_t>(in_first) : 1),
             .pages = std::span(pages).subspan(static_cast<size_t>(i) * 16, 16),
             .want = Want::kNextToken,
             .sampling = {.temperature = 0, .top_logprobs = 5}});
      }
      if (decode) fewer_rows = size.num_seqs;
      if (!decode) fewer_tokens = size.num_tokens;
      const StepResult& a = eager->Step({.sequences = seqs});
      const StepResult& c = graph->Step({.sequences = seqs});
      EXPECT_EQ(eager->last_step().bucket, b);
      EXPECT_EQ(graph->last_step().bucket, b);
      for (size_t i = 0; i < seqs.size(); ++i) {
        const StepToken& x = a.sequences[i].answers[0].tokens[0];
        const StepToken& y = c.sequences[i].answers[0].tokens[0];
        EXPECT_EQ(x.chosen.token, y.chosen.token) << "bucket " << b << " row " << i;
        EXPECT_EQ(x.chosen.logprob, y.chosen.logprob) << "bucket " << b << " row " << i;
        ASSERT_EQ(x.top.size(), 5u);
        for (size_t k = 0; k < 5; ++k) EXPECT_EQ(x.top[k].logprob, y.top[k].logprob);
      }
    }
  }
}

TEST_F(CudaRunnerTest, CopiedPagesHoldTheSameTokens) {
  const auto runner = Make(kOptions);
  const std::vector<int32_t> tokens = RandomTokens(30, runner->limits().vocab_size, 4);
  const std::vector<PageId> pages = FirstPages(2);
  StepSequence seq{
      .tokens = tokens, .pages = pages, .want = Want::kNextToken, .sampling = {.temperature = 0}};
  runner->Step({.sequences = {&seq, 1}});
  seq.tokens = std::span(tokens).first(1);
  seq.position = TokenCount(30);
  const TokenLogprob expected =
      runner->Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens[0].chosen;
  const StepPageCopy copies[] = {{.from = PageId(1), .to = PageId(9), .count = 16},
                                 {.from = PageId(2), .to = PageId(7), .count = 14}};
  const std::vector<PageId> copied = {PageId(9), PageId(7)};
  seq.pages = copied;
  const StepResult& result = runner->Step({.copies = copies, .sequences = {&seq, 1}});
  EXPECT_EQ(result.sequences[0].answers[0].tokens[0].chosen.token, expected.token);
  EXPECT_EQ(result.sequences[0].answers[0].tokens[0].chosen.logprob, expected.logprob);
}

// ---- Faults of one row, trees, pages that are kept ----

TEST_F(CudaRunnerTest, ARowWithNaNNamesItselfAndTheOthersKeepTheirBits) {
  constexpr int32_t kFaultyId = 7;
  const ModelConfig config = ReadModelConfig(kTestData / "dummy" / "true_geometry");
  const std::unique_ptr<WeightSource> dummy = MakeDummyWeights(config);
  testing::FaultyWeights source(*dummy, kFaultyId);
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    options.deterministic = true;
    ExpectARowWithNaNNamesItself(*MakeDeviceRunner(config, source, options), kFaultyId);
  }
}

TEST_F(CudaRunnerTest, ANodeOfATreeSaysWhatAPlainStepOverItsPathSays) {
  const std::vector<int32_t> parents = {-1, 0, 0, 1, -1, 2};
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    RunnerOptions options = kOptions;
    options.mode = mode;
    options.deterministic = true;
    options.tree_nodes = TokenCount(8);
    const auto runner = Make(options);
    const std::vector<int32_t> prompt = RandomTokens(50, runner->limits().vocab_size, 1);
    const std::vector<int32_t> nodes = RandomTokens(6, runner->limits().vocab_size, 2);
    const std::vector<PageId> pages = FirstPages(17);
    const StepSequence prefill{.id = 1, .tokens = prompt, .pages = pages};
    runner->Step({.sequences = {&prefill, 1}});
    const StepSequence tree{.id = 1,
                            .tokens = nodes,
                            .position = TokenCount(50),
                            .pages = pages,
                            .kept_pages = PageCount(pages.size()),
                            .tree_parents = parents,
                            .lookahead = TokenCount(2),
                            .want = Want::kNextToken,
                            .sampling = {.temperature = 0}};
    std::vector<TokenLogprob> said;
    for (const StepToken& token :
         runner->Step({.sequences = {&tree, 1}}).sequences[0].answers[0].tokens) {
      said.push_back(token.chosen);
    }
    ASSERT_EQ(said.size(), nodes.size());
    for (size_t node = 0; node < nodes.size(); ++node) {
      std::vector<int32_t> path;
      for (auto at = static_cast<int32_t>(node); at >= 0; at = parents[static_cast<size_t>(at)]) {
        path.insert(path.begin(), nodes[static_cast<size_t>(at)]);
      }
      path.insert(path.begin(), prompt.begin(), prompt.end());
      const StepSequence plain{
          .tokens = path, .pages = pages, .want = Want::kNextToken, .sampling = {.temperature = 0}};
      const TokenLogprob expected =
          runner->Step({.sequences = {&plain, 1}}).sequences[0].answers[0].tokens[0].chosen;
      EXPECT_EQ(said[node].token, expected.token) << node;
      EXPECT_EQ(said[node].logprob, expected.logprob) << node;
    }
  }
}

TEST_F(CudaRunnerTest, ASteadyStepLooksAtNewPagesOnly) {
  const auto runner = Make(kOptions);
  const std::vector<PageId> pages = FirstPages(16);
  const int32_t token[] = {1};
  PageCount kept{0};
  for (int64_t position = 0; position < 40; ++position) {
    const PageCount need = runner->limits().page_size.PagesFor(TokenCount(position + 1));
    const StepSequence seq{.id = 1,
                           .tokens = token,
                           .position = TokenCount(position),
                           .pages = std::span(pages).first(static_cast<size_t>(need.raw())),
                           .kept_pages = kept,
                           .want = Want::kNextToken};
    runner->Step({.sequences = {&seq, 1}});
    EXPECT_EQ(runner->last_step().pages_looked_at, need - kept) << position;
    kept = need;
  }
}

TEST_F(CudaRunnerTest, WhatCannotBeIsRefusedAndTheNextStepRuns) {
  const auto runner = Make(kOptions);
  EXPECT_THROW(runner->Collect(), InternalError);
  const std::vector<PageId> pages = FirstPages(16);
  const int32_t high[] = {1, 320};
  const StepSequence bad{.tokens = high, .pages = pages};
  EXPECT_EQ(ErrorMessage([&] {
              runner->Step({.sequences = {&bad, 1}});
            }),
            "step: sequence 0: token 1: expected 0..319, got 320");
  const std::vector<LogitBias> biases(kMaxStepBiases + 1, LogitBias{.token = 1, .bias = 0});
  const int32_t one[] = {1};
  StepSequence good{
      .tokens = one, .pages = pages, .want = Want::kNextToken, .sampling = {.logit_bias = biases}};
  EXPECT_EQ(ErrorMessage([&] {
              runner->Step({.sequences = {&good, 1}});
            }),
            "logit_bias: expected at most 2112 biases, got 2113");
  good.sampling.logit_bias = {};
  runner->Submit({.sequences = {&good, 1}});
  EXPECT_THROW(runner->Submit({.sequences = {&good, 1}}), InternalError);
  EXPECT_EQ(runner->Collect().sequences.size(), 1u);
}

}  // namespace
}  // namespace quire::cuda
