#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_view.h"
#include "testing/error_message.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using testing::ErrorMessage;
using testing::RedZone;

// Expected numbers are those of transformers 5.22.2 with torch 2.8.0 on a CPU, in f32, printed with
// nine digits: frequencies and magnitude of _compute_yarn_parameters, _compute_longrope_parameters
// and DeepseekV3RotaryEmbedding; cos and sin of the latter's forward; scales of yarn_apply_mscale.

ModelConfig Plain(int32_t rope_dim, double theta) {
  ModelConfig config;
  config.nope_dim = 128;
  config.rope_dim = rope_dim;
  config.rope.theta = theta;
  return config;
}

struct YarnCase {
  double theta = 10000.0;
  double factor = 40.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 1.0;
  bool truncate = true;
};

ModelConfig Yarn(const YarnCase& c) {
  ModelConfig config = Plain(64, c.theta);
  config.rope.scaling = RopeScaling::kYarn;
  config.rope.original_context = 4096;
  config.rope.factor = c.factor;
  config.rope.beta_fast = c.beta_fast;
  config.rope.beta_slow = c.beta_slow;
  config.rope.mscale = c.mscale;
  config.rope.mscale_all_dim = c.mscale_all_dim;
  config.rope.truncate = c.truncate;
  return config;
}

ModelConfig LongRope() {
  ModelConfig config = Plain(8, 10000.0);
  config.rope.scaling = RopeScaling::kLongRope;
  config.rope.original_context = 32768;
  config.rope.factor = 4.0;
  config.rope.short_factor = {1.0, 1.25, 1.5, 3.0};
  config.rope.long_factor = {1.5, 2.75, 9.5, 40.0};
  return config;
}

struct ExpectedFrequency {
  size_t pair;
  float value;
};

struct Case {
  const char* name;
  ModelConfig config;
  int64_t context;
  float magnitude;
  std::vector<ExpectedFrequency> frequencies;
};

const Case kCases[] = {
    {"plain, theta 10000",
     Plain(64, 10000.0),
     4096,
     1.0f,
     {{0, 1.0f}, {1, 0.749894202f}, {5, 0.237137362f}, {16, 0.00999999978f}, {31, 0.00013335215f}}},
    {"plain, theta 1000000",
     Plain(64, 1e6),
     4096,
     1.0f,
     {{1, 0.649381638f}, {17, 0.000649381662f}, {31, 1.53992653e-06f}}},
    {"a rope_dim that is no power of two",
     Plain(6, 10000.0),
     4096,
     1.0f,
     {{0, 1.0f}, {1, 0.046415884f}, {2, 0.00215443433f}}},
    {"YaRN of DeepSeek-V3",
     Yarn({}),
     163840,
     1.0f,
     {{0, 1.0f},
      {10, 0.0562341288f},
      {11, 0.0390069261f},
      {16, 0.00550000044f},
      {22, 0.00017782794f},
      {23, 3.3338034e-05f},
      {31, 3.33380353e-06f}}},
    {"YaRN of DeepSeek-V2-Lite",
     Yarn({.mscale = 0.707, .mscale_all_dim = 0.707}),
     163840,
     1.0f,
     {{12, 0.0268793609f}, {21, 0.000414990413f}}},
    {"YaRN of Kimi-K2: a ramp of one pair",
     Yarn({.theta = 50000.0, .factor = 32.0, .beta_fast = 1.0}),
     131072,
     1.0f,
     {{1, 0.713111103f}, {19, 0.00162175996f}, {20, 3.61404673e-05f}, {31, 8.76441277e-07f}}},
    {"YaRN, ramp not truncated, no mscale_all_dim",
     Yarn({.mscale_all_dim = 0.0, .truncate = false}),
     163840,
     1.36888795f,
     {{10, 0.0562341288f}, {11, 0.0403675847f}, {16, 0.00552406255f}, {22, 0.000118387645f}}},
    {"YaRN, a ramp of no length",
     Yarn({.beta_fast = 4.0, .beta_slow = 4.0, .mscale_all_dim = 0.0, .truncate = false}),
     163840,
     1.36888795f,
     {{17, 0.00749894232f}, {18, 0.000140585325f}}},
    {"YaRN, mscale alone counts for nothing",
     Yarn({.mscale = 0.707, .mscale_all_dim = 0.0}),
     163840,
     1.36888795f,
     {{11, 0.0390069261f}}},
    {"YaRN, two mscales",
     Yarn({.mscale = 0.707, .mscale_all_dim = 1.0}),
     163840,
     0.921042355f,
     {{11, 0.0390069261f}}},
    {"LongRoPE within the original context",
     LongRope(),
     32768,
     1.06458129f,
     {{0, 1.0f}, {1, 0.0799999982f}, {2, 0.00666666683f}, {3, 0.00033333333f}}},
    {"LongRoPE beyond the original context",
     LongRope(),
     32769,
     1.06458129f,
     {{0, 0.666666687f}, {1, 0.0363636352f}, {2, 0.00105263153f}, {3, 2.49999994e-05f}}},
};

