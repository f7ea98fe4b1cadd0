#include "kernels/cuda/select_keys/select_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "attn/plan_storage.h"
#include "base/narrow_float.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/select_keys_cases.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::IndexKeys;
using testing::MixedSequences;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::ReferenceScores;
using testing::SelectRun;
using testing::SequenceCase;

// Plans on the host and runs cuda::SelectKeys, with guards around what it writes.
std::vector<int32_t> SelectBy(SelectKernel kernel, const PagedBatch& batch, const SelectRun& run,
                              StatusWord status = {}, Faults faults = {}) {
  const IndexShape shape = testing::IndexShapeOf(batch, run);
  const WorkShape work = SelectWorkShape(shape, run.num_workers);
  SerialExecutor executor;
  PlanStorage storage(batch.Capacity(), work);
  const PlanCopy plan(storage.Make(batch.seqs(), executor, faults));
  const Stream stream;
  DeviceArrays arrays;
  const KvStore store = StoreOnDevice(batch, arrays, faults);
  const int64_t tokens = batch.num_tokens();
  const GuardedArray<int32_t> chosen(arrays, static_cast<size_t>(tokens * run.top_k));
  const GuardedArray<std::byte> workspace(
      arrays, static_cast<size_t>(SelectKeysWorkspace(batch.Capacity(), work, shape).raw()));
  SelectKeys({.plan = plan.plan(),
              .store = store,
              .shape = shape,
              .q = ConstTensorView(arrays.Put(batch.q()).data(),
                                   {tokens, shape.num_heads, shape.head_dim}),
              .gates = ConstTensorView(arrays.Put(batch.gates()).data(), {tokens, shape.num_heads}),
              .scale = run.scale,
              .chosen = chosen.span(),
              .workspace = workspace.span()},
             kernel, stream, status);
  (void)workspace.Values(stream);  // its guards
  return chosen.Values(stream);
}

std::vector<int32_t> SelectPlainly(const PagedBatch& batch, const SelectRun& run) {
  return SelectBy(SelectKernel::kPlain, batch, run);
}
std::vector<int32_t> SelectByCodes(const PagedBatch& batch, const SelectRun& run) {
  return SelectBy(SelectKernel::kTensorCore, batch, run);
}

class CudaSelectKeysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

// ---- The plain kernel ----

TEST_F(CudaSelectKeysTest, TieStormsAreChosenInTheStatedOrder) {
  testing::ExpectTieStormsInOrder(SelectPlainly);
}
TEST_F(CudaSelectKeysTest, TheBestOfManyKeysAreChosen) {
  testing::ExpectTheBestOfManyKeys(SelectPlainly);
}
TEST_F(CudaSelectKeysTest, TheFirstAndLastKeysAreChosenWhateverTheyScore) {
  testing::ExpectEndsChosen(SelectPlainly);
}
TEST_F(CudaSelectKeysTest, ChoosesWhatTheReferenceScoresHighest) {
  testing::ExpectReferenceChoices(SelectPlainly);
}
TEST_F(CudaSelectKeysTest, PageSizesAndLayoutsChangeNoChoice) {
  for (const KvFormat format :
       {KvFormat::kIndexKeyF32, KvFormat::kIndexKeyBf16, KvFormat::kIndexKeyFp8}) {
    testing::ExpectPagesChangeNothing(SelectPlainly, format, 4, 32);
  }
}
TEST_F(CudaSelectKeysTest, WorkersAndNeighboursChangeNoChoice) {
  testing::ExpectWorkersChangeNothing(SelectPlainly, IndexKeys(KvFormat::kIndexKeyFp8, 64));
}
TEST_F(CudaSelectKeysTest, ChunkingTheQueriesChangesNoChoice) {
  testing::ExpectChunksChangeNothing(SelectPlainly, IndexKeys(KvFormat::kIndexKeyBf16, 16));
}
TEST_F(CudaSelectKeysTest, KeysBehindAQuerysEndAreNeverRead) {
  testing::ExpectNothingBehindTheEndIsRead(SelectPlainly);
}
TEST_F(CudaSelectKeysTest, AQueryThatSeesNoMoreThanTopKGetsAllKeysWithoutScores) {
  testing::ExpectAllOfFewKeys(SelectPlainly);
}
TEST_F(CudaSelectKeysTest, ATreeRowChoosesAsPlainDecodeOverItsPath) {
  testing::ExpectTreesChooseAsTheirPaths(SelectPlainly, KvFormat::kIndexKeyFp8, 4, 32);
}

