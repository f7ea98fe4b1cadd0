// Which drafts pay: of several shapes, or none, that which gives most tokens a second.
//
// What a step costs is measured once (runner/shape_costs.h), for some numbers of sequences. How many tokens
// drafts of a shape give follows from how often a guess of each depth was right, of late. Chains share what
// is known, since a longer one begins as a shorter one does; every tree has its own. Prompts take longer too,
// where the layer is to draft behind them, by as much for each token that is drawn as there are of theirs. Of
// what is not known the best is assumed that is likely, so what may pay is tried, and what does not is given up
// after a few drafts. Where nothing is drafted, what was known is slowly forgotten, and tried again.
#ifndef QUIRE_RUNNER_SHAPE_CHOOSER_H_
#define QUIRE_RUNNER_SHAPE_CHOOSER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runner/layer_drafter.h"

namespace quire {

// Seconds of a step in which all of `num_seqs` sequences have drafts of each shape; the first is a plain
// step. Infinite where a shape was not measured.
struct ShapeCost {
  int64_t num_seqs = 1;
  std::vector<double> seconds = {};  // [1 + shapes]
};

struct ShapeCosts {
  std::vector<ShapeCost> steps = {};  // ascending in num_seqs
  // What a token of a prompt takes longer where the layer is to draft behind it; 0 if there was no time to
  // measure it.
  double prompt_token_seconds = 0;
};

// Shapes worth a try, from the smallest on, of so many branches and nodes at most.
std::vector<TreeShape> CandidateShapes(int64_t most_branches, int64_t most_nodes);

class ShapeChooser {
 public:
  // Costs are of one number of sequences or more. Takes no memory later.
  ShapeChooser(std::vector<TreeShape> shapes, ShapeCosts costs);

  // For a step of so many sequences: 0 for none, or the number of a shape, from 1 on.
  size_t Choose(int64_t num_seqs) const;

  // A draft of a shape was `depth` deep, and its first `accepted` levels were right.
  void NoteDraft(size_t number, int64_t depth, int64_t accepted);
  // So many sequences had no draft because none was chosen.
  void NotePlain(int64_t num_seqs);

  // So many tokens of prompts were computed, and so many drawn: what prompts cost is shared by these.
  void NoteTokens(int64_t of_prompts, int64_t drawn);

  // Tokens that a step gives a sequence with drafts of this shape, as far as is known.
  double MeanTokens(size_t number) const;
  // Seconds of a step, between numbers of sequences that were measured in proportion.
  double Cost(int64_t num_seqs, size_t number) const;

 private:
  // By depth: drafts that were right before it, and those that were right there too.
  struct Depths {
    std::array<double, kMaxDraftSteps> reached = {};
    std::array<double, kMaxDraftSteps> right = {};

    void Scale(double factor);
  };

  static bool IsChain(const TreeShape& shape) { return shape.branches == 1; }
  const TreeShape& shape(size_t number) const { return shapes_[number - 1]; }
  Depths& DepthsOf(size_t number);

  const std::vector<TreeShape> shapes_;
  const ShapeCosts costs_;
  Depths chains_;
  std::vector<Depths> trees_;  // of each shape; those of chains are not used
  int64_t num_plain_ = 0;      // since something was forgotten
  double prompt_tokens_, drawn_tokens_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_SHAPE_CHOOSER_H_
