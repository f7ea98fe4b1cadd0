#include "kernels/cuda/mla_attention/mla_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/mla_attention_cases.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/reference.h"

namespace quire::cuda {
namespace {

using testing::AttentionCase;
using testing::AttentionResult;
using testing::ErrorMessage;
using testing::kAttentionCases;
using testing::kScale;
using testing::kTree;
using testing::OverwriteRow;
using testing::PagedBatch;
using testing::PagedBatchShape;
using testing::ReferenceAttention;

// A kernel, and what its workers are.
struct Way {
  MlaKernel kernel;
  int32_t ctas = 1;

  operator MlaKernel() const { return kernel; }  // NOLINT(google-explicit-constructor)
};
constexpr Way kKernels[] = {{MlaKernel::kPlain},
                            {MlaKernel::kTensorCore},
                            {MlaKernel::kFewRows},
                            {MlaKernel::kFewRows, kMlaFewCtas}};

bool Takes(MlaKernel kernel, KvFormat format, KvDims dims, int32_t num_heads) {
  if (kernel == MlaKernel::kPlain) return true;
  if (format == KvFormat::kLatentF32 || !(dims == KvDims{512, 64})) return false;
  return kernel == MlaKernel::kTensorCore ||
         (format == KvFormat::kLatentBf16 && num_heads <= kMlaFewRows);
}
bool Takes(MlaKernel kernel, const AttentionCase& c) {
  const bool has_large_tree = std::ranges::any_of(
      c.seqs, [](const testing::SequenceCase& seq) { return seq.parents.size() > 64; });
  return Takes(kernel, c.format, c.dims, c.num_heads) &&
         !(kernel == MlaKernel::kFewRows && has_large_tree);
}
// Exact mode is every kernel's but one.
std::vector<bool> ModesOf(MlaKernel kernel) {
  return kernel == MlaKernel::kFewRows ? std::vector<bool>{false} : std::vector<bool>{true, false};
}

AttentionResult Attend(const PagedBatch& batch, Way way, int32_t num_workers = 3,
                       bool exact = true) {
  return RunMlaOnDevice(batch, {.kernel = way,
                                .num_workers = num_workers,
                                .ctas = way.ctas,
                                .exact = exact,
                                .faults = testing::ActiveFaults()});
}

// ---- Against the double-precision reference ----

// What tensor cores may add to f32's error (docs/numerics.md). Products of bf16 are exact; sums are
// cut off instead of rounded, and their terms aligned to the largest first: 2^-22 of the sum of
// magnitudes for every term, four times what f32 does. Weights are rounded to bf16, or to f16 before
// fp8 rows: `weight_error` of each, so of the largest value in all. Scores are also multiplied with
// log2(e): two roundings.
void AddTensorCoreSlack(testing::ReferenceQuery& query, double weight_error) {
  double score_size = 0, value_size = 0;
  for (size_t k = 0; k < query.keys.size(); ++k) {
    double size = 0;
    for (size_t i = 0; i < query.q.size(); ++i) {
      size += std::abs(double{query.q[i]} * query.keys[k][i]);
      value_size = std::max(value_size, std::abs(query.values[k][i]));
    }
    score_size = std::max(score_size, std::abs(query.scale) * size);
  }
  const double terms = static_cast<double>(query.q.size()) + 2;
  const double keys = static_cast<double>(query.keys.size());
  query.score_slack = 0x1p-22 * terms * score_size;
  query.value_slack = (weight_error + 2 * 0x1p-22 * keys) * value_size;
}

// The latent part of an fp8 row (512 codes, four scales) as the tensor cores read it, in f16.
void NarrowToF16(std::span<const std::byte> stored, std::vector<double>& row) {
  for (size_t i = 0; i < 512; ++i) {
    Fp8E4m3 code;
    float scale;
    std::memcpy(&code, stored.data() + i, sizeof(code));
    std::memcpy(&scale, stored.data() + 512 + i / 128 * 4, sizeof(scale));
    int power = 0;
    if (scale < 0x1p-14f) {
      scale = 2 * std::frexp(scale, &power);
      --power;
    }
    const float product = ToFloat(ToF16(ToFloat(code) * ToFloat(ToF16(scale))));
    row[i] = ToFloat(ToF16(product * ToFloat(ToF16(std::ldexp(1.0f, power)))));
  }
}

// The reference of what a kernel was given: kTensorCore reads queries as bf16, and fp8 rows as f16.
ReferenceAttention ReferenceOf(const PagedBatch& batch, MlaKernel kernel) {
  const PagedBatchShape& shape = batch.shape();
  const bool narrow = kernel != MlaKernel::kPlain;
  const bool is_f16 = narrow && shape.format == KvFormat::kLatentFp8;
  const std::vector<float> q =
      narrow ? RoundedToBf16(batch.q()) : std::vector<float>(batch.q().begin(), batch.q().end());
  auto rows = batch.Rows();
  for (size_t b = 0; is_f16 && b < rows.size(); ++b) {
    for (size_t p = 0; p < rows[b].size(); ++p) {
      const int64_t slot = batch.SlotAt(b, static_cast<int64_t>(p)).raw();
      NarrowToF16(batch.pool().subspan(static_cast<size_t>(slot) * 656, 656), rows[b][p]);
    }
  }
  ReferenceAttention result;
  const size_t values = static_cast<size_t>(shape.dims.values());
  size_t row = 0;
  for (size_t b = 0; b < batch.seqs().size(); ++b) {
    for (int64_t j = 0; j < batch.seqs()[b].q_len.raw(); ++j) {
      testing::ReferenceQuery query{.q = {}, .keys = {}, .values = {}, .scale = kScale};
      for (int64_t p : testing::VisiblePositions(batch.seqs()[b], j)) {
        query.keys.push_back(rows[b][static_cast<size_t>(p)]);
      }
      query.values = query.keys;
      for (int64_t h = 0; h < shape.num_heads; ++h, ++row) {
        query.q = std::span(q).subspan(row * values, values);
        if (narrow) AddTensorCoreSlack(query, is_f16 ? 0x1p-11 : 0x1p-8);
        testing::AppendReferenceRow(query, static_cast<size_t>(shape.dims.latent_dim), result);
      }
    }
  }
  return result;
}

void ExpectNear(const ReferenceAttention& reference, const AttentionResult& result) {
  EXPECT_EQ(testing::Mismatch(result.out, reference.out, reference.out_bound), "");
  EXPECT_EQ(testing::Mismatch(result.lse, reference.lse, reference.lse_bound), "");
}

void ExpectNaN(const AttentionResult& result, const PagedBatchShape& shape, int64_t token) {
  for (float value : Tokens(result, shape, token, 1).out) {
    ASSERT_TRUE(std::isnan(value)) << token << ", " << shape.num_heads << " heads";
  }
}

// A test for each case, so that tools that make them slow have many small ones.
class CudaMlaCasesTest : public ::testing::TestWithParam<size_t> {};

std::string CaseName(const ::testing::TestParamInfo<size_t>& test) {
  std::string name = kAttentionCases[test.param].name;
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Cases, CudaMlaCasesTest,
                         ::testing::Range(size_t{0}, std::size(kAttentionCases)), CaseName);

TEST_P(CudaMlaCasesTest, IsNearTheReference) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const AttentionCase& c = kAttentionCases[GetParam()];
  for (int page_size : c.page_sizes) {
    const PagedBatch batch(c.seqs, {.page_size = PageSize(page_size),
                                    .format = c.format,
                                    .dims = c.dims,
                                    .num_heads = c.num_heads});
    for (Way kernel : kKernels) {
      if (!Takes(kernel, c)) continue;
      SCOPED_TRACE("page size " + std::to_string(page_size) + ", kernel " +
                   std::to_string(static_cast<int>(kernel.kernel)) + ", " +
                   std::to_string(kernel.ctas) + " CTAs");
      const ReferenceAttention reference = ReferenceOf(batch, kernel);
      for (const bool exact : ModesOf(kernel)) {
        for (const MlaStep step : {MlaStep::kAny, MlaStep::kDecode}) {
          ExpectNear(reference, RunMlaOnDevice(batch, {.kernel = kernel,
                                                       .ctas = kernel.ctas,
                                                       .exact = exact,
                                                       .step = step,
                                                       .faults = testing::ActiveFaults()}));
        }
      }
      ExpectNear(reference, Attend(batch, kernel, 132, /*exact=*/false));
    }
  }
}

// ---- A little of each kernel, for tools that take minutes for it ----

struct SmallCase {
  const char* name;
  int32_t num_heads;
  KvFormat format;
  MlaDeviceRun run;
};
const MlaDeviceRun kFolded = {.kernel = MlaKernel::kTensorCore,
                              .num_workers = 2,
                              .tile_tokens = TokenCount(1),
                              .split = kKeyTile};
const MlaDeviceRun kWhole = {.kernel = MlaKernel::kTensorCore,
                             .num_workers = 1,
                             .exact = false,
                             .tile_tokens = TokenCount(1)};
const MlaDeviceRun kFew = {.kernel = MlaKernel::kFewRows, .num_workers = 1, .exact = false};
const MlaDeviceRun kClusters = {
    .kernel = MlaKernel::kFewRows, .num_workers = 2, .ctas = kMlaFewCtas, .exact = false};
// Three splits, of two tiles each but the last: each has a cluster, or all are of one, whose CTAs have one each.
const MlaDeviceRun kShared = {.kernel = MlaKernel::kTensorCore,
                              .num_workers = 4 * kMlaFewCtas,
                              .ctas = kMlaFewCtas,
                              .tile_tokens = TokenCount(1),
                              .split = TokenCount(128),
                              .cut_cost = 0};
const MlaDeviceRun kBeside = {.kernel = MlaKernel::kTensorCore,
                              .num_workers = kMlaFewCtas,
                              .ctas = kMlaFewCtas,
                              .tile_tokens = TokenCount(1),
                              .split = TokenCount(128),
                              .cut_cost = 0};
const MlaDeviceRun kPlain = {.num_workers = 2, .split = kKeyTile};
const SmallCase kSmallCases[] = {{"few", 16, KvFormat::kLatentBf16, kFew},
                                 {"clusters", 16, KvFormat::kLatentBf16, kClusters},
                                 {"clusters_exact", 20, KvFormat::kLatentBf16, kShared},
                                 {"clusters_exact_alone", 20, KvFormat::kLatentBf16, kBeside},
                                 {"narrow", 16, KvFormat::kLatentBf16, kFolded},
                                 {"codes", 16, KvFormat::kLatentFp8, kFolded},
                                 {"warpgroups", 20, KvFormat::kLatentBf16, kFolded},
                                 {"warpgroups_fp8", 20, KvFormat::kLatentFp8, kWhole},
                                 {"pairs", 65, KvFormat::kLatentFp8, kWhole},
                                 {"plain", 16, KvFormat::kLatentBf16, kPlain}};

class CudaMlaSmallTest : public ::testing::TestWithParam<SmallCase> {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaMlaSmallTest, ::testing::ValuesIn(kSmallCases),
                         [](const auto& test) { return std::string(test.param.name); });

// Five tiles of keys and a bit, so that rings of stages go round and splits are folded.
TEST_P(CudaMlaSmallTest, OneSequenceIsNearTheReference) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{1, 331, {}, 3}},
                         {.format = GetParam().format, .num_heads = GetParam().num_heads});
  ExpectNear(ReferenceOf(batch, GetParam().run.kernel), RunMlaOnDevice(batch, GetParam().run));
}

