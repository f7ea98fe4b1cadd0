#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "attn/plan_storage.h"
#include "device/thread_pool.h"
#include "kernels/cpu/mha_prefill.h"
#include "kernels/cpu/store.h"
#include "kernels/mha_prefill_cases.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/paged_batch.h"
#include "testing/red_zone.h"
#include "testing/reference.h"
#include "testing/sanitized_share.h"

namespace quire {
namespace {

using testing::AttentionResult;
using testing::ErrorMessage;
using testing::kPrefillCases;
using testing::kScale;
using testing::kSmall;
using testing::PagedBatch;
using testing::PrefillCase;
using testing::RedZone;
using testing::SequenceCase;

// A batch, and the queries and weights of a multi-head op over it.
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
  }

  const PagedBatch& batch() const { return batch_; }
  const std::vector<float>& q() const { return q_; }

  AttentionResult Attend(Executor& executor, TokenCount chunk = TokenCount(128)) {
    PlanStorage storage(batch_.Capacity(), {.query_tile = TokenCount(1)});
    const Plan& plan = storage.Make(batch_.seqs(), executor, testing::ActiveFaults());
    TokenCount max_q_len{0};
    for (const SequenceStep& seq : batch_.seqs()) max_q_len = Max(max_q_len, seq.q_len);
    const int64_t tokens = batch_.num_tokens();
    const int64_t heads = shape_.num_heads;
    RedZone<float> out(static_cast<size_t>(tokens * heads * shape_.value_dim));
    RedZone<float> lse(static_cast<size_t>(tokens * heads));
    RedZone<std::byte> workspace(static_cast<size_t>(
        cpu::MhaPrefillWorkspace(shape_, max_q_len, executor.num_threads()).raw()));
    cpu::MhaPrefill(
        {.plan = plan,
         .store = batch_.store(),
         .shape = shape_,
         .q = ConstTensorView(q_.data(), {tokens, heads, QDim()}),
         .w_kv_b = ConstTensorView(w_kv_b_.data(), {heads * (shape_.nope_dim + shape_.value_dim),
                                                    shape_.dims.latent_dim}),
         .out = TensorView(out.data(), {tokens, heads, shape_.value_dim}),
         .lse = TensorView(lse.data(), {tokens, heads}),
         .scale = kScale,
         .chunk = chunk,
         .workspace = workspace.span()},
        executor);
    EXPECT_EQ(out.Damage() + lse.Damage() + workspace.Damage(), "");
    return {.out = {out.span().begin(), out.span().end()},
            .lse = {lse.span().begin(), lse.span().end()}};
  }

  void ExpectNearReference(const AttentionResult& result) const {
    const testing::ReferenceAttention reference =
        testing::ReferenceMha(batch_.seqs(), batch_.Rows(), q_, w_kv_b_,
                              {.num_heads = shape_.num_heads,
                               .nope_dim = shape_.nope_dim,
                               .value_dim = shape_.value_dim,
                               .dims = shape_.dims},
                              kScale);
    EXPECT_EQ(testing::Mismatch(result.out, reference.out, reference.out_bound), "");
    EXPECT_EQ(testing::Mismatch(result.lse, reference.lse, reference.lse_bound), "");
  }

 private:
  int64_t QDim() const { return shape_.nope_dim + shape_.dims.rope_dim; }
  void Append(std::vector<float>& to, uint64_t seed, int64_t values_per_head) {
    for (int64_t h = 0; h < shape_.num_heads; ++h) {
      const std::vector<float> values = testing::MadeUpValues(seed, h, values_per_head);
      to.insert(to.end(), values.begin(), values.end());
    }
  }

  MhaShape shape_;
  PagedBatch batch_;
  std::vector<float> q_, w_kv_b_;
};

TEST(MhaPrefillTest, IsNearTheReference) {
  ThreadPool executor(2);
  for (const PrefillCase& c : kPrefillCases) {
    for (int page_size : testing::SampledOf<int>({1, 2, 16, 61, 64, 128})) {
      SCOPED_TRACE(std::string(c.name) + ", page size " + std::to_string(page_size));
      MhaCase mha(c.seqs, c.shape, page_size, c.format);
      mha.ExpectNearReference(mha.Attend(executor));
    }
  }
}

