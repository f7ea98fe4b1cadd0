// Routing on the device as the tests want it: memory for all that is written, with guards, and what is left there.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTE_TESTING_H_
#define QUIRE_KERNELS_CUDA_MOE_ROUTE_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor_view.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_memory.h"
#include "kernels/cuda/moe/route.h"
#include "testing/compare.h"

namespace quire::cuda {

// What Route, SortByExpert and whatever does both write.
struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int32_t> offsets = {}, row_of = {}, token_of = {}, used = {};
};

inline void ExpectSameRoutes(const Routed& actual, const Routed& expected) {
  EXPECT_EQ(actual.experts, expected.experts);
  EXPECT_EQ(actual.offsets, expected.offsets);
  EXPECT_EQ(actual.row_of, expected.row_of);
  EXPECT_EQ(actual.token_of, expected.token_of);
  EXPECT_EQ(actual.used, expected.used);
  EXPECT_EQ(testing::BitMismatch(actual.weights, expected.weights), "");
}

// What is there before it is written.
inline constexpr int32_t kUnwritten = -7;

// `size` values on the device, and one behind them that stays as it is.
template <class T>
class UnwrittenVector {
 public:
  explicit UnwrittenVector(int64_t size)
      : size_(static_cast<size_t>(size)),
        memory_(std::vector<T>(size_ + 1, static_cast<T>(kUnwritten))) {}

  std::span<T> span() const { return memory_.span().first(size_); }
  std::vector<T> Values(const Stream& stream) const {
    std::vector<T> values = memory_.Values(stream);
    EXPECT_EQ(values.back(), static_cast<T>(kUnwritten)) << "behind " << size_ << " values";
    values.pop_back();
    return values;
  }

 private:
  size_t size_;
  DeviceVector<T> memory_;
};

// The device's memory for routing some tokens.
class RoutingMemory {
 public:
  RoutingMemory(const RouteShape& shape, int64_t num_tokens)
      : shape_(shape), choices_(num_tokens * shape.top_k) {}

  RouteArgs Route(ConstTensorView logits, std::span<const float> bias) const {
    return {.shape = shape_,
            .logits = logits,
            .bias = bias,
            .experts = experts_.span(),
            .weights = weights_.span()};
  }
  SortByExpertArgs Sort(LiveRows live, StatusWord status) const {
    return {.num_experts = shape_.num_experts,
            .top_k = shape_.top_k,
            .experts = experts_.span(),
            .offsets = offsets_.span(),
            .row_of = row_of_.span(),
            .token_of = token_of_.span(),
            .used = used_.span().data(),
            .workspace = workspace_.span(),
            .live = live,
            .status = status};
  }
  Routed Values(const Stream& stream) const {
    (void)workspace_.Values(stream);  // its guard
    return {.experts = experts_.Values(stream),
            .weights = weights_.Values(stream),
            .offsets = offsets_.Values(stream),
            .row_of = row_of_.Values(stream),
            .token_of = token_of_.Values(stream),
            .used = used_.Values(stream)};
  }

 private:
  RouteShape shape_;
  int64_t choices_;
  UnwrittenVector<int32_t> experts_{choices_};
  UnwrittenVector<float> weights_{choices_};
  UnwrittenVector<int32_t> offsets_{shape_.num_experts + 1}, row_of_{choices_}, token_of_{choices_},
      used_{1}, workspace_{SortWorkspace(choices_, shape_.num_experts)};
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTE_TESTING_H_