TEST(RopeTableTest, FrequenciesAndMagnitudeAreThoseOfTransformers) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const RopeTable table(c.config, TokenCount(c.context));
    ASSERT_EQ(table.frequencies().size(), static_cast<size_t>(c.config.rope_dim / 2));
    EXPECT_EQ(table.magnitude(), c.magnitude);
    for (const ExpectedFrequency& expected : c.frequencies) {
      // pow in f32 may differ by a unit in the last place from one library to the next.
      EXPECT_NEAR(table.frequencies()[expected.pair], expected.value, expected.value * 0x1p-23f)
          << "pair " << expected.pair;
    }
  }
}

TEST(RopeTableTest, AnAttentionFactorInTheFileIsTheMagnitude) {
  ModelConfig yarn = Yarn({});
  yarn.rope.attention_factor = 1.5;
  EXPECT_EQ(RopeTable(yarn, TokenCount(10)).magnitude(), 1.5f);
  ModelConfig long_rope = LongRope();
  long_rope.rope.attention_factor = 0.75;
  EXPECT_EQ(RopeTable(long_rope, TokenCount(10)).magnitude(), 0.75f);
}

TEST(RopeTableTest, WhatWasNotStretchedHasMagnitudeOne) {
  EXPECT_EQ(RopeTable(Yarn({.factor = 1.0, .mscale_all_dim = 0.0}), TokenCount(10)).magnitude(),
            1.0f);
  ModelConfig long_rope = LongRope();
  long_rope.rope.factor = 1.0;
  EXPECT_EQ(RopeTable(long_rope, TokenCount(10)).magnitude(), 1.0f);
}

struct ExpectedAngle {
  int64_t position;
  int64_t pair;
  float cos;
  float sin;
};

// Fills the table for every position named, between guards, and compares. At position 100000 one
// unit in the last place of its frequency would turn pair 16 by 0.0001: it must be the same number.
void ExpectAngles(const RopeTable& table, const std::vector<ExpectedAngle>& expected) {
  std::vector<TokenCount> positions;
  for (const ExpectedAngle& e : expected) positions.push_back(TokenCount(e.position));
  const int64_t num_pairs = std::ssize(table.frequencies());
  const int64_t stride = num_pairs + 3;
  RedZone<float> cos(expected.size() * static_cast<size_t>(stride));
  RedZone<float> sin(expected.size() * static_cast<size_t>(stride));
  const int64_t num_tokens = std::ssize(positions);
  table.Fill(positions, TensorView(cos.data(), {num_tokens, stride}).Columns(0, num_pairs),
             TensorView(sin.data(), {num_tokens, stride}).Columns(0, num_pairs));
  EXPECT_EQ(cos.Damage(), "");
  EXPECT_EQ(sin.Damage(), "");
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t at = i * static_cast<size_t>(stride) + static_cast<size_t>(expected[i].pair);
    // Of cos, of the product with the magnitude, and of the literal's own library: 2^-24 each.
    EXPECT_NEAR(cos.span()[at], expected[i].cos, 0x1p-22) << "position " << expected[i].position;
    EXPECT_NEAR(sin.span()[at], expected[i].sin, 0x1p-22) << "position " << expected[i].position;
  }
}

TEST(RopeTableTest, CosAndSinAreThoseOfTransformers) {
  ExpectAngles(RopeTable(Plain(64, 10000.0), TokenCount(163840)),
               {{0, 0, 1.0f, 0.0f},
                {1, 0, 0.540302336f, 0.841470957f},
                {1, 1, 0.731760979f, 0.681561351f},
                {1, 31, 1.0f, 0.00013335215f},
                {4095, 1, -0.0900463611f, -0.995937586f},
                {4095, 16, -0.994033098f, -0.109078795f},
                {100000, 0, -0.9993608f, 0.0357487984f},
                {100000, 16, 0.562379062f, 0.826879561f},
                {100000, 31, 0.718714893f, 0.695304871f}});
}

