#include "decode/sample_items.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "decode/sampling.h"

namespace quire {
namespace {

void RequireRoom(const char* name, int64_t used, int64_t more, int64_t capacity) {
  if (more <= capacity - used) return;
  throw Error(ErrorCode::kCapacityExceeded, "sample.{}: expected at most {}, got {}", name,
              capacity, used + more);
}

template <class T>
bool IsSame(std::span<const T> a, std::span<const T> b) {
  return a.data() == b.data() && a.size() == b.size();
}

}  // namespace

void Validate(const SampleCapacity& capacity) {
  Require(capacity.vocab_size >= 1 && capacity.vocab_size <= INT32_MAX,
          "sample.vocab_size: expected 1..{}, got {}", INT32_MAX, capacity.vocab_size);
  Require(capacity.rows >= 0, "sample.rows: expected >= 0, got {}", capacity.rows);
  Require(capacity.items >= 0, "sample.items: expected >= 0, got {}", capacity.items);
  Require(capacity.adjusted >= 0 && capacity.adjusted <= capacity.items,
          "sample.adjusted: expected 0..{}, got {}", capacity.items, capacity.adjusted);
  Require(capacity.biases >= 0 && capacity.biases <= INT32_MAX,
          "sample.biases: expected 0..{}, got {}", INT32_MAX, capacity.biases);
  Require(capacity.text >= 0 && capacity.text <= INT32_MAX, "sample.text: expected 0..{}, got {}",
          INT32_MAX, capacity.text);
  Require(capacity.masks >= 0, "sample.masks: expected >= 0, got {}", capacity.masks);
}

SampleInputs LayOutSampleInputs(const SampleCapacity& capacity, Carver& carver) {
  return {.counts = carver.Take<SampleCounts>(1),
          .items = carver.Take<SampleItem>(capacity.items),
          .biases = carver.Take<LogitBias>(capacity.biases),
          .text = carver.Take<int32_t>(capacity.text),
          .masks = carver.Take<uint32_t>(capacity.masks * MaskWords(capacity.vocab_size))};
}

SampleResults LayOutSampleResults(const SampleCapacity& capacity, Carver& carver) {
  return {.chosen = carver.Take<TokenLogprob>(capacity.items),
          .top = carver.Take<TokenLogprob>(int64_t{capacity.items} * kMaxTopLogprobs)};
}

SamplePacker::SamplePacker(const SampleCapacity& capacity, const SampleInputs& inputs)
    : capacity_(capacity), inputs_(inputs) {
  Validate(capacity);
  Begin(0);
}

void SamplePacker::Begin(int32_t num_rows) {
  Require(num_rows >= 0, "sample.rows: expected >= 0, got {}", num_rows);
  RequireRoom("rows", 0, num_rows, capacity_.rows);
  inputs_.counts[0] = {.num_rows = num_rows, .num_items = 0};
  last_biases_ = {};
  last_prompt_ = last_output_ = {};
  first_text_ = 0;
  num_biases_ = 0;
  num_text_ = 0;
  num_adjusted_ = 0;
  num_masks_ = 0;
  needs_search_ = false;
}

std::span<uint32_t> SamplePacker::Mask(int32_t number) const {
  QUIRE_CHECK(number >= 0 && number < num_masks_, "mask {} of {}", number, num_masks_);
  const auto words = static_cast<size_t>(MaskWords(capacity_.vocab_size));
  return inputs_.masks.subspan(static_cast<size_t>(number) * words, words);
}

SampleItem& SamplePacker::Next(int32_t row) {
  SampleItem& item = inputs_.items[static_cast<size_t>(inputs_.counts[0].num_items++)];
  item = {.row = row};
  return item;
}

void SamplePacker::AddScore(int32_t row, int32_t given, int32_t num_top) {
  const int64_t most = std::min<int64_t>(kMaxTopLogprobs, capacity_.vocab_size);
  Require(row >= 0 && row < inputs_.counts[0].num_rows, "sample.row: expected 0..{}, got {}",
          inputs_.counts[0].num_rows - 1, row);
  Require(given >= kNoToken && given < capacity_.vocab_size,
          "sample.given: expected 0..{} or none, got {}", capacity_.vocab_size - 1, given);
  Require(num_top >= 0 && num_top <= most, "top_logprobs: expected 0..{}, got {}", most, num_top);
  RequireRoom("items", num_items(), 1, capacity_.items);
  SampleItem& item = Next(row);
  item.given = given;
  item.num_top = num_top;
  needs_search_ |= num_top > 0;
}

void SamplePacker::Add(const Samples& samples) {
  const SamplingParams& params = samples.params;
  const bool penalties = HasPenalties(params);
  const bool adjusted = penalties || !params.logit_bias.empty() || samples.masked;
  const bool shares_text =
      penalties && IsSame(samples.prompt, last_prompt_) && IsSame(samples.output, last_output_);
  const bool brings_text = penalties && !shares_text;
  const int64_t num_text =
      brings_text ? std::ssize(samples.prompt) + std::ssize(samples.output) : int64_t{0};
  const int64_t num_path = penalties ? std::ssize(samples.path) : int64_t{0};
  Require(samples.row >= 0 && samples.row < inputs_.counts[0].num_rows,
          "sample.row: expected 0..{}, got {}", inputs_.counts[0].num_rows - 1, samples.row);
  Require(samples.num_samples >= 1, "samples: expected at least 1, got {}", samples.num_samples);
  Validate(params, capacity_.vocab_size);
  if (brings_text) {
    RequireTokens("prompt", samples.prompt, capacity_.vocab_size);
    RequireTokens("output", samples.output, capacity_.vocab_size);
  }
  if (penalties) RequireTokens("path", samples.path, capacity_.vocab_size);
  RequireRoom("items", num_items(), samples.num_samples, capacity_.items);
  RequireRoom("adjusted", num_adjusted_, adjusted ? samples.num_samples : 0, capacity_.adjusted);
  // The rows of one sequence follow each other, and have its biases.
  const bool shares_biases = IsSame(params.logit_bias, last_biases_);
  const int64_t num_biases = shares_biases ? 0 : std::ssize(params.logit_bias);
  RequireRoom("biases", num_biases_, num_biases, capacity_.biases);
  RequireRoom("text", num_text_, num_text + num_path, capacity_.text);
  RequireRoom("masks", num_masks_, samples.masked ? 1 : 0, capacity_.masks);

  const int32_t mask = samples.masked ? num_masks_++ : -1;
  if (!shares_biases) {
    std::ranges::copy(params.logit_bias, inputs_.biases.begin() + num_biases_);
    last_biases_ = params.logit_bias;
    num_biases_ += num_biases;
  }
  const int64_t first_bias = num_biases_ - std::ssize(params.logit_bias);
  if (brings_text) {
    const auto to = inputs_.text.begin() + num_text_;
    std::ranges::copy(samples.output, std::ranges::copy(samples.prompt, to).out);
    last_prompt_ = samples.prompt;
    last_output_ = samples.output;
    first_text_ = num_text_;
    num_text_ += num_text;
  }
  const int64_t first_path = num_text_;
  if (num_path > 0) std::ranges::copy(samples.path, inputs_.text.begin() + first_path);
  num_text_ += num_path;
  const bool highest = params.temperature == 0 || params.top_k == 1;
  for (int32_t i = 0; i < samples.num_samples; ++i) {
    SampleItem& item = Next(samples.row);
    item.kind = highest ? SampleKind::kHighest : SampleKind::kDraw;
    item.num_top = params.top_logprobs;
    item.temperature = params.temperature;
    item.top_p = params.top_p;
    item.min_p = params.min_p;
    item.top_k = params.top_k;
    item.repetition_penalty = params.repetition_penalty;
    item.frequency_penalty = params.frequency_penalty;
    item.presence_penalty = params.presence_penalty;
    item.adjusted = adjusted ? num_adjusted_++ : -1;
    item.mask = mask;
    item.first_bias = static_cast<int32_t>(first_bias);
    item.num_biases = static_cast<int32_t>(params.logit_bias.size());
    item.first_text = penalties ? static_cast<int32_t>(first_text_) : 0;
    item.num_prompt = penalties ? static_cast<int32_t>(samples.prompt.size()) : 0;
    item.num_output = penalties ? static_cast<int32_t>(samples.output.size()) : 0;
    item.first_path = num_path > 0 ? static_cast<int32_t>(first_path) : 0;
    item.num_path = static_cast<int32_t>(num_path);
    item.sample = samples.first_sample + i;
    item.seed = params.seed;
    item.position = samples.position.raw();
  }
  needs_search_ |= adjusted || !highest || params.top_logprobs > 0;
}

}  // namespace quire
