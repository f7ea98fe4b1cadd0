#include "kernels/cuda/mha_prefill/mha_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/store.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/mha_prefill_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/reference.h"

namespace quire::cuda {
namespace {

using testing::AttentionResult;
using testing::ErrorMessage;
using testing::kPrefillCases;
using testing::kScale;
using testing::kSmall;
using testing::PagedBatch;
using testing::PrefillCase;
using testing::ReferenceAttention;
using testing::SequenceCase;

// A batch, and the queries and weights of a multi-head op over it, all of them bf16.
class MhaCase {
 public:
  MhaCase(std::vector<SequenceCase> seqs, const MhaShape& shape, int page_size = 64,
          KvFormat format = KvFormat::kLatentBf16)
      : shape_(shape),
        batch_(std::move(seqs),
               {.page_size = PageSize(page_size), .format = format, .dims = shape.dims}) {
    // Queries depend on the sequence and position alone, as everything in a PagedBatch does.
    for (const SequenceStep& seq : batch_.seqs()) {
      for (int64_t j = 0; j < seq.q_len.raw(); ++j) {
        Append(q_, 500 + static_cast<uint64_t>(seq.kv_len.raw() - seq.q_len.raw() + j), QDim());
      }
    }
    Append(w_kv_b_, 7, (shape.nope_dim + shape.value_dim) * shape.dims.latent_dim);
    for (float& w : w_kv_b_) w *= 0.05f;
    q_ = RoundedToBf16(q_);
    w_kv_b_ = RoundedToBf16(w_kv_b_);
  }

  const PagedBatch& batch() const { return batch_; }

  // All sequences are expanded.
  AttentionResult Attend(DType out_type = DType::kF32) const {
    SerialExecutor executor;
    PlanStorage storage(batch_.Capacity(), {.query_tile = TokenCount(1)});
    const PlanCopy plan(storage.Make(batch_.seqs(), executor));
    const int64_t tokens = batch_.num_tokens(), heads = shape_.num_heads;
    const Stream stream;
    DeviceArrays arrays;
    const KvStore store = StoreOnDevice(batch_, arrays);
    const auto num_out = static_cast<size_t>(tokens * heads * shape_.value_dim);
    const GuardedArray<float> out(arrays, num_out);
    const GuardedArray<Bf16> narrow_out(arrays, num_out);
    const GuardedArray<float> lse(arrays, static_cast<size_t>(tokens * heads));
    const HostExpansion host = Cut();
    const Expansion expansion = OnDevice(host, arrays);
    const TokenCount rows = kExpandedBlock * std::ssize(host.blocks);
    Carver counter;
    LayOutExpandedKeys(shape_, rows, counter);
    const GuardedArray<std::byte> memory(arrays, static_cast<size_t>(counter.used().raw()));
    Carver carver(memory.span(), MemorySide::kDevice);
    const ExpandedKeys keys = LayOutExpandedKeys(shape_, rows, carver);
    AttendExpandedArgs args{.plan = plan.plan(),
                            .expansion = expansion,
                            .store = store,
                            .shape = shape_,
                            .q = {arrays.Put(AllToBf16(q_)).data(), {tokens, heads, QDim()}},
                            .key_up = Up(0, shape_.nope_dim, arrays),
                            .value_up = Up(shape_.nope_dim, shape_.value_dim, arrays),
                            .out = {out.data(), {tokens, heads, shape_.value_dim}},
                            .lse = {lse.data(), {tokens, heads}},
                            .scale = kScale};
    if (out_type == DType::kBf16) {
      args.out = {narrow_out.data(), {tokens, heads, shape_.value_dim}};
    }
    AttendExpanded(args, keys, stream);
    (void)memory.Values(stream);
    AttentionResult result{.out = out.Values(stream), .lse = lse.Values(stream)};
    if (out_type == DType::kBf16) {
      result.out.clear();
      for (const Bf16 value : narrow_out.Values(stream)) result.out.push_back(ToFloat(value));
    }
    return result;
  }

  void ExpectNearReference(const AttentionResult& result) const {
    const ReferenceAttention reference = Reference();
    EXPECT_EQ(testing::Mismatch(result.out, reference.out, reference.out_bound), "");
    EXPECT_EQ(testing::Mismatch(result.lse, reference.lse, reference.lse_bound), "");
  }

 private:
  // One head's keys and values of one sequence, and how far bf16 may be off in any of them.
  struct Head {
    std::vector<std::vector<double>> keys, values;
    double error = 0;
  };

  struct HostExpansion {
    std::vector<ExpansionCounts> counts;
    std::vector<ExpandedTile> tiles;
    std::vector<ExpandedBlock> blocks;
  };

