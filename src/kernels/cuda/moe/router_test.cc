#include "kernels/cuda/moe/router.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "kernels/cuda/gemm/gemm_testing.h"
#include "kernels/cuda/moe/route_testing.h"
#include "kernels/cuda/test_rows.h"
#include "kernels/row_ops_cases.h"
#include "testing/compare.h"

namespace quire::cuda {
namespace {

using testing::BitMismatch;
using testing::kV3Route;
using testing::Mismatch;

const std::vector<int32_t> kNoneArrived(kRouterCounts, 0);

// The device's memory for a router.
class RouterMemory {
 public:
  RouterMemory(const RouteShape& shape, int64_t num_tokens, int64_t inputs,
               RouterOrder order = RouterOrder::kOwn)
      : routing_(shape, num_tokens),
        logits_(RouterWorkspace(num_tokens, shape.num_experts, inputs, order)),
        num_tokens_(num_tokens),
        num_experts_(shape.num_experts),
        order_(order) {}

  RouterArgs Args(const DeviceRows& x, const DeviceWeights& w, std::span<const float> bias,
                  LiveRows live, StatusWord status) const {
    const ConstTensorView logits(logits_.span().data(), {num_tokens_, num_experts_});
    return {.x = x.view(),
            .w = w.view(),
            .route = routing_.Route(logits, bias),
            .sort = routing_.Sort(live, status),
            .logits = logits_.span(),
            .arrived = arrived_.span(),
            .order = order_};
  }
  Routed Values(const Stream& stream) const { return routing_.Values(stream); }
  // The parts, added in ascending order.
  std::vector<float> Logits(const Stream& stream) const {
    const std::vector<float> parts = logits_.Values(stream);
    const int64_t size = num_tokens_ * num_experts_;
    std::vector<float> sums(parts.begin(), parts.begin() + size);
    for (size_t i = sums.size(); i < parts.size(); ++i) sums[i % sums.size()] += parts[i];
    return sums;
  }
  std::vector<int32_t> Arrived(const Stream& stream) const { return arrived_.Values(stream); }

 private:
  RoutingMemory routing_;
  UnwrittenVector<float> logits_;
  int64_t num_tokens_, num_experts_;
  RouterOrder order_;
  DeviceVector<int32_t> arrived_{kNoneArrived};
};

class CudaRouterTest : public StreamTest {
 protected:
  // Logits are near the reference, in the order of tiles they are the tiles', and all that follows from them has the bits
  // of Route and SortByExpert. Twice, since the counts of arrivals are used again.
  void Expect(const RouteShape& shape, int64_t num_tokens, int64_t inputs, LiveRows live = {}) {
    for (const RouterOrder order : kRouterOrders) {
      SCOPED_TRACE(order == RouterOrder::kTiles ? "in the order of tiles" : "");
      ExpectInOrder(shape, num_tokens, inputs, live, order);
    }
  }
  void ExpectInOrder(const RouteShape& shape, int64_t num_tokens, int64_t inputs, LiveRows live,
                     RouterOrder order) {
    const MatrixShape matrix_shape = {shape.num_experts, inputs};
    const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = matrix_shape});
    const std::vector<float> values = MadeUpX(9, num_tokens * inputs);
    const GemmReference reference = ReferenceGemm(matrix, matrix_shape, values, {}, DType::kF32);
    const DeviceRows x(values, inputs, Spread::kAligned);
    const DeviceWeights w(matrix, Spread::kAligned);
    const DeviceVector<float> bias(MadeUpValues(10, shape.num_experts));
    const RouterMemory memory(shape, num_tokens, inputs, order);
    const RouterArgs args = memory.Args(x, w, bias.span(), live, status());
    for (int turn = 0; turn < 2; ++turn) RouteTokens(args, stream());
    const std::vector<float> logits = memory.Logits(stream());
    EXPECT_EQ(Mismatch(logits, reference.y, reference.bounds), "");
    EXPECT_EQ(memory.Arrived(stream()), kNoneArrived);
    if (order == RouterOrder::kTiles) {
      const DeviceOutput tiles(num_tokens, shape.num_experts, DType::kF32, Spread::kAligned);
      Gemm({.x = x.view(), .w = w.view(), .y = tiles.view()}, stream());
      EXPECT_EQ(BitMismatch(logits, tiles.Values(stream())), "");
    }

