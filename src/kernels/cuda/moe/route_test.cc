#include "kernels/cuda/moe/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/executor.h"
#include "device/cuda/test_memory.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/moe/route_testing.h"
#include "kernels/cuda/test_rows.h"
#include "kernels/row_ops_cases.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::ErrorMessage;
using testing::kInf;
using testing::kNaN;
using testing::kV3Route;
using testing::MadeUpRows;
using testing::MadeUpValues;
using testing::RandomRouteShape;
using testing::TieStorm;

class CudaRouteTest : public StreamTest {};

Routed OnCpu(const RouteShape& shape, const std::vector<float>& logits,
             const std::vector<float>& bias) {
  const int64_t num_tokens = std::ssize(logits) / shape.num_experts;
  const auto choices = static_cast<size_t>(num_tokens * shape.top_k);
  Routed routed = {.experts = std::vector<int32_t>(choices),
                   .weights = std::vector<float>(choices)};
  SerialExecutor executor;
  cpu::Route({.shape = shape,
              .logits = ConstTensorView(logits.data(), {num_tokens, shape.num_experts}),
              .bias = bias,
              .experts = routed.experts,
              .weights = routed.weights},
             executor);
  return routed;
}

// What routing reads.
class RoutingInputs {
 public:
  RoutingInputs(const RouteShape& shape, const std::vector<float>& logits,
                const std::vector<float>& bias)
      : rows_(logits, shape.num_experts, Lie::kCrooked), bias_(bias) {}

  ConstTensorView logits() const { return rows_.view(); }
  std::span<const float> bias() const {
    return bias_.span().empty() ? std::span<const float>() : bias_.span();
  }

 private:
  TestRows<float> rows_;
  DeviceVector<float> bias_;
};

Routed OnDevice(const RouteShape& shape, const std::vector<float>& logits,
                const std::vector<float>& bias, const Stream& stream) {
  const RoutingInputs inputs(shape, logits, bias);
  const RoutingMemory memory(shape, std::ssize(logits) / shape.num_experts);
  Route(memory.Route(inputs.logits(), inputs.bias()), {}, stream);
  return memory.Values(stream);
}

// NaNs need not have the same bits.
void ExpectTheCpusRoutes(const RouteShape& shape, const std::vector<float>& logits,
                         const std::vector<float>& bias, const Stream& stream) {
  const Routed expected = OnCpu(shape, logits, bias);
  const Routed actual = OnDevice(shape, logits, bias, stream);
  ASSERT_EQ(actual.experts, expected.experts);
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    if (std::isnan(expected.weights[i])) {
      ASSERT_TRUE(std::isnan(actual.weights[i])) << i;
    } else {
      ASSERT_EQ(actual.weights[i], expected.weights[i]) << i;
    }
  }
}

// A random shape, and up to `most_tokens` tokens: nearly all logits of most of them tie with others.
struct RandomRoute {
  RouteShape shape;
  std::vector<float> logits, bias;

  RandomRoute(uint64_t seed, uint64_t most_tokens) {
    std::mt19937_64 random(seed);
    shape = RandomRouteShape(random);
    for (int64_t token = 0; token < 1 + static_cast<int64_t>(seed % most_tokens); ++token) {
      const std::vector<float> row = seed % 3 != 0
                                         ? TieStorm(random, shape.num_experts, 1 + seed % 5)
                                         : MadeUpValues(seed, token, shape.num_experts);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    if (seed % 2 == 0) bias = TieStorm(random, shape.num_experts, 1 + seed % 3);
  }
};

// Ten seeds a test, so that tools that make them slow have many small ones.
constexpr uint64_t kSeeds = 10;
class CudaRouteSeedsTest : public CudaRouteTest, public ::testing::WithParamInterface<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Tens, CudaRouteSeedsTest, ::testing::Range(uint64_t{0}, uint64_t{30}));

TEST_P(CudaRouteSeedsTest, RandomShapesAndTieStormsAreTheCpusBitForBit) {
  for (uint64_t seed = kSeeds * GetParam(); seed < kSeeds * (GetParam() + 1); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomRoute route(seed, 6);
    ExpectTheCpusRoutes(route.shape, route.logits, route.bias, stream());
  }
}

