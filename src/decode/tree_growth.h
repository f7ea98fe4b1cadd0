// Trees of drafted tokens that grow where they are computed, between passes of a draft layer, without the
// host: candidates of all levels, rows that draft the next one, and the best of all as nodes.
//
// The host knows beforehand how many rows each pass has of each draft, and how many nodes its tree; what
// comes of the pass before it leaves open, as placeholders: tokens, states and parents of rows. Before a
// pass, or the step that verifies the trees, the device writes them over.
//
//   kept tokens of the last row --GrowRows--> rows of a pass --TakeLevel--> candidates of a level
//   candidates of all levels --PlaceTrees--> nodes of a step, and their trees for the host
#ifndef QUIRE_DECODE_TREE_GROWTH_H_
#define QUIRE_DECODE_TREE_GROWTH_H_

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/host_device.h"
#include "device/arena.h"
#include "step/step.h"

namespace quire {

// A node of a tree, or its token, that came of logits which are not finite. No target draws it.
inline constexpr int32_t kNoGuess = kNoToken - 1;

// How much there can be at once.
struct GrowthRoom {
  int32_t growths = 0;   // drafts, and sequences that something is kept of
  int32_t branches = 0;  // candidates of a level that go on
  int32_t nodes = 0;     // of a tree, and rows of all its levels

  // Levels of `branches` rows each, whose candidates are as many for every row.
  int32_t candidates() const { return branches * nodes; }
};

// Candidates of so many levels: the first has `branches`, every later one as many for each that went on.
QUIRE_HD constexpr int32_t NumCandidates(int32_t branches, int32_t num_levels) {
  return branches + (num_levels - 1) * branches * branches;
}

// What grows, of device memory.
struct TreeGrowths {
  GrowthRoom room = {};
  std::span<TokenLogprob> kept =
      {};                          // [growths, branches] most likely behind a sequence's last row
  std::span<float> scores = {};    // [growths, candidates], as DraftCandidates has them
  std::span<int32_t> tokens = {};  // [growths, candidates]
  std::span<int32_t> continued = {};    // [growths, 1 + nodes]
  std::span<int32_t> row_parents = {};  // [growths, nodes]
};
TreeGrowths LayOutTreeGrowths(const GrowthRoom& room, Carver& carver);

// A state, and the tokens most likely behind it, that a place keeps until its next draft.
struct KeptDraft {
  int32_t from = 0;   // state
  int32_t to = 0;     // state
  int32_t top = -1;   // row of the pass whose tokens are kept; -1: a state alone
  int32_t place = 0;  // of TreeGrowths::kept
};

// The next level's rows of one draft in a pass, which wants tokens of all its rows.
struct GrowingRows {
  int32_t growth = 0;
  int32_t place = 0;        // where the first level comes from
  int32_t num_levels = 1;   // that it has
  int32_t sequence = 0;     // of the pass
  int32_t first_row = 0;    // of the pass
  int32_t first_state = 0;  // of the rows of the level before, or the one that is kept
};

// The tree of a draft in a step, as a chain of placeholders has room for it.
struct GrownTree {
  int32_t growth = 0;
  int32_t place = 0;
  int32_t branches = 1;
  int32_t num_levels = 1;
  int32_t num_nodes = 1;
  int32_t sequence = 0;    // of the step
  int32_t first_row = 0;   // of the step
  int32_t first_item = 0;  // of those to draw
  int64_t position = 0;    // of the root
};
static_assert(std::is_trivially_copyable_v<KeptDraft> &&
              std::is_trivially_copyable_v<GrowingRows> && std::is_trivially_copyable_v<GrownTree>);

// Trees as nodes, for the host: of growth g those from g * nodes on.
struct TreeNodes {
  std::span<int32_t> tokens = {};   // kNoGuess: the target was given another
  std::span<int32_t> parents = {};  // of the root kTreeRoot
};
TreeNodes LayOutTreeNodes(const GrowthRoom& room, Carver& carver);

}  // namespace quire

#endif  // QUIRE_DECODE_TREE_GROWTH_H_