TEST(MhaPrefillTest, PageSizesThreadsAndChunksOfQueriesChangeNoBit) {
  const std::vector<SequenceCase> seqs = {{150, 400, {}, 3}, {20, 20, {}, 4}};
  SerialExecutor serial;
  MhaCase one(seqs, kSmall, 1);
  const AttentionResult expected = one.Attend(serial);
  for (int page_size : {2, 3, 16, 61, 64, 128, 256}) {
    ThreadPool executor(3);
    MhaCase other(seqs, kSmall, page_size);
    const AttentionResult result = other.Attend(executor);
    EXPECT_EQ(testing::BitMismatch(result.out, expected.out), "") << page_size;
    EXPECT_EQ(testing::BitMismatch(result.lse, expected.lse), "") << page_size;
  }
  // The last 90 queries of the first sequence, as a step of their own.
  MhaCase last({{90, 400, {}, 3}}, kSmall);
  const size_t row = 3 * 48;
  const std::vector<float> tail(expected.out.begin() + 60 * row, expected.out.begin() + 150 * row);
  EXPECT_EQ(testing::BitMismatch(last.Attend(serial).out, tail), "");
}

TEST(MhaPrefillTest, ChunksOfKeysMergeToTheSameAnswer) {
  ThreadPool executor(2);
  MhaCase mha({{40, 700, {}, 3}}, kSmall);
  for (int64_t chunk : {64, 192, 640, 4096}) {
    SCOPED_TRACE(chunk);
    mha.ExpectNearReference(mha.Attend(executor, TokenCount(chunk)));
  }
}

TEST(MhaPrefillTest, AKeyThatIsNotFiniteReachesOnlyTheQueriesThatSeeIt) {
  SerialExecutor executor;
  MhaCase mha({{40, 150, {}, 3}}, kSmall, 16, KvFormat::kLatentF32);
  const AttentionResult clean = mha.Attend(executor);
  const Slot slot = mha.batch().SlotAt(0, 130);  // seen from query 20 on
  const std::vector<float> row(80, std::numeric_limits<float>::quiet_NaN());
  cpu::StoreWrite({.store = mha.batch().store(),
                   .slots = {&slot, 1},
                   .latent = ConstTensorView(row.data(), {1, 64}),
                   .rope = ConstTensorView(row.data(), {1, 16})},
                  executor);
  const AttentionResult result = mha.Attend(executor);
  const size_t per_token = 3 * 48;
  EXPECT_EQ(testing::BitMismatch(std::span(result.out).first(20 * per_token),
                                 std::span(clean.out).first(20 * per_token)),
            "");
  mha.ExpectNearReference(result);
}

