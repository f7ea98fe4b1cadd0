#include "runner/memory_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "model/eagle.h"
#include "runner/bucket.h"
#include "runner/cpu_runner.h"
#include "runner/test_models.h"
#include "testing/error_message.h"
#include "testing/random_head.h"
#include "testing/resident_bytes.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::ErrorMessage;
using testing::ResidentBytes;

MemoryPlan PlanOf(const RunnerOptions& options) {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  return MakeMemoryPlan(config, *MakeDummyWeights(config), options);
}

TEST(MemoryPlanTest, KvIsBytesPerTokenTimesTokens) {
  const MemoryPlan plan = PlanOf({.page_size = PageSize(64), .context = TokenCount(1000)});
  EXPECT_EQ(plan.kv_per_token, ByteOffset(2 * 576 * 2));  // 2 layers of 576 bf16
  EXPECT_EQ(plan.usable_pages(), PageCount(16 * 16));     // 16 sequences of 16 pages
  EXPECT_EQ(plan.kv, plan.kv_per_token * 64 * (16 * 16 + 1));
  EXPECT_NEAR(plan.Concurrency(), 16.384, 1e-9);
}

// ---- Sparse attention ----

MemoryPlan SparsePlanOf(const RunnerOptions& options) {
  const ModelConfig config = ReadModelConfig(kSparse);
  return MakeMemoryPlan(config, *MakeDummyWeights(config), options);
}

TEST(MemoryPlanTest, LayersThatChooseHaveIndexKeysBesides) {
  RunnerOptions options{.page_size = PageSize(64), .context = TokenCount(1000)};
  const ByteOffset latent(3 * 576 * 2);
  const auto expect = [&](IndexKeyType type, int64_t key_bytes) {
    options.index_type = type;
    const MemoryPlan plan = SparsePlanOf(options);
    EXPECT_EQ(plan.index_per_token, ByteOffset(2 * key_bytes));  // 2 layers of 3
    EXPECT_EQ(plan.kv_per_token, latent + ByteOffset(2 * key_bytes));
  };
  expect(IndexKeyType::kAuto, 132);
  expect(IndexKeyType::kFp8, 132);
  expect(IndexKeyType::kBf16, 256);
  expect(IndexKeyType::kF32, 512);
  EXPECT_EQ(PlanOf(options).index_per_token, ByteOffset(0));
}

TEST(MemoryPlanTest, ChoosingKeysTakesAsMuchForEveryContext) {
  const auto selection = [](int64_t context) {
    return SparsePlanOf({.context = TokenCount(context), .max_seqs = 1, .num_threads = 2})
        .selection;
  };
  EXPECT_GT(selection(8 << 10), ByteOffset(0));
  EXPECT_EQ(selection(64 << 10), selection(8 << 10));
  EXPECT_EQ(selection(1 << 20), selection(8 << 10));
  EXPECT_EQ(PlanOf({.context = TokenCount(1024)}).selection, ByteOffset(0));
}

TEST(MemoryPlanTest, TheTableOfASparseModelNamesItsParts) {
  const std::string table =
      ToTable(SparsePlanOf({.context = TokenCount(1024), .max_seqs = 2, .num_threads = 1}));
  EXPECT_NE(table.find("264 B of each token's are index keys"), std::string::npos) << table;
  EXPECT_NE(table.find("of it for choosing keys, whatever the context"), std::string::npos)
      << table;
}

TEST(MemoryPlanTest, IndexKeysThatCannotBeAreRefused) {
  const auto refusal = [](RunnerOptions options) {
    options.context = TokenCount(1024);
    return ErrorMessage([&] { SparsePlanOf(options); });
  };
  EXPECT_EQ(refusal({.page_size = PageSize(61), .index_layout = IndexKeyLayout::kPreshuffled}),
            "index cache layout: preshuffled needs a page size that is a multiple of 16, such as "
            "48 or 64, got 61");
  EXPECT_EQ(refusal({.page_size = PageSize(1), .index_layout = IndexKeyLayout::kPreshuffled}),
            "index cache layout: preshuffled needs a page size that is a multiple of 16, such as "
            "16, got 1");
  EXPECT_EQ(
      refusal({.index_type = IndexKeyType::kBf16, .index_layout = IndexKeyLayout::kPreshuffled}),
      "index cache layout: expected plain with index keys that are not fp8, got preshuffled");
  EXPECT_EQ(refusal({.index_top_k = 41}),
            "index top-k: expected 1..40, what the model was made for, got 41");
  EXPECT_EQ(ErrorMessage([] { PlanOf({.index_top_k = 3}); }),
            "index top-k: expected a model with sparse attention, got deepseek_v3");
}