// Tiles of two tokens, where a kernel has such.
MlaDeviceRun OfTwoTokens(MlaDeviceRun run) {
  run.tile_tokens = TokenCount(2);
  return run;
}
const SmallCase kSmallTrees[] = {{"few", 16, KvFormat::kLatentBf16, kFew},
                                 {"clusters", 16, KvFormat::kLatentBf16, kClusters},
                                 {"narrow", 8, KvFormat::kLatentBf16, OfTwoTokens(kWhole)},
                                 {"narrow_exact", 8, KvFormat::kLatentBf16, OfTwoTokens(kFolded)},
                                 {"clusters_exact", 16, KvFormat::kLatentBf16, kShared},
                                 {"clusters_exact_alone", 20, KvFormat::kLatentBf16, kBeside},
                                 {"codes", 8, KvFormat::kLatentFp8, OfTwoTokens(kWhole)},
                                 {"codes_exact", 8, KvFormat::kLatentFp8, OfTwoTokens(kFolded)},
                                 {"warpgroups", 20, KvFormat::kLatentBf16, OfTwoTokens(kFolded)},
                                 {"warpgroups_fp8", 20, KvFormat::kLatentFp8, OfTwoTokens(kWhole)},
                                 {"pairs", 65, KvFormat::kLatentFp8, kWhole},
                                 {"plain", 16, KvFormat::kLatentBf16, kPlain}};

