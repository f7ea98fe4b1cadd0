#include "runner/logit_rows.h"

#include <algorithm>
#include <cmath>

#include "runner/step_inputs.h"

namespace quire {

int64_t MaxResults(const RunnerLimits& limits) {
  return limits.max_step_tokens.raw() + limits.max_samples;
}

int64_t MaxAnswers(const RunnerLimits& limits) {
  return int64_t{limits.max_seqs} + limits.max_samples;
}

int64_t MaxNextItems(const RunnerLimits& limits) {
  return int64_t{limits.max_samples} + limits.max_seqs;
}

int32_t MaxNextRows(const RunnerLimits& limits) {
  if (limits.max_tree_nodes == TokenCount(0)) return limits.max_seqs;
  return static_cast<int32_t>(std::min(MaxNextItems(limits), limits.max_step_tokens.raw()));
}

int32_t NumAnswers(const StepSequence& seq) {
  if (seq.want == Want::kNothing) return 0;
  return seq.want == Want::kNextToken ? seq.num_samples : 1;
}

int32_t TokensPerAnswer(const StepSequence& seq) {
  const bool is_last_only =
      seq.want == Want::kNothing || (seq.want == Want::kNextToken && seq.tree_parents.empty());
  return is_last_only ? 1 : static_cast<int32_t>(seq.tokens.size());
}

int32_t NumNextItems(const StepSequence& seq) {
  if (seq.want == Want::kScores) return 0;
  return TokensPerAnswer(seq) * (seq.want == Want::kNothing ? 1 : seq.num_samples);
}

int32_t NumResults(const StepSequence& seq) {
  return std::max(NumAnswers(seq), 1) * TokensPerAnswer(seq);
}

int32_t NextGiven(const StepSequence& seq, int32_t token) {
  const auto next = static_cast<size_t>(token) + 1;
  if (seq.tree_parents.empty()) {
    return next < seq.tokens.size() ? seq.tokens[next] : seq.next_token;
  }
  const size_t first_node = seq.tree_parents.size() - seq.tokens.size();
  const auto node = static_cast<int32_t>(first_node) + token;
  for (size_t i = next; i < seq.tokens.size(); ++i) {
    if (seq.tree_parents[first_node + i] == node) return seq.tokens[i];
  }
  return kNoToken;
}

int32_t PickLogitRows(const StepBatch& batch, std::span<LogitRow> rows) {
  int32_t num_rows = 0;
  int32_t num_results = 0;
  int32_t first_row = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    const auto q_len = static_cast<int32_t>(seq.tokens.size());
    const int32_t first = q_len - TokensPerAnswer(seq);
    for (int32_t token = first; token < q_len; ++token) {
      rows[static_cast<size_t>(num_rows++)] = {
          .seq = static_cast<int32_t>(i),
          .token = token,
          .row = first_row + token,
          .result = num_results + token - first,
          .next_position = PositionOf(seq, static_cast<size_t>(token)) + TokenCount(1)};
    }
    num_results += NumResults(seq);
    first_row += q_len;
  }
  return num_rows;
}

void FillAnswers(const StepBatch& batch, std::span<const StepToken> results,
                 std::span<StepAnswer> answers, std::span<StepSequenceResult> sequences) {
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    const auto num_answers = static_cast<size_t>(NumAnswers(seq));
    const auto num_tokens = static_cast<size_t>(TokensPerAnswer(seq));
    const std::span<const StepToken> own = results.first(static_cast<size_t>(NumResults(seq)));
    results = results.subspan(own.size());
    const bool is_tree = seq.want == Want::kNextToken && !seq.tree_parents.empty();
    const bool is_faulty = !is_tree && std::ranges::any_of(own, [](const StepToken& token) {
      return std::isnan(token.chosen.logprob);
    });
    if (is_faulty) {
      sequences[i] = {.answers = {}, .fault = RowFault::kLogitsNotFinite};
      continue;
    }
    const std::span<StepAnswer> its = answers.first(num_answers);
    answers = answers.subspan(num_answers);
    for (size_t k = 0; k < num_answers; ++k) {
      its[k].tokens = own.subspan(k * num_tokens, num_tokens);
    }
    sequences[i] = {.answers = its};
  }
}

}  // namespace quire
