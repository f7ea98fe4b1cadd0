// What changes no bit of any row op: the batch, its order, threads, and NaN in other rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

#include "base/executor.h"
#include "device/thread_pool.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/row_ops.h"
#include "kernels/row_ops_cases.h"
#include "kernels/row_ops_testing.h"
#include "testing/compare.h"
#include "testing/paged_batch.h"

namespace quire {
namespace {

using namespace testing;  // the cases
using testing::MadeUpValues;

// An op over the rows of some tokens: what comes out for each of them. What goes in depends on the
// token's number alone; a negative one has nothing but NaN.
struct Op {
  const char* name;
  std::function<std::vector<float>(std::span<const int64_t> tokens, int64_t width, Executor&)> run;
};

std::vector<float> NormOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows x(RowsOfTokens(20, tokens, width), width);
  const std::vector<float> weight = MadeUpValues(21, 0, width);
  cpu::RmsNorm({.x = x.view(), .weight = weight, .y = x.view()}, executor);
  return x.values();
}

template <RopePairs kPairs>
std::vector<float> RopeOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows x(RowsOfTokens(22, tokens, 2 * width), 2 * width);
  GappedRows cos(RowsOfTokens(23, tokens, width), width);
  GappedRows sin(RowsOfTokens(24, tokens, width), width);
  cpu::Rope({.x = x.heads(), .cos = cos.view(), .sin = sin.view(), .pairs = kPairs, .y = x.heads()},
            executor);
  return x.values();
}

std::vector<float> SiluMulOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows gate_up(RowsOfTokens(25, tokens, 2 * width), 2 * width);
  GappedRows y(std::ssize(tokens), width);
  cpu::SiluMul({.gate_up = gate_up.view(), .y = y.view()}, executor);
  return y.values();
}

std::vector<float> AddScaledOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  GappedRows x(RowsOfTokens(26, tokens, width), width);
  GappedRows y(RowsOfTokens(27, tokens, width), width);
  cpu::AddScaled({.x = x.view(), .scale = 0.7f, .y = y.view()}, executor);
  return y.values();
}

// Experts and weights, two numbers per choice.
std::vector<float> RouteOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  const int32_t num_experts = static_cast<int32_t>(std::min<int64_t>(width, kMaxExperts));
  const Routes routes =
      RunRoute({.num_experts = num_experts, .top_k = std::min(num_experts, 8), .normalize = true},
               RowsOfTokens(28, tokens, num_experts), {}, executor);
  std::vector<float> out;
  for (size_t i = 0; i < routes.experts.size(); ++i) {
    out.push_back(static_cast<float>(routes.experts[i]));
    out.push_back(routes.weights[i]);
  }
  return out;
}

// Two rows per token, those of the second choice after all of the first.
std::vector<float> CombineOp(std::span<const int64_t> tokens, int64_t width, Executor& executor) {
  std::vector<float> rows = RowsOfTokens(29, tokens, width);
  const std::vector<float> second = RowsOfTokens(30, tokens, width);
  rows.insert(rows.end(), second.begin(), second.end());
  const int32_t num_tokens = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> row_of;
  for (int32_t t = 0; t < num_tokens; ++t) row_of.insert(row_of.end(), {t, num_tokens + t});
  GappedRows gapped(rows, width);
  GappedRows y(num_tokens, width);
  cpu::Combine({.rows = gapped.view(),
                .row_of = row_of,
                .weights = RowsOfTokens(31, tokens, 2),
                .y = y.view()},
               executor);
  return y.values();
}

const Op kOps[] = {
    {"RmsNorm", NormOp},
    {"Rope, interleaved", RopeOp<RopePairs::kInterleaved>},
    {"Rope, halves", RopeOp<RopePairs::kHalves>},
    {"SiluMul", SiluMulOp},
    {"AddScaled", AddScaledOp},
    {"Route", RouteOp},
    {"Combine", CombineOp},
};

template <class Fn>
void ForAllOps(Fn fn) {
  for (const Op& op : kOps) {
    for (int64_t width : kWidths) {
      SCOPED_TRACE(fmt::format("{}, width {}", op.name, width));
      fn(op, width);
    }
  }
}

std::span<const float> RowAt(const std::vector<float>& rows, size_t num_rows, size_t i) {
  const size_t width = rows.size() / num_rows;
  return std::span(rows).subspan(i * width, width);
}

TEST(RowOpsTest, TheBatchAndItsOrderChangeNoBit) {
  SerialExecutor executor;
  ForAllOps([&](const Op& op, int64_t width) {
    const std::vector<int64_t> tokens = {4, 0, 3, 1, 2};
    const std::vector<float> batch = op.run(tokens, width, executor);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> alone = op.run(std::span(tokens).subspan(i, 1), width, executor);
      EXPECT_EQ(BitMismatch(RowAt(batch, tokens.size(), i), alone), "") << "token " << tokens[i];
    }
  });
}

TEST(RowOpsTest, ThreadsChangeNoBit) {
  // Enough for several cells of even the cheapest op at width 64.
  std::vector<int64_t> tokens(2500);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (const Op& op : kOps) {
    for (int64_t width : {64, 71}) {
      SCOPED_TRACE(fmt::format("{}, width {}", op.name, width));
      SerialExecutor serial;
      const std::vector<float> expected = op.run(tokens, width, serial);
      for (int threads : {1, 2, 3}) {
        ThreadPool executor(threads);
        EXPECT_EQ(BitMismatch(op.run(tokens, width, executor), expected), "") << threads;
      }
    }
  }
}

TEST(RowOpsTest, NaNInARowTouchesNoOther) {
  SerialExecutor executor;
  ForAllOps([&](const Op& op, int64_t width) {
    const std::vector<float> clean = op.run(std::vector<int64_t>{0, 1, 2}, width, executor);
    const std::vector<float> mixed = op.run(std::vector<int64_t>{0, -1, 2}, width, executor);
    for (size_t row : {0u, 2u}) {
      EXPECT_EQ(BitMismatch(RowAt(mixed, 3, row), RowAt(clean, 3, row)), "") << row;
    }
  });
}

TEST(RowOpsTest, NoTokensAreNoWork) {
  SerialExecutor executor;
  for (const Op& op : kOps) EXPECT_TRUE(op.run({}, 64, executor).empty()) << op.name;
}

}  // namespace
}  // namespace quire