class CudaMlaSmallTreeTest : public ::testing::TestWithParam<SmallCase> {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaMlaSmallTreeTest, ::testing::ValuesIn(kSmallTrees),
                         [](const auto& test) { return std::string(test.param.name); });

// Neither of two nodes sees the other. The first is the last key of a tile whose others both tokens see, and the
// second is alone in the next one. Where the first is not finite, the tile is read for each token by itself.
TEST_P(CudaMlaSmallTreeTest, AKeyThatIsNotFiniteReachesOneOfTwoNodes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{2, 129, {kTreeRoot, kTreeRoot}, 3}},
                         {.format = GetParam().format, .num_heads = GetParam().num_heads});
  const AttentionResult clean = RunMlaOnDevice(batch, GetParam().run);
  ExpectNear(ReferenceOf(batch, GetParam().run.kernel), clean);
  OverwriteRow(batch, 0, 127, std::numeric_limits<float>::quiet_NaN());
  const AttentionResult result = RunMlaOnDevice(batch, GetParam().run);
  ExpectNaN(result, batch.shape(), 0);
  EXPECT_EQ(
      testing::BitMismatch(Tokens(result, batch.shape(), 1, 1), Tokens(clean, batch.shape(), 1, 1)),
      "");
}

// As many partials as fold as chains.
TEST(CudaMlaSmallMergeTest, ManySplitsAreNearTheReference) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  constexpr int32_t kPartials = 17;
  const PagedBatch batch({{1, kPartials * kKeyTile.raw(), {}, 3}}, {.num_heads = 2});
  ExpectNear(ReferenceOf(batch, MlaKernel::kPlain),
             RunMlaOnDevice(batch, {.num_workers = kPartials, .split = kKeyTile}));
}