// ---- Tensor cores ----

constexpr int32_t kNumsOfHeads[] = {1, 20, 32, 33, 64};

// What so many codes of e4m3, each for what those before leave out, keep of the queries: a scale per head.
std::vector<float> RoundedToCodes(std::span<const float> q, int num_codes) {
  std::vector<float> rounded;
  for (size_t begin = 0; begin < q.size(); begin += 128) {
    float amax = 0;
    for (const float value : q.subspan(begin, 128)) amax = std::max(amax, std::abs(value));
    const float scale = amax / kFp8E4m3Max, inverse = 1.0f / scale;
    for (const float value : q.subspan(begin, 128)) {
      float codes = 0;  // exact: two codes have at most 18 bits
      for (int i = 0; i < num_codes; ++i) codes += ToFloat(ToFp8E4m3(value * inverse - codes));
      rounded.push_back(codes * scale);
    }
  }
  return rounded;
}

// As the reference, for queries as two codes. Products of either keep 13 bits behind the largest addend,
// and the codes' magnitudes add up to 17/15 of the query's at most (docs/numerics.md).
std::vector<ReferenceScores> ReferenceOfCodes(const PagedBatch& batch, const SelectRun& run) {
  constexpr double kCodesError = 0x1p-11 * 17 / 15;
  const IndexShape shape = testing::IndexShapeOf(batch, run);
  std::vector<ReferenceScores> reference = testing::ReferenceIndexScores(
      batch.seqs(), batch.Rows(), RoundedToCodes(batch.q(), 2), batch.gates(), shape, run.scale);
  // Its own bound is of so many roundings of the same sums of magnitudes.
  const double roundings = shape.head_dim + (shape.num_heads + 15) / 16 + 4 + 2;
  for (ReferenceScores& row : reference) {
    row.bound *= 1 + kCodesError / (testing::kUnitRoundoff * roundings);
  }
  return reference;
}

TEST_F(CudaSelectKeysTest, ByCodesEveryKeyClearlyAboveTheLastIsChosenAndNoneClearlyBelow) {
  for (const KvFormat format : {KvFormat::kIndexKeyFp8, KvFormat::kIndexKeyFp8Preshuffled}) {
    for (const int32_t heads : kNumsOfHeads) {
      for (const int page_size : {16, 64}) {
        SCOPED_TRACE(
            fmt::format("{}, {} heads, pages of {}", KvFormatName(format), heads, page_size));
        const std::vector<SequenceCase> seqs = {
            {3, 260, {}, 4}, {1, 3000, {}, 5}, {6, 150, testing::kTree, 6}};
        const PagedBatch batch(seqs, IndexKeys(format, page_size, heads, 128));
        const SelectRun run{.top_k = 50, .scale = 0.3f, .num_workers = 5};
        testing::ExpectNearReference(batch, run, ReferenceOfCodes(batch, run),
                                     SelectByCodes(batch, run));
      }
    }
  }
}

// Keys of two ones: what rounding a query's values does to scores is not averaged over 128 of them.
PagedBatch BatchOfPairs(KvFormat format, int page_size, int32_t heads) {
  PagedBatch batch({{1, 3000, {}, 5}}, IndexKeys(format, page_size, heads, 128));
  for (int64_t p = 0; p < 3000; ++p) {
    std::vector<float> key(128);
    key[static_cast<size_t>(p % 128)] = 1;
    key[static_cast<size_t>((p + 1 + p / 128) % 128)] = 1;
    testing::SetKey(batch, p, key);
  }
  return batch;
}
constexpr SelectRun kPairsRun{.top_k = 200, .scale = 0.3f, .num_workers = 5};

