#include "cli/measure.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "cache/page_list.h"
#include "cli/load.h"
#include "model/cost.h"

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Of the prompt whose rows fill the pages of a sparse model: what a CPU computes in seconds.
constexpr TokenCount kFilledTokens{256};

// Where the time of the last step went.
StepTimes PartSeconds(const MeteredRunner& runner, double seconds) {
  StepTimes parts = runner.times();
  parts[StepPart::kOther] = std::max(0.0, seconds - parts.Sum());
  return parts;
}

// What queries that see `kv_len` keys must read: of a sparse model all index keys, but no more rows than
// one query chooses; where everything is chosen, no index keys.
double KvBytes(const MemoryPlan& plan, const ModelConfig& config, int64_t kv_len) {
  const ByteOffset row = plan.kv_per_token - plan.index_per_token;
  if (!config.indexer || kv_len <= config.indexer->top_k) {
    return static_cast<double>((row * kv_len).raw());
  }
  return static_cast<double>((row * config.indexer->top_k + plan.index_per_token * kv_len).raw());
}

// Adds what a step of this batch must read and compute.
void AddWork(const MeteredRunner& runner, const ModelConfig& config, const StepBatch& batch,
             Measurement& sum) {
  int64_t num_tokens = 0;
  for (const StepSequence& seq : batch.sequences) {
    const int64_t q_len = std::ssize(seq.tokens);
    const int64_t kv_len = seq.position.raw() + q_len;
    sum.flops += static_cast<double>(q_len) * LayerFlopsPerToken(config);
    for (int64_t i = 1; i <= q_len; ++i) {
      sum.flops += AttentionFlopsPerToken(config, seq.position + TokenCount(i));
    }
    sum.kv_bytes += KvBytes(runner.memory_plan(), config, kv_len);
    num_tokens += q_len;
  }
  sum.flops += runner.last_step().logit_rows * HeadFlopsPerRow(config);
  const ByteOffset weights =
      runner.WeightBytesPerStep(num_tokens, runner.last_step().experts_with_rows);
  sum.weight_bytes += static_cast<double>(weights.raw());
  sum.tokens += num_tokens;
  const int32_t experts = runner.last_step().fewest_experts;
  sum.fewest_experts = sum.steps == 0 ? experts : std::min(sum.fewest_experts, experts);
  ++sum.steps;
}

// A prompt, as far as it has been computed.
struct Prompt {
  uint64_t id = 0;
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
    chunks.push_back({.id = prompt.id,
                      .tokens = std::span(prompt.tokens).subspan(prompt.done, count),
                      .position = TokenCount(prompt.done),
                      .pages = prompt.pages,
                      .kept_pages = PageCount(prompt.done > 0 ? prompt.pages.size() : 0),
                      .sampling = {.temperature = 0}});
    prompt.done += count;
    max_tokens -= count;
    if (prompt.done == prompt.tokens.size()) chunks.back().want = Want::kNextToken;
  }
  return chunks;
}

}  // namespace

double ReadSeconds(const Measurement& measurement, const cpu::Roofs& roofs) {
  return (measurement.weight_bytes + measurement.kv_bytes) / roofs.read_bytes_per_s;
}

double ArithmeticSeconds(const Measurement& measurement, const cpu::Roofs& roofs) {
  return measurement.flops / roofs.flops_per_s;
}

double RoofSeconds(const Measurement& measurement, const cpu::Roofs& roofs) {
  return std::max(ReadSeconds(measurement, roofs), ArithmeticSeconds(measurement, roofs));
}

StepMeter::StepMeter(MeteredRunner& runner, const ModelConfig& config)
    : runner_(runner), config_(config), pool_(MakePagePool(runner.limits())) {
  if (config.indexer) FillPages();
}

// Every page gets the rows of a page of one prompt.
void StepMeter::FillPages() {
  const RunnerLimits& limits = runner_.limits();
  const TokenCount length = Min(Min(kFilledTokens, limits.max_step_tokens), limits.context);
  const std::vector<PageList> prompt_pages = TakeSequences(pool_, 1, length);
  const std::span<const PageId> pages = prompt_pages[0].PageIds();
  std::vector<int32_t> tokens(static_cast<size_t>(length.raw()));
  std::ranges::generate(tokens, [this] { return RandomToken(); });
  const StepSequence prompt{.tokens = tokens, .pages = pages};
  runner_.Step({.sequences = {&prompt, 1}});
  // Copies come with a step: the prompt's first token again, which writes the same row.
  const StepSequence again{.tokens = std::span(tokens).first(1), .pages = pages};
  const int64_t page_size = limits.page_size.raw();
  const auto whole_pages = static_cast<size_t>(std::max<int64_t>(1, length.raw() / page_size));
  std::vector<StepPageCopy> copies;
  const auto copy = [&] {
    runner_.Step({.copies = copies, .sequences = {&again, 1}});
    copies.clear();
  };
  size_t next = 0;
  for (int64_t i = 1; i < limits.pool_pages.raw(); ++i) {
    if (std::ranges::count(pages, PageId(i)) > 0) continue;
    copies.push_back({.from = pages[next++ % whole_pages],
                      .to = PageId(i),
                      .count = static_cast<int32_t>(std::min(page_size, length.raw()))});
    if (std::ssize(copies) == limits.max_seqs) copy();
  }
  if (!copies.empty()) copy();
}