// f16 has less range than queries, scales and weights have.
TEST(CudaMlaAttentionTest, SizesOfFp8RowsAndQueriesDoNotMatter) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  struct Sizes {
    float q, row;
  };
  for (const Sizes sizes : {Sizes{0x1p20f, 0x1p-20f}, Sizes{0x1p10f, 0x1p-10f},
                            Sizes{0x1p-9f, 0x1p9f}, Sizes{0x1p-100f, 0x1p14f}}) {
    for (const int32_t heads : {16, 128}) {
      SCOPED_TRACE(std::to_string(sizes.q) + ", " + std::to_string(sizes.row));
      const PagedBatch batch({{1, 700, {}, 3}, {5, 90, {}, 4}, {6, 150, kTree, 5}},
                             {.format = KvFormat::kLatentFp8,
                              .dims = {512, 64},
                              .num_heads = heads,
                              .q_size = sizes.q,
                              .row_size = sizes.row});
      const ReferenceAttention reference = ReferenceOf(batch, MlaKernel::kTensorCore);
      for (const MlaStep step : {MlaStep::kAny, MlaStep::kDecode}) {
        ExpectNear(reference,
                   RunMlaOnDevice(batch, {.kernel = MlaKernel::kTensorCore, .step = step}));
      }
    }
  }
}

