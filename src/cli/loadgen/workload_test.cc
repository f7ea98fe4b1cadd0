#include "cli/loadgen/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "testing/error_message.h"

namespace quire::cli {
namespace {

using quire::testing::ErrorMessage;

int64_t CountWords(const std::string& text) {
  return text.empty() ? 0 : 1 + std::count(text.begin(), text.end(), ' ');
}

std::vector<double> DrawMany(const LengthDistribution& lengths, int count) {
  Random random = MakeRandom(7, 0, 0);
  std::vector<double> drawn;
  for (int i = 0; i < count; ++i) {
    drawn.push_back(static_cast<double>(DrawLength(lengths, random)));
  }
  return drawn;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(WorkloadTest, LengthsReadBackAsTheyAreWritten) {
  for (const char* text : {"1", "256", "100-500", "lognormal:300,0.5", "lognormal:300,1.5,4096"}) {
    EXPECT_EQ(ToText(ParseLength("--input-len", text)), text);
  }
}

TEST(WorkloadTest, LengthsThatCannotBeAreRefused) {
  for (const char* text : {"", "0", "-5", "5-", "500-100", "1,2", "x", "1-2-3",
                           "lognormal:", "lognormal:5", "lognormal:0,1", "lognormal:5,6",
                           "lognormal:5,1,4", "lognormal:1,2,3,4", "lognormal:5,x", "normal:5,1"}) {
    const std::string message =
        ErrorMessage(ErrorCode::kInvalidArgument, [&] { ParseLength("--input-len", text); });
    EXPECT_NE(message.find("--input-len: expected"), std::string::npos) << text << ": " << message;
  }
}

TEST(WorkloadTest, UniformLengthsReachBothEndsAndNothingElse) {
  const std::vector<double> drawn = DrawMany(ParseLength("", "3-6"), 4000);
  EXPECT_EQ(std::set<double>(drawn.begin(), drawn.end()), (std::set<double>{3, 4, 5, 6}));
  EXPECT_NEAR(Mean(drawn), 4.5, 0.1);  // five standard errors: 5 * 1.12 / sqrt(4000)
}

TEST(WorkloadTest, LognormalLengthsHaveTheMeanAndTheSigmaAskedFor) {
  const std::vector<double> drawn = DrawMany(ParseLength("", "lognormal:1000,0.5"), 20000);
  EXPECT_NEAR(Mean(drawn), 1000, 19);  // five standard errors: the deviation is 533
  std::vector<double> logs;
  for (const double length : drawn) logs.push_back(std::log(length));
  const double mean = Mean(logs);
  double squares = 0;
  for (const double log : logs) squares += (log - mean) * (log - mean);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(logs.size())), 0.5, 0.013);
}

TEST(WorkloadTest, LognormalLengthsAreCut) {
  const std::vector<double> drawn = DrawMany(ParseLength("", "lognormal:4,2,10"), 2000);
  EXPECT_EQ(*std::min_element(drawn.begin(), drawn.end()), 1);
  EXPECT_EQ(*std::max_element(drawn.begin(), drawn.end()), 10);
}

TEST(WorkloadTest, GapsAreExponential) {
  Random random = MakeRandom(7, 0, kArrivals);
  std::vector<double> gaps;
  for (int i = 0; i < 20000; ++i) gaps.push_back(DrawGap(4, random));
  EXPECT_GE(*std::min_element(gaps.begin(), gaps.end()), 0);
  EXPECT_NEAR(Mean(gaps), 0.25, 0.009);  // five standard errors
  // Half of them are below the median ln(2) / rate.
  const auto below =
      std::count_if(gaps.begin(), gaps.end(), [](double gap) { return gap < std::log(2.0) / 4; });
  EXPECT_NEAR(static_cast<double>(below), 10000, 354);  // five standard deviations
}

TEST(WorkloadTest, TheSameSeedAndRunGiveTheSameRequests) {
  const WorkloadOptions options{.input = ParseLength("", "5-50"), .output = ParseLength("", "1-9")};
  Workload first(options, 3), again(options, 3), other(options, 4);
  for (int i = 0; i < 20; ++i) {
    const PlannedRequest a = first.Next(), b = again.Next(), c = other.Next();
    EXPECT_EQ(a.prompt, b.prompt);
    EXPECT_EQ(a.max_tokens, b.max_tokens);
    EXPECT_NE(a.prompt, c.prompt);
    EXPECT_EQ(CountWords(a.prompt), a.input_words);
  }
}

TEST(WorkloadTest, PrefixesComeInTurnInFrontOfThePrompt) {
  Workload workload({.input = ParseLength("", "10"),
                     .output = ParseLength("", "4"),
                     .shared_prefix = 30,
                     .num_prefixes = 3},
                    0);
  std::vector<std::string> prefixes;
  std::set<std::string> prompts;
  for (int i = 0; i < 9; ++i) {
    const PlannedRequest request = workload.Next();
    EXPECT_EQ(request.input_words, 40);
    EXPECT_EQ(CountWords(request.prompt), 40);
    size_t end = 0;
    for (int word = 0; word < 30; ++word) end = request.prompt.find(' ', end) + 1;
    prefixes.push_back(request.prompt.substr(0, end));
    prompts.insert(request.prompt);
  }
  EXPECT_EQ(std::set<std::string>(prefixes.begin(), prefixes.end()).size(), 3u);
  EXPECT_EQ(prompts.size(), 9u);
  for (size_t i = 3; i < prefixes.size(); ++i) EXPECT_EQ(prefixes[i], prefixes[i - 3]);
}

}  // namespace
}  // namespace quire::cli
