// Random requests at every page size, mode and KV format, with pages for all and with too few.
#include <gtest/gtest.h>

#include <cstdint>
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

class EngineWithAmplePages : public EngineRandom {};
class EngineWithScarcePages : public EngineRandom {};

TEST_P(EngineWithAmplePages, EveryAnswerIsThatOfTheRequestAlone) { RunWorkloads(Pages::kAmple); }

TEST_P(EngineWithScarcePages, EveryAnswerIsThatOfTheRequestAlone) { RunWorkloads(Pages::kScarce); }

INSTANTIATE_TEST_SUITE_P(Models, EngineWithAmplePages,
                         ::testing::ValuesIn(RandomCases(Pages::kAmple)), EngineCaseName);
INSTANTIATE_TEST_SUITE_P(Models, EngineWithScarcePages,
                         ::testing::ValuesIn(RandomCases(Pages::kScarce)), EngineCaseName);

}  // namespace
}  // namespace quire::testing
