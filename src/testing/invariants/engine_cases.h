// The engine over real models, with every page size: what the tests of it share.
#ifndef QUIRE_TESTING_INVARIANTS_ENGINE_CASES_H_
#define QUIRE_TESTING_INVARIANTS_ENGINE_CASES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "runner/metered_runner.h"
#include "testing/invariants/lone_answers.h"
#include "testing/invariants/serving_loop.h"
#include "testing/invariants/test_runner.h"
#include "testing/step_jobs.h"

namespace quire::testing {

struct EngineCase {
  ModelCase model;
  int32_t page_size;
  StepMode mode;

  std::string Name() const {
    return model.Name() + "_page" + std::to_string(page_size) +
           (mode == StepMode::kEager ? "_eager" : "_graph");
  }
};

inline std::string EngineCaseName(const ::testing::TestParamInfo<EngineCase>& info) {
  return info.param.Name();
}

// Small and with experts in groups; and rows of the true size.
inline constexpr const char* kSmallModel = "hf/v3_groups";
inline constexpr const char* kTrueModel = "dummy/true_geometry";

inline constexpr int32_t kPageSizes[] = {1, 16, 64, 128};
inline constexpr StepMode kModes[] = {StepMode::kEager, StepMode::kGraph};

// Every page size in both modes.
inline std::vector<EngineCase> SmallCases() {
  std::vector<EngineCase> cases;
  for (const int32_t page_size : kPageSizes) {
    for (const StepMode mode : kModes) {
      cases.push_back({{kSmallModel, Weights::kFiles, KvFormat::kLatentBf16}, page_size, mode});
    }
  }
  return cases;
}

// Models with sparse attention, whose choices are far shorter than the contexts here, but for that of
// kWideModel, which is longer than all of them. Layers share in the first two, and by a frequency in the
// fourth.
struct SparseModel {
  const char* folder;
  Weights weights;
  int32_t top_k;  // the model's own
};
inline constexpr SparseModel kSharingModel{"hf/glm_dsa_types", Weights::kFiles, 20};
inline constexpr SparseModel kTrueSparseModel{"dummy/sparse", Weights::kDummy, 40};
inline constexpr SparseModel kWideModel{"hf/v32_wide", Weights::kFiles, 512};
inline constexpr SparseModel kSparseModels[] = {kSharingModel,
                                                kTrueSparseModel,
                                                kWideModel,
                                                {"hf/glm_dsa_frequency", Weights::kFiles, 20},
                                                {"hf/v32", Weights::kFiles, 24}};

inline constexpr ModelCase kSharingCase{kSharingModel.folder, kSharingModel.weights,
                                        KvFormat::kLatentBf16};
inline constexpr ModelCase kShuffledCase{kTrueSparseModel.folder, kTrueSparseModel.weights,
                                         KvFormat::kLatentBf16, IndexKeyType::kFp8,
                                         IndexKeyLayout::kPreshuffled};

// Every type and layout of index keys, and every page size. Index keys move with their pages, in both
// layouts: preshuffled ones have pages of whole tiles.
inline std::vector<EngineCase> SparseCases() {
  const ModelCase plain{kTrueSparseModel.folder, kTrueSparseModel.weights, KvFormat::kLatentFp8};
  ModelCase bf16_keys = kSharingCase;
  bf16_keys.index_type = IndexKeyType::kBf16;
  const ModelCase wide{kWideModel.folder, kWideModel.weights, KvFormat::kLatentBf16,
                       IndexKeyType::kF32};
  return {{plain, 1, StepMode::kEager},          {plain, 61, StepMode::kGraph},
          {bf16_keys, 128, StepMode::kEager},    {kShuffledCase, 64, StepMode::kEager},
          {kShuffledCase, 16, StepMode::kGraph}, {wide, 16, StepMode::kGraph}};
}

// And the true size, and sparse models.
inline std::vector<EngineCase> EngineCases() {
  std::vector<EngineCase> cases = SmallCases();
  for (const KvFormat format : TrueSizeFormats()) {
    cases.push_back({{kTrueModel, Weights::kDummy, format}, 64, StepMode::kGraph});
  }
  for (const EngineCase& sparse : SparseCases()) cases.push_back(sparse);
  return cases;
}

class EngineCaseTest : public ::testing::TestWithParam<EngineCase> {
 protected:
  static constexpr int32_t kMaxSeqs = 8;

  // Pages for 6000 tokens, and 200 more: an ended sequence keeps a last page that is partly filled.
  explicit EngineCaseTest(int32_t num_threads = 1)
      : lone_(Lone(GetParam().model)),
        runner_(MakeTestRunner(GetParam().model, CaseOptions(num_threads))) {}

  static RunnerOptions CaseOptions(int32_t num_threads) {
    return {.page_size = PageSize(GetParam().page_size),
            .max_seqs = kMaxSeqs,
            .max_step_tokens = TokenCount(kTestContext),
            .pool_tokens = TokenCount(6000 + 200 * GetParam().page_size),
            .mode = GetParam().mode,
            .checks = StepChecks::kPoison,
            .num_threads = num_threads};
  }

  int64_t page() const { return GetParam().page_size; }
  // Copies that a hit of this many tokens takes.
  int64_t CopiesFor(int64_t cached) const { return cached % page() == 0 ? 0 : 1; }
  const RunnerLimits& limits() const { return runner_->limits(); }
  // Pages for one sequence of `context` tokens and for `more` tokens of others.
  RunnerLimits ScarceLimits(int64_t context, int64_t more) const {
    RunnerLimits limits = runner_->limits();
    limits.context = TokenCount(context);
    limits.pool_pages = limits.page_size.PagesFor(TokenCount(context)) +
                        limits.page_size.PagesFor(TokenCount(more)) + PageCount(1);
    return limits;
  }

  ServingLoop MakeLoop(SchedulerOptions options = {}) {
    return ServingLoop(*runner_, lone_, limits(), Pages::kAmple, options);
  }

  std::vector<int32_t> Tokens(int64_t n, uint64_t seed) const {
    return RandomTokens(n, limits().vocab_size, seed);
  }
  // The first `shared` tokens of `prompt`, then others: the first of them is not prompt[shared].
  std::vector<int32_t> Diverge(const std::vector<int32_t>& prompt, int64_t shared, int64_t more,
                               uint64_t seed) const {
    std::vector<int32_t> tokens(prompt.begin(), prompt.begin() + shared);
    std::vector<int32_t> tail = Tokens(more, seed);
    if (std::ssize(prompt) > shared && tail[0] == prompt[static_cast<size_t>(shared)]) {
      tail[0] = (tail[0] + 1) % static_cast<int32_t>(limits().vocab_size);
    }
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    return tokens;
  }
  static Request Greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
    return {.prompt = std::move(prompt),
            .sampling = {.temperature = 0, .top_logprobs = 5},
            .max_tokens = max_tokens};
  }

  LoneAnswers& lone_;
  std::unique_ptr<MeteredRunner> runner_;

 private:
  // Of plain index keys, whatever layout is under test.
  static LoneAnswers& Lone(ModelCase model) {
    if (model.index_layout == IndexKeyLayout::kPreshuffled) {
      model.index_layout = IndexKeyLayout::kPlain;
    }
    auto& lone = lone_answers_[model.Name()];
    if (!lone) lone = std::make_unique<LoneAnswers>(model);
    return *lone;
  }
  // Computed once for all cases of a model.
  static inline std::map<std::string, std::unique_ptr<LoneAnswers>> lone_answers_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_ENGINE_CASES_H_
