#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/plan_storage.h"
#include "device/arena.h"
#include "device/buffer.h"
#include "device/thread_pool.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/mla_attention_cases.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/paged_batch.h"
#include "testing/reference.h"
#include "testing/sanitized_share.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::AttentionCase;
using testing::AttentionResult;
using testing::BitMismatch;
using testing::ErrorMessage;
using testing::kAttentionCases;
using testing::kScale;
using testing::kTree;
using testing::MixedSequences;
using testing::MlaRun;
using testing::OverwriteRow;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::PathOf;
using testing::SequenceCase;

AttentionResult Attend(const PagedBatch& batch, Executor& executor, int32_t num_workers = 1) {
  return testing::RunMla(
      batch, {.scale = kScale, .num_workers = num_workers, .faults = ActiveFaults()}, executor);
}

// The rows of `tokens` consecutive query tokens, from token `first` on.
AttentionResult Tokens(const AttentionResult& result, const PagedBatchShape& shape, int64_t first,
                       int64_t tokens) {
  const int64_t per_token = int64_t{shape.num_heads} * shape.dims.latent_dim;
  return {.out = {result.out.begin() + first * per_token,
                  result.out.begin() + (first + tokens) * per_token},
          .lse = {result.lse.begin() + first * shape.num_heads,
                  result.lse.begin() + (first + tokens) * shape.num_heads}};
}

void ExpectNearReference(const PagedBatch& batch, const AttentionResult& result) {
  const PagedBatchShape& shape = batch.shape();
  const testing::ReferenceAttention reference = testing::ReferenceMla(
      batch.seqs(), batch.Rows(), batch.q(), shape.num_heads, shape.dims, kScale);
  EXPECT_EQ(testing::Mismatch(result.out, reference.out, reference.out_bound), "");
  EXPECT_EQ(testing::Mismatch(result.lse, reference.lse, reference.lse_bound), "");
}

// ---- Against the double-precision reference ----

TEST(MlaAttentionTest, IsNearTheReference) {
  ThreadPool executor(2);
  for (const AttentionCase& c : kAttentionCases) {
    for (int page_size : testing::SampledOf(c.page_sizes)) {
      SCOPED_TRACE(std::string(c.name) + ", page size " + std::to_string(page_size));
      const PagedBatch batch(c.seqs, {.page_size = PageSize(page_size),
                                      .format = c.format,
                                      .dims = c.dims,
                                      .num_heads = c.num_heads});
      ExpectNearReference(batch, Attend(batch, executor, 3));
    }
  }
}

TEST(MlaAttentionTest, WhereNothingIsVisibleThereAreZerosAndMinusInfinity) {
  SerialExecutor executor;
  const PagedBatch batch({{5, 3, {}, 3}, {2, 0, {}, 4}}, {.num_heads = 5});
  const AttentionResult result = Attend(batch, executor);
  for (int64_t token : {0, 1, 5, 6}) {
    const AttentionResult rows = Tokens(result, batch.shape(), token, 1);
    EXPECT_EQ(rows.out, std::vector<float>(5 * 512, 0.0f)) << token;
    EXPECT_EQ(rows.lse, std::vector<float>(5, -std::numeric_limits<float>::infinity())) << token;
  }
  EXPECT_TRUE(std::isfinite(Tokens(result, batch.shape(), 2, 1).lse[0]));
}

// ---- Bit for bit ----

TEST(MlaAttentionTest, PageSizesChangeNoBit) {
  ThreadPool executor(2);
  for (KvFormat format : {KvFormat::kLatentBf16, KvFormat::kLatentF32, KvFormat::kLatentFp8}) {
    const PagedBatch one(MixedSequences(),
                         {.page_size = PageSize(1), .format = format, .num_heads = 4});
    const AttentionResult expected = Attend(one, executor, 3);
    for (int page_size : testing::SampledOf<int>({2, 3, 16, 61, 64, 128, 256})) {
      const PagedBatch batch(
          MixedSequences(),
          {.page_size = PageSize(page_size), .format = format, .num_heads = 4, .page_seed = 77});
      EXPECT_EQ(BitMismatch(Attend(batch, executor, 3), expected), "")
          << "attention at page size " << page_size << " differs from page size 1 ("
          << KvFormatName(format) << ")";
    }
  }
}