    const RoutingMemory expected(shape, num_tokens);
    const DeviceVector<float> device_logits(logits);
    const ConstTensorView rows(device_logits.span().data(), {num_tokens, shape.num_experts});
    Route(expected.Route(rows, bias.span()), live, stream());
    SortByExpert(expected.Sort(live, status()), stream());
    ExpectSameRoutes(memory.Values(stream()), expected.Values(stream()));
    EXPECT_EQ(Reported(), kNothing);
  }
};

constexpr RouteShape kGreedy = {.num_experts = 64, .top_k = 6};

TEST_F(CudaRouterTest, EveryNumberOfTokensIsRoutedAsByThreeOps) {
  for (const int64_t num_tokens : {1, 8, 16, 17, 64, 100, 256}) {
    SCOPED_TRACE(fmt::format("{} tokens", num_tokens));
    Expect(kGreedy, num_tokens, 2048);
  }
  for (const int64_t num_tokens : {1, 17, 100}) {
    SCOPED_TRACE(fmt::format("{} tokens of V3", num_tokens));
    Expect(kV3Route, num_tokens, 7168);
  }
}

// Tiles that are not full, inputs that end in a part, and the most experts. In the order of tiles parts are ranges of
// 64 inputs, and of 512 to 1024, one or two a CTA, an odd number of them with a part that is shorter.
TEST_F(CudaRouterTest, OddShapesAreRoutedAsByThreeOps) {
  struct Case {
    int32_t num_experts, top_k;
    int64_t num_tokens, inputs;
  };
  for (const Case& c : {Case{1, 1, 1, 8}, Case{7, 3, 5, 24}, Case{65, 4, 33, 1000},
                        Case{160, 6, 40, 5120}, Case{384, 8, 64, 1032}, Case{33, 33, 256, 64},
                        Case{64, 6, 20, 1096}, Case{64, 6, 20, 4104}, Case{64, 6, 20, 8192}}) {
    SCOPED_TRACE(
        fmt::format("{} experts, {} tokens, {} inputs", c.num_experts, c.num_tokens, c.inputs));
    Expect({.num_experts = c.num_experts,
            .top_k = c.top_k,
            .score = ScoreFunction::kSigmoid,
            .normalize = true},
           c.num_tokens, c.inputs);
  }
}

// And several slots of experts a lane, and parts of the inputs that several CTAs have.
TEST_F(CudaRouterTest, OnlyGroupsThatAreKeptAreChosenFrom) {
  Expect(kV3Route, 17, 72);
  Expect(kV3Route, 2, 1032);
  Expect({.num_experts = 384, .top_k = 8, .score = ScoreFunction::kSigmoid, .normalize = true}, 3,
         72);
}

TEST_F(CudaRouterTest, OnlyLiveTokensAreChosenFor) {
  for (const int32_t live : {-1, 0, 1, 16, 39, 40, 100}) {
    SCOPED_TRACE(live);
    const DeviceVector<int32_t> count({live});
    Expect(kGreedy, 40, 512, {.count = count.span().data()});
  }
}

// Of a row beside others.
TEST_F(CudaRouterTest, TheNumberOfTokensChangesNoBit) {
  constexpr int64_t kInputs = 2048, kTokens = 100;
  const MadeUpMatrix matrix({.format = WeightFormat::kBf16, .shape = {64, kInputs}});
  const DeviceWeights w(matrix, Spread::kAligned);
  const std::vector<float> values = MadeUpX(9, kTokens * kInputs);
  const auto logits = [&](int64_t num_tokens) {
    const DeviceRows x({values.begin(), values.begin() + num_tokens * kInputs}, kInputs,
                       Spread::kAligned);
    const RouterMemory memory(kGreedy, num_tokens, kInputs);
    RouteTokens(memory.Args(x, w, {}, {}, status()), stream());
    return memory.Logits(stream());
  };
  const std::vector<float> all = logits(kTokens);
  for (const int64_t num_tokens : {1, 16, 31}) {
    const std::vector<float> few = logits(num_tokens);
    EXPECT_EQ(BitMismatch(few, std::span(all).first(few.size())), "") << num_tokens;
  }
}

