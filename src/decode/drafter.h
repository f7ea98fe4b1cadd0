// A Drafter guesses how sequences go on. What it guesses decides how fast they do, never what they say.
#ifndef QUIRE_DECODE_DRAFTER_H_
#define QUIRE_DECODE_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "decode/tree_growth.h"
#include "step/step.h"

namespace quire {

// The guesses for one sequence of a step: a tree, whose node 0 is the sequence's last token.
struct Draft {
  size_t sequence = 0;  // of the batch
  // Room for the root and all that may be drafted, as much in both. The root is there already.
  std::span<int32_t> tokens = {};
  std::span<int32_t> parents = {};  // parents[i] < i is the node that node i follows
  size_t num_nodes = 1;             // in use, the root among them
  // Where the tree grows on a device: tokens and parents behind the root are placeholders, a chain, until
  // the step is collected. Of the drafter, until its next call.
  const GrownTree* grown = nullptr;
};

// What became of one sequence of a step.
struct StepOutcome {
  const StepSequence* sequence = nullptr;  // as it was computed: with its draft, if it had one
  size_t first_row = 0;                    // of the step's rows: that of its first token
  // Nodes of the draft that are the sequence's next tokens, the root first; without a draft none.
  std::span<const int32_t> path = {};
  int32_t next_token = kNoToken;  // behind the last of them, or of the tokens; kNoToken: not known
};

// Not for two threads at once.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Adds nodes to the drafts, as many as it likes and there is room for. `batch` is the step that they
  // are for: each of these sequences gives one token and has its prompt and output. Tokens are those of
  // the vocabulary.
  virtual void AddNodes(const StepBatch& batch, std::span<Draft> drafts) = 0;

  // After every step, before anything else is computed: what became of its sequences, but for those that
  // have a fault, or came as trees of their own.
  virtual void Take(std::span<const StepOutcome>) {}
};

}  // namespace quire

#endif  // QUIRE_DECODE_DRAFTER_H_