TEST_F(CudaSelectKeysTest, ByCodesAQueryIsAsNearAsTwoCodes) {
  for (const int32_t heads : kNumsOfHeads) {
    SCOPED_TRACE(fmt::format("{} heads", heads));
    for (const int page_size : {1, 61, 64}) {
      const PagedBatch batch = BatchOfPairs(KvFormat::kIndexKeyFp8, page_size, heads);
      testing::ExpectNearReference(batch, kPairsRun, ReferenceOfCodes(batch, kPairsRun),
                                   SelectByCodes(batch, kPairsRun));
    }
  }
}
// Of one code it would not be.
TEST(CudaSelectKeysReferenceTest, TellsTwoCodesFromOne) {
  for (const int32_t heads : kNumsOfHeads) {
    const PagedBatch batch = BatchOfPairs(KvFormat::kIndexKeyFp8, 64, heads);
    const IndexShape shape = testing::IndexShapeOf(batch, kPairsRun);
    const ReferenceScores reference = ReferenceOfCodes(batch, kPairsRun)[0];
    const auto mismatch = [&](int num_codes) {
      const std::vector<float> q = RoundedToCodes(batch.q(), num_codes);
      const std::vector<ReferenceScores> scores = testing::ReferenceIndexScores(
          batch.seqs(), batch.Rows(), q, batch.gates(), shape, kPairsRun.scale);
      return testing::ChoiceMismatch(testing::ReferenceChoice(scores[0].scores, shape), reference,
                                     shape);
    };
    EXPECT_EQ(mismatch(2), "") << heads;
    EXPECT_NE(mismatch(1), "") << heads;
  }
}