// As layers of steps do, with the counts of arrivals and the room for logits of the one before: each launch begins
// while that runs, and has other tokens, experts and parts.
TEST_F(CudaRouterTest, RoutersThatOverlapHaveTheBitsOfEachAlone) {
  const MadeUpMatrix small({.format = WeightFormat::kBf16, .shape = {64, 2048}});
  const MadeUpMatrix large({.format = WeightFormat::kBf16, .shape = {256, 7168}});
  const DeviceWeights small_weights(small, Spread::kAligned),
      large_weights(large, Spread::kAligned);
  struct Layer {
    RouteShape shape;
    int64_t num_tokens;
    const DeviceWeights& w;
    RouterOrder order = RouterOrder::kOwn;

    int64_t inputs() const { return w.view().shape.inputs; }
  };
  const Layer layers[] = {{kV3Route, 100, large_weights},
                          {kGreedy, 17, small_weights},
                          {kGreedy, 256, small_weights},
                          {kGreedy, 1, small_weights},
                          {kV3Route, 16, large_weights},
                          {kV3Route, 33, large_weights},
                          {kGreedy, 100, small_weights},
                          {kGreedy, 40, small_weights},
                          {kGreedy, 64, small_weights, RouterOrder::kTiles},
                          {kV3Route, 16, large_weights, RouterOrder::kTiles},
                          {kGreedy, 17, small_weights, RouterOrder::kTiles}};
  std::vector<DeviceRows> x;
  std::vector<Routed> alone;
  int64_t most_logits = 0;
  for (const Layer& layer : layers) {
    x.emplace_back(MadeUpX(20 + x.size(), layer.num_tokens * layer.inputs()), layer.inputs(),
                   Spread::kAligned);
    const RouterMemory memory(layer.shape, layer.num_tokens, layer.inputs(), layer.order);
    RouteTokens(memory.Args(x.back(), layer.w, {}, {}, status()), stream());
    alone.push_back(memory.Values(stream()));
    most_logits = std::max(most_logits, RouterWorkspace(layer.num_tokens, layer.shape.num_experts,
                                                        layer.inputs(), layer.order));
  }
  for (int round = 0; round < 5; ++round) {
    const DeviceVector<float> logits(std::vector<float>(static_cast<size_t>(most_logits)));
    const DeviceVector<int32_t> arrived(kNoneArrived);
    std::deque<RouterMemory> memories;
    std::vector<RouterArgs> launches;
    for (const Layer& layer : layers) {
      memories.emplace_back(layer.shape, layer.num_tokens, layer.inputs(), layer.order);
      launches.push_back(memories.back().Args(x[launches.size()], layer.w, {}, {}, status()));
      launches.back().logits = logits.span();
      launches.back().arrived = arrived.span();
    }
    for (const RouterArgs& args : launches) RouteTokens(args, stream());
    for (size_t i = 0; i < memories.size(); ++i) {
      SCOPED_TRACE(fmt::format("launch {} of round {}", i, round));
      ExpectSameRoutes(memories[i].Values(stream()), alone[i]);
    }
    EXPECT_EQ(arrived.Values(stream()), kNoneArrived);
  }
  EXPECT_EQ(Reported(), kNothing);
}

TEST(CudaRouterArgsTest, WhatItDoesNotTakeIsSaid) {
  std::vector<Bf16> memory(1 << 16);
  Bf16* const first = memory.data() + 8 - reinterpret_cast<uintptr_t>(memory.data()) / 2 % 8;
  const auto takes = [&](int64_t tokens, MatrixShape shape, int64_t lead = 0, int64_t more = 0) {
    WeightView w = DenseWeights(first, shape);
    w.row_stride += more;
    return RouterTakes(ConstTensorView(first + lead, {tokens, shape.inputs}), w);
  };
  EXPECT_TRUE(takes(1, {64, 64}));
  EXPECT_TRUE(takes(256, {384, 64}));
  EXPECT_FALSE(takes(257, {64, 64}));
  EXPECT_FALSE(takes(1, {385, 64}));
  EXPECT_FALSE(takes(1, {64, 60}));        // no whole groups
  EXPECT_FALSE(takes(1, {64, 64}, 1));     // rows at an odd address
  EXPECT_FALSE(takes(1, {64, 64}, 0, 4));  // weights at odd distances
  EXPECT_EQ(RouterWorkspace(64, 64, 2048), 2 * 64 * 64);
  EXPECT_EQ(RouterWorkspace(64, 256, 7169), 8 * 64 * 256);
}