// ---- Drafting ----

TEST(MemoryPlanTest, ADraftLayerHasRowsInThePagesAndStatesInTheWorkspace) {
  ModelConfig config = ReadModelConfig(kTrueGeometry);
  config.num_draft_layers = 1;
  RunnerOptions options{.page_size = PageSize(64), .context = TokenCount(1000)};
  const MemoryPlan plain = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  EXPECT_EQ(plain.total(), PlanOf(options).total()) << "what is not asked for takes nothing";
  options.draft_layer = true;
  const MemoryPlan drafting = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  EXPECT_EQ(drafting.kv_per_token, plain.kv_per_token + ByteOffset(576 * 2));
  EXPECT_EQ(drafting.step_tables, plain.step_tables);
  // Of each of 512 tokens the state, and what the layer joins.
  EXPECT_EQ(drafting.workspace, plain.workspace + ByteOffset(512 * 3 * 128 * 4));
  EXPECT_GT(drafting.weights, plain.weights);
}

TEST(MemoryPlanTest, TheDraftLayerOfASparseModelHasIndexKeysToo) {
  ModelConfig config = ReadModelConfig(kSparse);
  config.num_draft_layers = 1;
  RunnerOptions options{.context = TokenCount(1000), .index_type = IndexKeyType::kFp8};
  const MemoryPlan plain = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  options.draft_layer = true;
  const MemoryPlan drafting = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  EXPECT_EQ(drafting.kv_per_token, plain.kv_per_token + ByteOffset(576 * 2 + 132));
  EXPECT_EQ(drafting.index_per_token, plain.index_per_token + ByteOffset(132));
}

TEST(MemoryPlanTest, AHeadHasRowsOfItsOwnGeometryAndWeightsThatAreNamed) {
  const ModelConfig config = ReadModelConfig(kSparse);
  const OpenedHead head =
      OpenEagleHead(testing::WriteRandomHead(
                        std::filesystem::path(::testing::TempDir()) / "planned_head", config),
                    config);
  RunnerOptions options{.page_size = PageSize(64), .context = TokenCount(1000)};
  const MemoryPlan plain = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  options.draft_layer = true;
  options.head = &head;
  const MemoryPlan drafting = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  EXPECT_EQ(drafting.draft_per_token, ByteOffset((16 + 8) * 2));
  EXPECT_EQ(drafting.kv_per_token, plain.kv_per_token + drafting.draft_per_token);
  EXPECT_EQ(drafting.index_per_token, plain.index_per_token);
  EXPECT_GT(drafting.draft_weights, ByteOffset(0));
  EXPECT_EQ(drafting.weights, plain.weights + drafting.draft_weights);
  EXPECT_NE(ToTable(drafting).find("48 B of each token's are of the layer that drafts"),
            std::string::npos);
  EXPECT_NE(ToTable(drafting).find("of them are the draft model's"), std::string::npos);
  EXPECT_EQ(ToTable(plain).find("draft"), std::string::npos);
}

TEST(MemoryPlanTest, AModelThatCannotDraftIsRefusedByName) {
  EXPECT_EQ(ErrorMessage([] { PlanOf({.draft_layer = true}); }),
            "deepseek_v3: drafting: expected a model with one draft layer, got "
            "num_nextn_predict_layers 0");
}

TEST(MemoryPlanTest, DefaultsComeFromTheModel) {
  const MemoryPlan plan = PlanOf({.max_seqs = 1});
  EXPECT_EQ(plan.limits.context, TokenCount(4096));
  EXPECT_EQ(plan.limits.vocab_size, 320);
}

TEST(MemoryPlanTest, ALimitTakesPagesAwayUntilOneSequenceDoesNotFit) {
  const RunnerOptions roomy{.page_size = PageSize(64), .context = TokenCount(1024)};
  const MemoryPlan whole = PlanOf(roomy);
  RunnerOptions tight = roomy;
  tight.memory_limit = whole.total() - whole.kv_per_page * 100;
  const MemoryPlan less = PlanOf(tight);
  EXPECT_EQ(less.limits.pool_pages, whole.limits.pool_pages - PageCount(100));
  EXPECT_LE(less.total(), tight.memory_limit);
  tight.memory_limit = whole.total() - whole.kv + whole.kv_per_page * 16;
  const std::string message = ErrorMessage([&] { PlanOf(tight); });
  EXPECT_NE(message.find("KV (17 pages of 64 tokens, 144.00 KiB each)"), std::string::npos)
      << message;
  EXPECT_NE(message.find("exceed the limit of"), std::string::npos) << message;
}

