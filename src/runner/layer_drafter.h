// Drafts by the model's own draft layer: chains, and trees of several branches.
//
// After every step the layer's rows of its tokens are written: row p takes the token at p + 1 and the
// target's state of p. So a prefill is one row behind, and the state of its last token is kept until the
// next chunk says what follows; where the next token is known, drawn or given, no row is missing. The last
// row says which tokens are likely next: level 0 of a draft. Before the next step levels 1, 2, ... run
// the layer once each, for the `branches` best candidates of the level before, behind the sequence's
// tokens; a row sees these, those it descends from, and itself. What is drafted is the best of all
// candidates.
//
// Rows of another sequence's pages may have been written before another next token: such a row makes
// drafts worse, and no text another.
#ifndef QUIRE_RUNNER_LAYER_DRAFTER_H_
#define QUIRE_RUNNER_LAYER_DRAFTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/faults.h"
#include "base/units.h"
#include "decode/draft_tree.h"
#include "decode/drafter.h"
#include "decode/tree_growth.h"
#include "runner/draft_runner.h"
#include "runner/runner_options.h"
#include "runner/speculative_runner.h"
#include "step/step.h"

namespace quire {

inline constexpr int64_t kMaxDraftSteps = 8;
inline constexpr int64_t kMaxDraftBranches = 8;

// How far and how wide a draft goes.
struct TreeShape {
  int64_t steps = 3;     // levels behind the root
  int64_t branches = 1;  // candidates of each that go on, and of each candidate
  int64_t nodes = 4;     // of a draft, its root among them

  // Of all levels.
  int64_t candidates() const {
    return NumCandidates(static_cast<int32_t>(branches), static_cast<int32_t>(steps));
  }
  DraftRoom Room() const;
};

// Throws Error(kInvalidArgument) for what is out of range, a chain whose nodes are not its steps and its
// root, and more nodes than there are candidates.
void Validate(const TreeShape& shape);

// TargetOptions of a runner whose draft layer drafts so.
RunnerOptions LayerTargetOptions(const RunnerOptions& options, const TreeShape& shape);

class LayerDrafter final : public Drafter {
 public:
  // `runner` is that of a target made with LayerTargetOptions of the shape, `limits` are the target's;
  // it outlives this. Takes no memory later.
  LayerDrafter(DraftRunner& runner, const RunnerLimits& limits, const TreeShape& shape,
               Faults faults = {});

  // From the next AddNodes on, where no number is greater than that of the shape it was made with.
  void UseShape(const TreeShape& shape);

  // Sequences whose id is 0 get no drafts.
  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override;
  void Take(std::span<const StepOutcome> outcomes) override;

 private:
  // What is known of one sequence between steps. Its kept state is that of the row before `position`.
  enum class Kept {
    kNothing,
    kTargetState,  // of the last token, whose row is yet to be written
    kDraftState,   // of the last row, with what it says of the token at position + 1
  };
  struct Place {
    uint64_t id = 0;  // 0: nobody's
    int64_t used_in = 0;
    Kept kept = Kept::kNothing;
    TokenCount position{0};
    int32_t token = kNoToken;  // at `position`; with kDraftState
    std::array<TokenLogprob, kMaxDraftBranches> best = {};
  };
  // A draft that grows, level by level.
  struct Growth {
    Draft* draft = nullptr;
    size_t levels = 1;                    // that it may have
    size_t num_levels = 1;                // that it has
    bool in_pass = false;                 // whether the pass at hand adds one
    int32_t first_state = 0;              // of its rows in the last pass
    std::span<float> scores = {};         // [candidates]
    std::span<int32_t> tokens = {};       // [candidates]
    std::span<int32_t> continued = {};    // [1 + branches * (steps - 1)]: DraftCandidates'
    std::span<int32_t> row_tokens = {};   // [branches * (steps - 1)]
    std::span<int32_t> row_parents = {};  // as many: the tree of the rows
    GrownTree grown = {};                 // where the tree grows on a device
  };

  size_t num_branches() const { return static_cast<size_t>(shape_.branches); }
  Place* Find(uint64_t id);
  Place& FindOrTake(uint64_t id);
  int32_t KeptState(const Place& place) const;

  // ---- After a step ----
  void Extend(const StepOutcome& outcome);
  void AddSequence(const StepSequence& seq, TokenCount first, std::span<const int32_t> tokens,
                   bool is_wanted);
  void RunExtension();
  void ExtendOnDevice();
  void ClearExtension();

  // ---- Before a step ----
  bool Begin(const StepBatch& batch, Draft& draft, Growth& growth);
  size_t NumCandidates(size_t num_levels) const;
  static bool AddCandidates(std::span<const TokenLogprob> best, float score, size_t first,
                            const Growth& growth);
  void AddLevel(const StepBatch& batch);
  void AddRows(const StepSequence& seq, Growth& growth);
  void AddPlaceholders(Growth& growth);
  void ContinueBest(Growth& growth);
  void TakeLevel(std::span<const TokenLogprob> top, Growth& growth) const;
  void Select(const Growth& growth);
  void LeaveOpen(Growth& growth);

  DraftRunner& runner_;
  const RunnerLimits limits_;
  const TreeShape room_;
  TreeShape shape_;  // in use
  [[no_unique_address]] const Faults faults_;
  TreeGrower* const grower_;  // null: trees grow here
  const int32_t first_kept_;  // states: one for each place
  const int32_t first_row_;   // and those of the last pass
  std::vector<Place> places_;
  int64_t num_uses_ = 0;

  // The pass at hand.
  std::vector<StepSequence> sequences_;
  std::vector<int32_t> tokens_, state_of_, wanted_;
  // Of an extension whose other rows are given before: the last one of each sequence.
  std::vector<StepSequence> last_rows_;
  std::vector<int32_t> last_states_;
  struct Waiting {
    size_t place = 0;
    int32_t wanted = -1;  // whose state and tokens the place is to keep; -1: a state of the step
    int32_t state = 0;
  };
  std::vector<Waiting> waiting_;  // for it

  std::vector<KeptDraft> kept_;       // where trees grow on a device, as are
  std::vector<GrowingRows> growing_;  // of the pass at hand

  std::vector<Growth> growths_;
  std::vector<float> scores_;
  std::vector<int32_t> candidate_tokens_, continued_, row_tokens_, row_parents_, order_;
  DraftTree tree_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_LAYER_DRAFTER_H_