TEST(MlaAttentionTest, ThreadsAndWorkersChangeNoBit) {
  const PagedBatch batch(MixedSequences(), {.num_heads = 16});
  SerialExecutor serial;
  const AttentionResult expected = Attend(batch, serial, 1);
  for (int threads : {1, 2, 5}) {
    ThreadPool executor(threads);
    for (int workers : testing::SampledOf<int>({1, 2, 3, 7, 32})) {
      EXPECT_EQ(BitMismatch(Attend(batch, executor, workers), expected), "")
          << threads << " threads, " << workers << " workers";
    }
  }
}

TEST(MlaAttentionTest, RepeatsChangeNoBit) {
  const PagedBatch batch(MixedSequences(), {.num_heads = 8});
  ThreadPool executor(3);
  const AttentionResult expected = Attend(batch, executor, 5);
  for (int i = 0; i < 20 / testing::kSampledParts; ++i)
    ASSERT_EQ(BitMismatch(Attend(batch, executor, 5), expected), "");
}

TEST(MlaAttentionTest, TheRestOfTheBatchChangesNoBit) {
  ThreadPool executor(2);
  const std::vector<SequenceCase> seqs = MixedSequences();
  const PagedBatch whole(seqs, {.num_heads = 6});
  const AttentionResult together = Attend(whole, executor, 4);
  // Shuffled, and each alone.
  std::vector<size_t> order(seqs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(11));
  std::vector<SequenceCase> mixed;
  std::vector<int64_t> first_token(seqs.size());
  int64_t next = 0;
  for (size_t i : order) {
    mixed.push_back(seqs[i]);
    first_token[i] = next;
    next += seqs[i].q_len;
  }
  const PagedBatch shuffled(mixed, {.num_heads = 6, .page_seed = 5});
  const AttentionResult elsewhere = Attend(shuffled, executor, 4);
  int64_t token = 0;
  size_t index = 0;
  for (const SequenceCase& seq : seqs) {
    const AttentionResult expected = Tokens(together, whole.shape(), token, seq.q_len);
    const PagedBatch alone({seq}, {.num_heads = 6, .page_seed = 9});
    EXPECT_EQ(BitMismatch(Attend(alone, executor, 2), expected), "") << "alone, seed " << seq.seed;
    EXPECT_EQ(
        BitMismatch(Tokens(elsewhere, whole.shape(), first_token[index++], seq.q_len), expected),
        "")
        << "shuffled, seed " << seq.seed;
    token += seq.q_len;
  }
}

// With few heads a block of rows holds several tokens, and with 20 it ends amid one: which tokens
// share a block depends on where a chunk begins.
TEST(MlaAttentionTest, ChunkingTheQueriesChangesNoBit) {
  ThreadPool executor(2);
  const int64_t length = 1100;
  for (int32_t num_heads : testing::SampledOf<int32_t>({2, 5, 8, 20})) {
    const PagedBatchShape shape{.dims = {64, 16}, .num_heads = num_heads};
    const PagedBatch whole({{length, length, {}, 3}}, shape);
    const AttentionResult expected = Attend(whole, executor, 2);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{1000, 100}, std::vector<int64_t>{1, 63, 64, 65, 831, 76}}) {
      int64_t begin = 0;
      for (int64_t chunk : chunks) {
        const PagedBatch part({{chunk, begin + chunk, {}, 3}}, shape);
        EXPECT_EQ(BitMismatch(Attend(part, executor, 3), Tokens(expected, shape, begin, chunk)), "")
            << num_heads << " heads, chunk of " << chunk << " at " << begin;
        begin += chunk;
      }
      ASSERT_EQ(begin, length);
    }
  }
}

