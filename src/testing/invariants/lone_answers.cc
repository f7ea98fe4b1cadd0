#include "testing/invariants/lone_answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/error.h"

namespace quire::testing {
namespace {

// All that an answer depends on; a greedy one does not depend on the seed.
std::string KeyOf(const Request& request, int32_t sample, TokenCount context) {
  const SamplingParams& sampling = request.sampling;
  std::string biases;
  for (const LogitBias& bias : request.logit_bias) {
    biases += fmt::format("{}:{},", bias.token, bias.bias);
  }
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
                     fmt::join(request.prompt, ","), fmt::join(request.stop_tokens, ","), biases,
                     request.min_tokens, request.max_tokens, context.raw(), sampling.temperature,
                     sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
                     sampling.frequency_penalty, sampling.presence_penalty, sampling.top_logprobs,
                     sampling.temperature > 0 ? sampling.seed : 0,
                     sampling.temperature > 0 ? sample : 0);
}

// Those of the request, and before min_tokens one that no token comes back from for each stop token.
std::vector<LogitBias> BiasesOf(const Request& request, int64_t num_output) {
  std::vector<LogitBias> biases = request.logit_bias;
  if (num_output >= request.min_tokens) return biases;
  for (const int32_t token : request.stop_tokens) biases.push_back({.token = token, .bias = -1e9f});
  return biases;
}

}  // namespace

LoneAnswers::LoneAnswers(const ModelCase& model)
    : runner_(MakeTestRunner(model, {.page_size = PageSize(64),
                                     .max_seqs = 1,
                                     .max_step_tokens = TokenCount(kTestContext),
                                     .mode = StepMode::kEager})) {
  for (int64_t i = 1; i < runner_->limits().pool_pages.raw(); ++i) pages_.push_back(PageId(i));
}

const LoneAnswer& LoneAnswers::Answer(const Request& request, int32_t sample, TokenCount context) {
  const std::string key = KeyOf(request, sample, context);
  const auto found = answers_.find(key);
  if (found != answers_.end()) return found->second;
  return answers_.emplace(key, Compute(request, sample, context)).first->second;
}

LoneAnswer LoneAnswers::Compute(const Request& request, int32_t sample, TokenCount context) {
  LoneAnswer answer;
  std::vector<int32_t>& output = answer.report.output;
  std::vector<int32_t> tokens = request.prompt;
  for (size_t computed = 0; answer.finish == FinishReason::kNone;) {
    const std::vector<LogitBias> biases = BiasesOf(request, std::ssize(output));
    SamplingParams sampling = request.sampling;
    sampling.logit_bias = biases;
    const StepToken token = Step({.tokens = std::span(tokens).subspan(computed),
                                  .position = TokenCount(computed),
                                  .pages = pages_,
                                  .want = Want::kNextToken,
                                  .sampling = sampling,
                                  .first_sample = sample,
                                  .prompt = request.prompt,
                                  .output = output});
    computed = tokens.size();
    tokens.push_back(token.chosen.token);
    output.push_back(token.chosen.token);
    answer.report.tokens.push_back({token.chosen, {token.top.begin(), token.top.end()}});
    if (std::ssize(output) > request.min_tokens &&
        std::ranges::count(request.stop_tokens, token.chosen.token) > 0) {
      answer.finish = FinishReason::kStop;
    } else if (std::ssize(output) == request.max_tokens || TokenCount(tokens.size()) == context) {
      answer.finish = FinishReason::kLength;
    }
  }
  return answer;
}

StepToken LoneAnswers::Step(StepSequence seq) {
  return runner_->Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens[0];
}

const JobReport& LoneAnswers::PromptScores(const Request& request) {
  const std::string key =
      fmt::format("{} {}", fmt::join(request.prompt, ","), request.sampling.top_logprobs);
  const auto found = scores_.find(key);
  if (found != scores_.end()) return found->second;
  JobReport report;
  if (request.prompt.size() > 1) {
    const StepSequence seq{.tokens = std::span(request.prompt).first(request.prompt.size() - 1),
                           .pages = pages_,
                           .want = Want::kScores,
                           .sampling = request.sampling,
                           .next_token = request.prompt.back()};
    for (const StepToken& token :
         runner_->Step({.sequences = {&seq, 1}}).sequences[0].answers[0].tokens) {
      report.tokens.push_back({token.chosen, {token.top.begin(), token.top.end()}});
    }
  }
  return scores_.emplace(key, std::move(report)).first->second;
}

}  // namespace quire::testing