TEST_F(CudaRouteTest, LargeModelsAreTheCpusBitForBit) {
  const RouteShape kimi_k2 = {.num_experts = 384,
                              .top_k = 8,
                              .score = ScoreFunction::kSigmoid,
                              .selection = ExpertSelection::kGroupTopTwo,
                              .normalize = true,
                              .scale = 2.827f};
  const RouteShape v2 = {.num_experts = 160,
                         .top_k = 6,
                         .num_groups = 8,
                         .top_groups = 3,
                         .selection = ExpertSelection::kGroupMax,
                         .scale = 16.0f};
  const RouteShape most = {.num_experts = kMaxExperts,
                           .top_k = kMaxTopK,
                           .num_groups = 64,
                           .top_groups = 33,
                           .selection = ExpertSelection::kGroupMax,
                           .normalize = true};
  for (const RouteShape& shape : {kimi_k2, kV3Route, v2, most}) {
    SCOPED_TRACE(shape.num_experts);
    std::vector<float> logits = MadeUpRows(13, 9, shape.num_experts);
    for (float& logit : logits) logit *= 10.0f;
    ExpectTheCpusRoutes(shape, logits, {}, stream());
    ExpectTheCpusRoutes(shape, logits, MadeUpValues(14, 0, shape.num_experts), stream());
  }
}

TEST_F(CudaRouteTest, NaNsAndInfinitiesAreTheCpus) {
  for (ExpertSelection selection :
       {ExpertSelection::kGreedy, ExpertSelection::kGroupMax, ExpertSelection::kGroupTopTwo}) {
    for (ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
      for (uint64_t seed = 0; seed < 40; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        const float special[] = {kNaN, kInf, -kInf, 0.0f, -0.0f, -1e4f, 200.0f};
        std::vector<float> logits = MadeUpValues(seed, 0, 24);
        for (uint64_t i = 0; i < seed; ++i) logits[random() % 24] = special[random() % 7];
        if (seed == 39) std::fill(logits.begin(), logits.end(), kNaN);
        const RouteShape shape = {.num_experts = 24,
                                  .top_k = 5,
                                  .num_groups = 4,
                                  .top_groups = 2,
                                  .score = score,
                                  .selection = selection,
                                  .normalize = seed % 2 == 0};
        std::vector<float> bias;
        if (seed % 3 == 0)
          bias = {-3, -kInf, kNaN, 0, 1, 2, -3, -kInf, 0, 0, 0, 0,
                  0,  0,     0,    0, 0, 0, 0,  0,     0, 0, 0, 0};
        ExpectTheCpusRoutes(shape, logits, bias, stream());
      }
    }
  }
}

TEST_F(CudaRouteTest, ScoresOverTheWholeRangeOfExpAreTheCpus) {
  for (ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
    std::vector<float> logits;
    for (int i = 0; i < 64 * 64; ++i) logits.push_back(static_cast<float>(i - 2048) * 0.0541f);
    ExpectTheCpusRoutes({.num_experts = 64, .top_k = 64, .score = score}, logits, {}, stream());
  }
}

// Exponentials that are next to nothing, of which a softmax divides the smallest with a check, and the rest without; and
// sigmoids of next to nothing, which divide 1 by numbers next to 2.
TEST_F(CudaRouteTest, ScoresThatAreHardToDivideAreTheCpus) {
  std::vector<float> far_apart, near_zero;
  for (int i = 0; i < 3 * 64; ++i) {
    far_apart.push_back(-0.75f * static_cast<float>(i % 64 * (1 + i / 64)));
    near_zero.push_back(static_cast<float>(i - 96) * 0x1p-25f);
  }
  for (ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
    const RouteShape shape = {.num_experts = 64, .top_k = 64, .score = score};
    ExpectTheCpusRoutes(shape, far_apart, {}, stream());
    ExpectTheCpusRoutes(shape, near_zero, {}, stream());
  }
}

