// What tests of the scheduler share: small limits, and what the fake runner draws.
#ifndef QUIRE_ENGINE_SCHEDULER_TESTING_H_
#define QUIRE_ENGINE_SCHEDULER_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "testing/scheduler_harness.h"

namespace quire::testing {

inline constexpr int64_t kVocab = 1000;

struct Shape {
  int32_t page_size = 4;
  int64_t pages = 200;  // without the scratch page
  int64_t context = 300;
  int32_t max_seqs = 8;
  int64_t step_tokens = 64;
};

inline RunnerLimits Limits(const Shape& shape) {
  return {.page_size = PageSize(shape.page_size),
          .pool_pages = PageCount(shape.pages + 1),
          .context = TokenCount(shape.context),
          .max_seqs = shape.max_seqs,
          .max_step_tokens = TokenCount(shape.step_tokens),
          .max_samples = shape.max_seqs,
          .vocab_size = kVocab};
}

// The token that the fake runner draws as the number-th (from 0) of a request's first answer.
inline int32_t TokenNumber(const Request& request, int64_t number, int32_t sample = 0) {
  std::vector<int32_t> history = request.prompt;
  for (int64_t i = 0; i < number; ++i) {
    history.push_back(ExpectedToken(history, sample, kVocab));
  }
  return ExpectedToken(history, sample, kVocab);
}

inline void ExpectFinish(const HeardAnswer& answer, FinishReason reason) {
  ASSERT_TRUE(answer.finish.has_value());
  EXPECT_STREQ(FinishReasonName(*answer.finish), FinishReasonName(reason));
}

}  // namespace quire::testing

#endif  // QUIRE_ENGINE_SCHEDULER_TESTING_H_