TEST(MlaAttentionTest, FixedCapacityAndPaddedRowsChangeNoBit) {
  ThreadPool executor(2);
  std::vector<SequenceCase> seqs = MixedSequences();
  for (int page_size : {1, 16, 64, 128}) {
    const PagedBatchShape shape{.page_size = PageSize(page_size), .num_heads = 4};
    const PagedBatch eager(seqs, shape);
    const AttentionResult expected = Attend(eager, executor, 3);
    // A bucket of 16 sequences: six padded rows, a wider table, room for larger trees.
    std::vector<SequenceCase> padded = seqs;
    while (padded.size() < 16) padded.push_back({1, 0, {}, 99});
    const PagedBatch bucket(padded, shape);
    const StepCapacity capacity{.num_seqs = 16,
                                .query_tokens = TokenCount(200),
                                .context = TokenCount(5000),
                                .tree_nodes = TokenCount(70),
                                .page_size = PageSize(page_size),
                                .pool_pages = bucket.pool_pages()};
    const AttentionResult result = testing::RunMla(
        bucket,
        {.scale = kScale, .num_workers = 3, .capacity = &capacity, .faults = ActiveFaults()},
        executor);
    EXPECT_EQ(BitMismatch(Tokens(result, shape, 0, eager.num_tokens()), expected), "")
        << "page size " << page_size;
    const AttentionResult padding = Tokens(result, shape, eager.num_tokens(), 6);
    EXPECT_EQ(padding.out, std::vector<float>(padding.out.size(), 0.0f));
    EXPECT_EQ(padding.lse,
              std::vector<float>(padding.lse.size(), -std::numeric_limits<float>::infinity()));
  }
}

void ExpectTreeRowsEqualDecode(int64_t committed, const std::vector<int32_t>& parents,
                               int page_size) {
  SCOPED_TRACE("committed " + std::to_string(committed) + ", page size " +
               std::to_string(page_size));
  ThreadPool executor(2);
  const int64_t nodes = static_cast<int64_t>(parents.size());
  const PagedBatchShape shape{.page_size = PageSize(page_size), .num_heads = 4};
  const PagedBatch tree({{nodes, committed + nodes, parents, 3}}, shape);
  const AttentionResult verified = Attend(tree, executor, 3);
  for (int64_t node = 0; node < nodes; ++node) {
    const std::vector<int64_t> path = PathOf(parents, node);
    SequenceCase plain{
        .q_len = 1, .kv_len = committed + static_cast<int64_t>(path.size()), .seed = 3};
    for (int64_t p = 0; p < committed; ++p) plain.contents.push_back(p);
    for (int64_t i : path) plain.contents.push_back(committed + i);
    const PagedBatch decode({plain}, shape);
    EXPECT_EQ(BitMismatch(Tokens(verified, shape, node, 1), Attend(decode, executor, 2)), "")
        << "node " << node;
  }
}

TEST(MlaAttentionTest, ATreeRowEqualsPlainDecodeOverItsPath) {
  // A deep comb of 24 nodes: a spine with a leaf at every joint.
  std::vector<int32_t> comb = {-1};
  for (int32_t i = 1; i < 24; ++i) comb.push_back(i % 2 == 1 ? i - 1 : std::max(0, i - 2));
  for (int page_size : {1, 16, 61, 64}) {
    for (int64_t committed : testing::SampledOf<int64_t>({0, 1, 63, 64, 100})) {
      ExpectTreeRowsEqualDecode(committed, kTree, page_size);
    }
  }
  ExpectTreeRowsEqualDecode(60, comb, 16);    // paths cross a tile
  ExpectTreeRowsEqualDecode(1020, comb, 64);  // and a split
  ExpectTreeRowsEqualDecode(1024, comb, 3);   // which begins just where the tree does
}

TEST(MlaAttentionTest, TreesOfManyRootsAndMoreThanSixtyFourNodesAreTreesToo) {
  // 150 nodes, three words of mask: every seventh hangs on the committed tokens, the others on one of
  // the ten before them.
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < 150; ++i) {
    parents.push_back(i % 7 == 0 ? kTreeRoot : std::max(0, i - 1 - (i * 37) % 10));
  }
  ExpectTreeRowsEqualDecode(1000, parents, 61);
}

TEST(MlaAttentionTest, ADraftLevelSeesItsOwnAncestorsOnly) {
  SerialExecutor executor;
  const PagedBatchShape shape{.num_heads = 4};
  // All six nodes are in the cache; asking for the last level alone gives the rows of the whole.
  const PagedBatch whole({{6, 106, kTree, 3}}, shape);
  const AttentionResult expected = Attend(whole, executor);
  const PagedBatch last_two({{2, 106, kTree, 3}}, shape);
  EXPECT_EQ(BitMismatch(Attend(last_two, executor), Tokens(expected, shape, 4, 2)), "");
}

