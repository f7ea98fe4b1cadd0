#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attn/plan_storage.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/mla_attention_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/reference.h"

namespace quire::cuda {
namespace {

using testing::AttentionResult;
using testing::BitMismatch;
using testing::kTree;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::SequenceCase;

struct SparseRun {
  int32_t top_k = 1;
  int32_t num_workers = 3;
  bool exact = true;
  StatusWord status = {};
};

// Plans on the host and runs cuda::SparseAttention; queries are bf16 where tensor cores take them.
AttentionResult RunSparseOnDevice(const PagedBatch& batch, std::span<const int32_t> chosen,
                                  const SparseRun& run) {
  const PagedBatchShape& shape = batch.shape();
  const MlaShape mla{.num_heads = shape.num_heads, .dims = shape.dims};
  WorkShape work = SparseWorkShape(mla, run.top_k, run.num_workers, run.exact);
  work.num_workers = run.num_workers;
  SerialExecutor executor;
  PlanStorage storage(batch.Capacity(), work);
  const PlanCopy plan(storage.Make(batch.seqs(), executor));
  const Stream stream;
  DeviceArrays arrays;
  const KvStore store = StoreOnDevice(batch, arrays);
  const int64_t tokens = batch.num_tokens(), heads = shape.num_heads;
  const size_t rows = static_cast<size_t>(tokens * heads);
  const GuardedArray<float> out(arrays, rows * static_cast<size_t>(shape.dims.latent_dim));
  const GuardedArray<float> lse(arrays, rows);
  const GuardedArray<std::byte> workspace(
      arrays, static_cast<size_t>(MlaAttentionWorkspace(batch.Capacity(), work, mla).raw()));
  SparseAttentionArgs args{.plan = plan.plan(),
                           .store = store,
                           .chosen = arrays.Put(chosen),
                           .top_k = run.top_k,
                           .out = {out.data(), {tokens, heads, shape.dims.latent_dim}},
                           .lse = {lse.data(), {tokens, heads}},
                           .scale = testing::kScale,
                           .workspace = workspace.span()};
  if (shape.format != KvFormat::kLatentF32) {
    args.q = {arrays.Put(AllToBf16(batch.q())).data(), {tokens, heads, shape.dims.values()}};
  } else {
    args.q = {arrays.Put(batch.q()).data(), {tokens, heads, shape.dims.values()}};
  }
  SparseAttention(args, stream, run.status);
  (void)workspace.Values(stream);  // its guards
  return {.out = out.Values(stream), .lse = lse.Values(stream)};
}

// For every query top_k of the keys that it sees, its own among them, drawn at random, ascending.
std::vector<std::vector<int32_t>> DrawChoices(const PagedBatch& batch, int32_t top_k) {
  std::mt19937_64 random(1);
  std::vector<std::vector<int32_t>> choices;
  for (const SequenceStep& seq : batch.seqs()) {
    for (int64_t j = 0; j < seq.q_len.raw(); ++j) {
      std::vector<int32_t> row(testing::VisiblePositions(seq, j).size());
      std::iota(row.begin(), row.end(), 0);
      if (std::ssize(row) > top_k) {
        std::shuffle(row.begin(), row.end() - 1, random);
        std::swap(row[0], row.back());
        row.resize(static_cast<size_t>(top_k));
        std::ranges::sort(row);
      }
      choices.push_back(row);
    }
  }
  return choices;
}

std::vector<int32_t> Flat(const std::vector<std::vector<int32_t>>& choices, int32_t top_k) {
  std::vector<int32_t> flat;
  for (std::vector<int32_t> row : choices) {
    row.resize(static_cast<size_t>(top_k), -1);
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return flat;
}

class CudaSparseAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

TEST_F(CudaSparseAttentionTest, AChoiceOfEverythingHasTheBitsOfDenseAttention) {
  const std::vector<SequenceCase> seqs = {
      {1, 700, {}, 3}, {5, 90, {}, 4}, {6, 150, kTree, 5}, {1, 0, {}, 6}, {2, 2200, {}, 7}};
  constexpr int32_t kTopK = 2500;
  for (const KvFormat format :
       {KvFormat::kLatentF32, KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
    for (const int32_t heads : {8, 20, 128}) {
      for (const int page_size : {1, 16, 61, 64}) {
        SCOPED_TRACE(
            fmt::format("{}, {} heads, pages of {}", KvFormatName(format), heads, page_size));
        const PagedBatch batch(
            seqs, {.page_size = PageSize(page_size), .format = format, .num_heads = heads});
        const AttentionResult dense = RunMlaOnDevice(
            batch, {.kernel = format == KvFormat::kLatentF32 ? MlaKernel::kPlain
                                                             : MlaKernel::kTensorCore});
        const std::vector<int32_t> all = Flat(DrawChoices(batch, kTopK), kTopK);
        for (const int32_t workers : {1, 5}) {
          EXPECT_EQ(
              BitMismatch(RunSparseOnDevice(batch, all, {.top_k = kTopK, .num_workers = workers}),
                          dense),
              "");
        }
      }
    }
  }
}

TEST_F(CudaSparseAttentionTest, AChoiceHasTheBitsOfDenseAttentionOverTheseKeysAlone) {
  const std::vector<SequenceCase> seqs = {{1, 700, {}, 3}, {3, 90, {}, 4}, {6, 150, kTree, 5}};
  constexpr int32_t kTopK = 70;
  for (const KvFormat format : {KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
    for (const int32_t heads : {16, 128}) {
      SCOPED_TRACE(fmt::format("{}, {} heads", KvFormatName(format), heads));
      const PagedBatchShape shape{.page_size = PageSize(64), .format = format, .num_heads = heads};
      const PagedBatch batch(seqs, shape);
      const std::vector<std::vector<int32_t>> choices = DrawChoices(batch, kTopK);
      const AttentionResult sparse =
          RunSparseOnDevice(batch, Flat(choices, kTopK), {.top_k = kTopK});
      int64_t token = 0;
      for (size_t b = 0; b < seqs.size(); ++b) {
        for (int64_t j = 0; j < seqs[b].q_len; ++j, ++token) {
          const std::vector<int64_t> visible = testing::VisiblePositions(batch.seqs()[b], j);
          SequenceCase alone{.q_len = 1, .seed = seqs[b].seed};
          for (const int32_t p : choices[static_cast<size_t>(token)]) {
            alone.contents.push_back(visible[static_cast<size_t>(p)]);
          }
          alone.kv_len = std::ssize(alone.contents);
          const AttentionResult dense =
              RunMlaOnDevice(PagedBatch({alone}, shape), {.kernel = MlaKernel::kTensorCore});
          EXPECT_EQ(BitMismatch(Tokens(sparse, shape, token, 1), dense), "") << "token " << token;
        }
      }
    }
  }
}

TEST_F(CudaSparseAttentionTest, AKeyThatTheSequenceDoesNotHaveIsReported) {
  const PagedBatch batch({{1, 200, {}, 3}}, {.num_heads = 16});
  for (const int32_t bad : {200, -1, 1 << 30}) {
    std::vector<int32_t> chosen(100);
    std::iota(chosen.begin(), chosen.end(), 0);
    chosen[50] = bad;
    Status status;
    const Stream stream;
    (void)RunSparseOnDevice(batch, chosen, {.top_k = 100, .status = status.word()});
    status.Read(stream);
    stream.Synchronize();
    ASSERT_TRUE(status.report().has_value());
    EXPECT_EQ(status.report()->fault, DeviceFault::kChoice);
  }
}

TEST_F(CudaSparseAttentionTest, WorkThatIsCutForAllKeysIsRefused) {
  const PagedBatch batch({{1, 200, {}, 3}}, {.num_heads = 16});
  const MlaShape mla{.num_heads = 16, .dims = batch.shape().dims};
  EXPECT_EQ(SparseWorkShape(mla, 100, 132, true).most_keys, TokenCount(100));
  const WorkShape work = MlaWorkShape(mla, {.num_sms = 3}, MlaStep::kDecode, true);
  SerialExecutor executor;
  PlanStorage storage(batch.Capacity(), work);
  const PlanCopy plan(storage.Make(batch.seqs(), executor));
  DeviceArrays arrays;
  const KvStore store = StoreOnDevice(batch, arrays);
  const std::span<float> out = arrays.Take<float>(16 * 512);
  const std::span<std::byte> workspace = arrays.Take<std::byte>(
      static_cast<size_t>(MlaAttentionWorkspace(batch.Capacity(), work, mla).raw()));
  const Stream stream;
  const SparseAttentionArgs args{
      .plan = plan.plan(),
      .store = store,
      .q = ConstTensorView(arrays.Put(AllToBf16(batch.q())).data(), {1, 16, 576}),
      .chosen = arrays.Take<int32_t>(100),
      .top_k = 100,
      .out = {out.data(), {1, 16, 512}},
      .scale = 1.0f,
      .workspace = workspace};
  EXPECT_EQ(
      testing::ErrorMessage(ErrorCode::kInvalidArgument, [&] { SparseAttention(args, stream); }),
      "sparse attention: expected tiles of 1 query that read 100 keys, got 1 and "
      "9223372036854775807");
}

}  // namespace
}  // namespace quire::cuda
