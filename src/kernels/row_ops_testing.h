// What the tests of the row ops on the CPU share: rows between guards, a call of Route, and refusals.
#ifndef QUIRE_KERNELS_ROW_OPS_TESTING_H_
#define QUIRE_KERNELS_ROW_OPS_TESTING_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/executor.h"
#include "base/tensor_view.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/row_ops.h"
#include "testing/error_message.h"
#include "testing/red_zone.h"

namespace quire::testing {

// Rows that stand apart in a wider array between guards.
class GappedRows {
 public:
  GappedRows(int64_t num_rows, int64_t width)
      : num_rows_(num_rows), width_(width), memory_(static_cast<size_t>(num_rows * stride())) {}
  GappedRows(const std::vector<float>& values, int64_t width)
      : GappedRows(std::ssize(values) / width, width) {
    for (int64_t r = 0; r < num_rows_; ++r) {
      std::copy_n(values.begin() + r * width, width, view().Row<float>(r));
    }
  }

  TensorView view() {
    return TensorView(memory_.data(), {num_rows_, stride()}).Columns(kBefore, width_);
  }
  // One head per row.
  TensorView heads() {
    return TensorView(memory_.data(), {num_rows_, 1, stride()}).Columns(kBefore, width_);
  }

  std::vector<float> values() {
    std::vector<float> values;
    for (int64_t r = 0; r < num_rows_; ++r) {
      values.insert(values.end(), view().Row<float>(r), view().Row<float>(r) + width_);
    }
    return values;
  }

  // "" if nothing but the rows was written.
  std::string Damage() {
    for (int64_t i = 0; i < num_rows_ * stride(); ++i) {
      const int64_t column = i % stride();
      if (column >= kBefore && column < kBefore + width_) continue;
      const float* at = memory_.data() + i;
      if (std::memcmp(at, &kUntouched, sizeof(float)) != 0) {
        return fmt::format("row {} written at column {}", i / stride(), column - kBefore);
      }
    }
    return memory_.Damage();
  }

 private:
  static constexpr int64_t kBefore = 3;
  static constexpr int64_t kBehind = 2;
  static constexpr uint32_t kUntouched = 0x01010101u * RedZone<float>::kFill;
  int64_t stride() const { return kBefore + width_ + kBehind; }

  int64_t num_rows_;
  int64_t width_;
  RedZone<float> memory_;
};

struct Routes {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

inline Routes RunRoute(const RouteShape& shape, const std::vector<float>& logits,
                       const std::vector<float>& bias, Executor& executor) {
  const int64_t num_tokens = std::ssize(logits) / shape.num_experts;
  GappedRows rows(logits, shape.num_experts);
  RedZone<int32_t> experts(static_cast<size_t>(num_tokens * shape.top_k));
  RedZone<float> weights(static_cast<size_t>(num_tokens * shape.top_k));
  cpu::Route({.shape = shape,
              .logits = rows.view(),
              .bias = bias,
              .experts = experts.span(),
              .weights = weights.span()},
             executor);
  EXPECT_EQ(experts.Damage(), "");
  EXPECT_EQ(weights.Damage(), "");
  return {.experts = experts.values(), .weights = weights.values()};
}

inline Routes RunRoute(const RouteShape& shape, const std::vector<float>& logits,
                       const std::vector<float>& bias = {}) {
  SerialExecutor executor;
  return RunRoute(shape, logits, bias, executor);
}

template <class Fn>
std::string Refusal(Fn fn) {
  return ErrorMessage(ErrorCode::kInvalidArgument, fn);
}

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_ROW_OPS_TESTING_H_