// ---- Numbers that are not finite ----

TEST(MlaAttentionTest, AKeyThatIsNotFiniteReachesOnlyTheQueriesThatSeeIt) {
  ThreadPool executor(2);
  for (float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const PagedBatch batch({{20, 150, {}, 3}, {6, 100, kTree, 4}},
                           {.format = KvFormat::kLatentF32, .num_heads = 4});
    const AttentionResult clean = Attend(batch, executor, 2);
    OverwriteRow(batch, 0, 140, poison);  // queries 0..9 stand before it
    OverwriteRow(batch, 1, 97, poison);   // node 3 of the tree: on the path of nodes 3 and 5
    const AttentionResult result = Attend(batch, executor, 2);
    EXPECT_EQ(
        BitMismatch(Tokens(result, batch.shape(), 0, 10), Tokens(clean, batch.shape(), 0, 10)), "");
    for (int64_t node : {0, 1, 2, 4}) {
      EXPECT_EQ(BitMismatch(Tokens(result, batch.shape(), 20 + node, 1),
                            Tokens(clean, batch.shape(), 20 + node, 1)),
                "")
          << node;
    }
    ExpectNearReference(batch, result);
    EXPECT_TRUE(std::isnan(Tokens(result, batch.shape(), 10, 1).out[0]));
  }
}

TEST(MlaAttentionTest, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  SerialExecutor executor;
  const PagedBatch batch({{3, 150, {}, 3}}, {.format = KvFormat::kLatentF32, .num_heads = 4});
  for (int64_t p = 0; p < 150; ++p) OverwriteRow(batch, 0, p, p % 3 == 0 ? 2.0f : -300.0f);
  ExpectNearReference(batch, Attend(batch, executor));
}