// Groups as few and as many as lanes and more, whose scores tie, some of nothing but NaN, of which all experts are chosen.
TEST_F(CudaRouteTest, TiesBetweenGroupsOfEveryNumberAreTheCpus) {
  std::mt19937_64 random(7);
  for (const int32_t num_groups : {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 47, 64}) {
    for (const int32_t size : {2, 3, 5, 9, 16}) {
      const int32_t top_groups = 1 + static_cast<int32_t>(random() % num_groups);
      const RouteShape shape = {
          .num_experts = num_groups * size,
          .top_k = std::min(kMaxTopK, top_groups * size),
          .num_groups = num_groups,
          .top_groups = top_groups,
          .score = ScoreFunction::kSigmoid,
          .selection = size % 2 == 0 ? ExpertSelection::kGroupMax : ExpertSelection::kGroupTopTwo};
      SCOPED_TRACE(fmt::format("{} groups of {}, {} kept", num_groups, size, top_groups));
      std::vector<float> logits;
      for (const uint64_t levels : {1, 2, 3}) {
        std::vector<float> row = TieStorm(random, shape.num_experts, levels);
        for (int32_t g = 0; g < num_groups; ++g) {
          if (random() % 4 == 0) std::fill_n(row.begin() + g * size, size, kNaN);
        }
        logits.insert(logits.end(), row.begin(), row.end());
      }
      std::vector<float> bias = TieStorm(random, shape.num_experts, 3);
      bias[static_cast<size_t>(random() % bias.size())] = -kInf;
      ExpectTheCpusRoutes(shape, logits, {}, stream());
      ExpectTheCpusRoutes(shape, logits, bias, stream());
    }
  }
}

// ---- Sorting ----

struct Sorted {
  std::vector<int32_t> offsets, row_of, token_of;
};

Sorted ReferenceSort(const std::vector<int32_t>& experts, int32_t num_experts, int32_t top_k) {
  std::vector<int32_t> order(experts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return experts[static_cast<size_t>(a)] < experts[static_cast<size_t>(b)];
  });
  Sorted sorted = {.offsets = std::vector<int32_t>(static_cast<size_t>(num_experts) + 1),
                   .row_of = std::vector<int32_t>(experts.size()),
                   .token_of = {}};
  for (int32_t choice : order) sorted.token_of.push_back(choice / top_k);
  for (size_t row = 0; row < order.size(); ++row) {
    sorted.row_of[static_cast<size_t>(order[row])] = static_cast<int32_t>(row);
  }
  for (int32_t expert : experts) ++sorted.offsets[static_cast<size_t>(expert) + 1];
  for (size_t e = 1; e < sorted.offsets.size(); ++e) sorted.offsets[e] += sorted.offsets[e - 1];
  return sorted;
}

Sorted SortOnDevice(const std::vector<int32_t>& experts, int32_t num_experts, int32_t top_k,
                    LiveRows live, StatusWord status, const Stream& stream) {
  const DeviceVector<int32_t> chosen(experts);
  const RoutingMemory memory({.num_experts = num_experts, .top_k = top_k},
                             std::ssize(experts) / top_k);
  SortByExpertArgs args = memory.Sort(live, status);
  args.experts = chosen.span();
  args.used = nullptr;
  SortByExpert(args, stream);
  const Routed sorted = memory.Values(stream);
  return {.offsets = sorted.offsets, .row_of = sorted.row_of, .token_of = sorted.token_of};
}

