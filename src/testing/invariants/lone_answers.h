// What a request is answered by a runner that does nothing else: the whole prompt in one step, then a
// token a step, in pages that no other sequence ever had. No scheduler, no cache, no batch: what an
// engine answers is held against this, bit for bit.
#ifndef QUIRE_TESTING_INVARIANTS_LONE_ANSWERS_H_
#define QUIRE_TESTING_INVARIANTS_LONE_ANSWERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "runner/metered_runner.h"
#include "testing/invariants/test_runner.h"
#include "testing/step_jobs.h"

namespace quire::testing {

struct LoneAnswer {
  JobReport report;  // of the tokens drawn, a stop token included
  FinishReason finish = FinishReason::kNone;
};

class LoneAnswers {
 public:
  explicit LoneAnswers(const ModelCase& model);

  int64_t vocab_size() const { return runner_->limits().vocab_size; }

  // Sample number `sample` of the request, if it may go on to `context` tokens. Computed once.
  const LoneAnswer& Answer(const Request& request, int32_t sample, TokenCount context);
  // Of the prompt's own tokens, but for the first.
  const JobReport& PromptScores(const Request& request);

 private:
  LoneAnswer Compute(const Request& request, int32_t sample, TokenCount context);
  StepToken Step(StepSequence seq);

  std::unique_ptr<MeteredRunner> runner_;
  std::vector<PageId> pages_;  // those of the whole pool, in order
  std::map<std::string, LoneAnswer> answers_;
  std::map<std::string, JobReport> scores_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_LONE_ANSWERS_H_
