#include "cli/loadgen/load_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "testing/splitmix64.h"

namespace quire::cli {
namespace {

using quire::testing::SplitMix64;

// The definition, said in another way: sample i of n stands at i / (n - 1).
double NaivePercentile(std::vector<double> samples, double p) {
  std::sort(samples.begin(), samples.end());
  for (size_t i = 0; i + 1 < samples.size(); ++i) {
    const double here = static_cast<double>(i) / static_cast<double>(samples.size() - 1);
    const double next = static_cast<double>(i + 1) / static_cast<double>(samples.size() - 1);
    if (p <= next) return std::lerp(samples[i], samples[i + 1], (p - here) / (next - here));
  }
  return samples.back();
}

TEST(LoadStatsTest, PercentilesAgreeWithTheDefinition) {
  for (size_t n = 1; n < 60; ++n) {
    std::vector<double> samples;
    for (size_t i = 0; i < n; ++i) {
      samples.push_back(static_cast<double>(SplitMix64(100 * n + i) % 1000));
    }
    const Distribution distribution = MakeDistribution(samples);
    for (const double percent : {0.0, 1.0, 50.0, 90.0, 95.0, 99.0, 100.0}) {
      EXPECT_NEAR(distribution.P(percent), NaivePercentile(samples, percent / 100), 1e-9)
          << n << " samples, p" << percent;
    }
    double sum = 0;
    for (const double sample : samples) sum += sample;
    EXPECT_NEAR(distribution.mean, sum / static_cast<double>(n), 1e-9);
  }
  EXPECT_EQ(MakeDistribution({}).P(50), 0);
  EXPECT_EQ(MakeDistribution({}).mean, 0);
  EXPECT_EQ(MakeDistribution({3, 1}).P(50), 2);
}

RequestRecord Ok(double begin, std::vector<double> deltas, double end, int64_t tokens) {
  RequestRecord record{.begin = begin, .end = end, .deltas = std::move(deltas)};
  record.outcome = Outcome::kOk;
  record.prompt_tokens = 100;
  record.cached_tokens = 25;
  record.output_tokens = tokens;
  return record;
}

RequestRecord Failed(Outcome outcome, int status, const char* message) {
  RequestRecord record{.begin = 0, .end = 9, .deltas = {1, 2, 3}};
  record.output_tokens = 1000;
  record.outcome = outcome;
  record.http_status = status;
  record.message = message;
  return record;
}

TEST(LoadStatsTest, OnlyWholeAnswersCountAsSuccess) {
  const LoadResult result{
      .records = {Ok(1, {2, 2.5, 3.5}, 4, 5), Ok(2, {5}, 5, 1),
                  Failed(Outcome::kHttpStatus, 503, "first"),
                  Failed(Outcome::kHttpStatus, 503, "second"),
                  Failed(Outcome::kTimeout, 200, "slow"), Failed(Outcome::kUnfinished, 0, "")},
      .seconds = 10};
  const LoadSummary summary = Summarise(result);
  EXPECT_EQ(summary.num_ok, 2);
  EXPECT_EQ(summary.num_failed(), 3);
  EXPECT_EQ(summary.num_unfinished, 1);
  EXPECT_EQ(summary.failures, (std::map<std::string, int64_t>{{"http 503", 2}, {"timeout", 1}}));
  EXPECT_EQ(summary.first_message.at("http 503"), "first");
  EXPECT_EQ(summary.ttft.sorted, (std::vector<double>{1, 3}));
  EXPECT_EQ(summary.itl.sorted, (std::vector<double>{0.5, 1}));
  EXPECT_EQ(summary.tpot.sorted, (std::vector<double>{0.5}));  // (4 - 2) / 4; one token has none
  EXPECT_EQ(summary.e2e.sorted, (std::vector<double>{3, 3}));
  EXPECT_EQ(summary.output_tokens, 6);
  EXPECT_EQ(summary.requests_per_s, 0.2);
  EXPECT_EQ(summary.prompt_tokens_per_s, 20);
  EXPECT_EQ(summary.output_tokens_per_s, 0.6);
  EXPECT_EQ(summary.cached_share(), 0.25);
  EXPECT_EQ(summary.num_without_usage, 0);
}

TEST(LoadStatsTest, NothingIsNoDivisionByZero) {
  const LoadSummary summary = Summarise({});
  EXPECT_EQ(summary.requests_per_s, 0);
  EXPECT_EQ(summary.cached_share(), 0);
}

}  // namespace
}  // namespace quire::cli
