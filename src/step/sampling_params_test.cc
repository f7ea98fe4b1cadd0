#include "step/sampling_params.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "testing/error_message.h"

namespace quire {
namespace {

constexpr int64_t kVocab = 1000;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string Refusal(const SamplingParams& params, int64_t vocab_size = kVocab) {
  return testing::ErrorMessage(ErrorCode::kInvalidArgument, [&] { Validate(params, vocab_size); });
}

TEST(SamplingParamsTest, TheDefaultsAndTheEndsOfEveryRangeAreAccepted) {
  const std::vector<LogitBias> biases = {{.token = 0, .bias = -100}, {.token = 999, .bias = 100}};
  Validate({}, 1);
  Validate({.temperature = 0,
            .top_k = 0,
            .top_p = 1,
            .min_p = 0,
            .frequency_penalty = -2,
            .presence_penalty = -2,
            .logit_bias = biases,
            .top_logprobs = kMaxTopLogprobs},
           kVocab);
  Validate({.temperature = std::numeric_limits<float>::max(),
            .top_k = std::numeric_limits<int32_t>::max(),
            .top_p = std::numeric_limits<float>::min(),
            .min_p = 1,
            .repetition_penalty = std::numeric_limits<float>::min(),
            .frequency_penalty = 2,
            .presence_penalty = 2},
           kVocab);
}

TEST(SamplingParamsTest, EveryRefusalNamesTheFieldItsRangeAndTheValue) {
  EXPECT_EQ(Refusal({.temperature = -0.5f}), "temperature: expected >= 0 and finite, got -0.5");
  EXPECT_EQ(Refusal({.temperature = kInfinity}), "temperature: expected >= 0 and finite, got inf");
  EXPECT_EQ(Refusal({.top_k = -1}), "top_k: expected >= 0 (0: all tokens), got -1");
  EXPECT_EQ(Refusal({.top_p = 0}), "top_p: expected above 0 and up to 1, got 0");
  EXPECT_EQ(Refusal({.top_p = 1.5f}), "top_p: expected above 0 and up to 1, got 1.5");
  EXPECT_EQ(Refusal({.min_p = -0.25f}), "min_p: expected 0..1, got -0.25");
  EXPECT_EQ(Refusal({.min_p = 1.25f}), "min_p: expected 0..1, got 1.25");
  EXPECT_EQ(Refusal({.repetition_penalty = 0}),
            "repetition_penalty: expected above 0 and finite, got 0");
  EXPECT_EQ(Refusal({.repetition_penalty = kInfinity}),
            "repetition_penalty: expected above 0 and finite, got inf");
  EXPECT_EQ(Refusal({.frequency_penalty = 2.5f}), "frequency_penalty: expected -2..2, got 2.5");
  EXPECT_EQ(Refusal({.presence_penalty = -2.5f}), "presence_penalty: expected -2..2, got -2.5");
  EXPECT_EQ(Refusal({.top_logprobs = -1}), "top_logprobs: expected 0..20, got -1");
  EXPECT_EQ(Refusal({.top_logprobs = 21}), "top_logprobs: expected 0..20, got 21");
  EXPECT_EQ(Refusal({.top_logprobs = 8}, 7), "top_logprobs: expected 0..7, got 8");
  EXPECT_EQ(Refusal({}, 0), "vocab_size: expected >= 1, got 0");
}

TEST(SamplingParamsTest, NaNIsInNoRange) {
  EXPECT_EQ(Refusal({.temperature = kNaN}), "temperature: expected >= 0 and finite, got nan");
  EXPECT_EQ(Refusal({.top_p = kNaN}), "top_p: expected above 0 and up to 1, got nan");
  EXPECT_EQ(Refusal({.min_p = kNaN}), "min_p: expected 0..1, got nan");
  EXPECT_EQ(Refusal({.repetition_penalty = kNaN}),
            "repetition_penalty: expected above 0 and finite, got nan");
  EXPECT_EQ(Refusal({.frequency_penalty = kNaN}), "frequency_penalty: expected -2..2, got nan");
  EXPECT_EQ(Refusal({.presence_penalty = kNaN}), "presence_penalty: expected -2..2, got nan");
}

TEST(SamplingParamsTest, BiasesAreThoseOfARequestAndOneForEveryTokenThatEndsItsAnswer) {
  EXPECT_EQ(kMaxStepBiases, kMaxRequestBiases + kMaxRequestStops + kMaxModelStops);
  std::vector<LogitBias> biases(kMaxStepBiases, LogitBias{.token = 3, .bias = 1});
  Validate({.logit_bias = biases}, 1000);
  biases.push_back({.token = 3, .bias = 1});
  EXPECT_EQ(Refusal({.logit_bias = biases}), "logit_bias: expected at most 2112 biases, got 2113");
}

TEST(SamplingParamsTest, ABiasMustBeFiniteAndOfATokenOfTheVocabulary) {
  std::vector<LogitBias> biases = {{.token = 3, .bias = 1}, {.token = 1000, .bias = 1}};
  EXPECT_EQ(Refusal({.logit_bias = biases}), "logit_bias[1].token: expected 0..999, got 1000");
  biases[1].token = -1;
  EXPECT_EQ(Refusal({.logit_bias = biases}), "logit_bias[1].token: expected 0..999, got -1");
  biases[1] = {.token = 5, .bias = -kInfinity};
  EXPECT_EQ(Refusal({.logit_bias = biases}),
            "logit_bias[1].bias: expected a finite number for token 5, got -inf");
  biases[1] = {.token = 5, .bias = kNaN};
  EXPECT_EQ(Refusal({.logit_bias = biases}),
            "logit_bias[1].bias: expected a finite number for token 5, got nan");
}

}  // namespace
}  // namespace quire