TEST(MhaPrefillTest, Bf16InputsAndOutputsAreTheRoundedOnes) {
  SerialExecutor executor;
  const PagedBatch batch({{5, 90, {}, 3}}, {.dims = kSmall.dims});
  PlanStorage storage(batch.Capacity(), {});
  const Plan& plan = storage.Make(batch.seqs(), executor, testing::ActiveFaults());
  std::vector<std::byte> workspace(
      static_cast<size_t>(cpu::MhaPrefillWorkspace(kSmall, TokenCount(5), 1).raw()));
  std::vector<Bf16> q, w;
  std::vector<float> q_wide, w_wide;
  for (float value : testing::MadeUpValues(1, 1, 5 * 3 * 48)) {
    q.push_back(ToBf16(value));
    q_wide.push_back(ToFloat(q.back()));
  }
  for (float value : testing::MadeUpValues(2, 2, 3 * 80 * 64)) {
    w.push_back(ToBf16(value * 0.05f));
    w_wide.push_back(ToFloat(w.back()));
  }
  std::vector<Bf16> out(5 * 3 * 48);
  std::vector<float> out_wide(5 * 3 * 48);
  MhaPrefillArgs args{.plan = plan,
                      .store = batch.store(),
                      .shape = kSmall,
                      .q = ConstTensorView(q_wide.data(), {5, 3, 48}),
                      .w_kv_b = ConstTensorView(w_wide.data(), {3 * 80, 64}),
                      .out = TensorView(out_wide.data(), {5, 3, 48}),
                      .scale = kScale,
                      .chunk = TokenCount(64),
                      .workspace = workspace};
  cpu::MhaPrefill(args, executor);
  args.q = ConstTensorView(q.data(), {5, 3, 48});
  args.w_kv_b = ConstTensorView(w.data(), {3 * 80, 64});
  args.out = TensorView(out.data(), {5, 3, 48});
  cpu::MhaPrefill(args, executor);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, ToBf16(out_wide[i]).bits) << i;

  // And with shapes that do not fit, nothing is written.
  const std::vector<float> before = out_wide;
  auto message = [&](auto change) -> std::string {
    MhaPrefillArgs bad = args;
    bad.out = TensorView(out_wide.data(), {5, 3, 48});
    change(bad);
    return ErrorMessage([&] { cpu::MhaPrefill(bad, executor); });
  };
  EXPECT_EQ(message([&](auto& a) {
              a.q = ConstTensorView(q.data(), {5, 3, 47});
            }),
            "q: expected shape [5, 3, 48], got [5, 3, 47]");
  EXPECT_EQ(message([&](auto& a) {
              a.w_kv_b = ConstTensorView(w.data(), {3 * 80, 63});
            }),
            "w_kv_b: expected shape [240, 64], got [240, 63]");
  EXPECT_EQ(message([&](auto& a) {
              a.out = TensorView(out_wide.data(), {5, 3, 40});
            }),
            "out: expected shape [5, 3, 48], got [5, 3, 40]");
  EXPECT_EQ(message([&](auto& a) { a.shape.nope_dim = 2147483647; }),
            "shape.nope_dim: expected 1..4096, got 2147483647");
  EXPECT_EQ(message([&](auto& a) { a.shape.dims.latent_dim = 60; }),
            "shape.dims: expected the store's 64 + 16, got 60 + 16");
  EXPECT_EQ(message([&](auto& a) { a.workspace = a.workspace.first(16); }).find("workspace: "), 0u);
  EXPECT_EQ(out_wide, before);
}

TEST(MhaPrefillTest, BadArgumentsAreNamed) {
  SerialExecutor executor;
  auto message = [&](MhaCase mha, TokenCount chunk) -> std::string {
    return ErrorMessage([&] { mha.Attend(executor, chunk); });
  };
  EXPECT_EQ(message(MhaCase({{2, 9, {-1, 0}, 3}}, kSmall), TokenCount(64)),
            "sequence 0: a tree; expected a causal sequence");
  EXPECT_EQ(message(MhaCase({{2, 9, {}, 3}}, kSmall), TokenCount(100)),
            "chunk: expected a positive multiple of 64, got 100");
  EXPECT_EQ(message(MhaCase({{2, 9, {}, 3}}, kSmall), TokenCount(0)),
            "chunk: expected a positive multiple of 64, got 0");
}

// DeepSeek's heads: a whole prompt pays, an answer does not, a chunk behind a long prefix from 171 queries on.
TEST(MhaPrefillTest, PromptsPayToBeExpandedAndAnswersDoNot) {
  const auto pays = [](int64_t q_len, int64_t kv_len) {
    return PaysToExpand({.num_heads = 16, .nope_dim = 128, .value_dim = 128, .dims = {512, 64}},
                        TokenCount(q_len), TokenCount(kv_len));
  };
  EXPECT_TRUE(pays(64, 64));
  EXPECT_TRUE(pays(8192, 8192));
  EXPECT_FALSE(pays(1, 4096));
  EXPECT_FALSE(pays(100, 200));
  EXPECT_FALSE(pays(170, 131072));
  EXPECT_TRUE(pays(171, 131072));
}

}  // namespace
}  // namespace quire
