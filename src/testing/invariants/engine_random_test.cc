// Random requests at every page size, mode and KV format, with pages for all and with too few.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "testing/invariants/engine_cases.h"
#include "testing/invariants/engine_random.h"

namespace quire::testing {
namespace {

// Every page size with every format; half of them in each mode, the other half with the other pages.
std::vector<EngineCase> RandomCases(Pages pages) {
  std::vector<EngineCase> cases;
  size_t next_mode = pages == Pages::kAmple ? 0 : 1;
  for (const KvFormat format :
       {KvFormat::kLatentBf16, KvFormat::kLatentF32, KvFormat::kLatentFp8}) {
    for (const int32_t page_size : kPageSizes) {
      cases.push_back({{kSmallModel, Weights::kFiles, format}, page_size, kModes[next_mode]});
      next_mode = 1 - next_mode;
    }
    next_mode = 1 - next_mode;
  }
  return cases;
}

// A sparse model with a choice of its own at every page size: keys of the true size in one of the layouts,
// where pages are of whole tiles and most often met; else any model, type of index keys and format of rows.
// A choice may be as short as a single key.
EngineCase DrawSparseCase(int32_t page_size, StepMode mode, Random& random) {
  constexpr KvFormat kFormats[] = {KvFormat::kLatentF32, KvFormat::kLatentBf16,
                                   KvFormat::kLatentFp8};
  constexpr IndexKeyType kTypes[] = {IndexKeyType::kF32, IndexKeyType::kBf16, IndexKeyType::kFp8};
  const bool is_true_size = page_size == 16 || page_size == 64;
  const SparseModel& model = is_true_size
                                 ? kTrueSparseModel
                                 : kSparseModels[random.Between(0, std::ssize(kSparseModels) - 1)];
  ModelCase drawn{model.folder, model.weights, kFormats[random.Between(0, 2)],
                  is_true_size ? IndexKeyType::kFp8 : kTypes[random.Between(0, 2)]};
  if (is_true_size && random.OneIn(2)) drawn.index_layout = IndexKeyLayout::kPreshuffled;
  if (!random.OneIn(3)) drawn.index_top_k = static_cast<int32_t>(random.Between(1, model.top_k));
  return {drawn, page_size, mode};
}

std::vector<EngineCase> RandomSparseCases(Pages pages) {
  Random random(pages == Pages::kAmple ? 1 : 2);
  std::vector<EngineCase> cases;
  size_t next_mode = pages == Pages::kAmple ? 0 : 1;
  for (const int32_t page_size : {1, 16, 61, 64, 128}) {
    cases.push_back(DrawSparseCase(page_size, kModes[next_mode], random));
    next_mode = 1 - next_mode;
  }
  return cases;
}

class EngineWithAmplePages : public EngineRandom {};
class EngineWithScarcePages : public EngineRandom {};

class SparseEngine : public EngineRandom {
 protected:
  SparseEngine() : EngineRandom(25) {}
};
class SparseEngineWithAmplePages : public SparseEngine {};
class SparseEngineWithScarcePages : public SparseEngine {};

TEST_P(EngineWithAmplePages, EveryAnswerIsThatOfTheRequestAlone) { RunWorkloads(Pages::kAmple); }

TEST_P(EngineWithScarcePages, EveryAnswerIsThatOfTheRequestAlone) { RunWorkloads(Pages::kScarce); }

TEST_P(SparseEngineWithAmplePages, EveryAnswerIsThatOfTheRequestAlone) {
  RunWorkloads(Pages::kAmple);
}

TEST_P(SparseEngineWithScarcePages, EveryAnswerIsThatOfTheRequestAlone) {
  RunWorkloads(Pages::kScarce);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineWithAmplePages,
                         ::testing::ValuesIn(RandomCases(Pages::kAmple)), EngineCaseName);
INSTANTIATE_TEST_SUITE_P(Models, EngineWithScarcePages,
                         ::testing::ValuesIn(RandomCases(Pages::kScarce)), EngineCaseName);
INSTANTIATE_TEST_SUITE_P(Models, SparseEngineWithAmplePages,
                         ::testing::ValuesIn(RandomSparseCases(Pages::kAmple)), EngineCaseName);
INSTANTIATE_TEST_SUITE_P(Models, SparseEngineWithScarcePages,
                         ::testing::ValuesIn(RandomSparseCases(Pages::kScarce)), EngineCaseName);

}  // namespace
}  // namespace quire::testing