TEST_F(CudaRouteTest, RowsLieByExpertAndThenByToken) {
  struct Case {
    int32_t num_experts, top_k;
    int64_t num_tokens;
  };
  // Both ways of sorting: up to kMaxChoicesAtOnce choices, and more.
  for (const Case& c :
       {Case{1, 1, 1}, Case{8, 2, 5}, Case{384, 8, 1}, Case{384, 8, 64}, Case{1024, 64, 128},
        Case{256, 8, 1024}, Case{256, 8, 1025}, Case{384, 8, 1300}, Case{3, 1, 9000}}) {
    SCOPED_TRACE(fmt::format("{} experts, {} tokens", c.num_experts, c.num_tokens));
    std::mt19937_64 random(static_cast<uint64_t>(c.num_tokens));
    std::vector<int32_t> experts;
    for (int64_t i = 0; i < c.num_tokens * c.top_k; ++i) {
      // Half of them crowd on a few experts, and some have none.
      const uint64_t among = random() % 2 == 0 ? 3 : static_cast<uint64_t>(c.num_experts);
      experts.push_back(
          static_cast<int32_t>(random() % std::min(among, static_cast<uint64_t>(c.num_experts))));
    }
    const Sorted expected = ReferenceSort(experts, c.num_experts, c.top_k);
    const Sorted actual = SortOnDevice(experts, c.num_experts, c.top_k, {}, status(), stream());
    EXPECT_EQ(actual.offsets, expected.offsets);
    EXPECT_EQ(actual.row_of, expected.row_of);
    EXPECT_EQ(actual.token_of, expected.token_of);
  }
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaRouteTest, OnlyLiveTokensAreSorted) {
  for (int64_t num_tokens : {40, 1200}) {
    std::vector<int32_t> experts;
    for (int64_t i = 0; i < num_tokens * 8; ++i)
      experts.push_back(static_cast<int32_t>(i * 7 % 16));
    for (int32_t live : {0, 1, 33}) {
      const DeviceVector<int32_t> count({live});
      const Sorted actual =
          SortOnDevice(experts, 16, 8, {.count = count.span().data()}, status(), stream());
      const Sorted expected = ReferenceSort({experts.begin(), experts.begin() + live * 8}, 16, 8);
      EXPECT_EQ(actual.offsets, expected.offsets);
      for (size_t i = 0; i < actual.row_of.size(); ++i) {
        const bool is_live = i < expected.row_of.size();
        ASSERT_EQ(actual.row_of[i], is_live ? expected.row_of[i] : kUnwritten) << i;
        ASSERT_EQ(actual.token_of[i], is_live ? expected.token_of[i] : kUnwritten) << i;
      }
    }
  }
}