TEST(MemoryPlanTest, PoolTokensAreTakenAsAsked) {
  const MemoryPlan plan = PlanOf({.page_size = PageSize(64), .pool_tokens = TokenCount(1000)});
  EXPECT_EQ(plan.usable_pages(), PageCount(16));
}

TEST(MemoryPlanTest, AModestPoolIsBoundUnlessOneSequenceOrTheCallerNeedsMore) {
  RunnerOptions options{.context = TokenCount(4096), .max_seqs = 512};
  const MemoryPlan every = PlanOf(options);
  ASSERT_GT(every.kv, ByteOffset(int64_t{4} << 30));
  options.pool_room = PoolRoom::kModest;
  const MemoryPlan modest = PlanOf(options);
  ASSERT_LT(modest.weights.raw() / 4, kModestPool.raw());
  EXPECT_EQ(modest.usable_pages(), PageCount(kModestPool.raw() / modest.kv_per_page.raw()));
  EXPECT_LE(modest.kv, kModestPool + modest.kv_per_page);
  options.pool_tokens = TokenCount(4096 * 512);
  EXPECT_EQ(PlanOf(options).kv, every.kv);
  options.pool_tokens = TokenCount(0);
  options.max_seqs = 2;
  EXPECT_EQ(PlanOf(options).usable_tokens(), TokenCount(2 * 4096));
  // A page of one sequence's whole context is more than the bound.
  ModelConfig config = ReadModelConfig(kTrueGeometry);
  config.max_context = 1 << 20;
  options = {.max_seqs = 64, .pool_room = PoolRoom::kModest};
  EXPECT_EQ(MakeMemoryPlan(config, *MakeDummyWeights(config), options).usable_tokens(),
            TokenCount(1 << 20));
}

TEST(MemoryPlanTest, AllBucketsShareOneTableOfPages) {
  ModelConfig config = ReadModelConfig(kTrueGeometry);
  config.max_context = 131072;
  const RunnerOptions options{.page_size = PageSize(1),
                              .max_seqs = 512,
                              .max_step_tokens = TokenCount(2048),
                              .pool_tokens = TokenCount(1'000'000),
                              .mode = StepMode::kGraph};
  ASSERT_GT(MakeBuckets(options.mode, options.max_seqs, options.max_step_tokens).size(), 50u);
  const MemoryPlan plan = MakeMemoryPlan(config, *MakeDummyWeights(config), options);
  const ByteOffset table = ByteOffset(sizeof(PageId)) * 512 * 131072;  // 0.25 GiB
  EXPECT_GE(plan.step_tables, table);
  EXPECT_LT(plan.step_tables, table + ByteOffset(16 << 20));
}

TEST(MemoryPlanTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(ErrorMessage([] { PlanOf({.context = TokenCount(5000)}); }),
            "context length: expected 1..4096 (what the model was made for), got 5000");
  EXPECT_EQ(ErrorMessage([] { PlanOf({.max_seqs = 0}); }),
            "max running requests: expected 1..4096, got 0");
  EXPECT_EQ(ErrorMessage([] { PlanOf({.max_step_tokens = TokenCount(0)}); }),
            "chunked prefill size: expected 1..1048576 tokens, got 0");
  EXPECT_EQ(ErrorMessage([] { PlanOf({.max_seqs = 8, .max_step_tokens = TokenCount(4)}); }),
            "chunked prefill size: expected at least one token for each of 8 running requests, got "
            "4");
  EXPECT_EQ(ErrorMessage([] { PlanOf({.num_threads = 0}); }), "threads: expected 1..1024, got 0");
}

