#include "runner/logit_rows.h"

namespace quire {

int64_t MaxResults(const RunnerLimits& limits) {
  return limits.max_step_tokens.raw() + limits.max_samples;
}

int32_t NumResults(const StepSequence& seq) {
  switch (seq.want) {
    case Want::kNothing:
      return 0;
    case Want::kNextToken:
      return seq.num_samples;
    case Want::kScores:
      return static_cast<int32_t>(seq.tokens.size());
  }
  return 0;
}

int32_t NextGiven(const StepSequence& seq, int32_t token) {
  const auto next = static_cast<size_t>(token) + 1;
  return next < seq.tokens.size() ? seq.tokens[next] : seq.next_token;
}

int32_t PickLogitRows(const StepBatch& batch, std::span<LogitRow> rows) {
  int32_t num_rows = 0;
  int32_t num_results = 0;
  int32_t first_row = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& seq = batch.sequences[i];
    const auto q_len = static_cast<int32_t>(seq.tokens.size());
    const int32_t first = seq.want == Want::kScores      ? 0
                          : seq.want == Want::kNextToken ? q_len - 1
                                                         : q_len;
    for (int32_t token = first; token < q_len; ++token) {
      rows[static_cast<size_t>(num_rows++)] = {.seq = static_cast<int32_t>(i),
                                               .token = token,
                                               .row = first_row + token,
                                               .result = num_results + token - first};
    }
    num_results += NumResults(seq);
    first_row += q_len;
  }
  return num_rows;
}

}  // namespace quire