Measurement StepMeter::Prefill(int64_t batch, TokenCount length, double seconds) {
  const std::vector<PageList> pages = TakeSequences(pool_, batch, length);
  std::vector<Prompt> prompts(pages.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].tokens.resize(static_cast<size_t>(length.raw()));
    std::generate(prompts[i].tokens.begin(), prompts[i].tokens.end(),
                  [this] { return RandomToken(); });
    prompts[i].id = i + 1;
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
      sequences[i] = {.id = i + 1,
                      .tokens = {&tokens[i], 1},
                      .position = context + TokenCount(step),
                      .pages = pages[i].PageIds(),
                      .kept_pages = PageCount(step > 0 ? pages[i].PageIds().size() : 0),
                      .want = Want::kNextToken,
                      .sampling = {.temperature = 0}};
    }
    RunStep({.sequences = sequences}, sum);
  }
  return sum;
}

// A prompt, and what has been said behind it.
struct StepMeter::Text {
  uint64_t id = 0;
  std::vector<int32_t> tokens = {};
  size_t prompt = 0;
  std::span<const PageId> pages = {};

  // Of logits that are not finite nothing comes: the text goes on with any token. How many tokens came.
  int64_t Add(const StepSequenceResult& result) {
    if (result.fault != RowFault::kNone) {
      tokens.push_back(0);
      return 1;
    }
    const std::span<const StepToken> said = result.answers[0].tokens;
    for (const StepToken& token : said) tokens.push_back(token.chosen.token);
    return std::ssize(said);
  }
};

// One prompt after the other, each in steps as full as they can be.
void StepMeter::Begin(std::span<Text> texts) {
  const auto max_tokens = static_cast<size_t>(runner_.limits().max_step_tokens.raw());
  for (Text& text : texts) {
    const std::vector<int32_t> prompt = text.tokens;
    for (size_t done = 0; done < prompt.size();) {
      const size_t count = std::min(max_tokens, prompt.size() - done);
      const bool is_last = done + count == prompt.size();
      const StepSequence chunk{.id = text.id,
                               .tokens = std::span(prompt).subspan(done, count),
                               .position = TokenCount(done),
                               .pages = text.pages,
                               .kept_pages = PageCount(done > 0 ? text.pages.size() : 0),
                               .want = is_last ? Want::kNextToken : Want::kNothing,
                               .sampling = {.temperature = 0}};
      const StepResult& result = runner_.Step({.sequences = {&chunk, 1}});
      if (is_last) text.Add(result.sequences[0]);
      done += count;
    }
  }
}

TokenCount RoomForDrafts(const TreeShape& shape, int64_t steps) {
  return TokenCount((shape.steps + 1) * (steps + 1) + shape.Room().slots + 1);
}

DraftMeasurement StepMeter::DecodeWithDrafts(int64_t batch, TokenCount context, int64_t steps,
                                             const TreeShape& shape) {
  const std::vector<PageList> pages =
      TakeSequences(pool_, batch, context + RoomForDrafts(shape, steps));
  std::vector<Text> texts(pages.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i] = {.id = next_id_++,
                .prompt = static_cast<size_t>(context.raw()),
                .pages = pages[i].PageIds()};
    texts[i].tokens.resize(texts[i].prompt);
    std::ranges::generate(texts[i].tokens, [this] { return RandomToken(); });
  }
  runner_.TakeTimes(false);
  Begin(texts);
  std::vector<StepSequence> sequences(texts.size());
  DraftMeasurement sum{.batch = batch, .length = context.raw()};
  sum.right_at.resize(static_cast<size_t>(shape.steps));
  for (int64_t step = -1; step < steps;
       ++step) {  // the first is not counted: it may touch new memory
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::span<const int32_t> tokens = texts[i].tokens;
      sequences[i] = {.id = texts[i].id,
                      .tokens = tokens.last(1),
                      .position = TokenCount(tokens.size() - 1),
                      .pages = texts[i].pages,
                      .kept_pages = PageCount(texts[i].pages.size()),
                      .lookahead = runner_.limits().lookahead,
                      .want = Want::kNextToken,
                      .sampling = {.temperature = 0},
                      .prompt = tokens.first(texts[i].prompt),
                      .output = tokens.subspan(texts[i].prompt)};
    }
    const double seconds = SecondsOfStep({.sequences = sequences});
    const int32_t experts = runner_.last_step().fewest_experts;
    if (step >= 0) {
      sum.fewest_experts = step == 0 ? experts : std::min(sum.fewest_experts, experts);
      sum.seconds += seconds;
      ++sum.steps;
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      const StepSequenceResult& result = result_->sequences[i];
      const int64_t said = texts[i].Add(result);
      if (step < 0) continue;
      sum.tokens += said;
      if (result.num_drafted == 0) continue;
      ++sum.drafts;
      for (int64_t depth = 0; depth + 1 < said; ++depth) ++sum.right_at[static_cast<size_t>(depth)];
    }
  }
  return sum;
}

int32_t StepMeter::RandomToken() {
  const auto vocab_size = static_cast<uint32_t>(runner_.limits().vocab_size);
  return static_cast<int32_t>(random_() % vocab_size);
}

void StepMeter::RunStep(const StepBatch& batch, Measurement& sum) {
  const bool twice = runner_.TimingSlowsSteps();
  runner_.TakeTimes(!twice);
  const double seconds = SecondsOfStep(batch);
  sum.seconds += seconds;
  AddWork(runner_, config_, batch, sum);
  // The same step again, with times: it writes the same rows.
  runner_.TakeTimes(true);
  if (twice && sum.steps == 1) runner_.Step(batch);  // the first may record what later ones launch
  sum.part_seconds += PartSeconds(runner_, twice ? SecondsOfStep(batch) : seconds);
}

double StepMeter::SecondsOfStep(const StepBatch& batch) {
  const Clock::time_point begin = Clock::now();
  result_ = &runner_.Step(batch);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace quire::cli
