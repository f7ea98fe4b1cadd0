// The draft layer: multi-token prediction as DeepSeek-V3 and its kin have it, over the ops of any
// backend.
//
// Row p of the layer takes the token at p + 1 and the hidden state of p, and says what follows that
// token:
//   x = join([norm(embedding of token p + 1) | norm(state of p)])
//   x -> a decoder layer as the trunk's: rotated by p, its rows kept in the slot of p
//   state = norm(x), logits = the trunk's head of it
// The state of p is the trunk's after its last norm (ForwardArgs::states). Where the trunk has not been
// yet, it is the draft layer's own of the row before: after its norm, too.
#ifndef QUIRE_MODEL_DRAFT_H_
#define QUIRE_MODEL_DRAFT_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "kernels/ops.h"
#include "model/forward.h"

namespace quire {

// Extending a draft over tokens that the trunk has seen, and drafting on from there, is the same: only
// the states and the plan differ. Rows of a tree see what the plan shows them.
struct DraftArgs {
  // Row i is of positions[i] and goes to slots[i]; tokens[i] is the token behind it. `stores` are the
  // draft layer's, NumDraftStores: latent rows, and index keys in a sparse model. `experts_used` has
  // one or none; `states` are none.
  const ForwardArgs& rows;
  ConstTensorView states = {};             // [num_states, hidden] act; not in the buffers
  std::span<const int32_t> state_of = {};  // [num_tokens]: which of them is row i's
  // The rows are only seen by others: they are written, and what the layer makes of them is not computed.
  bool keys_alone = false;
};

// The layer's output is in args.rows.buffers.hidden, but with keys_alone; the rows are in the stores. The
// model drafts.
void ForwardDraft(const Model& model, const DraftArgs& args, Ops& ops);

// What Model::Logits is to Forward. args.normed are the states of the rows: what rows behind them take.
// The most likely tokens of a row of logits, with log-probabilities, are decode/sample_items.h's.
void DraftLogits(const Model& model, const LogitsArgs& args, Ops& ops);

}  // namespace quire

#endif  // QUIRE_MODEL_DRAFT_H_