TEST(CudaRouterArgsTest, InTheOrderOfTilesPartsAreTheirRanges) {
  const auto cut = [](int64_t experts, int64_t inputs) {
    const RouterCut of = RouterCutOf(experts, inputs, RouterOrder::kTiles);
    return std::vector<int32_t>{of.parts, of.part_inputs, of.parts_of_cta, of.ctas()};
  };
  EXPECT_EQ(cut(64, 2048), (std::vector<int32_t>{4, 512, 2, 2}));
  EXPECT_EQ(cut(256, 7168), (std::vector<int32_t>{8, 896, 1, 8}));
  EXPECT_EQ(cut(160, 5120), (std::vector<int32_t>{8, 640, 1, 8}));
  EXPECT_EQ(cut(8, 64), (std::vector<int32_t>{1, 64, 16, 1}));
  EXPECT_EQ(RouterWorkspace(64, 64, 2048, RouterOrder::kTiles), 4 * 64 * 64);
  std::vector<Bf16> memory((1 << 15) + 8);
  Bf16* const first = memory.data() + 8 - reinterpret_cast<uintptr_t>(memory.data()) / 2 % 8;
  const auto takes = [&](MatrixShape shape, int64_t whole = 0) {
    WeightView w = DenseWeights(first, shape);
    w.whole_outputs = whole;
    return RouterTakes(ConstTensorView(first, {1, shape.inputs}), w, RouterOrder::kTiles);
  };
  EXPECT_TRUE(takes({64, 64}));
  EXPECT_TRUE(takes({1, 8192}));
  EXPECT_FALSE(takes({1, 8200}));      // 8 ranges of 1088
  EXPECT_FALSE(takes({64, 64}, 128));  // a part, which has the whole one's ranges
}

TEST(CudaRouterArgsTest, ItIsForMoreThanEightTokensAndOneWaveOfCtas) {
  EXPECT_FALSE(RouterPays(8, 64, 2048));
  EXPECT_TRUE(RouterPays(9, 64, 2048));
  EXPECT_TRUE(RouterPays(256, 64, 2048));
  EXPECT_TRUE(RouterPays(16, 256, 7168));
  EXPECT_FALSE(RouterPays(17, 256, 7168));
  EXPECT_FALSE(RouterPays(0, 64, 2048));
  EXPECT_FALSE(RouterPays(8, 64, 2048, RouterOrder::kTiles));
  EXPECT_TRUE(RouterPays(256, 64, 2048, RouterOrder::kTiles));
  EXPECT_TRUE(RouterPays(16, 256, 7168, RouterOrder::kTiles));
  EXPECT_FALSE(RouterPays(17, 256, 7168, RouterOrder::kTiles));
}

// What a step of up to so many tokens has room for.
TEST(CudaRouterArgsTest, TheMostTokensAreTheLastThatItIsFor) {
  EXPECT_EQ(MostRouterTokens(8, 64, 2048), 0);
  EXPECT_EQ(MostRouterTokens(40, 64, 2048), 40);
  EXPECT_EQ(MostRouterTokens(1000, 64, 2048), 256);
  EXPECT_EQ(MostRouterTokens(12, 256, 7168), 12);
  EXPECT_EQ(MostRouterTokens(1000, 256, 7168), 16);
  EXPECT_EQ(MostRouterTokens(1000, 384, 7168), 0);  // 168 CTAs of any tile
  EXPECT_EQ(MostRouterTokens(1000, 0, 2048), 0);
}

}  // namespace
}  // namespace quire::cuda
