#include "runner/step_results.h"

#include <algorithm>

#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/maths.h"

namespace quire {
namespace {

constexpr auto kBlock = static_cast<int32_t>(kLogitBlock);

StepToken TokenOf(const SampleResults& results, size_t item, int32_t num_top) {
  return {.chosen = results.chosen[item],
          .top = results.top.subspan(item * kMaxTopLogprobs, static_cast<size_t>(num_top))};
}

}  // namespace

// A sequence's text, and of a tree the paths of all nodes: the longest are those of a chain.
SampleCapacity NextCapacity(const RunnerLimits& limits) {
  const int64_t nodes = limits.max_tree_nodes.raw();
  const int64_t text = limits.context.raw() + nodes * (nodes + 1) / 2;
  return {.vocab_size = limits.vocab_size,
          .rows = MaxNextRows(limits),
          .items = static_cast<int32_t>(MaxNextItems(limits)),
          .adjusted = limits.max_samples,
          .biases = kMaxStepBiases * limits.max_seqs,
          .text = std::min<int64_t>(text * limits.max_seqs, INT32_MAX),
          .masks = limits.max_seqs};
}

SampleCapacity ScoreCapacity(const RunnerLimits& limits) {
  return {.vocab_size = limits.vocab_size, .rows = kBlock, .items = kBlock};
}

SampleCapacity DraftCapacity(const RunnerLimits& limits, int32_t num_rows) {
  return {.vocab_size = limits.vocab_size, .rows = num_rows, .items = num_rows};
}

int64_t MaxScoreBlocks(const RunnerLimits& limits) {
  return CeilDiv(limits.max_step_tokens.raw(), kLogitBlock);
}

StepResults::StepResults(const RunnerLimits& limits, Carver& carver)
    : logit_rows_(carver.Take<LogitRow>(limits.max_step_tokens.raw())),
      path_(carver.Take<int32_t>(limits.max_tree_nodes.raw())),
      tokens_(carver.Take<StepToken>(MaxResults(limits))),
      answers_(carver.Take<StepAnswer>(MaxAnswers(limits))),
      sequences_(carver.Take<StepSequenceResult>(limits.max_seqs)) {}

size_t StepResults::num_score_blocks() const {
  return static_cast<size_t>(CeilDiv(num_score_rows_, kBlock));
}

void StepResults::Pick(const StepBatch& batch, SampledRows& next, std::span<SampledRows> scores) {
  batch_ = batch;
  const int32_t num_rows = PickLogitRows(batch, logit_rows_);
  const auto rows = logit_rows_.first(static_cast<size_t>(num_rows));
  const auto is_score = [&](const LogitRow& row) {
    return batch.sequences[static_cast<size_t>(row.seq)].want == Want::kScores;
  };
  const auto num_scores = static_cast<int32_t>(std::ranges::count_if(rows, is_score));
  next.packer.Begin(num_rows - num_scores);
  std::ranges::fill(next.rows, 0);
  for (int32_t first = 0; first < num_scores; first += kBlock) {
    SampledRows& block = scores[static_cast<size_t>(first / kBlock)];
    block.packer.Begin(std::min(kBlock, num_scores - first));
    std::ranges::fill(block.rows, 0);
  }
  num_next_rows_ = 0;
  num_score_rows_ = 0;
  has_masks_ = false;
  for (const LogitRow& row : rows) is_score(row) ? AddScore(row, scores) : AddNext(row, next);
}

void StepResults::AddNext(const LogitRow& row, SampledRows& next) {
  const StepSequence& seq = batch_.sequences[static_cast<size_t>(row.seq)];
  if (seq.want == Want::kNothing) {
    next.packer.AddScore(num_next_rows_, kNoToken, 0);
  } else {
    next.packer.Add({.row = num_next_rows_,
                     .params = seq.sampling,
                     .prompt = seq.prompt,
                     .output = seq.output,
                     .path = PathTo(seq, row.token),
                     .position = row.next_position,
                     .first_sample = seq.first_sample,
                     .num_samples = seq.num_samples,
                     .masked = !seq.mask.empty()});
    has_masks_ = has_masks_ || !seq.mask.empty();
  }
  next.rows[static_cast<size_t>(num_next_rows_++)] = row.row;
}

// What a node of a tree adds to the output that penalties read: itself first, then what it follows.
std::span<const int32_t> StepResults::PathTo(const StepSequence& seq, int32_t token) const {
  if (seq.tree_parents.empty() || !HasPenalties(seq.sampling)) return {};
  size_t count = 0;
  for (int32_t node = token; node != kTreeRoot;
       node = seq.tree_parents[static_cast<size_t>(node)]) {
    path_[count++] = seq.tokens[static_cast<size_t>(node)];
  }
  return path_.first(count);
}

void StepResults::TakeMasks(SampledRows& next) const {
  int32_t number = 0;
  for (const StepSequence& seq : batch_.sequences) {
    if (seq.want != Want::kNextToken || seq.mask.empty()) continue;
    std::ranges::copy(seq.mask, next.packer.Mask(number++).begin());
  }
  QUIRE_CHECK(number == next.packer.num_masks(), "{} masks for {}", number,
              next.packer.num_masks());
}

void StepResults::AddScore(const LogitRow& row, std::span<SampledRows> scores) {
  const StepSequence& seq = batch_.sequences[static_cast<size_t>(row.seq)];
  SampledRows& block = scores[static_cast<size_t>(num_score_rows_ / kBlock)];
  const int32_t in_block = num_score_rows_++ % kBlock;
  block.rows[static_cast<size_t>(in_block)] = row.row;
  block.packer.AddScore(in_block, NextGiven(seq, row.token), seq.sampling.top_logprobs);
}

const StepResult& StepResults::Fill(const SampleResults& next,
                                    std::span<const SampleResults> scores) {
  size_t next_item = 0;
  size_t score = 0;
  for (const LogitRow& row : logit_rows_.first(static_cast<size_t>(num_rows()))) {
    const StepSequence& seq = batch_.sequences[static_cast<size_t>(row.seq)];
    const bool wants_nothing = seq.want == Want::kNothing;
    const int32_t num_top = wants_nothing ? 0 : seq.sampling.top_logprobs;
    StepToken* const tokens = tokens_.data() + row.result;
    if (seq.want == Want::kScores) {
      *tokens = TokenOf(scores[score / kBlock], score % kBlock, num_top);
      ++score;
      continue;
    }
    for (int32_t i = 0; i < (wants_nothing ? 1 : seq.num_samples); ++i) {
      tokens[i * TokensPerAnswer(seq)] = TokenOf(next, next_item++, num_top);
    }
  }
  FillAnswers(batch_, tokens_, answers_, sequences_);
  result_.sequences = sequences_.first(batch_.sequences.size());
  return result_;
}

}  // namespace quire
