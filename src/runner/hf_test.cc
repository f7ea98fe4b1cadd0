// Parity with transformers in float32, on small random models of each family. The folders under
// testdata/hf are made by tools/make_hf_fixtures.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::Job;
using testing::JobReport;
using testing::MakeRunner;
using testing::RunJob;

std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_HF_FIXTURES)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

struct Expected {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;  // of tokens[1..]
  std::vector<int32_t> greedy;
};

Expected ReadExpected(const std::filesystem::path& folder) {
  const Json json = ReadJsonFile(folder / "expected.json");
  Expected expected;
  json.at("tokens").get_to(expected.tokens);
  json.at("greedy").get_to(expected.greedy);
  for (const Json& logprob : json.at("logprobs")) {
    if (!logprob.is_null()) expected.logprobs.push_back(logprob);
  }
  return expected;
}

class HfTest : public ::testing::TestWithParam<std::string> {};

// What transformers rounds differently from us in f32: sums of a few hundred products of unit size.
constexpr double kTolerance = 1e-4;

void ExpectParity(const std::filesystem::path& folder, int64_t page_size, int64_t chunk) {
  const Expected expected = ReadExpected(folder);
  ASSERT_EQ(expected.greedy.size(), 64u);
  ASSERT_EQ(expected.logprobs.size() + 1, expected.tokens.size());
  const auto runner = MakeRunner(folder, {.page_size = PageSize(page_size),
                                          .max_seqs = 1,
                                          .max_step_tokens = TokenCount(64),
                                          .kv_format = KvFormat::kLatentF32,
                                          .index_type = IndexKeyType::kF32,
                                          .num_threads = 2});
  const JobReport report =
      RunJob(*runner, {.prompt = expected.tokens, .chunk = chunk, .num_output = 64});
  EXPECT_GT(report.num_steps, 65) << "the prompt was to come in several chunks";
  double worst = 0;
  for (size_t i = 0; i < expected.logprobs.size(); ++i) {
    const double error = std::abs(report.tokens[i].chosen.logprob - expected.logprobs[i]);
    worst = std::max(worst, error);
    ASSERT_LT(error, kTolerance) << "token " << i + 1;
  }
  ::testing::Test::RecordProperty("worst_error", std::to_string(worst));
  EXPECT_EQ(report.output, expected.greedy);
}

TEST_P(HfTest, LogProbabilitiesAndGreedyTokensAreThoseOfTransformers) {
  const std::filesystem::path folder = std::filesystem::path(QUIRE_HF_FIXTURES) / GetParam();
  ExpectParity(folder, 1, 7);
  ExpectParity(folder, 16, 13);
  ExpectParity(folder, 64, 32);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HfTest, ::testing::ValuesIn(Fixtures()),
                         [](const auto& name) { return name.param; });

// The list is read from the folder: an empty one would pass without a test.
TEST(HfFixtures, CoverEveryFamily) {
  std::vector<std::string> families;
  for (const std::string& name : Fixtures()) {
    const Json config =
        ReadJsonFile(std::filesystem::path(QUIRE_HF_FIXTURES) / name / "config.json");
    families.push_back(config.at("model_type"));
  }
  for (const char* family : {"deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"}) {
    EXPECT_GE(std::ranges::count(families, family), 2) << family;
  }
  for (const char* family : {"deepseek_v32", "glm_moe_dsa"}) {
    EXPECT_GE(std::ranges::count(families, family), 3) << family;
  }
  // Deepseek_v3 in all but a few particulars.
  for (const char* family : {"axk1", "kimi_k2", "youtu"}) {
    EXPECT_GE(std::ranges::count(families, family), 1) << family;
  }
}

}  // namespace
}  // namespace quire