  // With a block more than is needed.
  HostExpansion Cut() const {
    std::vector<SequenceStep> seqs(batch_.seqs().begin(), batch_.seqs().end());
    TokenCount rows = kExpandedBlock;
    for (SequenceStep& seq : seqs) {
      seq.expanded = true;
      rows += ExpandedRows(seq.kv_len);
    }
    HostExpansion cut{
        .counts = std::vector<ExpansionCounts>(1),
        .tiles = std::vector<ExpandedTile>(
            seqs.size() +
            static_cast<size_t>(CeilDiv(TokenCount(batch_.num_tokens()), kExpandedBlock))),
        .blocks = std::vector<ExpandedBlock>(static_cast<size_t>(CeilDiv(rows, kExpandedBlock)))};
    CutExpansion(seqs, {.counts = cut.counts, .tiles = cut.tiles, .blocks = cut.blocks});
    return cut;
  }
  static Expansion OnDevice(const HostExpansion& host, DeviceArrays& arrays) {
    return {.counts = arrays.Put(host.counts),
            .tiles = arrays.Put(host.tiles),
            .blocks = arrays.Put(host.blocks)};
  }

  // Outputs [first, + dim) of every head of w_kv_b.
  Weight Up(int64_t first, int64_t dim, DeviceArrays& arrays) const {
    const int64_t latent = shape_.dims.latent_dim;
    const int64_t head = (shape_.nope_dim + shape_.value_dim) * latent;
    std::vector<float> part;
    for (int64_t h = 0; h < shape_.num_heads; ++h) {
      const auto begin = w_kv_b_.begin() + h * head + first * latent;
      part.insert(part.end(), begin, begin + dim * latent);
    }
    const auto narrow = arrays.Put(AllToBf16(part));
    return {.shape = {.outputs = dim, .inputs = latent},
            .count = shape_.num_heads,
            .format = WeightFormat::kBf16,
            .data = reinterpret_cast<const std::byte*>(narrow.data()),
            .step_bytes = dim * latent * 2,
            .bytes = ByteOffset(static_cast<int64_t>(part.size()) * 2)};
  }

  int64_t QDim() const { return shape_.nope_dim + shape_.dims.rope_dim; }
  void Append(std::vector<float>& to, uint64_t seed, int64_t values_per_head) const {
    for (int64_t h = 0; h < shape_.num_heads; ++h) {
      const std::vector<float> values = testing::MadeUpValues(seed, h, values_per_head);
      to.insert(to.end(), values.begin(), values.end());
    }
  }

  // Rows are read as bf16. An expanded value is a matrix product (docs/numerics.md: 3u per input,
  // those rounded up to 128, and up to 64 ranges) rounded to bf16 (2^-8 of itself).
  Head Expand(const std::vector<std::vector<double>>& rows, int64_t h) const {
    Head head;
    const int64_t latent = shape_.dims.latent_dim, outputs = shape_.nope_dim + shape_.value_dim;
    for (const std::vector<double>& exact : rows) {
      std::vector<double> row, both;
      for (double value : exact) {
        row.push_back(ToFloat(quire::ToBf16(static_cast<float>(value))));
      }
      for (int64_t o = 0; o < outputs; ++o) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < latent; ++i) {
          const double product = row[static_cast<size_t>(i)] *
                                 w_kv_b_[static_cast<size_t>((h * outputs + o) * latent + i)];
          sum += product;
          size += std::abs(product);
        }
        both.push_back(sum);
        const double terms = static_cast<double>(3 * ((latent + 127) / 128 * 128) + 64);
        const double sum_error = 0x1p-24 * terms * size;
        head.error = std::max(head.error, sum_error + 0x1p-8 * (std::abs(sum) + sum_error));
      }
      head.keys.emplace_back(both.begin(), both.begin() + shape_.nope_dim);
      head.keys.back().insert(head.keys.back().end(), row.begin() + latent, row.end());
      head.values.emplace_back(both.begin() + shape_.nope_dim, both.end());
    }
    return head;
  }

  // On top of f32's error, that of the expansion, of sums on the tensor cores and of weights rounded
  // to bf16, as in latent form.
  void AddSlack(const Head& head, testing::ReferenceQuery& query) const {
    double score_size = 0, value_size = 0, q_size = 0;
    for (size_t k = 0; k < query.keys.size(); ++k) {
      double size = 0;
      for (size_t i = 0; i < query.q.size(); ++i) {
        size += std::abs(double{query.q[i]} * query.keys[k][i]);
      }
      score_size = std::max(score_size, query.scale * size);
      for (double value : query.values[k]) value_size = std::max(value_size, std::abs(value));
    }
    for (size_t i = 0; i < static_cast<size_t>(shape_.nope_dim); ++i) {
      q_size += std::abs(double{query.q[i]});
    }
    query.score_slack = query.scale * q_size * head.error +
                        0x1p-22 * static_cast<double>(query.q.size() + 2) * score_size;
    query.value_slack = head.error + (0x1p-8 + 0x1p-21 * static_cast<double>(query.keys.size())) *
                                         (value_size + head.error);
  }

