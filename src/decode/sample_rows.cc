#include "decode/sample_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "decode/sampling.h"

namespace quire {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

void RequireSize(const char* name, size_t actual, int64_t expected) {
  Require(std::cmp_greater_equal(actual, expected), "sample.{}: expected {} values or more, got {}",
          name, expected, actual);
}

std::span<const uint32_t> MaskOf(const SampleItem& item, const SampleInputs& inputs,
                                 int64_t vocab_size) {
  if (item.mask < 0) return {};
  return inputs.masks.subspan(Size(item.mask * MaskWords(vocab_size)), Size(MaskWords(vocab_size)));
}

// Whether a token is above -inf that a mask allows.
bool AllowsAny(std::span<const uint32_t> mask, std::span<const float> logits) {
  for (size_t token = 0; token < logits.size(); ++token) {
    const bool allowed = (mask[token / 32] >> (token % 32) & 1u) != 0;
    if (allowed && logits[token] > -std::numeric_limits<float>::infinity()) return true;
  }
  return false;
}

SampleArgs ArgsOf(const SampleItem& item, const SampleInputs& inputs, std::span<const float> logits,
                  std::span<std::byte> workspace) {
  const std::span<const int32_t> text = inputs.text.subspan(Size(item.first_text));
  return {
      .logits = logits,
      .params = {.temperature = item.temperature,
                 .top_k = item.top_k,
                 .top_p = item.top_p,
                 .min_p = item.min_p,
                 .repetition_penalty = item.repetition_penalty,
                 .frequency_penalty = item.frequency_penalty,
                 .presence_penalty = item.presence_penalty,
                 .logit_bias = inputs.biases.subspan(Size(item.first_bias), Size(item.num_biases)),
                 .seed = item.seed},
      .mask = MaskOf(item, inputs, std::ssize(logits)),
      .prompt = text.first(Size(item.num_prompt)),
      .output = text.subspan(Size(item.num_prompt), Size(item.num_output)),
      .path = inputs.text.subspan(Size(item.first_path), Size(item.num_path)),
      .position = TokenCount(item.position),
      .sample = item.sample,
      .workspace = workspace};
}

TokenLogprob Choose(const SampleItem& item, const SampleInputs& inputs,
                    std::span<const float> logits, float log_sum_exp,
                    std::span<std::byte> workspace) {
  const bool is_given = item.kind == SampleKind::kGiven;
  bool decides = log_sum_exp > -std::numeric_limits<float>::infinity();  // NaN does not
  if (decides && item.mask >= 0) {
    decides = AllowsAny(MaskOf(item, inputs, std::ssize(logits)), logits);
  }
  if (std::isnan(log_sum_exp) || (!is_given && !decides)) {
    return {.token = is_given ? item.given : kNoToken,
            .logprob = std::numeric_limits<float>::quiet_NaN()};
  }
  const int32_t token = is_given ? item.given : Sample(ArgsOf(item, inputs, logits, workspace));
  return {.token = token,
          .logprob = token == kNoToken ? 0.0f : Logprob(logits[Size(token)], log_sum_exp)};
}

// Items [begin, end) are of one row.
void SampleRow(const SampleRowsArgs& args, size_t begin, size_t end,
               std::span<std::byte> workspace) {
  const int64_t row = args.inputs.items[begin].row - args.first_row;
  const std::span<const float> logits(args.logits.Row<float>(row), Size(args.logits.dim(1)));
  const float log_sum_exp = LogSumExp(logits);
  for (size_t i = begin; i < end; ++i) {
    const SampleItem& item = args.inputs.items[i];
    args.results.chosen[i] = Choose(item, args.inputs, logits, log_sum_exp, workspace);
    TopLogprobs(logits, log_sum_exp,
                args.results.top.subspan(i * kMaxTopLogprobs, Size(item.num_top)));
  }
}

// Every `num_workers`-th row of those that have items, from `worker` on. Items that follow each other
// and are of one row are done together.
void SampleEvery(const SampleRowsArgs& args, int64_t worker, int64_t num_workers) {
  const ByteOffset bytes = SampleWorkerBytes(args.logits.dim(1));
  const std::span<std::byte> workspace =
      args.workers.bytes.subspan(Size(worker * bytes.raw()), Size(bytes.raw()));
  const auto items = args.inputs.items.first(Size(args.inputs.counts[0].num_items));
  int64_t place = 0;
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    const int32_t row = items[begin].row;
    while (end < items.size() && items[end].row == row) ++end;
    if (row < args.first_row || row - args.first_row >= args.logits.dim(0)) continue;
    if (place++ % num_workers == worker) SampleRow(args, begin, end, workspace);
  }
}

}  // namespace

ByteOffset SampleWorkerBytes(int64_t vocab_size) {
  return ByteOffset(RoundUp<int64_t>(SamplerWorkspace(vocab_size).raw(), Carver::kAlignment));
}

SampleWorkers LayOutSampleWorkers(int64_t vocab_size, int32_t count, Carver& carver) {
  return {.bytes = carver.TakeBytes(SampleWorkerBytes(vocab_size) * count), .count = count};
}

void Validate(const SampleRowsArgs& args) {
  Require(args.logits.rank() == 2, "sample.logits: expected [rows, vocab], got {} dimensions",
          args.logits.rank());
  Require(args.logits.dtype() == DType::kF32, "sample.logits: expected f32, got {}",
          DTypeName(args.logits.dtype()));
  Require(args.first_row >= 0, "sample.first_row: expected >= 0, got {}", args.first_row);
  RequireSize("counts", args.inputs.counts.size(), 1);
  const int64_t items = args.inputs.counts[0].num_items;
  RequireSize("items", args.inputs.items.size(), items);
  RequireSize("chosen", args.results.chosen.size(), items);
  RequireSize("top", args.results.top.size(), items * kMaxTopLogprobs);
  Require(args.workers.count >= 1, "sample.workers: expected 1 or more, got {}",
          args.workers.count);
  RequireSize("workers", args.workers.bytes.size(),
              SampleWorkerBytes(args.logits.dim(1)).raw() * args.workers.count);
}

void SampleRows(const SampleRowsArgs& args, Executor& executor) {
  Validate(args);
  const int64_t num_workers =
      std::min<int64_t>({args.logits.dim(0), args.workers.count, executor.num_threads()});
  executor.Run(num_workers, [&](int64_t worker) { SampleEvery(args, worker, num_workers); });
}

}  // namespace quire