TEST(MemoryPlanTest, TheTableSaysWhatUsersAskFor) {
  const std::string table = ToTable(PlanOf({.context = TokenCount(1024), .max_seqs = 2}));
  for (const char* part :
       {"weights", "KV cache", "2.25 KiB per token, 32 pages of 64 tokens = 2048 tokens",
        "2.00 sequences of the context length 1024", "workspace", "total"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST(MemoryPlanTest, TheTableSaysWhatEachRankTakes) {
  RunnerOptions options{.context = TokenCount(1024), .max_seqs = 2};
  const MemoryPlan alone = PlanOf(options);
  EXPECT_TRUE(alone.ranks.empty());
  EXPECT_EQ(alone.arena_of_all(), alone.arena());
  EXPECT_EQ(ToTable(alone).find("rank"), std::string::npos);
  options.tp_size = 2;
  options.rank = 1;
  const MemoryPlan plan = PlanOf(options);
  ASSERT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(plan.ranks[1].weights, plan.weights);
  EXPECT_EQ(plan.ranks[1].arena, plan.arena());
  EXPECT_EQ(plan.arena_of_all(), plan.ranks[0].arena + plan.ranks[1].arena);
  const std::string table = ToTable(plan);
  for (const RankMemory& rank : plan.ranks) {
    const std::string row =
        fmt::format("rank {} {:>18}  of its own, {} of it weights\n", &rank - plan.ranks.data(),
                    FormatBytes(rank.arena), FormatBytes(rank.weights));
    EXPECT_NE(table.find(row), std::string::npos) << row << table;
  }
}

TEST(MemoryPlanTest, WhatADeviceUsesBesidesIsARowOfItsOwnAndCounts) {
  MemoryPlan plan = PlanOf({.context = TokenCount(1024), .max_seqs = 2});
  EXPECT_EQ(plan.total(), plan.arena());
  EXPECT_EQ(ToTable(plan).find("outside"), std::string::npos);
  const ByteOffset arena = plan.arena();
  plan.outside = ByteOffset(int64_t{3} << 30);
  EXPECT_EQ(plan.arena(), arena);
  EXPECT_EQ(plan.total(), arena + plan.outside);
  EXPECT_NE(ToTable(plan).find("3.00 GiB  context, modules, graphs"), std::string::npos);
}

TEST(MemoryPlanTest, BytesAreReadable) {
  EXPECT_EQ(FormatBytes(ByteOffset(656)), "656 B");
  EXPECT_EQ(FormatBytes(ByteOffset(1536)), "1.50 KiB");
  EXPECT_EQ(FormatBytes(ByteOffset(int64_t{3} << 30)), "3.00 GiB");
}

#ifndef QUIRE_SANITIZED  // a sanitizer's shadow counts too

TEST(MemoryPlanTest, ResidentMemoryIsWithinFivePercentOfThePlan) {
  const RunnerOptions options{.max_seqs = 8,
                              .max_step_tokens = TokenCount(512),
                              .pool_tokens = TokenCount(200000),
                              .num_threads = 2};
  const auto runner = testing::MakeRunner(kTrueGeometry, options, testing::Weights::kDummy);
  const auto planned = static_cast<double>(runner->memory_plan().total().raw());
  ASSERT_GT(planned, 400e6) << "too small for the rest of the process not to matter";
  EXPECT_NEAR(static_cast<double>(ResidentBytes()) / planned, 1.0, 0.05) << "once loaded";
  testing::RunJob(*runner, {.prompt = testing::RandomTokens(600, 320, 1), .num_output = 4});
  EXPECT_NEAR(static_cast<double>(ResidentBytes()) / planned, 1.0, 0.05) << "once used";
}

TEST(MemoryPlanTest, ASparseModelsResidentMemoryIsThePlansAtALongContext) {
  const RunnerOptions options{.context = TokenCount(65536),
                              .max_seqs = 1,
                              .max_step_tokens = TokenCount(512),
                              .pool_tokens = TokenCount(200000),
                              .num_threads = 2};
  const auto runner = testing::MakeRunner(kSparse, options, testing::Weights::kDummy);
  const auto planned = static_cast<double>(runner->memory_plan().total().raw());
  ASSERT_GT(planned, 400e6);
  EXPECT_NEAR(static_cast<double>(ResidentBytes()) / planned, 1.0, 0.05) << "once loaded";
  testing::RunJob(*runner, {.prompt = testing::RandomTokens(3000, 320, 1), .num_output = 2});
  // And the end of the context, whose queries choose among 64k keys; those that nobody wrote are zeros.
  const std::vector<int32_t> tokens = testing::RandomTokens(64, 320, 2);
  std::vector<PageId> pages;
  for (int64_t i = 1; i <= 65536 / 64; ++i) pages.emplace_back(i);
  const StepSequence last{.tokens = tokens,
                          .position = TokenCount(65536 - 64),
                          .pages = pages,
                          .want = Want::kNextToken,
                          .sampling = {.temperature = 0}};
  runner->Step({.sequences = {&last, 1}});
  EXPECT_NEAR(static_cast<double>(ResidentBytes()) / planned, 1.0, 0.05) << "once used";
}

#endif

}  // namespace
}  // namespace quire
