// A batch as arrays over its tokens, in the order that forward passes and plans take.
#ifndef QUIRE_RUNNER_STEP_INPUTS_H_
#define QUIRE_RUNNER_STEP_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/sequence_step.h"
#include "base/units.h"
#include "runner/bucket.h"
#include "step/step.h"

namespace quire {

// A step as the model takes it, padded to its bucket.
struct StepInputs {
  std::span<int32_t> tokens = {};        // [num_tokens]
  std::span<TokenCount> positions = {};  // [num_tokens]
  std::span<Slot> slots = {};            // [num_tokens]
  std::span<SequenceStep> seqs = {};     // [num_seqs]
};

// Tokens of all sequences.
TokenCount NumTokens(const StepBatch& batch);

// The position of a sequence's token: how many tokens it sees before itself. In a tree that is fewer
// than stand before it in the cache.
TokenCount PositionOf(const StepSequence& seq, size_t token);

// Whether every node follows the one before it: then queries see what those of a sequence without a tree do.
bool IsChain(std::span<const int32_t> tree_parents);

// Writes the batch to the beginning of `inputs`. Of a sequence's pages it takes those that its tokens
// and lookahead need.
void Pack(const StepBatch& batch, PageSize page_size, const StepInputs& inputs);

// Fills the rest up to the bucket's size, behind `num_seqs` sequences of `num_tokens` tokens: rows
// without keys, whose tokens are written to the scratch page.
void PadTo(const BucketSize& size, PageSize page_size, size_t num_seqs, TokenCount num_tokens,
           const StepInputs& inputs);

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_INPUTS_H_