TEST(RopeTableTest, CosAndSinAreMultipliedWithTheMagnitude) {
  ExpectAngles(RopeTable(Yarn({.mscale = 0.707, .mscale_all_dim = 1.0}), TokenCount(163840)),
               {{1, 0, 0.497641355f, 0.775030434f},
                {1, 16, 0.921028435f, 0.00506570796f},
                {4095, 1, -0.0829365179f, -0.917300701f},
                {4095, 31, 0.920956552f, 0.012573611f},
                {100000, 16, -0.898571432f, -0.202208981f},
                {100000, 31, 0.870331228f, 0.301401109f}});
}

TEST(RopeTableTest, APositionsAnglesDoNotDependOnThePositionsBesideIt) {
  const RopeTable table(Yarn({}), TokenCount(163840));
  const std::vector<TokenCount> positions = {TokenCount(7), TokenCount(70000), TokenCount(7)};
  std::vector<float> cos(3 * 32), sin(3 * 32), one_cos(32), one_sin(32);
  table.Fill(positions, TensorView(cos.data(), {3, 32}), TensorView(sin.data(), {3, 32}));
  table.Fill(std::span(positions).last(1), TensorView(one_cos.data(), {1, 32}),
             TensorView(one_sin.data(), {1, 32}));
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(cos[i], one_cos[i]);
    EXPECT_EQ(cos[64 + i], one_cos[i]);
    EXPECT_EQ(sin[i], one_sin[i]);
    EXPECT_EQ(sin[64 + i], one_sin[i]);
  }
}

TEST(RopeTableTest, SoftmaxScaleIsThatOfTransformers) {
  EXPECT_FLOAT_EQ(SoftmaxScale(Plain(64, 10000.0)), 0.07216878364870322f);
  EXPECT_FLOAT_EQ(SoftmaxScale(Yarn({})), 0.1352337788608801f);
  EXPECT_FLOAT_EQ(SoftmaxScale(Yarn({.mscale_all_dim = 0.707})), 0.1147213867929261f);
  EXPECT_FLOAT_EQ(SoftmaxScale(Yarn({.factor = 32.0})), 0.13086079996295005f);
  EXPECT_FLOAT_EQ(SoftmaxScale(Yarn({.mscale_all_dim = 0.0})), 0.07216878364870322f);
  EXPECT_FLOAT_EQ(SoftmaxScale(Yarn({.factor = 1.0})), 0.07216878364870322f);
}

TEST(RopeTableTest, ANopeModelHasAnEmptyTable) {
  const RopeTable table(Plain(0, 10000.0), TokenCount(10));
  EXPECT_TRUE(table.frequencies().empty());
}

TEST(RopeTableTest, WhatCannotBeComputedIsRefused) {
  auto refusal = [](const ModelConfig& config) {
    return ErrorMessage(ErrorCode::kInvalidArgument,
                        [&] { (void)RopeTable(config, TokenCount(10)); });
  };
  EXPECT_EQ(refusal(Plain(7, 10000.0)), "rope_dim: expected an even number, got 7");
  EXPECT_EQ(refusal(Plain(64, 1.0)), "rope.theta: expected more than 1, got 1");
  EXPECT_EQ(refusal(Yarn({.factor = 0.0})), "rope.factor: expected more than 0, got 0");
  EXPECT_EQ(refusal(Yarn({.beta_slow = 0.0})),
            "rope.beta_fast, beta_slow: expected more than 0, got 32 and 0");
  ModelConfig config = Yarn({});
  config.rope.original_context = 0;
  EXPECT_EQ(refusal(config), "rope.original_context: expected more than 1, got 0");
  config = LongRope();
  config.rope.long_factor.pop_back();
  EXPECT_EQ(refusal(config), "rope.long_factor: expected 4 values, got 3");
}

TEST(RopeTableTest, FillRefusesWrongShapesBeforeItWrites) {
  const RopeTable table(Plain(64, 10000.0), TokenCount(10));
  const std::vector<TokenCount> positions(2);
  RedZone<float> cos(64);
  std::vector<float> sin(62);
  EXPECT_EQ(
      ErrorMessage(
          ErrorCode::kInvalidArgument,
          [&] {
            table.Fill(positions, TensorView(cos.data(), {2, 32}), TensorView(sin.data(), {2, 31}));
          }),
      "sin: expected shape [2, 32], got [2, 31]");
  EXPECT_TRUE(cos.Untouched());
}

}  // namespace
}  // namespace quire
