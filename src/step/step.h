// This is the seam between the engine and whatever computes: a step's batch, its result, the Runner.
//
// Plain data goes both ways. A step is data, not a mode: decode is one token of a sequence, a prefill
// chunk is several, and a sequence may ask for nothing, for its next token, or for the scores of the
// tokens it gave.
#ifndef QUIRE_STEP_STEP_H_
#define QUIRE_STEP_STEP_H_

#include <cstdint>
#include <span>

#include "base/units.h"
#include "step/sampling_params.h"
#include "step/token_constraint.h"

namespace quire {

// Rows to copy, in every payload, before anything is written: `count` tokens from the start of page
// `from` to the start of page `to`.
struct StepPageCopy {
  PageId from;
  PageId to;
  int32_t count = 0;
};

// A row to move, in every payload of the model's layers: of a token that a step before found to be the
// sequence's next, and that lies in another slot than the one of its place. A draft layer's rows stay
// where they are: it writes its own.
struct StepSlotMove {
  Slot from;
  Slot to;
};

enum class Want {
  kNothing,    // a prefill chunk that is not the last: only whether it came out well
  kNextToken,  // what follows the last token; in a tree, what follows every token
  // What follows every token: the log-probability of the next one given, which in a tree is that of
  // the token's first child. `chosen` is kNoToken where none is given.
  kScores,
};

inline constexpr int32_t kNoToken = -1;

struct StepSequence {
  uint64_t id = 0;  // the same in all steps of a sequence, and no other's; 0: unknown
  // The tokens to compute; the first stands at `position`. All before it are in the cache, or are computed
  // by sequences before this one in the same step, whose pages it lists as its own.
  std::span<const int32_t> tokens = {};
  TokenCount position = {};
  // Pages that hold at least position + tokens.size() + lookahead tokens, in order.
  std::span<const PageId> pages = {};
  // The first kept_pages of `pages` are those of this sequence's last step that was collected well.
  // A runner need not look at them again. 0 where that is not known, and where id is 0.
  PageCount kept_pages{0};

  // Empty: every token follows the one before it. Otherwise the last tree_parents.size() >=
  // tokens.size() tokens of the sequence are nodes of a tree: tree_parents[i] < i is the node that
  // node i follows, or -1 for one that follows the tokens before the first node. A node sees those
  // tokens, the nodes that it descends from, and itself. Nodes that are not among `tokens` are in
  // the cache. The n-th node of the sequence lies in the n-th slot, whatever its depth is.
  std::span<const int32_t> tree_parents = {};
  // Slots behind the tokens that the step may write to.
  TokenCount lookahead{0};

  Want want = Want::kNothing;
  SamplingParams sampling = {};
  // kNextToken: how many tokens to draw from the one distribution, as samples number first_sample,
  // first_sample + 1, ...
  int32_t num_samples = 1;
  int32_t first_sample = 0;
  // kNextToken with penalties or a lookahead: prompt and output so far, `tokens` included. Of a tree:
  // up to the first node; penalties add those that a node descends from, and itself, to the output.
  // All nodes of a tree with penalties are among `tokens`.
  std::span<const int32_t> prompt = {};
  std::span<const int32_t> output = {};
  // kNextToken: only tokens whose bits are set are drawn, by all samples. Empty: any. MaskWords of the
  // vocabulary; not with a tree or a lookahead. It is read by Collect, so that a caller may write it
  // while the step runs.
  std::span<const uint32_t> mask = {};
  // kScores: the token behind the last one, or kNoToken if only its alternatives are wanted. In a
  // tree kNoToken.
  int32_t next_token = kNoToken;
};

struct StepBatch {
  // Done first, and as one: all are read before any is written. At most max_seqs * max_tree_nodes.
  std::span<const StepSlotMove> moves = {};
  std::span<const StepPageCopy> copies = {};
  std::span<const StepSequence> sequences = {};
};

struct TokenLogprob {
  int32_t token = kNoToken;
  float logprob = 0;  // of the model's own distribution: before penalties, bias and temperature
};

// What came back for one token asked for: a sample, or a position scored.
struct StepToken {
  TokenLogprob chosen = {};
  std::span<const TokenLogprob> top =
      {};  // the most likely, highest first, ties to the lower token
};

struct StepAnswer {
  // kNextToken: at least one token, in their order, and at most lookahead + 1; in the cache are all
  // but the last, in the slots behind the tokens given. In a tree: what follows each token given; of
  // one whose logits are not finite the token is kNoToken.
  // kScores: one per token given.
  std::span<const StepToken> tokens = {};
};

// What went wrong with one sequence of a step and with no other.
enum class RowFault {
  kNone,
  // NaN among the logits that were asked for, or with kNothing among those of the last token, which
  // has seen all before it; kNextToken: or none above -inf that the mask allows. Not kNextToken of a
  // tree: whose nodes may be others' mistakes, and say so themselves.
  kLogitsNotFinite,
};

// "logits that are not finite".
const char* RowFaultName(RowFault fault);

struct StepSequenceResult {
  // kNextToken: num_samples; kScores: one; kNothing, and with a fault: none.
  std::span<const StepAnswer> answers = {};
  // With a fault, what the sequence has in the cache is of no use.
  RowFault fault = RowFault::kNone;
  // Tokens that were guessed, and computed with the step. Those that were right are the answer's, but
  // for its last token.
  int32_t num_drafted = 0;
};

// Results stand in the order of the batch, and are valid until the next Submit.
struct StepResult {
  std::span<const StepSequenceResult> sequences = {};
};

// The limits that every batch must keep to.
struct RunnerLimits {
  PageSize page_size{64};
  PageCount pool_pages{1};  // the scratch page included
  TokenCount context{1};    // of one sequence
  int32_t max_seqs = 1;
  TokenCount max_step_tokens{1};  // of all sequences of a step
  // Tokens to draw in a step, of all sequences: num_samples each, and of a tree num_samples for
  // every token given.
  int32_t max_samples = 1;
  int64_t vocab_size = 0;
  // Of one sequence: nodes of its tree, or slots of lookahead. The slots of both together, behind
  // the tokens before the tree, are at most as many, wherever in the context they begin.
  TokenCount max_tree_nodes{0};
  // The lookahead that a sequence which decodes should have, where its context has room for it: with
  // it a step may answer with lookahead + 1 tokens. At most max_tree_nodes.
  TokenCount lookahead{0};
  // Whether what pages hold of a token depends on the token behind it, too, as a draft layer's rows do.
  bool has_draft_rows = false;
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual const RunnerLimits& limits() const = 0;

  // Starts a step. The batch and all it borrows, but for masks, must stay as they are until Collect
  // returns. Throws
  // Error(kInvalidArgument) or Error(kCapacityExceeded), naming the sequence, if the batch breaks a
  // limit; then nothing was started or written. Of runners that take part in each other's steps, all
  // are given a batch; one that has no sequences computes nothing of its own.
  virtual void Submit(const StepBatch& batch) = 0;
  // Waits for the step that was submitted. Throws what stopped it.
  virtual const StepResult& Collect() = 0;

  const StepResult& Step(const StepBatch& batch) {
    Submit(batch);
    return Collect();
  }
};

}  // namespace quire

#endif  // QUIRE_STEP_STEP_H_
