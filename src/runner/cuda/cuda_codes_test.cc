// Models of which more is e4m3 than those that there are have: a head, a draft layer, an EAGLE-3 head. Their products
// quantise rows that no norm gave codes, for which a runner has to have memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "device/cuda/cuda.h"
#include "model/config.h"
#include "model/eagle.h"
#include "runner/cuda/test_runner.h"
#include "runner/draft_cases.h"
#include "testing/random_head.h"
#include "testing/step_jobs.h"
#include "testing/weights_as_codes.h"

namespace quire::cuda {
namespace {

using testing::JobReport;
using testing::RandomTokens;
using testing::WeightsAsCodes;

// A fixture's model in e4m3.
class ModelOfCodes {
 public:
  // `widened`: a matrix of which the same numbers are bf16, or none.
  explicit ModelOfCodes(const char* name, const char* widened = "")
      : folder_(kTestData / "hf" / name),
        config_(ReadModelConfig(folder_)),
        source_(*files_, widened) {
    config_.fp8_blocks = BlockQuantization{};
  }

  const ModelConfig& config() const { return config_; }
  std::unique_ptr<ModelRunner> OnDevice(const RunnerOptions& options) {
    return MakeDeviceRunner(config_, source_, options);
  }

 private:
  const std::filesystem::path folder_;
  ModelConfig config_;
  const std::unique_ptr<WeightSource> files_ = OpenWeightFiles(folder_, config_);
  WeightsAsCodes source_;
};

const RunnerOptions kOptions{.page_size = PageSize(16),
                             .context = TokenCount(64),
                             .max_seqs = 1,
                             .max_step_tokens = TokenCount(16),
                             .mode = StepMode::kGraph,
                             .num_threads = 2};
constexpr TreeShape kChain{.steps = 3, .nodes = 4};

// What is drafted behind some tokens.
SeenDraft DraftOf(std::unique_ptr<MeteredRunner> target) {
  std::vector<SeenDraft> seen;
  const auto runner = MakeDrafting(std::move(target), kChain, seen);
  return DraftAnew(*runner, RandomTokens(12, runner->limits().vocab_size, 5), seen);
}

// Which differ in what the head multiplies alone: the last norm's rows as codes, or as they are.
TEST(CudaCodesTest, AHeadOfCodesSaysWhatTheSameHeadInBf16Says) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ModelOfCodes model("v3_dense"), widened("v3_dense", "lm_head.weight");
  const testing::Job job{.prompt = RandomTokens(40, model.config().vocab_size, 4), .chunk = 16};
  const JobReport expected = RunJob(*widened.OnDevice(kOptions), job);
  const JobReport found = RunJob(*model.OnDevice(kOptions), job);
  ASSERT_EQ(found.tokens.size(), expected.tokens.size());
  double squares = 0;
  for (size_t i = 0; i < found.tokens.size(); ++i) {
    squares += std::pow(found.tokens[i].chosen.logprob - expected.tokens[i].chosen.logprob, 2);
  }
  const double rms = std::sqrt(squares / static_cast<double>(found.tokens.size()));
  RecordProperty("rms", fmt::format("{}", rms));
  EXPECT_GT(rms, 0.001);
  EXPECT_LT(rms, 0.1);
}

TEST(CudaCodesTest, ADraftLayerOfCodesDrafts) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ModelOfCodes model("v3_mtp");
  const RunnerOptions options = LayerTargetOptions(kOptions, kChain);
  EXPECT_EQ(std::ssize(DraftOf(model.OnDevice(options)).tokens), kChain.nodes);
}

TEST(CudaCodesTest, AnEagleHeadOfCodesDrafts) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ModelOfCodes model("v3_dense");
  const auto folder = std::filesystem::path(::testing::TempDir()) / "codes_head";
  OpenedHead head = OpenEagleHead(testing::WriteRandomHead(folder, model.config()), model.config());
  EagleConfig config = *head.config;
  config.layer.fp8_blocks = BlockQuantization{};
  head.config = std::make_unique<const EagleConfig>(config);
  const std::unique_ptr<WeightSource> files = std::move(head.weights);
  head.weights = std::make_unique<WeightsAsCodes>(*files);
  RunnerOptions options = LayerTargetOptions(kOptions, kChain);
  options.head = &head;
  EXPECT_EQ(std::ssize(DraftOf(model.OnDevice(options)).tokens), kChain.nodes);
}

}  // namespace
}  // namespace quire::cuda