TEST(CudaMlaAttentionTest, WhereNothingIsVisibleThereAreZerosAndMinusInfinity) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{5, 3, {}, 3}, {2, 0, {}, 4}}, {.num_heads = 5});
  for (Way kernel : kKernels) {
    const AttentionResult result = Attend(batch, kernel, 3, ModesOf(kernel).front());
    for (int64_t token : {0, 1, 5, 6}) {
      const AttentionResult rows = Tokens(result, batch.shape(), token, 1);
      EXPECT_EQ(rows.out, std::vector<float>(5 * 512, 0.0f)) << token;
      EXPECT_EQ(rows.lse, std::vector<float>(5, -std::numeric_limits<float>::infinity())) << token;
    }
    EXPECT_TRUE(std::isfinite(Tokens(result, batch.shape(), 2, 1).lse[0]));
  }
}

// In one tile, among keys whose scales are not small: so of the warps of a product, 16 keys each, one has some.
TEST(CudaMlaAttentionTest, KeysOfSmallScalesMayStandAmongOthers) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{2, 150, {}, 3}}, {.format = KvFormat::kLatentFp8, .num_heads = 16});
  for (int64_t position : {20, 64, 127}) OverwriteRow(batch, 0, position, 0x1p-12f);
  const ReferenceAttention reference = ReferenceOf(batch, MlaKernel::kTensorCore);
  for (const MlaStep step : {MlaStep::kAny, MlaStep::kDecode}) {
    ExpectNear(reference, RunMlaOnDevice(batch, {.kernel = MlaKernel::kTensorCore, .step = step}));
  }
}

// ---- Numbers that are not finite ----

void ExpectOnlyThoseWhoSeeIt(float poison, int32_t num_heads, KvFormat format,
                             const MlaDeviceRun& run) {
  const PagedBatch batch({{20, 150, {}, 3}, {6, 100, kTree, 4}},
                         {.format = format, .num_heads = num_heads});
  const AttentionResult clean = RunMlaOnDevice(batch, run);
  OverwriteRow(batch, 0, 140, poison);  // queries 0..9 stand before it
  OverwriteRow(batch, 1, 97, poison);   // node 3 of the tree: on the path of nodes 3 and 5
  const AttentionResult result = RunMlaOnDevice(batch, run);
  const auto expect_clean = [&](int64_t first, int64_t tokens) {
    EXPECT_EQ(testing::BitMismatch(Tokens(result, batch.shape(), first, tokens).out,
                                   Tokens(clean, batch.shape(), first, tokens).out),
              "")
        << first << ", " << num_heads << " heads" << (run.exact ? ", exact" : "");
  };
  expect_clean(0, 10);
  for (int64_t node : {0, 1, 2, 4}) expect_clean(20 + node, 1);
  for (int64_t token : {10, 19, 23, 25}) ExpectNaN(result, batch.shape(), token);
}