TEST_F(CudaSelectKeysTest, ByCodesPageSizesAndLayoutsChangeNoChoice) {
  for (const int32_t heads : {32, 64}) {
    testing::ExpectPagesChangeNothing(SelectByCodes, KvFormat::kIndexKeyFp8, heads, 128);
  }
}
TEST_F(CudaSelectKeysTest, ByCodesWorkersAndNeighboursChangeNoChoice) {
  testing::ExpectWorkersChangeNothing(SelectByCodes, IndexKeys(KvFormat::kIndexKeyFp8, 64, 8, 128));
}
TEST_F(CudaSelectKeysTest, ByCodesChunkingTheQueriesChangesNoChoice) {
  testing::ExpectChunksChangeNothing(SelectByCodes,
                                     IndexKeys(KvFormat::kIndexKeyFp8Preshuffled, 16, 64, 128));
}
TEST_F(CudaSelectKeysTest, ByCodesATreeRowChoosesAsPlainDecodeOverItsPath) {
  testing::ExpectTreesChooseAsTheirPaths(SelectByCodes, KvFormat::kIndexKeyFp8, 32, 128);
}
TEST_F(CudaSelectKeysTest, ByCodesEqualKeysAreChosenByPosition) {
  const PagedBatch batch({{1, 9000, {}, 3}}, IndexKeys(KvFormat::kIndexKeyFp8, 64, 64, 128));
  for (int64_t p = 0; p < 9000; ++p) testing::SetKey(batch, p, p % 5 == 0 ? 1.0f : 0.0f);
  for (const int32_t workers : {1, 7, 132}) {
    const std::vector<int32_t> chosen =
        SelectByCodes(batch, {.top_k = 2048, .num_workers = workers});
    // Keys of ones score above or below the others, whichever the query has it.
    const bool is_high = chosen.back() % 5 == 0;
    std::vector<int32_t> expected;
    for (int32_t p = 0; p < 9000; ++p) {
      if ((p % 5 == 0) == is_high) expected.push_back(p);
    }
    for (int32_t p = 0; std::ssize(expected) < 2048; ++p) {
      if ((p % 5 == 0) != is_high) expected.push_back(p);
    }
    expected.resize(2048);
    std::ranges::sort(expected);
    EXPECT_EQ(chosen, expected) << workers;
  }
}
// However many CTAs score and merge, one chooses the same alone.
void ExpectOfOneWorker(const std::vector<SequenceCase>& seqs, int32_t top_k) {
  const PagedBatch batch(seqs, IndexKeys(KvFormat::kIndexKeyFp8, 64, 8, 128));
  EXPECT_EQ(SelectByCodes(batch, {.top_k = top_k, .num_workers = 132}),
            SelectByCodes(batch, {.top_k = top_k, .num_workers = 1}))
      << seqs[0].q_len << " queries, the best " << top_k;
}
TEST_F(CudaSelectKeysTest, ByCodesALongRowIsMergedByACluster) {
  ExpectOfOneWorker({{1, 20'000, {}, 3}}, 301);
}
// The fewer queries can be cut, the more CTAs merge one; of a long row beside many short ones, one has to
// merge more than it has room for.
TEST_F(CudaSelectKeysTest, ByCodesClustersOfAnySizeChooseAsOneCta) {
  std::vector<std::vector<SequenceCase>> steps;
  for (const int queries : {1, 17, 40, 140}) steps.push_back({{queries, 30'000, {}, 3}});
  steps.push_back({{1, 60'000, {}, 4}});
  for (uint64_t i = 0; i < 33; ++i) steps.back().push_back({1, 2100, {}, 5 + i});
  for (const std::vector<SequenceCase>& step : steps) {
    for (const int32_t top_k : {301, 2048}) ExpectOfOneWorker(step, top_k);
  }
}
// Candidates of so many have no room in shared memory.
TEST_F(CudaSelectKeysTest, ByCodesChoicesOfManyKeysAreMergedInTheWorkspace) {
  ExpectOfOneWorker({{2, 30'000, {}, 3}}, 5000);
}
TEST_F(CudaSelectKeysTest, ByCodesKeysBehindAQuerysEndAreNeverRead) {
  const SelectRun run{.top_k = 30, .num_workers = 2};
  const PagedBatch batch({{8, 108, {}, 3}}, IndexKeys(KvFormat::kIndexKeyFp8, 64, 64, 128));
  const std::vector<int32_t> expected = SelectByCodes(batch, run);
  testing::SetKey(batch, 107, testing::kScoreNaN);
  testing::SetKey(batch, 106, 1e30f);
  const std::vector<int32_t> chosen = SelectByCodes(batch, run);
  EXPECT_TRUE(std::equal(chosen.begin(), chosen.begin() + 6 * run.top_k, expected.begin()));
}

// ---- Arguments ----

TEST_F(CudaSelectKeysTest, ChoosesTheKernelByTheStore) {
  const auto refusal = [](const PagedBatch& batch) {
    return testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                 [&] { (void)SelectByCodes(batch, {.top_k = 3}); });
  };
  EXPECT_EQ(refusal(PagedBatch({{1, 9, {}, 3}}, IndexKeys(KvFormat::kIndexKeyBf16, 16, 4, 128))),
            "choosing keys on tensor cores: expected e4m3 keys");
  EXPECT_EQ(refusal(PagedBatch({{1, 9, {}, 3}}, IndexKeys(KvFormat::kIndexKeyFp8, 16, 4, 64))),
            "choosing keys on tensor cores: expected keys of 128 values");
  EXPECT_EQ(refusal(PagedBatch({{1, 9, {}, 3}}, IndexKeys(KvFormat::kIndexKeyFp8, 16, 65, 128))),
            "choosing keys on tensor cores: expected 64 heads or fewer");
}

TEST(CudaSelectKeysWorkspaceTest, KnowsNothingOfTheContext) {
  const IndexShape v32{.num_heads = 64, .head_dim = 128, .top_k = 2048};
  const WorkShape work = SelectWorkShape(v32, 132);
  const auto bytes = [&](int64_t context) {
    return SelectKeysWorkspace({.num_seqs = 64,
                                .query_tokens = TokenCount(64),
                                .context = TokenCount(context),
                                .pool_pages = PageCount(1 << 20)},
                               work, v32);
  };
  EXPECT_EQ(bytes(8192), bytes(1 << 20));
  EXPECT_EQ(bytes(8192), bytes(1 << 16));
  EXPECT_LT(bytes(8192), ByteOffset(10 << 20));  // a partial holds 4096 ranks, and there are 264
}

}  // namespace
}  // namespace quire::cuda
