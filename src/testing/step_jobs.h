// Sequences run through a Runner, alone or together, with everything it said about them.
#ifndef QUIRE_TESTING_STEP_JOBS_H_
#define QUIRE_TESTING_STEP_JOBS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "runner/cpu_runner.h"
#include "runner/runner_options.h"
#include "step/step.h"

namespace quire::testing {

// A runner of the model in `folder`, or of its config with dummy weights.
enum class Weights { kFiles, kDummy };
std::unique_ptr<CpuRunner> MakeRunner(const std::filesystem::path& folder,
                                      const RunnerOptions& options,
                                      Weights weights = Weights::kFiles);

// A prompt in chunks, then tokens drawn one at a time.
struct Job {
  std::vector<int32_t> prompt;
  int64_t chunk = 1 << 20;  // prompt tokens per step; the last one is a step of its own
  int64_t num_output = 0;   // tokens to draw behind the prompt
  int64_t first_step = 0;   // when it joins the others
  SamplingParams sampling{.temperature = 0, .top_logprobs = 5};
  int32_t sample = 0;
};

// What was said of one token: the one behind position p of the sequence.
struct TokenReport {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

struct JobReport {
  // One per token of the prompt but the last, with the log-probability of the next one given; then
  // one per token drawn.
  std::vector<TokenReport> tokens;
  std::vector<int32_t> output;
  int64_t num_steps = 0;
};

// Called after every step.
using StepObserver = std::function<void()>;

// Runs all jobs to their end, as many in a step as have joined. Pages are dealt at random.
std::vector<JobReport> RunJobs(Runner& runner, std::span<const Job> jobs, uint64_t page_seed = 1,
                               const StepObserver& observer = {});
inline JobReport RunJob(Runner& runner, const Job& job, uint64_t page_seed = 1,
                        const StepObserver& observer = {}) {
  return RunJobs(runner, std::span(&job, 1), page_seed, observer).front();
}

// "" if both say the same, bit for bit; otherwise the first difference.
std::string Difference(const JobReport& a, const JobReport& b);

// n tokens below vocab_size from `seed`.
std::vector<int32_t> RandomTokens(int64_t n, int64_t vocab_size, uint64_t seed);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_STEP_JOBS_H_