// An infinity does not survive fp8, a NaN does. A tile of 64 rows, and one of 16, holds four tokens, of which some
// see the key and some do not.
TEST(CudaMlaAttentionTest, AKeyThatIsNotFiniteReachesOnlyTheQueriesThatSeeIt) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Way kernel : kKernels) {
    for (KvFormat format : {KvFormat::kLatentF32, KvFormat::kLatentBf16, KvFormat::kLatentFp8}) {
      if (!Takes(kernel, format, {512, 64}, 16)) continue;
      for (float poison : {nan, std::numeric_limits<float>::infinity()}) {
        if (format == KvFormat::kLatentFp8 && !std::isnan(poison)) continue;
        SCOPED_TRACE(std::string(KvFormatName(format)) + ", " + std::to_string(poison));
        for (const bool exact : ModesOf(kernel)) {
          ExpectOnlyThoseWhoSeeIt(poison, 16, format,
                                  {.kernel = kernel, .num_workers = 2, .exact = exact});
          if (kernel == MlaKernel::kFewRows) continue;
          ExpectOnlyThoseWhoSeeIt(
              poison, 4, format,
              {.kernel = kernel, .num_workers = 2, .exact = exact, .tile_tokens = TokenCount(4)});
        }
      }
    }
  }
}

TEST(CudaMlaAttentionTest, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{3, 150, {}, 3}}, {.num_heads = 4});
  for (int64_t p = 0; p < 150; ++p) OverwriteRow(batch, 0, p, p % 3 == 0 ? 2.0f : -300.0f);
  for (Way kernel : kKernels) {
    for (const bool exact : ModesOf(kernel)) {
      ExpectNear(ReferenceOf(batch, kernel), Attend(batch, kernel, 3, exact));
    }
  }
}

// ---- Types, faults, errors ----

TEST(CudaMlaAttentionTest, Bf16OutputsAreTheRoundedOnes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{3, 150, {}, 3}, {1, 1500, {}, 4}}, {.num_heads = 4});
  for (Way kernel : kKernels) {
    const AttentionResult wide = Attend(batch, kernel, 3, ModesOf(kernel).front());
    const AttentionResult narrow = RunMlaOnDevice(batch, {.kernel = kernel,
                                                          .ctas = kernel.ctas,
                                                          .exact = ModesOf(kernel).front(),
                                                          .bf16_out = true});
    EXPECT_EQ(testing::BitMismatch(narrow.out, RoundedToBf16(wide.out)), "");
  }
}

TEST(CudaMlaAttentionTest, APageOutsideThePoolIsReportedAndReadsTheScratchPage) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{1, 10, {}, 2}, {1, 100, {}, 3}}, {.num_heads = 16});
  SerialExecutor executor;
  for (Way kernel : kKernels) {
    for (int32_t page : {-7, static_cast<int32_t>(batch.pool_pages().raw())}) {
      WorkShape work = MlaWorkShape({.num_heads = 16}, {.num_sms = 4}, MlaStep::kDecode,
                                    ModesOf(kernel).front());
      work.ctas = kernel.ctas;
      PlanStorage storage(batch.Capacity(), work);
      Plan plan = storage.Make(batch.seqs(), executor);
      std::vector<PageId> rows(plan.page_rows.begin(), plan.page_rows.end());
      const int64_t row = plan.row_of[1];  // of sequence 1
      rows[static_cast<size_t>((plan.row_width * row).raw()) + 1] = PageId(page);
      plan.page_rows = rows;
      const PlanCopy copy(plan);
      DeviceArrays arrays;
      const Stream stream;
      Status status;
      const KvStore store = StoreOnDevice(batch, arrays);
      const GuardedArray<float> out(arrays, 2 * 16 * 512);
      const GuardedArray<std::byte> workspace(
          arrays, static_cast<size_t>(
                      MlaAttentionWorkspace(batch.Capacity(), work, {.num_heads = 16}).raw()));
      MlaAttention({.plan = copy.plan(),
                    .store = store,
                    .q = {arrays.Put(AllToBf16(batch.q())).data(), {2, 16, 576}},
                    .out = {out.data(), {2, 16, 512}},
                    .workspace = workspace.span()},
                   kernel, stream, status.word());
      status.Read(stream);
      (void)out.Values(stream);
      ASSERT_TRUE(status.report().has_value());
      EXPECT_EQ(status.report()->fault, DeviceFault::kPage);
      EXPECT_EQ(status.report()->index, 1u);
    }
  }
}

