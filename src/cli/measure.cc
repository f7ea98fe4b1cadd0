#include "cli/measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <vector>

#include "cache/page_list.h"
#include "cli/load.h"
#include "model/cost.h"

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPlanPart = kNumForwardParts;
constexpr size_t kSamplingPart = kNumForwardParts + 1;
constexpr size_t kOtherPart = kNumForwardParts + 2;

// Where the time of the last step went.
std::array<double, kNumStepParts> PartSeconds(const CpuRunner& runner, double seconds) {
  std::array<double, kNumStepParts> parts{};
  for (size_t i = 0; i < kNumForwardParts; ++i) {
    parts[i] = runner.part_times().seconds(static_cast<ForwardPart>(i));
  }
  parts[kPlanPart] = runner.last_step().plan_seconds;
  parts[kSamplingPart] = runner.last_step().sample_seconds;
  parts[kOtherPart] = std::max(0.0, seconds - std::accumulate(parts.begin(), parts.end(), 0.0));
  return parts;
}

// Adds what a step of this batch must read and compute.
void AddWork(const CpuRunner& runner, const StepBatch& batch, Measurement& sum) {
  const ModelConfig& config = runner.model().config();
  int64_t num_tokens = 0;
  for (const StepSequence& seq : batch.sequences) {
    const int64_t q_len = std::ssize(seq.tokens);
    const int64_t kv_len = seq.position.raw() + q_len;
    // Token i sees position + i + 1 keys.
    const TokenCount visible = seq.position * q_len + TokenCount(q_len * (q_len + 1) / 2);
    sum.flops += static_cast<double>(q_len) * LayerFlopsPerToken(config);
    sum.flops += AttentionFlopsPerToken(config, visible);
    sum.kv_bytes += static_cast<double>((runner.memory_plan().kv_per_token * kv_len).raw());
    num_tokens += q_len;
  }
  sum.flops += runner.last_step().logit_rows * HeadFlopsPerRow(config);
  sum.weight_bytes +=
      static_cast<double>(WeightBytesPerStep(config, runner.model().weights(), num_tokens).raw());
  sum.tokens += num_tokens;
  ++sum.steps;
}

// A prompt, as far as it has been computed.
struct Prompt {
  std::vector<int32_t> tokens;
  std::span<const PageId> pages;
  size_t done = 0;
};

// The next step: chunks of the prompts in their order, up to max_tokens together.
std::vector<StepSequence> NextChunks(std::span<Prompt> prompts, size_t max_tokens) {
  std::vector<StepSequence> chunks;
  for (Prompt& prompt : prompts) {
    const size_t count = std::min(max_tokens, prompt.tokens.size() - prompt.done);
    if (count == 0) continue;
    chunks.push_back({.tokens = std::span(prompt.tokens).subspan(prompt.done, count),
                      .position = TokenCount(prompt.done),
                      .pages = prompt.pages,
                      .sampling = {.temperature = 0}});
    prompt.done += count;
    max_tokens -= count;
    if (prompt.done == prompt.tokens.size()) chunks.back().want = Want::kNextToken;
  }
  return chunks;
}

}  // namespace

const char* StepPartName(size_t part) {
  switch (part) {
    case kPlanPart:
      return "plan";
    case kSamplingPart:
      return "sampling";
    case kOtherPart:
      return "other";
    default:
      return ForwardPartName(static_cast<ForwardPart>(part));
  }
}

double ReadSeconds(const Measurement& measurement, const cpu::Roofs& roofs) {
  return (measurement.weight_bytes + measurement.kv_bytes) / roofs.read_bytes_per_s;
}

double ArithmeticSeconds(const Measurement& measurement, const cpu::Roofs& roofs) {
  return measurement.flops / roofs.flops_per_s;
}

double RoofSeconds(const Measurement& measurement, const cpu::Roofs& roofs) {
  return std::max(ReadSeconds(measurement, roofs), ArithmeticSeconds(measurement, roofs));
}

StepMeter::StepMeter(CpuRunner& runner) : runner_(runner), pool_(MakePagePool(runner.limits())) {}

Measurement StepMeter::Prefill(int64_t batch, TokenCount length, double seconds) {
  const std::vector<PageList> pages = TakeSequences(pool_, batch, length);
  std::vector<Prompt> prompts(pages.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].tokens.resize(static_cast<size_t>(length.raw()));
    std::generate(prompts[i].tokens.begin(), prompts[i].tokens.end(),
                  [this] { return RandomToken(); });
    prompts[i].pages = pages[i].PageIds();
  }
  Measurement sum{.batch = batch, .length = length.raw()};
  const auto max_tokens = static_cast<size_t>(runner_.limits().max_step_tokens.raw());
  while (sum.seconds < seconds) {
    const std::vector<StepSequence> chunks = NextChunks(prompts, max_tokens);
    if (chunks.empty()) break;
    RunStep({.sequences = chunks}, sum);
  }
  return sum;
}

Measurement StepMeter::Decode(int64_t batch, TokenCount context, int64_t steps) {
  const std::vector<PageList> pages = TakeSequences(pool_, batch, context + TokenCount(steps));
  std::vector<int32_t> tokens(pages.size());
  std::vector<StepSequence> sequences(pages.size());
  Measurement sum{.batch = batch, .length = context.raw()};
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < pages.size(); ++i) {
      tokens[i] = RandomToken();
      sequences[i] = {.tokens = {&tokens[i], 1},
                      .position = context + TokenCount(step),
                      .pages = pages[i].PageIds(),
                      .want = Want::kNextToken,
                      .sampling = {.temperature = 0}};
    }
    RunStep({.sequences = sequences}, sum);
  }
  return sum;
}

int32_t StepMeter::RandomToken() {
  const auto vocab_size = static_cast<uint32_t>(runner_.limits().vocab_size);
  return static_cast<int32_t>(random_() % vocab_size);
}

void StepMeter::RunStep(const StepBatch& batch, Measurement& sum) {
  runner_.ResetTimes();
  const Clock::time_point begin = Clock::now();
  runner_.Step(batch);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto parts = PartSeconds(runner_, seconds);
  for (size_t i = 0; i < kNumStepParts; ++i) sum.part_seconds[i] += parts[i];
  sum.seconds += seconds;
  AddWork(runner_, batch, sum);
}

}  // namespace quire::cli