// Rows of a table that others use too: in any order, and full of pages that are nowhere behind those
// of the sequence. A padded row reads none at all.
TEST(MlaAttentionTest, WhatIsBehindASequencesPagesIsNeverRead) {
  SerialExecutor executor;
  const PagedBatch batch(
      {{3, 150, {}, 3}, {1, 0, {}, 1}, {1, 65, {}, 4}, {5, 90, {-1, 0, 0, 1, 2}, 5}},
      {.page_size = PageSize(16), .num_heads = 4});
  const AttentionResult expected = Attend(batch, executor);
  const MlaShape shape{.num_heads = 4};
  const StepCapacity capacity = batch.Capacity();
  const WorkShape work = cpu::MlaWorkShape(shape, 3);
  const PageCount width = PageTableWidth(capacity) + PageCount(7);
  std::vector<PageId> table(static_cast<size_t>(PageRows::Entries(6, width)),
                            PageId(2'000'000'000));
  const Buffer memory("plan", PlanStorageBytes(capacity, work));
  Carver carver(memory.bytes());
  PlanStorage storage(capacity, work, {.num_rows = 6, .width = width, .pages = table}, carver);
  std::vector<SequenceStep> seqs(batch.seqs().begin(), batch.seqs().end());
  for (SequenceStep& seq : seqs) {
    const PageCount needed = capacity.page_size.PagesFor(seq.kv_len);
    seq.pages = seq.pages.first(static_cast<size_t>(needed.raw()));
  }
  const std::vector<RowUse> uses = {{.row = 4}, {}, {.row = 0}, {.row = 5}};
  const Plan& plan = storage.Make(seqs, uses, executor, ActiveFaults());
  std::vector<std::byte> workspace(
      static_cast<size_t>(cpu::MlaAttentionWorkspace(capacity, work, shape).raw()));
  AttentionResult result{.out = std::vector<float>(expected.out.size()),
                         .lse = std::vector<float>(expected.lse.size())};
  const int64_t tokens = batch.num_tokens();
  cpu::MlaAttention({.plan = plan,
                     .store = batch.store(),
                     .q = ConstTensorView(batch.q().data(), {tokens, 4, 576}),
                     .out = TensorView(result.out.data(), {tokens, 4, 512}),
                     .lse = TensorView(result.lse.data(), {tokens, 4}),
                     .scale = kScale,
                     .workspace = workspace},
                    executor);
  EXPECT_EQ(BitMismatch(result.out, expected.out), "");
  EXPECT_EQ(BitMismatch(result.lse, expected.lse), "");
}

// ---- Types, sizes, errors ----

TEST(MlaAttentionTest, Bf16QueriesAndOutputsAreTheRoundedOnes) {
  SerialExecutor executor;
  const PagedBatch batch({{3, 150, {}, 3}}, {.num_heads = 4});
  std::vector<Bf16> q_narrow;
  std::vector<float> q_wide;
  for (float value : batch.q()) {
    q_narrow.push_back(ToBf16(value));
    q_wide.push_back(ToFloat(q_narrow.back()));
  }
  const MlaShape shape{.num_heads = 4};
  const StepCapacity capacity = batch.Capacity();
  PlanStorage storage(capacity, cpu::MlaWorkShape(shape, 1));
  const Plan& plan = storage.Make(batch.seqs(), executor);
  std::vector<std::byte> workspace(
      static_cast<size_t>(cpu::MlaAttentionWorkspace(capacity, plan.work, shape).raw()));
  std::vector<float> out_wide(3 * 4 * 512);
  std::vector<Bf16> out_narrow(3 * 4 * 512);
  cpu::MlaAttention({.plan = plan,
                     .store = batch.store(),
                     .q = ConstTensorView(q_wide.data(), {3, 4, 576}),
                     .out = TensorView(out_wide.data(), {3, 4, 512}),
                     .scale = kScale,
                     .workspace = workspace},
                    executor);
  cpu::MlaAttention({.plan = plan,
                     .store = batch.store(),
                     .q = ConstTensorView(q_narrow.data(), {3, 4, 576}),
                     .out = TensorView(out_narrow.data(), {3, 4, 512}),
                     .scale = kScale,
                     .workspace = workspace},
                    executor);
  for (size_t i = 0; i < out_wide.size(); ++i) {
    ASSERT_EQ(out_narrow[i].bits, ToBf16(out_wide[i]).bits) << i;
  }
}

TEST(MlaAttentionTest, QueriesAndOutputsMayBeSlicesOfWiderArrays) {
  SerialExecutor executor;
  const PagedBatch batch({{3, 150, {}, 3}}, {.num_heads = 4});
  const AttentionResult expected = Attend(batch, executor);
  const MlaShape shape{.num_heads = 4};
  const StepCapacity capacity = batch.Capacity();
  PlanStorage first_storage(capacity, cpu::MlaWorkShape(shape, 1));
  PlanStorage storage = std::move(first_storage);  // a storage may move before its plans are made
  const Plan& plan = storage.Make(batch.seqs(), executor, ActiveFaults());
  std::vector<std::byte> workspace(
      static_cast<size_t>(cpu::MlaAttentionWorkspace(capacity, plan.work, shape).raw()));
  const int64_t q_stride = 4 * 576 + 100, out_stride = 4 * 512 + 36, lse_stride = 7;
  std::vector<float> q(static_cast<size_t>(3 * q_stride)), out(static_cast<size_t>(3 * out_stride)),
      lse(static_cast<size_t>(3 * lse_stride));
  for (int64_t t = 0; t < 3; ++t) {
    std::copy_n(batch.q().begin() + t * 4 * 576, 4 * 576, q.begin() + t * q_stride);
  }
  cpu::MlaAttention({.plan = plan,
                     .store = batch.store(),
                     .q = ConstTensorView(q.data(), {3, 4, 576}).WithRowStride(q_stride),
                     .out = TensorView(out.data(), {3, 4, 512}).WithRowStride(out_stride),
                     .lse = TensorView(lse.data(), {3, 4}).WithRowStride(lse_stride),
                     .scale = kScale,
                     .workspace = workspace},
                    executor);
  for (int64_t t = 0; t < 3; ++t) {
    const AttentionResult row = Tokens(expected, batch.shape(), t, 1);
    EXPECT_EQ(
        BitMismatch(std::span(out).subspan(static_cast<size_t>(t * out_stride), 4 * 512), row.out),
        "");
    EXPECT_EQ(BitMismatch(std::span(lse).subspan(static_cast<size_t>(t * lse_stride), 4), row.lse),
              "");
  }
}

static_assert(!std::is_copy_constructible_v<PlanStorage>, "plans view their own storage's memory");

// Benchmarks divide by these.
TEST(MlaAttentionTest, BytesAndFlopsCountWhatQueriesSee) {
  SerialExecutor executor;
  // No query sees the first sequence; the second has 2 queries that see 9 and 10 keys.
  const PagedBatch batch({{0, 1000, {}, 3}, {2, 10, {}, 4}}, {.num_heads = 4});
  const MlaShape shape{.num_heads = 4};
  PlanStorage storage(batch.Capacity(), cpu::MlaWorkShape(shape, 1));
  const Plan& plan = storage.Make(batch.seqs(), executor);
  const int64_t q_and_out = 2 * 4 * (576 + 512);
  EXPECT_EQ(MlaAttentionBytes(plan, batch.store(), shape, DType::kF32),
            ByteOffset(10 * 1152 + 4 * q_and_out));
  EXPECT_EQ(MlaAttentionBytes(plan, batch.store(), shape, DType::kBf16),
            ByteOffset(10 * 1152 + 2 * q_and_out));
  EXPECT_EQ(MlaAttentionFlops(plan, shape), 2.0 * (9 + 10) * 4 * (576 + 512));
}

TEST(MlaAttentionTest, ShapesThatCannotBeAreRefusedBeforeTheySizeAnything) {
  EXPECT_EQ(ErrorMessage([] { (void)cpu::MlaWorkShape({.num_heads = 0}, 2); }),
            "shape.num_heads: expected >= 1, got 0");
  EXPECT_EQ(ErrorMessage(
                [] { (void)cpu::MlaAttentionWorkspace({}, {.num_workers = 0}, {.num_heads = 4}); }),
            "work.num_workers: expected >= 1, got 0");
  EXPECT_EQ(ErrorMessage([] { (void)cpu::MlaAttentionWorkspace({}, {}, {.num_heads = -16}); }),
            "shape.num_heads: expected >= 1, got -16");
}

TEST(MlaAttentionTest, PagesBeyondTwoGibibytesAreRead) {
  SerialExecutor executor;
  // The same sequence in the first pages of a small pool and in the last of one of 2.2e9 bytes.
  const PagedBatch small({{2, 100, {}, 3}}, {.num_heads = 2});
  const KvLayout layout(KvFormat::kLatentBf16, {512, 64}, PageSize(64));
  const PageCount num_pages(30001);
  const Buffer memory("pool", KvStoreBytes(layout, num_pages));
  const KvStore store(memory.bytes(), num_pages, layout);
  const std::vector<PageId> pages = {PageId(29999), PageId(30000)};
  for (size_t i = 0; i < 2; ++i) {
    std::memcpy(store.Page(pages[i]), small.store().Page(small.seqs()[0].pages[i]),
                static_cast<size_t>(layout.page_bytes().raw()));
  }
  const std::vector<SequenceStep> seqs = {
      {.q_len = TokenCount(2), .kv_len = TokenCount(100), .pages = pages, .tree_parents = {}}};
  const MlaShape shape{.num_heads = 2};
  const StepCapacity capacity = CapacityOf(seqs, PageSize(64), num_pages);
  PlanStorage storage(capacity, cpu::MlaWorkShape(shape, 1));
  const Plan& plan = storage.Make(seqs, executor);
  std::vector<std::byte> workspace(
      static_cast<size_t>(cpu::MlaAttentionWorkspace(capacity, plan.work, shape).raw()));
  std::vector<float> out(2 * 2 * 512);
  cpu::MlaAttention({.plan = plan,
                     .store = store,
                     .q = ConstTensorView(small.q().data(), {2, 2, 576}),
                     .out = TensorView(out.data(), {2, 2, 512}),
                     .scale = kScale,
                     .workspace = workspace},
                    executor);
  EXPECT_EQ(testing::BitMismatch(out, Attend(small, executor).out), "");
}

TEST(MlaAttentionTest, BadArgumentsAreNamedAndNothingIsWritten) {
  SerialExecutor executor;
  const PagedBatch batch({{3, 150, {}, 3}}, {.num_heads = 4});
  const MlaShape shape{.num_heads = 4};
  const StepCapacity capacity = batch.Capacity();
  PlanStorage storage(capacity, cpu::MlaWorkShape(shape, 1));
  const Plan& plan = storage.Make(batch.seqs(), executor);
  std::vector<std::byte> workspace(
      static_cast<size_t>(cpu::MlaAttentionWorkspace(capacity, plan.work, shape).raw()));
  std::vector<float> out(3 * 4 * 512, 7.0f), lse(3 * 4, 7.0f);
  const MlaAttentionArgs good{.plan = plan,
                              .store = batch.store(),
                              .q = ConstTensorView(batch.q().data(), {3, 4, 576}),
                              .out = TensorView(out.data(), {3, 4, 512}),
                              .lse = TensorView(lse.data(), {3, 4}),
                              .scale = kScale,
                              .workspace = workspace};
  auto message = [&](auto change) -> std::string {
    MlaAttentionArgs args = good;
    change(args);
    return ErrorMessage([&] { cpu::MlaAttention(args, executor); });
  };
  EXPECT_EQ(message([&](auto& a) {
              a.q = ConstTensorView(batch.q().data(), {3, 4, 575});
            }),
            "q: expected shape [3, 4, 576], got [3, 4, 575]");
  EXPECT_EQ(message([&](auto& a) {
              a.q = ConstTensorView(batch.q().data(), {2, 4, 576});
            }),
            "q: expected shape [3, 4, 576], got [2, 4, 576]");
  EXPECT_EQ(message([&](auto& a) {
              a.out = TensorView(out.data(), {3, 2, 512});
            }),
            "out: expected shape [3, 4, 512], got [3, 2, 512]");
  EXPECT_EQ(message([&](auto& a) { a.lse = TensorView(lse.data(), {12}); }),
            "lse: expected shape [3, 4], got [12]");
  EXPECT_EQ(message([&](auto& a) { a.scale = 0.0f; }), "scale: expected > 0 and finite, got 0");
  EXPECT_EQ(message([&](auto& a) { a.scale = -0.5f; }), "scale: expected > 0 and finite, got -0.5");
  EXPECT_EQ(message([&](auto& a) { a.scale = INFINITY; }),
            "scale: expected > 0 and finite, got inf");
  const std::string workspace_message =
      message([&](auto& a) { a.workspace = a.workspace.first(10); });
  EXPECT_EQ(workspace_message.find("workspace: expected "), 0u) << workspace_message;
  EXPECT_NE(workspace_message.find("(1 workers, 4 heads, 512 + 64 values, 0 partials), got 10"),
            std::string::npos)
      << workspace_message;

  std::vector<std::byte> longer(workspace.size() + 1);
  EXPECT_EQ(message([&](auto& a) {
              a.workspace = std::span(longer).subspan(1);
            }).find("workspace: expected an address that is a multiple of 16, got "),
            0u);

  const PagedBatch other({{3, 150, {}, 3}}, {.page_size = PageSize(16), .num_heads = 4});
  const PagedBatch fewer({{1, 1, {}, 3}}, {.num_heads = 4, .spare_pages = 0});
  const KvLayout index(KvFormat::kIndexKeyFp8, {576, 0}, PageSize(64));
  std::vector<std::byte> index_memory(
      static_cast<size_t>(KvStoreBytes(index, batch.pool_pages()).raw()));
  const KvStore index_store(index_memory, batch.pool_pages(), index);
  auto store_message = [&](const KvStore& store) -> std::string {
    return ErrorMessage([&] {
      cpu::MlaAttention({.plan = plan,
                         .store = store,
                         .q = good.q,
                         .out = good.out,
                         .lse = good.lse,
                         .scale = kScale,
                         .workspace = workspace},
                        executor);
    });
  };
  EXPECT_EQ(store_message(other.store()), "store: expected the plan's page_size 64, got 16");
  EXPECT_EQ(store_message(fewer.store()), "store: expected the plan's pool of 7 pages, got 2");
  EXPECT_EQ(store_message(index_store), "store: expected a latent format, got index_key_fp8");
  EXPECT_EQ(out, std::vector<float>(out.size(), 7.0f));
  EXPECT_EQ(lse, std::vector<float>(lse.size(), 7.0f));
}

}  // namespace
}  // namespace quire
