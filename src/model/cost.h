// What a step must read and compute, for benchmarks: a percentage of the machine's roof is counted
// with these.
#ifndef QUIRE_MODEL_COST_H_
#define QUIRE_MODEL_COST_H_

#include <cstdint>

#include "base/units.h"
#include "model/config.h"
#include "model/weights.h"

namespace quire {

// Two for every multiply-add of one token's matrix products in latent form, without the head.
double LayerFlopsPerToken(const ModelConfig& config);
// The same of the head, for one row of logits.
double HeadFlopsPerRow(const ModelConfig& config);
// The same of attention, for one token that sees `visible` keys.
double AttentionFlopsPerToken(const ModelConfig& config, TokenCount visible);

// Packed weights that a step of `num_tokens` tokens reads: everything dense, and the experts that have rows, of which all
// layers together have `experts_with_rows`; if that is 0, as many as that many tokens can choose. One row of the embedding
// per token.
ByteOffset WeightBytesPerStep(const ModelConfig& config, const ModelWeights& weights,
                              int64_t num_tokens, int64_t experts_with_rows);

}  // namespace quire

#endif  // QUIRE_MODEL_COST_H_