  ReferenceAttention Reference() const {
    ReferenceAttention result;
    const size_t q_dim = static_cast<size_t>(QDim());
    const auto rows = batch_.Rows();
    size_t row = 0;
    for (size_t b = 0; b < rows.size(); ++b) {
      std::vector<Head> heads;
      for (int64_t h = 0; h < shape_.num_heads; ++h) heads.push_back(Expand(rows[b], h));
      for (int64_t j = 0; j < batch_.seqs()[b].q_len.raw(); ++j) {
        for (const Head& head : heads) {
          testing::ReferenceQuery query{.q = std::span(q_).subspan(row++ * q_dim, q_dim),
                                        .keys = {},
                                        .values = {},
                                        .scale = kScale};
          for (int64_t p : testing::VisiblePositions(batch_.seqs()[b], j)) {
            query.keys.push_back(head.keys[static_cast<size_t>(p)]);
            query.values.push_back(head.values[static_cast<size_t>(p)]);
          }
          AddSlack(head, query);
          testing::AppendReferenceRow(query, static_cast<size_t>(shape_.value_dim), result);
        }
      }
    }
    return result;
  }

  MhaShape shape_;
  PagedBatch batch_;
  std::vector<float> q_, w_kv_b_;
};

void ExpectSameBits(const AttentionResult& actual, const AttentionResult& expected) {
  EXPECT_EQ(testing::BitMismatch(actual.out, expected.out), "");
  EXPECT_EQ(testing::BitMismatch(actual.lse, expected.lse), "");
}

const MhaShape kDeepSeek{.num_heads = 2, .nope_dim = 128, .value_dim = 128, .dims = {512, 64}};

TEST(CudaMhaPrefillTest, IsNearTheReference) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  int num_cases = 0;
  for (const PrefillCase& c : kPrefillCases) {
    if (!CanExpand(c.shape)) continue;
    ++num_cases;
    for (int page_size : {1, 61, 64}) {
      SCOPED_TRACE(std::string(c.name) + ", page size " + std::to_string(page_size));
      const MhaCase mha(c.seqs, c.shape, page_size, c.format);
      mha.ExpectNearReference(mha.Attend());
    }
  }
  EXPECT_GE(num_cases, 5);
}

TEST(CudaMhaPrefillTest, PageSizesAndChunksOfQueriesChangeNoBit) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const std::vector<SequenceCase> seqs = {{250, 600, {}, 3}, {20, 20, {}, 4}};
  const AttentionResult expected = MhaCase(seqs, kDeepSeek, 1).Attend();
  for (int page_size : {2, 3, 16, 61, 64, 128, 256}) {
    SCOPED_TRACE(page_size);
    ExpectSameBits(MhaCase(seqs, kDeepSeek, page_size).Attend(), expected);
  }
  // The last 90 queries of the first sequence, as a step of their own.
  const size_t row = 2 * 128;
  const std::vector<float> tail(expected.out.begin() + 160 * row, expected.out.begin() + 250 * row);
  EXPECT_EQ(testing::BitMismatch(MhaCase({{90, 600, {}, 3}}, kDeepSeek).Attend().out, tail), "");
}

TEST(CudaMhaPrefillTest, ResultsInBf16AreTheOthersRounded) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const MhaCase mha({{150, 200, {}, 3}}, kDeepSeek);
  EXPECT_EQ(testing::BitMismatch(mha.Attend(DType::kBf16).out, RoundedToBf16(mha.Attend().out)),
            "");
}

TEST(CudaMhaPrefillTest, AKeyThatIsNotFiniteReachesOnlyTheQueriesThatSeeIt) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  for (float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const MhaCase mha({{40, 150, {}, 3}, {70, 70, {}, 4}}, kDeepSeek, 16, KvFormat::kLatentF32);
    const AttentionResult clean = mha.Attend();
    const Slot slot = mha.batch().SlotAt(0, 130);  // seen from query 20 on
    const std::vector<float> row(576, poison);
    cpu::StoreWrite({.store = mha.batch().store(),
                     .slots = {&slot, 1},
                     .latent = ConstTensorView(row.data(), {1, 512}),
                     .rope = ConstTensorView(row.data(), {1, 64})},
                    executor);
    const AttentionResult result = mha.Attend();
    const size_t per_token = 2 * 128;
    const auto part = [&](const AttentionResult& of, size_t first, size_t count) {
      return std::span(of.out).subspan(first * per_token, count * per_token);
    };
    EXPECT_EQ(testing::BitMismatch(part(result, 0, 20), part(clean, 0, 20)), "");
    EXPECT_EQ(testing::BitMismatch(part(result, 40, 70), part(clean, 40, 70)), "");
    for (const float value : part(result, 20, 20)) ASSERT_TRUE(std::isnan(value));
  }
}

TEST(CudaMhaPrefillTest, BadArgumentsAreNamed) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  EXPECT_EQ(ErrorMessage([] {
              MhaCase({{2, 9, {-1, 0}, 3}}, kDeepSeek).Attend();
            }),
            "sequence 0: a tree; expected a causal sequence");
  EXPECT_EQ(ErrorMessage([] {
              MhaCase({{2, 9, {}, 3}}, kSmall).Attend();
            }),
            "heads: there is no kernel for keys of 32 + 16 and values of 48");
}

}  // namespace
}  // namespace quire::cuda