TEST(CudaMlaAttentionTest, TheKernelFollowsShapeTypesAndAlignment) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{3, 150, {}, 3}}, {.num_heads = 4});
  PlanStorage storage(batch.Capacity(),
                      MlaWorkShape({.num_heads = 4}, {.num_sms = 4}, MlaStep::kAny, true));
  SerialExecutor executor;
  const Plan& plan = storage.Make(batch.seqs(), executor);
  DeviceArrays arrays;
  const KvStore store = StoreOnDevice(batch, arrays);
  const std::span<Bf16> q = arrays.Take<Bf16>(3 * 4 * 576 + 8);
  const std::span<float> wide = arrays.Take<float>(3 * 4 * 576 + 8);
  MlaAttentionArgs args{.plan = plan,
                        .store = store,
                        .q = {q.data(), {3, 4, 576}},
                        .out = {wide.data(), {3, 4, 512}}};
  EXPECT_EQ(ChooseMlaKernel(args), MlaKernel::kTensorCore);
  args.q = {q.data() + 1, {3, 4, 576}};
  EXPECT_EQ(ChooseMlaKernel(args), MlaKernel::kPlain);
  args.q = {wide.data(), {3, 4, 576}};
  EXPECT_EQ(ChooseMlaKernel(args), MlaKernel::kPlain);
  args.q = {q.data(), {3, 4, 576}};
  args.out = {wide.data() + 1, {3, 4, 512}};
  EXPECT_EQ(ChooseMlaKernel(args), MlaKernel::kPlain);

  PlanStorage few(batch.Capacity(), MlaWorkShape({.num_heads = 4}, {.num_sms = 4}, MlaStep::kAny,
                                                 false, TokenCount(8)));
  MlaAttentionArgs few_args{.plan = few.Make(batch.seqs(), executor),
                            .store = store,
                            .q = {q.data(), {3, 4, 576}},
                            .out = {wide.data(), {3, 4, 512}}};
  EXPECT_EQ(ChooseMlaKernel(few_args), MlaKernel::kFewRows);
  few_args.q = {q.data(), {9, 1, 576}};
  EXPECT_EQ(ChooseMlaKernel(few_args), MlaKernel::kTensorCore);
  few_args.q = {q.data(), {1, 17, 576}};
  EXPECT_EQ(ChooseMlaKernel(few_args), MlaKernel::kTensorCore);
}

TEST(CudaMlaAttentionTest, BadArgumentsAreNamed) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const PagedBatch batch({{3, 150, {}, 3}}, {.format = KvFormat::kLatentF32, .num_heads = 4});
  EXPECT_EQ(ErrorMessage([&] { Attend(batch, {MlaKernel::kTensorCore}); }),
            "mla attention on tensor cores: expected a bf16 or fp8 store");
  const PagedBatch narrow({{3, 150, {}, 3}}, {.num_heads = 4});
  EXPECT_EQ(ErrorMessage([&] { Attend(narrow, {MlaKernel::kFewRows}, 3, /*exact=*/true); }),
            "mla attention on tensor cores: expected a plan that is not exact");
  EXPECT_EQ(ErrorMessage(
                [] { (void)MlaWorkShape({.num_heads = 0}, {.num_sms = 2}, MlaStep::kAny, true); }),
            "shape.num_heads: expected >= 1, got 0");
  EXPECT_EQ(ErrorMessage(
                [] { (void)MlaWorkShape({.num_heads = 1}, {.num_sms = 0}, MlaStep::kAny, true); }),
            "num_sms: expected >= 1, got 0");
}

}  // namespace
}  // namespace quire::cuda