// As choices of several ranks lie, each with padding behind its tokens.
TEST_F(CudaRouteTest, ChoicesOfPaddingHaveNoRows) {
  for (const int64_t num_tokens : {5, 40, 1200}) {  // of each rank
    for (const int32_t live : {0, 1, 5}) {
      constexpr int32_t kTopK = 8, kRanks = 3;
      const auto of_rank = static_cast<size_t>(num_tokens * kTopK);
      std::vector<int32_t> experts(of_rank * kRanks);
      for (size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<int32_t>(i * 7 % 16);
      const DeviceVector<int32_t> chosen(experts), count({live});
      // The second rank's choices alone.
      DropPadding(chosen.span().subspan(of_rank, of_rank), kTopK, {.count = count.span().data()},
                  stream());
      const std::vector<int32_t> dropped = chosen.Values(stream());
      std::vector<int32_t> left;   // of all experts
      std::vector<size_t> choice;  // that each of them was
      for (size_t i = 0; i < experts.size(); ++i) {
        const bool is_padding = i >= of_rank + static_cast<size_t>(live) * kTopK && i < 2 * of_rank;
        ASSERT_EQ(dropped[i], is_padding ? kNoExpert : experts[i]) << i;
        if (is_padding) continue;
        left.push_back(experts[i]);
        choice.push_back(i);
      }
      const Sorted expected = ReferenceSort(left, 16, 1);
      const Sorted actual = SortOnDevice(dropped, 16, kTopK, {}, status(), stream());
      EXPECT_EQ(actual.offsets, expected.offsets);
      std::vector<int32_t> row_of(experts.size(), kUnwritten), token_of(row_of);
      for (size_t i = 0; i < left.size(); ++i) {
        row_of[choice[i]] = expected.row_of[i];
        const size_t of_row = choice[static_cast<size_t>(expected.token_of[i])];
        token_of[i] = static_cast<int32_t>(of_row) / kTopK;
      }
      EXPECT_EQ(actual.row_of, row_of);
      EXPECT_EQ(actual.token_of, token_of);
    }
  }
  EXPECT_EQ(Reported(), kNothing);
}

TEST_F(CudaRouteTest, AnExpertThatIsNotThereIsReportedAndCountsAsTheFirst) {
  const Sorted actual = SortOnDevice({1, 4, 0, 1}, 4, 2, {}, status(), stream());
  EXPECT_EQ(actual.offsets, (std::vector<int32_t>{0, 2, 4, 4, 4}));
  EXPECT_EQ(actual.row_of, (std::vector<int32_t>{2, 0, 1, 3}));
  EXPECT_EQ(actual.token_of, (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(Reported(), (Fault{DeviceFault::kExpert, 1}));
}

// ---- Both at once ----

enum class Launches { kTwo, kRouteAndSort };

Routed RouteThenSort(const RouteShape& shape, const std::vector<float>& logits,
                     const std::vector<float>& bias, LiveRows live, Launches launches,
                     StatusWord status, const Stream& stream) {
  const RoutingInputs inputs(shape, logits, bias);
  const RoutingMemory memory(shape, std::ssize(logits) / shape.num_experts);
  const RouteArgs route = memory.Route(inputs.logits(), inputs.bias());
  const SortByExpertArgs sort = memory.Sort(live, status);
  if (launches == Launches::kTwo) {
    Route(route, live, stream);
    SortByExpert(sort, stream);
  } else {
    RouteAndSort(route, sort, stream);
  }
  return memory.Values(stream);
}

class CudaRouteAndSortTest : public CudaRouteTest {
 protected:
  void ExpectTheSame(const RouteShape& shape, const std::vector<float>& logits,
                     const std::vector<float>& bias, LiveRows live = {}) {
    const Routed expected =
        RouteThenSort(shape, logits, bias, live, Launches::kTwo, status(), stream());
    const Routed actual =
        RouteThenSort(shape, logits, bias, live, Launches::kRouteAndSort, status(), stream());
    ExpectSameRoutes(actual, expected);
    EXPECT_EQ(Reported(), kNothing);
  }
};

class CudaRouteAndSortSeedsTest : public CudaRouteAndSortTest,
                                  public ::testing::WithParamInterface<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Tens, CudaRouteAndSortSeedsTest,
                         ::testing::Range(uint64_t{0}, uint64_t{10}));

TEST_P(CudaRouteAndSortSeedsTest, RandomShapesAndTieStormsHaveTheBitsOfTwoLaunches) {
  for (uint64_t seed = kSeeds * GetParam(); seed < kSeeds * (GetParam() + 1); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomRoute route(seed, 40);
    ExpectTheSame(route.shape, route.logits, route.bias);
  }
}

// More tokens than warps, the most choices and experts of one launch, and one more of each; and the same of the
// choices that one warp has.
TEST_F(CudaRouteAndSortTest, EveryNumberOfTokensAndExpertsHasTheBitsOfTwoLaunches) {
  struct Case {
    int32_t num_experts, top_k;
    int64_t num_tokens;
    bool at_once;
  };
  for (const Case& c :
       {Case{1, 1, 1, true},     Case{64, 6, 1, true},    Case{64, 6, 5, true},
        Case{64, 6, 6, true},    Case{64, 4, 8, true},    Case{7, 3, 8, true},
        Case{40, 1, 8, true},    Case{40, 1, 9, true},    Case{129, 32, 1, true},
        Case{256, 8, 4, true},   Case{384, 8, 4, true},   Case{64, 6, 33, true},
        Case{64, 6, 85, true},   Case{64, 6, 86, false},  Case{128, 8, 64, true},
        Case{129, 8, 64, true},  Case{256, 8, 31, true},  Case{257, 8, 64, true},
        Case{384, 8, 64, true},  Case{384, 8, 65, false}, Case{384, 64, 8, true},
        Case{384, 1, 512, true}, Case{385, 8, 1, false},  Case{256, 8, 1025, false}}) {
    SCOPED_TRACE(fmt::format("{} experts, {} tokens", c.num_experts, c.num_tokens));
    const RouteShape shape = {.num_experts = c.num_experts,
                              .top_k = c.top_k,
                              .score = ScoreFunction::kSigmoid,
                              .normalize = true,
                              .scale = 2.5f};
    EXPECT_EQ(RoutesAtOnce(shape, c.num_tokens), c.at_once);
    ExpectTheSame(shape, MadeUpRows(21, c.num_tokens, c.num_experts),
                  MadeUpValues(22, 0, c.num_experts));
  }
}

TEST_F(CudaRouteAndSortTest, OnlyLiveTokensAreTouched) {
  const RouteShape shape = {.num_experts = 64, .top_k = 6};
  for (const int32_t live : {0, 1, 6, 39, 40, 100}) {
    SCOPED_TRACE(live);
    const DeviceVector<int32_t> count({live});
    ExpectTheSame(shape, MadeUpRows(23, 40, 64), {}, {.count = count.span().data()});
  }
  for (const int32_t live : {-1, 0, 1, 4, 5, 100}) {
    SCOPED_TRACE(live);
    const DeviceVector<int32_t> count({live});
    ExpectTheSame(shape, MadeUpRows(24, 5, 64), {}, {.count = count.span().data()});
  }
}

TEST_F(CudaRouteAndSortTest, GroupsHaveTheBitsOfTwoLaunches) {
  for (const int64_t num_tokens : {1, 4, 5, 19}) {
    SCOPED_TRACE(num_tokens);
    ExpectTheSame(kV3Route, MadeUpRows(26, num_tokens, 256), MadeUpValues(27, 0, 256));
    const RouteShape many = {.num_experts = 120,
                             .top_k = 3,
                             .num_groups = 60,
                             .top_groups = 41,
                             .selection = ExpertSelection::kGroupMax};
    ExpectTheSame(many, MadeUpRows(28, num_tokens, 120), {});
  }
}

// Equal logits choose equal experts, and so do equal tokens.
TEST_F(CudaRouteAndSortTest, FewTokensThatChooseTheSameLieInTheirOrder) {
  const RouteShape shape = {.num_experts = 64, .top_k = 4, .normalize = true};
  const std::vector<float> row = MadeUpValues(25, 0, 64);
  std::vector<float> logits;
  for (int token = 0; token < 8; ++token) logits.insert(logits.end(), row.begin(), row.end());
  ExpectTheSame(shape, logits, {});
  ExpectTheSame(shape, std::vector<float>(8 * 64, 0.5f), {});
}

TEST(CudaRouteArgsTest, WrongArgumentsAreRefused) {
  std::vector<int32_t> memory(16);
  SortByExpertArgs args = {.num_experts = 4,
                           .top_k = 2,
                           .experts = std::span(memory).first(6),
                           .offsets = std::span(memory).first(5),
                           .row_of = std::span(memory).first(6),
                           .token_of = std::span(memory).first(6)};
  EXPECT_EQ(ErrorMessage([&] { Validate(args); }), "no error");
  args.token_of = {};
  EXPECT_EQ(ErrorMessage([&] { Validate(args); }),
            "sort_by_expert.token_of: expected 6 values, got 0");
  args.token_of = std::span(memory).first(6);
  args.num_experts = 1025;
  EXPECT_EQ(ErrorMessage([&] { Validate(args); }),
            "sort_by_expert.num_experts: expected 1..1024, got 1025");
  args.num_experts = 5;
  EXPECT_EQ(ErrorMessage([&] { Validate(args); }),
            "sort_by_expert.offsets: expected 6 values, got 5");
  std::vector<float> floats(12);
  RouteArgs route = {.shape = {.num_experts = 4, .top_k = 2},
                     .logits = ConstTensorView(floats.data(), {3, 4}),
                     .experts = std::span(memory).first(6),
                     .weights = std::span(floats).first(6)};
  args.num_experts = 4;
  EXPECT_EQ(ErrorMessage([&] { Validate(route, args); }), "no error");
  route.experts = std::span(memory).subspan(1, 6);
  EXPECT_EQ(ErrorMessage([&] { Validate(route, args); }),
            "route_and_sort: expected to sort the 6 choices that are routed, got 6 others");
  route.shape.num_experts = 3;
  route.logits = ConstTensorView(floats.data(), {3, 3});
  EXPECT_EQ(ErrorMessage([&] { Validate(route, args); }),
            "route_and_sort: expected to sort 2 of 3 experts, got 2 of 4");
  EXPECT_EQ(SortWorkspace(8192, 384), 0);
  EXPECT_EQ(SortWorkspace(8193, 384), 33 * 384);
}

}  // namespace
}  // namespace quire::cuda
