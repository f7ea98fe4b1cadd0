// Sparse attention in double precision, written from the formulas of docs/numerics.md.
#ifndef QUIRE_TESTING_SPARSE_REFERENCE_H_
#define QUIRE_TESTING_SPARSE_REFERENCE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attn/sequence_step.h"
#include "kernels/select_keys.h"
#include "testing/reference.h"

namespace quire::testing {

using SequenceRows = std::vector<std::vector<std::vector<double>>>;  // [sequence][position]

// The scores of one query's keys, in the order of their positions, and what f32 may be off in any.
struct ReferenceScores {
  std::vector<double> scores;
  double bound = 0;
};

// Of every query token of a step; q is [tokens, num_heads, head_dim], gates [tokens, num_heads].
std::vector<ReferenceScores> ReferenceIndexScores(std::span<const SequenceStep> seqs,
                                                  const SequenceRows& rows,
                                                  std::span<const float> q,
                                                  std::span<const float> gates,
                                                  const IndexShape& shape, double scale);

// What is chosen by these scores: top_k positions ascending, -1 behind them.
std::vector<int32_t> ReferenceChoice(std::span<const double> scores, const IndexShape& shape);

// "" if `row`, what a query chose, is right as far as f32 can tell: positions ascend, every key above the
// last chosen one's reference score by more than both may be off is chosen, and none below it by more.
// Otherwise what is wrong.
std::string ChoiceMismatch(std::span<const int32_t> row, const ReferenceScores& reference,
                           const IndexShape& shape);

// As ReferenceMla, over the chosen positions alone: [tokens, top_k].
ReferenceAttention ReferenceSparseMla(std::span<const SequenceStep> seqs, const SequenceRows& rows,
                                      std::span<const float> q, int64_t num_heads, KvDims dims,
                                      double scale, std::span<const int32_t> chosen, int32_t top_k);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SPARSE_REFERENCE_H_
